"""Records are the same wherever weights and images lie, and do not say where that is."""

import shutil
import sys
from pathlib import Path

import pytest

from kalmanclip.encoders.backbone import _TINY_FOLDER
from kalmanclip.errors import ModelError
from kalmanclip.experiments.provenance import code_version, in_precision, model_name, redact
from kalmanclip.experiments.run_one import backbone_of
from kalmanclip.experiments.sources import ShiftSource, Source


@pytest.mark.parametrize("name", ["tiny", "RN50:openai", "ViT-B-16:random", "hf-hub:owner/name"])
def test_names_stay(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "openai").touch()
    assert model_name(name) == name


def test_weights_in_files_are_known_by_what_is_in_them(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        shutil.copy(_TINY_FOLDER / "model.safetensors", tmp_path / folder / "weights.safetensors")
    one, two = (model_name(f"RN50:{tmp_path / folder / 'weights.safetensors'}") for folder in ("one", "two"))
    assert one == two
    assert one.startswith("RN50:weights.safetensors@")
    (tmp_path / "two" / "weights.safetensors").write_bytes(b"other")
    assert model_name(f"RN50:{tmp_path / 'two' / 'weights.safetensors'}") != one


def test_so_are_folders(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder / "clip").mkdir(parents=True)
        (tmp_path / folder / "clip" / "config.json").write_text("{}")
    assert model_name(f"local-dir:{tmp_path}/one/clip") == model_name(f"local-dir:{tmp_path}/two/clip/")
    (tmp_path / "two" / "clip" / "more").touch()
    assert model_name(f"local-dir:{tmp_path}/one/clip") != model_name(f"local-dir:{tmp_path}/two/clip")
    assert str(tmp_path) not in model_name(f"local-dir:{tmp_path}/one/clip")


def test_another_precision_is_another_model():
    assert in_precision("tiny", "float32") == model_name("tiny@float32") == "tiny"
    assert in_precision("tiny", "bfloat16") == model_name("tiny@bfloat16") == "tiny@bfloat16"
    rounded = backbone_of("tiny@bfloat16", "cpu", None)
    assert (rounded.name, rounded.precision) == ("tiny", "bfloat16")
    with pytest.raises(ModelError):
        model_name("tiny@float16")


def test_a_backbone_that_is_none_is_named():
    with pytest.raises(ModelError, match="Unknown backbone"):
        model_name("tinny")


@pytest.fixture
def source(tmp_path):
    for name in ("my photos/train", "my photos/test", "drawn"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "list.csv").touch()
    shifts = (ShiftSource(f"x={tmp_path}/drawn", "x", ""), ShiftSource(f"{tmp_path}/list.csv", "list", ""))
    pair = f"pets={tmp_path}/my photos/train:{tmp_path}/my photos/test"
    return Source(pair, "pets", None, ("{}",), "", shifts)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("cannot read {}/my photos/train/cat/0.png: bad", "cannot read cat/0.png: bad"),
        ("'{}/drawn/cat/0.png'", "'cat/0.png'"),
        ("{}/images/0.png is missing", "images/0.png is missing"),
        ("{}/drawn2/cat/0.png", "drawn2/cat/0.png"),
        ("/home/somebody/elsewhere/model.pt", "elsewhere/model.pt"),
        (f'File "{Path(sys.prefix) / "lib" / "x" / "y.py"}", line 3', 'File "lib/x/y.py", line 3'),
        ("see https://example.org/a/b/c or a/b/c, 3/4", "see https://example.org/a/b/c or a/b/c, 3/4"),
    ],
)
def test_errors_do_not_say_where_things_lie(source, tmp_path, text, left):
    found = redact(text.replace("{}", str(tmp_path)), source)
    assert found == left
    assert str(tmp_path) not in found


def test_the_code_of_a_result_is_what_can_change_it(monkeypatch, tmp_path):
    import kalmanclip

    def version_with(file):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("x = 1")
        return code_version.__wrapped__()["source"]

    monkeypatch.setattr(kalmanclip, "__file__", str(tmp_path / "__init__.py"))
    before = version_with("filtering/kalman.py")
    assert version_with("cli/fit.py") == before
    assert version_with("methods/other.py") != before
