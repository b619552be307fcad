"""Atomic files: complete or absent, whatever happens in between."""

import hashlib
import json
import os
import stat
import threading
import time

import pytest

from kalmanclip.errors import AdapterError, DataError, KalmanClipError
from kalmanclip.files import (
    atomic_path,
    read_json,
    read_options,
    remove_abandoned,
    sha256_of,
    write_atomic,
    write_json_atomic,
)

as_root = hasattr(os, "geteuid") and os.geteuid() == 0


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(("data", "stored"), [(b"\x00\xff", b"\x00\xff"), ("é\n", "é\n".encode())])
def test_write_makes_and_replaces_and_leaves_nothing_else(tmp_path, data, stored):
    path = tmp_path / "file.bin"
    write_atomic(path, b"older and longer content")
    write_atomic(path, data)
    assert path.read_bytes() == stored
    assert names_in(tmp_path) == ["file.bin"]


@pytest.mark.parametrize("interruption", [RuntimeError, KeyboardInterrupt])
def test_interrupted_write_keeps_the_old_file_and_removes_the_temporary_one(tmp_path, interruption):
    path = tmp_path / "weights.safetensors"
    write_atomic(path, b"old")

    def half_a_write():
        with atomic_path(path) as temporary:
            temporary.write_bytes(b"ne")
            assert len(names_in(tmp_path)) == 2  # the test would prove nothing if this were written elsewhere
            raise interruption

    with pytest.raises(interruption):
        half_a_write()
    assert path.read_bytes() == b"old"
    assert names_in(tmp_path) == ["weights.safetensors"]


def test_the_file_appears_only_when_complete(tmp_path):
    path = tmp_path / "picture.png"
    with atomic_path(path) as temporary:
        assert temporary.suffix == ".png"
        assert temporary.parent == path.parent
        assert temporary.name.startswith(".")
        temporary.write_bytes(b"done")
        assert not path.exists()
    assert path.read_bytes() == b"done"


def test_data_reach_the_disk_before_the_name_does(tmp_path, monkeypatch):
    path, synced = tmp_path / "file", []
    real = os.fsync

    def fsync(descriptor):
        synced.append((path.exists(), stat.S_ISDIR(os.fstat(descriptor).st_mode)))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    write_atomic(path, b"x")
    assert synced[0] == (False, False)
    assert (True, True) in synced


