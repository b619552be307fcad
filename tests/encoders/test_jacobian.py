"""The fast Jacobians against `torch.func.jacrev`, for every placement, in float64 and float32."""

import copy
import dataclasses

import pytest
import torch
from torch.func import functional_call, jacrev

from kalmanclip.encoders import DualEncoder, LowRankConfig, SimilarityJacobian, load_backbone

TEXTS = ["a photo of a cat.", "the moon", "a very long day by the sea with my friends", "dog"]
CONFIGS = {
    "head": LowRankConfig(rank=3),
    "head, image only": LowRankConfig(rank=3, towers=("image",)),
    "head, text only": LowRankConfig(rank=3, towers=("text",)),
    "q k v, all blocks": LowRankConfig(placement="towers", rank=2),
    "everything, last two": LowRankConfig(
        placement="towers", rank=2, targets=("q", "k", "v", "out", "mlp"), last_blocks=2, scale=0.5
    ),
    "q v, image only": LowRankConfig(placement="towers", rank=1, targets=("q", "v"), towers=("image",), last_blocks=1),
}


def small(name: str, dtype: torch.dtype):
    backbone = load_backbone(name)
    return dataclasses.replace(backbone, model=copy.deepcopy(backbone.model).to(dtype))


def random_encoder(backbone, config) -> DualEncoder:
    encoder = DualEncoder(backbone, config)
    torch.manual_seed(1)
    encoder.theta.copy_(0.2 * torch.randn(encoder.n))  # B is no longer zero, so every derivative is exercised
    return encoder


def inputs(encoder, B: int, texts: list[str]):
    torch.manual_seed(2)
    size = encoder.backbone.image_size
    images = encoder.image.prefix(torch.randn(B, 3, size, size).to(encoder.backbone.dtype))
    return images, encoder.text.prefix(encoder.tokenize(texts))


def reference(encoder, images, texts, templates=1) -> torch.Tensor:
    """dS/dtheta, (B, C, n), by torch.func."""
    return jacrev(lambda t: functional_call(encoder, encoder.named_views(t), (images, texts, templates)))(encoder.theta)


@pytest.mark.parametrize("name", CONFIGS)
def test_float64_equals_jacrev(name):
    encoder = random_encoder(small("tiny", torch.float64), CONFIGS[name])
    images, texts = inputs(encoder, 3, TEXTS)
    exact = reference(encoder, images, texts)
    jacobian = SimilarityJacobian(encoder, images, texts)
    assert torch.allclose(jacobian.S, encoder(images, texts), atol=1e-12)

    identity = torch.eye(4, dtype=torch.float64).expand(3, 4, 4)  # all similarities
    assert torch.allclose(jacobian.rows(identity), exact.flatten(0, 1), atol=1e-10)

    one = torch.randn(3, 1, 4, dtype=torch.float64)  # one output per image
    jacobian = SimilarityJacobian(encoder, images, texts)
    assert torch.allclose(jacobian.rows(one), torch.einsum("ikc,icn->ikn", one, exact).flatten(0, 1), atol=1e-10)

    paired = tuple(t[[1, 1, 3]] for t in texts)  # one text twice
    G = torch.randn(3, 1, 1, dtype=torch.float64)
    jacobian = SimilarityJacobian(encoder, images, paired, paired=True)
    rows = G[:, 0] * exact[torch.arange(3), torch.tensor([1, 1, 3])]
    assert torch.allclose(jacobian.rows(G), rows, atol=1e-10)


@pytest.mark.parametrize("name", ["head", "everything, last two"])
def test_several_templates(name):
    encoder = random_encoder(small("tiny", torch.float64), CONFIGS[name])
    images, texts = inputs(encoder, 2, TEXTS)  # two classes, two prompts each
    exact = reference(encoder, images, texts, 2)
    for G in (torch.eye(2, dtype=torch.float64).expand(2, 2, 2), torch.randn(2, 1, 2, dtype=torch.float64)):
        rows = SimilarityJacobian(encoder, images, texts, templates=2).rows(G)
        assert torch.allclose(rows, torch.einsum("ikc,icn->ikn", G, exact).flatten(0, 1), atol=1e-10)


def test_float32_close_to_float64():
    """Relative error of a whole row stays under 1e-4 in float32."""
    config = CONFIGS["q k v, all blocks"]
    rows = []
    for dtype in (torch.float64, torch.float32):
        encoder = random_encoder(small("tiny", dtype), config)
        images, texts = inputs(encoder, 3, TEXTS)
        rows.append(SimilarityJacobian(encoder, images, texts).rows(torch.ones(3, 1, 4, dtype=dtype)).double())
    assert ((rows[0] - rows[1]).norm(dim=1) / rows[0].norm(dim=1)).max() < 1e-4


def test_resnet_attention_pool_equals_jacrev():
    config = LowRankConfig(placement="towers", rank=1, targets=("q", "k", "v", "out"), last_blocks=1)
    encoder = random_encoder(small("RN50:random", torch.float64), config)
    images, texts = inputs(encoder, 2, TEXTS[:2])
    exact = reference(encoder, images, texts)
    rows = SimilarityJacobian(encoder, images, texts).rows(torch.eye(2, dtype=torch.float64).expand(2, 2, 2))
    assert torch.allclose(rows, exact.flatten(0, 1), atol=1e-10)


def test_permuting_the_batch_permutes_the_rows():
    encoder = random_encoder(small("tiny", torch.float64), CONFIGS["everything, last two"])
    images, texts = inputs(encoder, 4, TEXTS)
    G = torch.randn(4, 1, 4, dtype=torch.float64)
    order = torch.tensor([2, 0, 3, 1])
    rows = SimilarityJacobian(encoder, images, texts).rows(G)
    permuted = SimilarityJacobian(encoder, tuple(t[order] for t in images), texts).rows(G[order])
    assert torch.allclose(permuted, rows[order], atol=1e-12)


def test_ordinary_gradients_are_the_sum_of_the_rows():
    """Without recording, the same layers serve an ordinary optimiser."""
    encoder = random_encoder(small("tiny", torch.float64), CONFIGS["q k v, all blocks"])
    images, texts = inputs(encoder, 3, TEXTS)
    encoder(images, texts).sum().backward()
    gradient = torch.cat([g.flatten() for layer in encoder.layers() for g in (layer.A.grad, layer.B.grad)])
    rows = SimilarityJacobian(encoder, images, texts).rows(torch.ones(3, 1, 4, dtype=torch.float64))
    assert torch.allclose(gradient, rows.sum(dim=0), atol=1e-10)
