"""A disk that is full: said in one line, and nothing that was learned is lost."""

import pytest
from tests.cli.invoke import call
from tests.conftest import full_disk, shape_picture

from kalmanclip.errors import AdapterError
from kalmanclip.estimator import KalmanCLIP


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    root = tmp_path_factory.mktemp("photos")
    for shape in ("circle", "square"):
        (root / shape).mkdir()
        for n in range(2):
            shape_picture(shape, n).save(root / shape / f"{n}.png")
    return root


def test_what_was_learned_is_kept_elsewhere(photos, tmp_path, monkeypatch):
    output, save = tmp_path / "a.adapter", KalmanCLIP.save

    def refuse(self, folder, *args):
        if folder == output:
            raise AdapterError("no space")
        return save(self, folder, *args)

    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(KalmanCLIP, "save", refuse)
    (said,) = call("fit", photos, "-o", output, code=AdapterError.exit_code).stderr.splitlines()
    (kept,) = (tmp_path / "tmp").iterdir()
    assert f"no space. What was learned is kept in {kept}" in said
    assert KalmanCLIP.load(kept).class_names_ == ["circle", "square"]
    assert not output.exists()
    said = call("update", kept, photos, "-o", output, code=AdapterError.exit_code).stderr
    (updated,) = set((tmp_path / "tmp").iterdir()) - {kept}
    assert f"What was learned is kept in {updated}" in said
    assert KalmanCLIP.load(updated).method_.residuals.statistics.count.tolist() == [4, 4]


def test_a_full_disk_is_no_fault_of_the_program(photos, tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    with full_disk():
        said = call("fit", photos, "-o", tmp_path / "a.adapter", code=AdapterError.exit_code).stderr
    assert "cannot write to" in said
    assert list((tmp_path / "tmp").iterdir()) == []
    call("fit", photos, "-o", tmp_path / "a.adapter")
    with full_disk():
        said = call("export", tmp_path / "a.adapter", "-o", tmp_path / "model", code=AdapterError.exit_code).stderr
    assert "cannot write to" in said
    assert not (tmp_path / "model").exists()


def test_a_path_that_is_too_long_is_no_fault_of_the_program(tmp_path):
    said = call("info", tmp_path / ("x" * 300), code=AdapterError.exit_code).stderr
    assert "unexpected" not in said
    assert "shorter name" in said