def test_full_disk_is_reported_with_the_path_and_cleaned_up(tmp_path, monkeypatch):
    path = tmp_path / "adapter.json"
    write_atomic(path, "old")

    def fsync(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(AdapterError, match=r"adapter\.json.*No space left.*free some space"):
        write_atomic(path, "new", AdapterError)
    assert path.read_text() == "old"
    assert names_in(tmp_path) == ["adapter.json"]


def test_trouble_with_another_file_is_not_blamed_on_this_one(tmp_path):
    with pytest.raises(FileNotFoundError), atomic_path(tmp_path / "file") as temporary:
        temporary.write_bytes((tmp_path / "input that is missing").read_bytes())


def test_missing_folder_folder_in_the_way_and_file_as_folder(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(KalmanClipError, match=r"nowhere.*folder exists"):
        write_atomic(tmp_path / "nowhere" / "file", "x")
    with pytest.raises(KalmanClipError, match="this is a folder"):
        write_atomic(tmp_path / "folder", "x")
    with pytest.raises(KalmanClipError, match="is a file, not a folder"):
        write_atomic(tmp_path / "file" / "inner", "x")
    assert names_in(tmp_path) == ["file", "folder"]


@pytest.mark.skipif(as_root, reason="root may write everywhere")
def test_no_permission(tmp_path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(DataError, match=r"file.*permissions"):
            write_atomic(tmp_path / "file", "x", DataError)
    finally:
        tmp_path.chmod(0o700)


def test_mode_is_kept_and_links_are_written_through(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    write_atomic(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_a_new_file_has_the_usual_mode_whatever_its_writer_chose(tmp_path):
    (tmp_path / "usual").touch()
    with atomic_path(tmp_path / "new") as temporary:
        temporary.write_text("x")
        temporary.chmod(0o600)  # as safetensors does
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_long_names_work(tmp_path):
    path = tmp_path / ("n" * 250 + ".txt")
    write_atomic(path, "x")
    assert path.read_text() == "x"


def test_concurrent_writers_and_readers_see_whole_files_only(tmp_path):
    path = tmp_path / "shared"
    contents = {bytes([65 + i]) * 100_000 for i in range(4)}
    write_atomic(path, min(contents))
    seen, failures, done = set(), [], threading.Event()

    def write(content):
        try:
            for _ in range(10):
                write_atomic(path, content)
        except Exception as error:
            failures.append(error)

    def read():
        while not done.is_set():
            seen.add(path.read_bytes())

    reader = threading.Thread(target=read)
    writers = [threading.Thread(target=write, args=(content,)) for content in contents]
    reader.start()
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    done.set()
    reader.join()
    assert not failures
    assert seen <= contents
    assert path.read_bytes() in contents
    assert names_in(tmp_path) == ["shared"]


def test_what_killed_writers_left_is_removed_and_nothing_else(tmp_path):
    now = time.time()
    old, young = now - 100_000, now - 1000
    for name, written in (("x", old), (".hidden", old), (".tmp-0a.json", old), (".tmp-0b", young), (".tmp-0c", now)):
        (tmp_path / name).write_text("{")
        os.utime(tmp_path / name, (written, written))
    remove_abandoned(tmp_path)
    assert names_in(tmp_path) == [".hidden", ".tmp-0b", ".tmp-0c", "x"]
    remove_abandoned(tmp_path / "nowhere")


def test_json_round_trip_is_readable_text(tmp_path):
    path, value = tmp_path / "x.json", {"name": "naïve", "list": [1, 2.5, None], "flag": True}
    write_json_atomic(path, value)
    assert read_json(path) == value
    assert "naïve" in path.read_text(encoding="utf-8")
    assert path.read_text(encoding="utf-8").endswith("}\n")


@pytest.mark.parametrize("value", [{"a": float("nan")}, {"a": object()}, [float("inf")]])
def test_what_is_not_json_is_refused_before_the_old_file_is_touched(tmp_path, value):
    path = tmp_path / "x.json"
    write_json_atomic(path, "old")
    with pytest.raises(AdapterError, match=r"x\.json"):
        write_json_atomic(path, value, AdapterError)
    assert read_json(path) == "old"


@pytest.mark.parametrize("content", [b"", b'{"a": ', b"\xff\xfe\x00", b"[" * 100_000])
def test_damaged_json(tmp_path, content):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(AdapterError, match=r"x\.json: it is not valid JSON"):
        read_json(path, AdapterError)


def test_missing_json_and_folder(tmp_path):
    with pytest.raises(DataError, match=r"gone\.json"):
        read_json(tmp_path / "gone.json", DataError)
    with pytest.raises(DataError, match="this is a folder"):
        read_json(tmp_path, DataError)


def test_json_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "x.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps([1]).encode())
    assert read_json(path) == [1]


def test_sha256(tmp_path):
    path, content = tmp_path / "x", os.urandom(3_000_000)  # more than one piece
    path.write_bytes(content)
    assert sha256_of(path) == hashlib.sha256(content).hexdigest()
    with pytest.raises(AdapterError, match="gone"):
        sha256_of(tmp_path / "gone", AdapterError)


def test_options_are_json_or_yaml(tmp_path):
    for name, text in {
        "a.json": '{"noise": {"beta": 0.9}, "epochs": 2}',
        "a.yaml": "noise:\n  beta: 0.9\nepochs: 2  # passes",
        "a.YML": "{noise: {beta: 0.9}, epochs: 2}",
    }.items():
        (tmp_path / name).write_text(text)
        assert read_options(tmp_path / name) == {"noise": {"beta": 0.9}, "epochs": 2}
    (tmp_path / "empty.yaml").write_text("# nothing yet")
    assert read_options(tmp_path / "empty.yaml") == {}


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.toml", "", "ending in .json, .yaml or .yml"),
        ("a.yaml", "- 1", "by name"),
        ("a.json", "3", "by name"),
        ("a.yaml", "a: [", "not valid YAML"),
        ("a.yaml", "a: .nan", "not valid YAML"),
        ("a.yaml", "a: 2026-01-01", "not valid YAML"),
        ("a.yaml", "a: !!python/object/apply:os.getcwd []", "not valid YAML"),
        ("a.yaml", None, "a.yaml"),
    ],
)
def test_other_options_files_are_refused(tmp_path, name, text, says):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(KalmanClipError, match=says):
        read_options(tmp_path / name)
