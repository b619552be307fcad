"""Towers in bfloat16: what they give is close to float32, what is learned is float32, and adapters go with both."""

import json
from dataclasses import replace

import numpy as np
import open_clip
import pytest
import torch
import torch.nn.functional as F

from kalmanclip.data import FewShotTask, from_lists
from kalmanclip.encoders import DualEncoder, FeatureCache, LowRankConfig, SimilarityJacobian, load_backbone
from kalmanclip.encoders.features import frozen_activations, image_features, text_weights
from kalmanclip.errors import ConfigError
from kalmanclip.estimator import KalmanCLIP
from kalmanclip.methods import make_method, preset

TOWERS = LowRankConfig(placement="towers", rank=4, last_blocks=2, targets=("q", "v", "out", "mlp"))
EMBEDDINGS = LowRankConfig()
NAMES = ("red", "green", "blue")


def pictures(count, seed=0):
    """Noisy pictures, each mostly of one colour, and which one."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    pixels = rng.integers(0, 90, (count, 64, 64, 3))
    pixels[np.arange(count), :, :, labels] += 60
    return list(pixels.astype(np.uint8)), [NAMES[i] for i in labels]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Names of models: one that is trained, and small ones that are not. Most processors are slow in bfloat16."""
    text = {"context_length": 24, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 3}
    images = {
        "small-vit": {"image_size": 64, "layers": 3, "width": 128, "head_width": 32, "patch_size": 16},
        "small-resnet": {"image_size": 64, "layers": [1, 1, 1, 1], "width": 16},
    }
    folder = tmp_path_factory.mktemp("models")
    for name, vision in images.items():
        shape = {"embed_dim": 64, "vision_cfg": vision, "text_cfg": text}
        (folder / f"{name}.json").write_text(json.dumps(shape))
    open_clip.add_model_config(folder)
    return {"tiny": "tiny"} | {name: f"{name}:random" for name in images}


@pytest.fixture(scope="module")
def small(models):
    return models["small-vit"]


@pytest.fixture(scope="module")
def exact(small):
    return load_backbone(small)


@pytest.fixture(scope="module")
def rounded(small):
    return load_backbone(small, precision="bfloat16")


@pytest.fixture(scope="module")
def task():
    return FewShotTask(from_lists(*pictures(24)), templates=("a photo of a {}.", "{}"), seed=0)


def encoder_of(backbone, config):
    encoder = DualEncoder(backbone, config)
    encoder.theta.add_(0.02 * torch.randn(encoder.n, generator=torch.Generator().manual_seed(1)))
    return encoder


def inputs(encoder, count=5):
    size = encoder.backbone.image_size
    x = torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(2))
    tokens = encoder.tokenize(["a cat", "a photo of a dog", "some bird"])
    return encoder.image.prefix(x.to(encoder.backbone.dtype)), encoder.text.prefix(tokens)


def test_the_weights_are_rounded_and_logit_scale_is_not(exact, rounded):
    assert rounded.dtype == torch.bfloat16
    assert rounded.precision == "bfloat16"
    assert rounded.logit_scale == exact.logit_scale
    weights = rounded.model.state_dict()
    assert {weights[name].dtype for name in ("visual.proj", "text_projection", "token_embedding.weight")} == {
        torch.bfloat16
    }


def test_the_fingerprint_is_that_of_the_weights_as_loaded(exact, rounded, tmp_path):
    assert rounded.hash == exact.hash
    assert replace(rounded, cache=FeatureCache(tmp_path)).hash == exact.hash


def test_other_precisions_are_refused(rounded):
    with pytest.raises(ConfigError, match="float32, bfloat16, not 'float16'"):
        load_backbone("tiny", precision="float16")
    with pytest.raises(ConfigError, match="leave precision out"):
        KalmanCLIP(rounded, precision="float32").load_backbone()
    assert KalmanCLIP(rounded).load_backbone() is rounded


@pytest.mark.parametrize("name", ["tiny", "small-resnet"])
@pytest.mark.parametrize("config", [EMBEDDINGS, replace(TOWERS, targets=("q", "v", "out"))], ids=["head", "towers"])
def test_embeddings_and_jacobians_are_close(name, config, models):
    found = []
    for precision in ("float32", "bfloat16"):
        encoder = encoder_of(load_backbone(models[name], precision=precision), config)
        images, texts = inputs(encoder, 2)
        jacobian = SimilarityJacobian(encoder, images, texts)
        found.append((jacobian.I, jacobian.T, jacobian.rows(torch.eye(3).expand(2, 3, 3)), encoder.theta))
    for columns in zip(*found, strict=True):
        assert {column.dtype for column in columns} == {torch.float32}
    (f, T, H, _), (g, U, K, _) = found
    assert F.cosine_similarity(f, g).min() > 0.999
    assert F.cosine_similarity(T, U).min() > 0.999
    assert (g.norm(dim=1) - 1).abs().max() < 1e-6
    assert 0 < (H - K).norm() < 0.06 * H.norm()


