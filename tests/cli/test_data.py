"""``kalmanclip data`` as people use it."""

import json
from functools import partial

from tests.cli import invoke
from tests.data import trees

from kalmanclip.data import DATA_SETS

call = partial(invoke.call, "data")


def test_help_shows_examples():
    assert "check" in call("--help").output
    for command in ("list", "check", "get"):
        assert f"kalmanclip data {command}" in call(command, "--help").output


def test_list(tmp_path):
    folder = trees.pets(tmp_path)
    output = call("list", "--root", tmp_path).output
    assert f"1 of {len(DATA_SETS)} were found" in output
    line = next(line for line in output.splitlines() if line.split()[:1] == ["oxford_pets"])
    assert str(folder) in line
    assert "CC BY-SA 4.0" in line
    rows = {row["name"]: row for row in json.loads(call("list", "--root", tmp_path, "--json").stdout)}
    assert rows["oxford_pets"]["folder"] == str(folder)
    assert rows["imagenet"]["folder"] is None


def test_root_from_the_environment(tmp_path, monkeypatch):
    trees.mnist(tmp_path)
    monkeypatch.setenv("KALMANCLIP_DATA", str(tmp_path))
    assert f"1 of {len(DATA_SETS)} were" in call("list").output


def test_check(tmp_path):
    base = trees.pets(tmp_path)
    (base / "images" / "Abyssinian_1.jpg").unlink()
    output = call("check", "oxford_pets", "--root", tmp_path, code=3).output
    assert "20 images (expected 3680)" in output
    assert "Abyssinian_1.jpg does not exist" in output
    assert "4 problems" in output
    report = json.loads(call("check", "oxford_pets", "--root", tmp_path, "--json", "--fast", code=3).stdout)
    assert report["counts"]["test"] == {"found": 8, "expected": 3669}
    assert len(report["problems"]) == 4


def test_check_complete(tmp_path, monkeypatch):
    import dataclasses

    trees.imagenet_r(tmp_path)
    known = dataclasses.replace(DATA_SETS["imagenet_r"], classes=2, counts={"published": {"test": 4}})
    monkeypatch.setitem(DATA_SETS, "imagenet_r", known)
    assert "Complete." in call("check", "imagenet_r", "--root", tmp_path).output


def test_errors_are_one_line(tmp_path):
    assert "was not found" in call("check", "dtd", "--root", tmp_path, code=3).output
    assert "Did you mean dtd?" in call("check", "dtdd", "--root", tmp_path, code=2).output
    assert "say which" in call("check", "imagenet_c", "--root", trees.imagenet_c(tmp_path).parent, code=2).output


def test_get(tmp_path):
    trees.pets(tmp_path)
    output = call("get", "oxford_pets", "--root", tmp_path).output
    assert "already in" in output
    assert f"kalmanclip data check oxford_pets --root {tmp_path}" in output
    assert "image-net.org" in call("get", "imagenet", "--root", tmp_path, code=2).output


def test_get_offline(tmp_path, monkeypatch):
    def offline(*args, **kwargs):
        raise OSError("Network is unreachable")

    monkeypatch.setattr("torchvision.datasets.dtd.download_and_extract_archive", offline)
    output = call("get", "dtd", "--root", tmp_path, code=3).output
    assert "offline" in output
    assert "Network is unreachable" in output
