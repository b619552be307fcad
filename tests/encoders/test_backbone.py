"""From names to backbones, and clear words when that fails."""

import io
import pickle
import zipfile

import numpy as np
import open_clip
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torchvision.transforms import Compose, Lambda

from kalmanclip.encoders import load_backbone
from kalmanclip.encoders.preprocess import Preprocess
from kalmanclip.errors import ConfigError, ModelError


@pytest.fixture(scope="module")
def tiny():
    return load_backbone("tiny")


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """No cache, no network."""
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))


def test_tiny_is_an_ordinary_open_clip_model(tiny):
    assert "tiny" in open_clip.list_models()
    assert tiny.width == 512
    assert tiny.image_size == 120
    assert tiny.logit_scale == pytest.approx(69.7, abs=0.1)
    assert not any(p.requires_grad for p in tiny.model.parameters())
    assert not tiny.model.training


def test_hash_follows_the_weights(tiny):
    again = load_backbone("tiny")
    assert again.hash == tiny.hash
    again = load_backbone("tiny")
    again.model.ln_final.bias.data[0] += 1e-3
    assert again.hash != tiny.hash


def test_local_safetensors_and_pt_files(tiny, tmp_path):
    state = tiny.model.state_dict()
    save_file(state, tmp_path / "w.safetensors")
    torch.save(state, tmp_path / "w.pt")
    for file in ("w.safetensors", "w.pt"):
        assert load_backbone(f"tiny:{tmp_path / file}").hash == tiny.hash


class Evil:
    def __reduce__(self):
        return (open, ("executed", "w"))


def test_a_file_that_would_execute_code_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    buffer = io.BytesIO()
    torch.save({"a": torch.zeros(1)}, buffer)
    with zipfile.ZipFile(buffer) as source, zipfile.ZipFile("evil.pt", "w") as target:
        for entry in source.namelist():
            data = pickle.dumps(Evil()) if entry.endswith("data.pkl") else source.read(entry)
            target.writestr(entry, data)
    with pytest.raises(ModelError, match="without executing code"):
        load_backbone("tiny:evil.pt")
    assert not (tmp_path / "executed").exists()


def test_a_torchscript_archive_is_refused(tmp_path):
    torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2)), str(tmp_path / "jit.pt"))
    with pytest.raises(ModelError, match=r"without executing code.*safetensors"):
        load_backbone(f"tiny:{tmp_path / 'jit.pt'}")


def test_weights_of_another_architecture_and_damaged_files(tiny, tmp_path):
    save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"not a safetensors file")
    for file in ("other.safetensors", "broken.safetensors"):
        with pytest.raises(ModelError, match=f"{file} could not be loaded into tiny"):
            load_backbone(f"tiny:{tmp_path / file}")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ViT-B-17:openai", r"no architecture 'ViT-B-17'.*did you mean 'ViT-B-16'"),
        ("ViT-B-16", r"which weights.*'ViT-B-16:openai'"),
        ("ViT-B-16:opena", r"Unknown weights 'opena'.*did you mean 'openai'"),
        ("ViT-B-16:nowhere/w.safetensors", "does not exist"),
        ("local-dir:/does/not/exist", "could not be built"),
    ],
)
def test_names_that_mean_nothing(name, words):
    with pytest.raises(ModelError, match=words):
        load_backbone(name)


@pytest.mark.parametrize("name", ["RN50:openai", "ViT-B-32:laion2b_s34b_b79k", "hf-hub:laion/some-model"])
def test_offline_without_weights(offline, name):
    with pytest.raises(ModelError) as caught:
        load_backbone(name)
    message = str(caught.value)
    assert "not on this machine" in message
    assert "Wanted: " in message
    assert "'tiny' is embedded" in message
    assert "HF_HOME" in message


def test_openai_weights_mean_quick_gelu(monkeypatch):
    """'RN50:openai' must be the model as it was trained, whichever architecture entry the name picks."""
    seen = {}

    def create(*args, **options):
        seen.update(options)
        raise RuntimeError("stop here")

    monkeypatch.setattr(open_clip, "create_model_and_transforms", create)
    with pytest.raises(ModelError):
        load_backbone("RN50:openai")
    assert seen["force_quick_gelu"] is True


def test_a_local_dir_without_weights_is_refused(tiny, tmp_path):
    config = open_clip.get_model_config("tiny")
    import json

    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": config}))
    with pytest.raises(ModelError, match="No weights were found"):
        load_backbone(f"local-dir:{tmp_path}")


def test_random_weights_are_the_same_each_time(tiny):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one, two = load_backbone("tiny:random"), load_backbone("tiny:random")
    assert one.hash == two.hash != tiny.hash
    assert torch.equal(torch.rand(1), expected), "the caller's random numbers are untouched"


@pytest.mark.parametrize("size", [(1, 1), (1, 3000), (3000, 1), (2, 9000)])
def test_extreme_shapes_stay_small(tiny, size):
    """A thin strip must not become a picture of a hundred million pixels on its way to 120 x 120."""
    assert tiny.preprocess(Image.new("RGB", size, "red")).shape == (3, 120, 120)


def test_cropping_thin_images_first_changes_nothing(tiny):
    """The centre crop would have thrown the rest away: up to resampling at far edges the result is the same."""
    torch.manual_seed(0)
    pixels = (torch.rand(10, 200, 3) * 255).to(torch.uint8).numpy()
    wide = Image.fromarray(pixels)
    whole = open_clip.image_transform(
        120, is_train=False, mean=open_clip.OPENAI_DATASET_MEAN, std=open_clip.OPENAI_DATASET_STD
    )(wide)
    assert torch.allclose(tiny.preprocess(wide), whole, atol=0.02)


@pytest.mark.parametrize("device", ["cuda:99", "toaster"])
def test_a_device_that_is_not_there(device):
    with pytest.raises(ConfigError, match=f"'{device}' cannot be used here"):
        load_backbone("tiny", device)


@pytest.mark.parametrize("size", [(120, 120), (300, 200), (33, 500), (7, 90)])
def test_preprocessing_in_two_parts_is_the_same_to_the_last_bit(tiny, size):
    rng = np.random.default_rng(0)
    images = [Image.fromarray(rng.integers(0, 255, (*size, 3), dtype=np.uint8)) for _ in range(3)]
    parts = torch.stack([tiny.preprocess.pixels(image) for image in images])
    assert parts.dtype == torch.uint8
    assert torch.equal(tiny.preprocess.finish(parts), torch.stack([tiny.preprocess(image) for image in images]))


def test_preprocessing_of_another_kind_stays_in_one_part(tiny):
    steps = tiny.preprocess.transform.transforms
    odd = Preprocess(Compose([*steps, Lambda(torch.neg)]))
    image = Image.new("RGB", (64, 64), "red")
    batch = odd.finish(odd.pixels(image).unsqueeze(0))
    assert torch.equal(batch[0], -tiny.preprocess(image))
