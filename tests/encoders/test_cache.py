"""The cache on its own: batches come back, writers do not disturb each other, and trouble is said once and no more."""

import multiprocessing
import os
import time
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.processes import PATIENCE

from kalmanclip.encoders import FeatureCache, cache_folder
from kalmanclip.encoders.cache import through_cache

CPU = torch.device("cpu")
NAMES = "abcdefgh"


def rows_of(names):
    """What a model might make of images called a, b, c, ...; like one, it also depends on the batch a little."""
    codes = torch.tensor([float(ord(name)) for name in names])
    return codes + codes.sum() / 1024, torch.stack([codes, -codes], dim=1)


def encoder(names, batch_size, calls):
    def encode(positions):
        for start in range(0, len(positions), batch_size):
            part = [names[i] for i in positions[start : start + batch_size]]
            calls.extend(part)
            yield rows_of(part)

    return encode


def ask(folder, names, batch_size=2, product="words", **options):
    """All batches, the images that had to be encoded, and the cache."""
    cache, calls = FeatureCache(folder, **options), []
    keys = [None if name == "?" else name for name in names]
    batches = list(through_cache(cache, product, keys, encoder(names, batch_size, calls), CPU, batch_size))
    return batches, "".join(calls), cache


def assert_right(batches, names, batch_size=2):
    parts = [names[i : i + batch_size] for i in range(0, len(names), batch_size)]
    assert len(batches) == len(parts)
    for batch, part in zip(batches, parts, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(batch, rows_of(part), strict=True))


def shards(folder):
    return sorted(Path(folder).glob("*/*.safetensors"))


def test_the_second_time_nothing_is_encoded(tmp_path):
    first, encoded, cache = ask(tmp_path, "abcde")
    assert (encoded, cache.served, cache.added) == ("abcde", 0, 5)
    again, encoded, cache = ask(tmp_path, "abcde")
    assert (encoded, cache.served, cache.added) == ("", 5, 0)
    for batches in (first, again):
        assert_right(batches, "abcde")


def test_no_images_no_batches(tmp_path):
    assert ask(tmp_path / "new", "")[0] == []
    assert not (tmp_path / "new").exists()


def test_only_batches_that_are_new_are_encoded(tmp_path):
    ask(tmp_path, "abcd")
    batches, encoded, _ = ask(tmp_path, "abefcdg")
    assert encoded == "efg"
    assert_right(batches, "abefcdg")


def test_another_order_is_another_batch(tmp_path):
    ask(tmp_path, "ab")
    assert ask(tmp_path, "ba")[1] == "ba"


def test_products_do_not_mix(tmp_path):
    ask(tmp_path, "ab", product="of these weights")
    assert ask(tmp_path, "ab", product="of other weights")[1] == "ab"


def test_images_that_cannot_be_told_are_never_kept(tmp_path):
    for _ in range(2):
        batches, encoded, _ = ask(tmp_path, "ab?cde")
        assert_right(batches, "ab?cde")
    assert encoded == "?c"


@settings(max_examples=60)
@given(
    asked=st.lists(st.tuples(st.text(NAMES + "?", max_size=7), st.integers(1, 3), st.data()), min_size=1, max_size=5)
)
def test_whatever_is_asked_and_whatever_is_lost_the_answer_is_that_without_a_cache(tmp_path_factory, asked):
    folder = tmp_path_factory.mktemp("cache")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for names, batch_size, data in asked:
            assert_right(ask(folder, names, batch_size)[0], names, batch_size)
            if files := shards(folder):
                victim = data.draw(st.sampled_from(files))
                data.draw(st.sampled_from((lambda: None, victim.unlink, lambda v=victim: os.truncate(v, 20))))()


@pytest.mark.parametrize("damage", ["truncated", "empty", "flipped", "a folder"])
def test_a_damaged_file_is_said_once_and_replaced(tmp_path, damage):
    ask(tmp_path, "abcdef")
    for path in shards(tmp_path)[:2]:
        data = path.read_bytes()
        if damage == "a folder":
            path.unlink()
            path.mkdir()
        else:
            broken = {"truncated": data[:-5], "empty": b"", "flipped": data[:-1] + bytes([data[-1] ^ 1])}[damage]
            path.write_bytes(broken)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        batches, encoded, _ = ask(tmp_path, "abcdef")
    assert_right(batches, "abcdef")
    assert len(encoded) == 4
    assert len(said) == 1
    if damage != "a folder":
        assert "cannot be used" in str(said[0].message)
        assert ask(tmp_path, "abcdef")[1] == ""


