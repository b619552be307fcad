"""The adapted towers equal the untouched model at the start, and the merged model everywhere."""

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F

from kalmanclip.encoders import DualEncoder, LowRankConfig, load_backbone
from kalmanclip.errors import ConfigError, ModelError

TEXTS = ["a photo of a cat.", "the moon", "a long walk along the beach on a summer evening"]
INSIDE = LowRankConfig(placement="towers", rank=2, targets=("q", "k", "v", "out", "mlp"))
RESNET = LowRankConfig(placement="towers", rank=2, targets=("q", "k", "v", "out"), last_blocks=2)


@pytest.fixture(scope="module")
def backbones():
    return {}


def get(backbones, name):
    if name not in backbones:
        backbones[name] = load_backbone(name)
    return backbones[name]


def inputs(encoder):
    torch.manual_seed(0)
    size = encoder.backbone.image_size
    return torch.randn(2, 3, size, size), encoder.tokenize(TEXTS)


def similarities(encoder, images, tokens):
    with torch.no_grad():
        return encoder(encoder.image.prefix(images), encoder.text.prefix(tokens))


def plain(model, images, tokens):
    with torch.no_grad():
        return F.normalize(model.encode_image(images), dim=-1) @ F.normalize(model.encode_text(tokens), dim=-1).mT


CASES = [
    ("tiny", LowRankConfig()),
    ("tiny", INSIDE),
    ("tiny", LowRankConfig(placement="towers", last_blocks=1, targets=("k",))),
    ("RN50:random", LowRankConfig()),
    ("RN50:random", RESNET),
]


@pytest.mark.parametrize(("name", "config"), CASES)
def test_starts_equal_to_the_untouched_model(backbones, name, config):
    encoder = DualEncoder(get(backbones, name), config)
    images, tokens = inputs(encoder)
    assert torch.allclose(
        similarities(encoder, images, tokens), plain(encoder.backbone.model, images, tokens), atol=1e-5
    )


@pytest.mark.parametrize(("name", "config"), CASES)
def test_merged_model_gives_the_same_similarities(backbones, name, config):
    encoder = DualEncoder(get(backbones, name), config)
    images, tokens = inputs(encoder)
    before = copy.deepcopy(encoder.backbone.model.state_dict())
    untouched = similarities(encoder, images, tokens)
    torch.manual_seed(1)
    encoder.theta.add_(0.1 * torch.randn(encoder.n))
    tuned = similarities(encoder, images, tokens)
    assert (tuned - untouched).abs().max() > 1e-3
    assert torch.allclose(plain(encoder.merged(), images, tokens), tuned, atol=2e-5)
    after = encoder.backbone.model.state_dict()
    assert all(torch.equal(after[k], before[k]) for k in before), "merging must not touch the backbone"


def test_attention_pool_with_sharp_attention(backbones):
    """Random attention is uniform, whatever asks and whatever answers: with large weights it is not."""
    backbone = get(backbones, "RN50:random")
    model = copy.deepcopy(backbone.model)
    torch.manual_seed(3)
    pool = model.visual.attnpool
    with torch.no_grad():
        for linear in (pool.q_proj, pool.k_proj):
            linear.weight.normal_(std=3 / linear.in_features**0.5)
        pool.positional_embedding.normal_()
    encoder = DualEncoder(dataclasses.replace(backbone, model=model), RESNET)
    images, tokens = inputs(encoder)
    with torch.no_grad():
        (x,) = encoder.image.prefix(images)
        heads = (pool.num_heads, -1)
        q, k = pool.q_proj(x[:, 0]).unflatten(-1, heads), pool.k_proj(x).unflatten(-1, heads)
        attention = torch.einsum("nhd,nthd->nht", q, k).div(q.shape[-1] ** 0.5).softmax(dim=-1)
    assert attention.amax(dim=-1).mean() > 0.5  # of 50 tokens
    torch.testing.assert_close(
        similarities(encoder, images, tokens), plain(model, images, tokens), rtol=0, atol=1e-5
    )  # open_clip's own
    encoder.theta.add_(0.1 * torch.randn(encoder.n))
    tuned = similarities(encoder, images, tokens)
    torch.testing.assert_close(plain(encoder.merged(), images, tokens), tuned, rtol=0, atol=5e-5)


def test_only_the_last_blocks_are_adapted_and_the_rest_is_prefix(backbones):
    encoder = DualEncoder(get(backbones, "tiny"), LowRankConfig(placement="towers", last_blocks=2, rank=1))
    # q, k, v of rank 1 on width 192 (image) and 128 (text), two blocks each
    assert encoder.n_image == 2 * 3 * (192 + 192)
    assert encoder.n_text == 2 * 3 * (128 + 128)
    assert encoder.groups == [1152, 1152, 768, 768]


def test_theta_is_shared_memory(backbones):
    encoder = DualEncoder(get(backbones, "tiny"), LowRankConfig(rank=2))
    layer = encoder.layers()[0]
    encoder.theta.fill_(3.0)
    assert (layer.A == 3).all()
    with torch.no_grad():
        layer.B.mul_(2)
    assert encoder.theta.max() == 6


def test_texts_are_cut_after_their_end(backbones):
    encoder = DualEncoder(get(backbones, "tiny"), INSIDE)
    activations = encoder.text.prefix(encoder.tokenize(["a cat"]))
    assert activations[0].shape[1] == 4  # start, a, cat, end


def test_towers_of_other_kinds_take_the_head(backbones):
    """An image tower that is neither a transformer of open_clip's nor a ModifiedResNet: only the head fits."""
    backbone = get(backbones, "tiny")
    model = copy.deepcopy(backbone.model)
    model.visual = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(512, bias=False))
    model.visual(torch.zeros(1, 3, 8, 8))
    other = dataclasses.replace(backbone, model=model)
    with pytest.raises(ModelError, match="placement='head'"):
        DualEncoder(other, INSIDE)
    encoder = DualEncoder(other, LowRankConfig(rank=2))
    images = torch.randn(2, 3, 8, 8)
    expected = plain(model, images, encoder.tokenize(TEXTS))
    assert torch.allclose(similarities(encoder, images, encoder.tokenize(TEXTS)), expected, atol=1e-5)
    with pytest.raises(ModelError, match="Merging is not supported"):
        encoder.merged()


@pytest.mark.parametrize(
    "bad",
    [
        {"placement": "tail"},
        {"towers": ()},
        {"towers": ("audio",)},
        {"targets": ("q", "q")},
        {"rank": 0},
        {"last_blocks": 0},
    ],
)
def test_bad_options(bad):
    with pytest.raises(ConfigError):
        LowRankConfig(**bad)


def test_too_many_blocks(backbones):
    with pytest.raises(ModelError, match="only 12 blocks"):
        DualEncoder(get(backbones, "tiny"), LowRankConfig(placement="towers", last_blocks=13))


def test_a_resnet_has_no_mlp(backbones):
    with pytest.raises(ModelError, match="no MLP"):
        DualEncoder(get(backbones, "RN50:random"), LowRankConfig(placement="towers", targets=("mlp",), last_blocks=1))
