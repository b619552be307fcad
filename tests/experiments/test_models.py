"""The names of backbones are the same wherever their weights lie."""

import shutil

import pytest

from kalmanclip.encoders.backbone import _TINY_FOLDER
from kalmanclip.errors import ModelError
from kalmanclip.experiments.execute import backbone_of
from kalmanclip.experiments.models import in_precision, model_name


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
