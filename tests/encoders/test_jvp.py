"""Forward-mode products against the Jacobian of `torch.func.jacrev`, for every placement, in float64."""

import copy
import dataclasses

import pytest
import torch
from torch.func import functional_call, jacrev

from kalmanclip.encoders import DualEncoder, LowRankConfig, load_backbone
from kalmanclip.encoders.jvp import ClassifierTangents

TEXTS = ["a photo of a cat.", "the moon", "a very long day by the sea with my friends", "dog"]
CONFIGS = {
    "head": LowRankConfig(rank=3),
    "head, image only": LowRankConfig(rank=3, towers=("image",)),
    "head, text only": LowRankConfig(rank=3, towers=("text",)),
    "everything, last block": LowRankConfig(
        placement="towers", rank=2, targets=("q", "k", "v", "out", "mlp"), last_blocks=1, scale=0.5
    ),
    "q v, image only": LowRankConfig(placement="towers", rank=1, targets=("q", "v"), towers=("image",), last_blocks=1),
}


@pytest.fixture(scope="module")
def backbone():
    tiny = load_backbone("tiny")
    return dataclasses.replace(tiny, model=copy.deepcopy(tiny.model).double())


@pytest.mark.parametrize("templates", [1, 2])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_movement_is_the_jacobian_times_the_direction(backbone, name, templates):
    encoder = DualEncoder(backbone, CONFIGS[name])
    torch.manual_seed(1)
    encoder.theta.copy_(0.2 * torch.randn(encoder.n))  # B is no longer zero, so every derivative is exercised
    size = backbone.image_size
    images = encoder.image.prefix(torch.randn(2, 3, size, size).double())
    texts = encoder.text.prefix(encoder.tokenize(TEXTS))
    directions = torch.randn(3, encoder.n, dtype=torch.float64)

    def similarities(theta):
        return functional_call(encoder, encoder.named_views(theta), (images, texts, templates))

    tangents = ClassifierTangents(encoder, texts, templates, directions)
    f, moved = tangents(images)
    torch.testing.assert_close(f @ tangents.W.mT, encoder(images, texts, templates).detach(), atol=1e-12, rtol=0)
    expected = jacrev(similarities)(encoder.theta) @ directions.mT
    torch.testing.assert_close(moved, expected.detach(), atol=1e-10, rtol=1e-8)
