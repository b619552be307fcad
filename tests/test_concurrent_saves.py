"""Several processes and one adapter: every save is whole, and readers never notice one."""

import json
import subprocess
import sys
import threading

import pytest
import torch
from tests.processes import PATIENCE

from kalmanclip import KalmanCLIP
from kalmanclip.adapter import read_adapter
from kalmanclip.errors import AdapterError
from kalmanclip.files import lock_folder, update_folder

ROUNDS = 60

WRITER = """
import sys
from kalmanclip import KalmanCLIP
from kalmanclip.encoders import load_backbone
own, shared, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
clf = KalmanCLIP.load(own, load_backbone("tiny"))
print("ready", flush=True)
sys.stdin.readline()
for _ in range(rounds):
    clf.save(shared)
"""


@pytest.fixture(scope="module")
def different(tiny, shapes, tmp_path_factory):
    """Two adapters that differ in their tensors and in nothing else but a note."""
    place = tmp_path_factory.mktemp("different")
    found = {}
    for name, prior_std in (("a", 0.1), ("b", 0.2)):
        clf = KalmanCLIP(tiny, prior_std=prior_std, options={"crops": 0}).fit(shapes)
        clf.save(place / name, {"who": name})
        found[name] = (place / name, clf.class_weights())
    return found


def test_two_writers_and_a_reader(different, tiny, tmp_path):
    shared = tmp_path / "shared"
    KalmanCLIP.load(different["a"][0], tiny).save(shared)
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(folder), str(shared), str(ROUNDS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for folder, _ in different.values()
    ]
    try:
        assert [writer.stdout.readline() for writer in writers] == ["ready\n"] * 2
        for writer in writers:  # both at once
            writer.stdin.write("\n")
            writer.stdin.flush()
        seen = set()
        while any(writer.poll() is None for writer in writers):
            clf = KalmanCLIP.load(shared, tiny)  # never damaged
            who = clf.notes_["who"]
            assert torch.equal(clf.class_weights(), different[who][1]), "a mixture of two adapters"
            seen.add(who)
        for writer in writers:
            _, errors = writer.communicate(timeout=PATIENCE)
            assert writer.returncode == 0, errors
        assert seen == {"a", "b"}  # or they did not meet
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()
    assert len(list(shared.glob("belief*"))) == 1
    assert not list(shared.glob(".tmp-*"))


def test_a_reader_whose_tensors_went_reads_again(different, tiny, tmp_path, monkeypatch):
    """The save comes between the description and the tensors."""
    shared, other = tmp_path / "shared", KalmanCLIP.load(different["b"][0], tiny)
    KalmanCLIP.load(different["a"][0], tiny).save(shared)
    from kalmanclip import adapter

    real, saves = adapter.sha256_of, [other.save]

    def interrupted(path, error_class):
        if saves and path.parent == shared:
            saves.pop()(shared)
        return real(path, error_class)

    monkeypatch.setattr(adapter, "sha256_of", interrupted)
    assert read_adapter(shared).description["notes"]["who"] == "b"
    assert saves == []


def test_one_writer_waits_for_another(tmp_path):
    entered, order = threading.Event(), []

    def second():
        entered.wait()
        with update_folder(tmp_path) as draft:
            order.append("second")
            (draft / "file").write_text("second")

    thread = threading.Thread(target=second)
    thread.start()
    with update_folder(tmp_path) as draft:
        entered.set()
        thread.join(0.3)
        (draft / "file").write_text("first")
        assert list(tmp_path.glob("file")) == []
        order.append("first")
    thread.join(PATIENCE)
    assert order == ["first", "second"]
    assert (tmp_path / "file").read_text() == "second"


def test_the_index_comes_last_and_what_it_does_not_name_goes(tmp_path, monkeypatch):
    (tmp_path / "data-old").write_text("old")
    (tmp_path / "index").write_text("data-old")
    renamed, real = [], type(tmp_path).replace

    def replace(self, target):
        renamed.append(target.name)
        return real(self, target)

    monkeypatch.setattr(type(tmp_path), "replace", replace)
    with update_folder(tmp_path, last="index", obsolete="data-*") as draft:
        (draft / "index").write_text("data-new")
        (draft / "data-new").write_text("new")
        assert (tmp_path / "index").read_text() == "data-old"
    assert renamed == ["data-new", "index"]
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith(".")) == ["data-new", "index"]


def test_a_failed_update_changes_nothing_and_leaves_nothing(tmp_path):
    (tmp_path / "file").write_text("old")

    def half_an_update():
        with update_folder(tmp_path) as draft:
            (draft / "file").write_text("new")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        half_an_update()
    assert (tmp_path / "file").read_text() == "old"
    assert not list(tmp_path.glob(".tmp-*"))


def test_locks_are_nested_within_a_thread_and_their_lack_is_no_reason_to_lose_work(tmp_path, monkeypatch):
    with lock_folder(tmp_path), lock_folder(tmp_path):
        pass

    def unsupported(self):
        raise NotImplementedError

    monkeypatch.setattr("kalmanclip.files.FileLock.acquire", unsupported)
    with update_folder(tmp_path) as draft:
        (draft / "file").write_text("kept")
    assert (tmp_path / "file").read_text() == "kept"


def test_a_writer_that_never_ends_is_an_error_in_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr("kalmanclip.files._PATIENCE", 0.2)
    held, done, said = threading.Event(), threading.Event(), []

    def hold():
        with lock_folder(tmp_path):
            held.set()
            done.wait(PATIENCE)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(PATIENCE)
    try:
        with pytest.raises(AdapterError, match="another process"), lock_folder(tmp_path, AdapterError):
            said.append("locked")
    finally:
        done.set()
        thread.join()
    assert said == []


def test_notes_that_could_not_be_read_again_are_refused_when_saving(different, tiny, tmp_path):
    clf = KalmanCLIP.load(different["a"][0], tiny)
    with pytest.raises(AdapterError, match=r"notes\.epochs must be a whole number"):
        clf.save(tmp_path / "x", {"epochs": "many"})
    assert json.loads((different["a"][0] / "adapter.json").read_text())["notes"]["who"] == "a"