def test_a_file_that_goes_while_it_is_needed(tmp_path):
    ask(tmp_path, "abcd")
    cache, calls = FeatureCache(tmp_path), []
    batches = through_cache(cache, "words", "abcd", encoder("abcd", 2, calls), CPU, 2)
    first = next(batches)
    for path in shards(tmp_path):
        path.unlink()
    assert_right([first, *batches], "abcd")
    assert calls == ["c", "d"]


def test_what_was_encoded_before_an_error_is_kept(tmp_path):
    def encode(positions):
        yield rows_of("ab")
        raise ValueError("bad image")

    with pytest.raises(ValueError, match="bad image"):
        list(through_cache(FeatureCache(tmp_path), "words", "abcd", encode, CPU, 2))
    assert ask(tmp_path, "abcd")[1] == "cd"


def _write_many(folder, barrier, names):
    barrier.wait(PATIENCE)
    for size in (1, 2, 3):
        assert_right(ask(folder, names, size)[0], names, size)


def test_two_processes_at_once(tmp_path):
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(2)
    names = NAMES * 3
    workers = [context.Process(target=_write_many, args=(tmp_path, barrier, names)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(PATIENCE)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert not list(tmp_path.glob("*/.tmp-*"))
    for size in (1, 2, 3):
        batches, encoded, _ = ask(tmp_path, names, size)
        assert encoded == ""
        assert_right(batches, names, size)


@pytest.fixture
def refusing(tmp_path, monkeypatch):
    """Makes the folder refuse, also root, whom modes do not stop; what was tried is in the list."""
    tried = []

    def refuse(path, *args, **options):
        tried.append(path)
        raise PermissionError(13, "Permission denied", str(tmp_path))

    def start():
        monkeypatch.setattr("kalmanclip.encoders.cache.write_atomic", refuse)
        return tried

    return start


def test_a_read_only_folder_still_serves_and_complains_once(tmp_path, refusing):
    ask(tmp_path, "ab")
    tried = refusing()
    with pytest.warns(RuntimeWarning, match="Nothing more is kept") as said:
        batches, encoded, cache = ask(tmp_path, "abcdef")
    assert_right(batches, "abcdef")
    assert (encoded, cache.served, cache.added, len(said)) == ("cdef", 2, 0, 1)
    assert len(tried) == 1  # and not for every batch


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_a_folder_without_permission(tmp_path):
    tmp_path.chmod(0o500)
    try:
        assert "cannot be written to" in FeatureCache(tmp_path / "new").trouble()
        with pytest.warns(RuntimeWarning, match="Nothing more is kept"):
            batches, _, _ = ask(tmp_path / "new", "abcd")
        assert_right(batches, "abcd")
    finally:
        tmp_path.chmod(0o700)


def test_a_file_in_the_place_of_the_folder(tmp_path):
    (tmp_path / "taken").touch()
    assert "cannot be written to" in FeatureCache(tmp_path / "taken").trouble()
    with pytest.warns(RuntimeWarning, match="Nothing more is kept"):
        batches, _, _ = ask(tmp_path / "taken", "abcd")
    assert_right(batches, "abcd")


def test_a_good_folder_gives_no_trouble(tmp_path):
    assert FeatureCache(tmp_path / "new").trouble() is None


def test_the_limit_counts_what_earlier_processes_wrote(tmp_path):
    ask(tmp_path, "abcd")
    size = sum(path.stat().st_size for path in shards(tmp_path))
    with pytest.warns(RuntimeWarning, match=r"limit.*delete") as said:
        batches, encoded, _ = ask(tmp_path, "abcdefgh", limit_bytes=size + 30)
    assert_right(batches, "abcdefgh")
    assert encoded == "efgh"
    assert len(said) == 1
    assert "limit" in FeatureCache(tmp_path, limit_bytes=size).trouble()
    # two images take 24 bytes besides the header: one more batch was let in
    assert len(shards(tmp_path)) == 3


def test_what_a_killed_writer_left_is_removed_after_a_day(tmp_path):
    ask(tmp_path, "ab")
    folder = shards(tmp_path)[0].parent
    old, new = folder / ".tmp-old.safetensors", folder / ".tmp-new.safetensors"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 90_000,) * 2)
    ask(tmp_path, "cd")
    assert not old.exists()
    assert new.exists()


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.delenv("KALMANCLIP_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "kalmanclip" / "features"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == tmp_path / ".cache" / "kalmanclip" / "features"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "kalmanclip" / "features"
    monkeypatch.setenv("KALMANCLIP_CACHE", "~/mine")
    assert cache_folder() == tmp_path / "mine"
    assert cache_folder("here") == Path("here")
    for nothing in ("off", "OFF", " ", ""):
        assert cache_folder(nothing) is None
        monkeypatch.setenv("KALMANCLIP_CACHE", nothing)
        assert cache_folder() is None