def test_features_and_texts_are_float32_and_close(exact, rounded):
    images, _ = pictures(6)
    f, g = (image_features(DualEncoder(backbone), images) for backbone in (exact, rounded))
    T, U = (text_weights(backbone, NAMES, ("a {}.",)) for backbone in (exact, rounded))
    assert g.dtype == U.dtype == torch.float32
    assert (f * g).sum(dim=1).min() > 0.999
    assert (T * U).sum(dim=1).min() > 0.999


@pytest.mark.parametrize("name", ["default", "head", "paper", "paper-literal"])
def test_every_preset_learns_the_same_and_adapters_go_with_both(name, exact, rounded, task, tmp_path):
    images, _ = pictures(30, seed=1)
    config = preset(name) if name == "default" else replace(preset(name), epochs=1)
    fitted = {}
    for backbone in (exact, rounded):
        clf = fitted[backbone.precision] = KalmanCLIP(backbone, config)
        clf.fit(task.train)
        clf.save(tmp_path / backbone.precision)
    probabilities = {key: clf.predict_proba(images) for key, clf in fitted.items()}
    assert np.abs(probabilities["float32"] - probabilities["bfloat16"]).mean() < 0.03
    averaged = fitted["bfloat16"].predict_full(images[:6])
    assert averaged.probabilities.dtype == torch.float32
    assert torch.isfinite(averaged.epistemic).all()
    for key, other in (("float32", rounded), ("bfloat16", exact)):
        moved = KalmanCLIP.load(tmp_path / key, other)
        assert np.abs(moved.predict_proba(images) - probabilities[key]).max() < 0.1
    again = KalmanCLIP.load(tmp_path / "bfloat16", precision="bfloat16")
    assert np.array_equal(again.predict_proba(images), probabilities["bfloat16"])


@pytest.mark.parametrize("config", [EMBEDDINGS, TOWERS], ids=["head", "towers"])
def test_merging_keeps_corrections_that_bfloat16_could_not(config, rounded):
    encoder = encoder_of(rounded, config)
    with torch.no_grad():
        for layer in encoder.layers():
            layer.B.mul_(1e-3)
    plain = encoder.merged()
    untouched = rounded.model.state_dict()
    moved = [name for name, w in plain.state_dict().items() if not torch.equal(w, untouched[name].to(w.dtype))]
    assert len(moved) == (2 if config is EMBEDDINGS else 16)
    assert {w.dtype for w in plain.state_dict().values() if w.is_floating_point()} == {torch.float32}
    x = torch.randn(2, 3, rounded.image_size, rounded.image_size)
    merged = F.normalize(plain.encode_image(x), dim=-1)
    adapted = encoder.encode_images(encoder.image.prefix(x.to(rounded.dtype)))
    assert F.cosine_similarity(merged, adapted).min() > 0.999


@pytest.mark.parametrize("method", ["coop", "clip_lora", "tip_adapter_f"])
def test_methods_with_gradients_work(method, rounded, task):
    fitted = make_method(method, rounded)
    options = {"coop": {"epochs": 1}, "clip_lora": {"most_iterations": 2}, "tip_adapter_f": {"epochs": 1}}[method]
    fitted = make_method(method, rounded, replace(fitted.config, **options))
    fitted.fit(task)
    logits = fitted.logits(pictures(4)[0])
    assert logits.dtype == torch.float32
    assert torch.isfinite(logits).all()


def test_the_cache_serves_each_precision_its_own(exact, rounded, tmp_path):
    images, _ = pictures(4)
    cache = FeatureCache(tmp_path)
    encoders = [DualEncoder(replace(b, cache=cache), TOWERS) for b in (exact, rounded)]
    first = [list(frozen_activations(encoder, images)) for encoder in encoders]
    assert (cache.served, cache.added) == (0, 8)
    second = [list(frozen_activations(encoder, images)) for encoder in encoders]
    assert cache.served == 8
    for before, after, dtype in zip(first, second, (torch.float32, torch.bfloat16), strict=True):
        assert after[0][0].dtype == dtype
        assert torch.equal(before[0][0], after[0][0])
