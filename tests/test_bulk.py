"""Predictions for very many pictures: parts that are whole or not there, damaged pictures, and a cluster that dies."""

import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from PIL import Image
from tests.cli.invoke import call

from kalmanclip import KalmanCLIP, bulk
from kalmanclip.bulk import Parts, Task, predict_on_ray, predict_rows
from kalmanclip.errors import ConfigError
from kalmanclip.experiments.ray_workers import RayPool

needs_ray = pytest.mark.skipif(
    find_spec("ray") is None or find_spec("pyarrow") is None, reason="the extra [ray] is not installed"
)


@pytest.fixture
def one_thread():
    """As the workers have it: sums of more are rounded otherwise."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    for number in range(7):
        Image.new("RGB", (40, 40), (30 * number, 90, 250 - 30 * number)).save(folder / f"{number}.png")
    (folder / "3.png").write_bytes(b"\x89PNG no more")
    return folder


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fitted") / "adapter"
    images = [Image.new("RGB", (40, 40), colour) for colour in ("red", "darkred", "blue", "navy")]
    KalmanCLIP("tiny", options={"crops": 0, "prior_std": 0.1}).fit(images, ["red", "red", "blue", "blue"]).save(folder)
    return folder


def parts_of(folder, count, size=3, **description):
    return Parts(folder, lambda: [Path(f"/pictures/{i}.png") for i in range(count)], description, size)


def test_what_is_done_is_not_done_again(tmp_path):
    parts = parts_of(tmp_path, 7)
    assert parts.missing() == [0, 1, 2]
    parts.write(1, "{}\n")
    again = Parts(tmp_path, lambda: pytest.fail("the list is there"), {}, 3)
    assert (again.missing(), len(again), again.count) == ([0, 2], 3, 7)
    assert list(again.images([0, 2])) == [[f"/pictures/{i}.png" for i in range(3)], ["/pictures/6.png"]]
    assert [again.images_of(number) for number in range(3)] == [3, 3, 1]


def test_a_list_that_was_cut_off_is_made_again(tmp_path):
    (tmp_path / "images.jsonl").write_text('"/pictures/0.p')  # without a manifest
    assert parts_of(tmp_path, 4).count == 4
    assert len((tmp_path / "images.jsonl").read_text().splitlines()) == 4


def test_the_folder_of_another_job_is_left_alone(tmp_path):
    parts_of(tmp_path, 7, adapter="one")
    with pytest.raises(ConfigError, match="another job: adapter differ"):
        parts_of(tmp_path, 7, adapter="other")
    with pytest.raises(ConfigError, match="another job: size differ"):
        parts_of(tmp_path, 7, size=4, adapter="one")


def test_a_damaged_picture_is_a_row_and_the_others_are_as_without_it(pictures, adapter):
    classifier, task = KalmanCLIP.load(adapter), Task(str(adapter), options={"how": "mean"})
    names = [str(pictures / f"{i}.png") for i in range(7)]
    rows = predict_rows(classifier, names, task)
    assert [row["image"] for row in rows] == names
    assert [i for i, row in enumerate(rows) if "error" in row] == [3]
    assert "3.png" in rows[3]["error"]
    assert rows[:3] + rows[4:] == predict_rows(classifier, names[:3] + names[4:], task)
    assert predict_rows(classifier, names[3:4], task) == rows[3:4]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--ray", "local"], "takes a folder"),
        (["-o", "x"], "for --ray alone"),
        (["--ray", "local", "-o", "x", "--csv"], "leave out"),
    ],
)
def test_options_that_do_not_go_together(words, says):
    done = call("predict", "x.adapter", "x.png", *words, code=ConfigError.exit_code)
    assert says in " ".join(done.stderr.split())


@needs_ray
@pytest.mark.slow
def test_a_killed_driver_and_killed_workers_lose_no_picture(pictures, adapter, tmp_path, one_thread):
    words = ["predict", str(adapter), str(pictures), "--ray", "local", "-o", str(tmp_path / "out"), "--part-size", "1"]
    command = [sys.executable, "-m", "kalmanclip", *words, "--workers", "1"]
    driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        while driver.poll() is None and not list((tmp_path / "out").glob("part-*")):
            time.sleep(0.02)
    finally:
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("part-*")}
    assert kept
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    lines = [json.loads(path.read_text()) for path in sorted((tmp_path / "out").glob("part-*"))]
    names = [str(pictures / f"{i}.png") for i in range(7)]
    classifier, task = KalmanCLIP.load(adapter), Task(str(adapter), options={"how": "mean", "false_alarms": 0.05})
    assert lines == [row for name in names for row in predict_rows(classifier, [name], task)]  # in parts of one, too


class Meeting:
    """In place of a predictor: each of two waits in its first part until the other is in one."""

    def __init__(self, task, threads, gpus):
        self.place = Path(task.adapter)

    def __call__(self, row):
        (self.place / f"{os.getpid()}.here").touch()
        deadline = time.monotonic() + 30
        while len(met := list(self.place.glob("*.here"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        return {"part": row["part"], "rows": json.dumps({"met": len(met)}) + "\n", "failure": ""}


@needs_ray
@pytest.mark.slow
def test_workers_work_at_the_same_time(tmp_path, monkeypatch):
    monkeypatch.setattr(bulk, "Predictor", Meeting)
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    parts = Parts(tmp_path / "out", lambda: [Path(f"{i}.jpg") for i in range(6)], {}, 1)
    with RayPool("local", 1) as pool:
        if pool.size() < 2:
            pytest.skip("the cluster has room for one worker")
        predict_on_ray(parts, Task(str(meeting)), "local", workers=2)
    assert [json.loads(parts.path(i).read_text())["met"] for i in range(6)] == [2] * 6


@needs_ray
@pytest.mark.slow
def test_a_worker_that_dies_is_replaced(pictures, adapter, tmp_path):
    task = Task(str(adapter), options={"how": "mean"})
    parts = Parts(tmp_path, lambda: sorted(pictures.iterdir()), task.describe(), 1)
    killed = []

    def kill_a_worker(stage, done, total):
        if not killed:
            for place in Path("/proc").glob("[0-9]*"):
                try:
                    named = (place / "cmdline").read_text().startswith("ray::MapWorker(Map(Predictor))")
                except OSError:
                    continue
                if named:
                    killed.append(int(place.name))
                    os.kill(int(place.name), signal.SIGKILL)

    assert predict_on_ray(parts, task, "local", workers=1, progress=kill_a_worker) == 1
    assert killed
    assert parts.missing() == []


@needs_ray
@pytest.mark.slow
def test_a_picture_that_kills_its_worker_becomes_a_row(pictures, adapter, tmp_path, monkeypatch):
    """As do the damaged ones; those of the same part, and of parts after it, are predicted."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(6):
        (folder / f"{number}.png").write_bytes((pictures / f"{number}.png").read_bytes())
    (folder / "1-deadly.png").write_bytes((pictures / "1.png").read_bytes())
    (tmp_path / "sitecustomize.py").write_text(
        "import os, pathlib\n"
        "opened = pathlib.Path.open\n"
        "def open_or_end(path, *options, **named):\n"
        "    return os._exit(1) if 'deadly' in path.name else opened(path, *options, **named)\n"
        "pathlib.Path.open = open_or_end\n"
    )
    names = [str(path) for path in sorted(folder.iterdir())]
    task = Task(str(adapter), options={"how": "mean"})
    classifier = KalmanCLIP.load(adapter)
    expected = predict_rows(classifier, [name for name in names if "deadly" not in name], task)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]))
    parts = Parts(tmp_path / "out", lambda: map(Path, names), task.describe(), 4)
    assert predict_on_ray(parts, task, "local", workers=1) == 2
    assert parts.missing() == []
    rows = [json.loads(line) for number in range(len(parts)) for line in parts.path(number).read_text().splitlines()]
    assert [row["image"] for row in rows] == names
    found = [row for row in rows if "deadly" not in row["image"]]
    for row, wanted in zip(found, expected, strict=True):  # in parts of other sizes, but for rounding
        assert (row.get("class"), "error" in row) == (wanted.get("class"), "error" in wanted)
        assert row.get("probability") == pytest.approx(wanted.get("probability"), abs=1e-5)
    (deadly,) = [row for row in rows if "deadly" in row["image"]]
    assert "ended 3 workers" in deadly["error"]
