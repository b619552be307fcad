"""Both directions of Eq. 1: against the loss written down pair by pair, and against torch.func through the towers."""

import copy
import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import functional_call, jacrev

from kalmanclip.encoders import DualEncoder, LowRankConfig, load_backbone
from kalmanclip.observation import make_likelihood, observe

SCALE = 7.0
TEXTS = ["cat", "a cat", "dog", "a dog", "a red house", "the red house", "sea", "the sea"]
CONFIGS = {
    "head": LowRankConfig(rank=2),
    "towers": LowRankConfig(placement="towers", rank=2, last_blocks=1),
    "image tower": LowRankConfig(placement="towers", rank=1, last_blocks=1, towers=("image",)),
    "text tower": LowRankConfig(placement="towers", rank=1, last_blocks=1, towers=("text",)),
}


def pair_by_pair(S, labels, scale, distinct):
    """The two probabilities of every pair, (B, 2), by the sums of Eq. 1. S: similarities (B, C) with all classes."""
    B, outputs = len(labels), []
    for i in range(B):
        own = torch.exp(scale * S[i, labels[i]])
        if distinct:  # texts by class, and no other image of this text
            texts = sum(torch.exp(scale * S[i, c]) for c in sorted(set(labels.tolist())))
            others = [j for j in range(B) if j == i or labels[j] != labels[i]]
        else:
            texts = sum(torch.exp(scale * S[i, labels[j]]) for j in range(B))
            others = range(B)
        images = sum(torch.exp(scale * S[j, labels[i]]) for j in others)
        outputs += [own / texts, own / images]
    return torch.stack(outputs).view(B, 2)


def shown(likelihood, S, labels):
    needed = likelihood.texts(labels, S.shape[1])
    return S[:, needed], torch.searchsorted(needed, labels)


@settings(deadline=None, max_examples=25)
@given(B=st.integers(1, 5), C=st.integers(1, 6), seed=st.integers(0, 10_000), distinct=st.booleans())
def test_outputs_and_derivatives(B, C, seed, distinct):
    generator = torch.Generator().manual_seed(seed)
    S = torch.rand(B, C, generator=generator, dtype=torch.float64) - 0.3
    labels = torch.randint(C, (B,), generator=generator)
    likelihood = make_likelihood("symmetric", distinct=distinct)
    terms = likelihood.terms(*shown(likelihood, S, labels), SCALE)
    assert torch.equal(terms.y, torch.ones(B, 2, dtype=torch.float64))
    assert not likelihood.has_covariance
    torch.testing.assert_close(terms.y_hat, pair_by_pair(S, labels, SCALE, distinct))
    exact = jacrev(lambda s: pair_by_pair(s, labels, SCALE, distinct))(S)  # (B, 2, B, C)
    torch.testing.assert_close(terms.G, exact[..., likelihood.texts(labels, C)])


def test_the_logarithms_add_up_to_the_clip_loss():
    """Five distinct pairs, against cross-entropies in both directions as CLIP is trained."""
    S = torch.rand(5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    diagonal = torch.arange(5)
    for distinct in (False, True):
        terms = make_likelihood("symmetric", distinct=distinct).terms(S, diagonal, SCALE)
        loss = sum(torch.nn.functional.cross_entropy(SCALE * s, diagonal) for s in (S, S.mT))
        assert torch.allclose(-terms.y_hat.log().sum() / 5, loss)


def test_images_that_share_a_text():
    """To the letter they are each other's negatives; distinct, the first direction is that of `contrastive`."""
    S = torch.tensor([[0.9, 0.1], [0.9, 0.2], [0.0, 0.8]], dtype=torch.float64)
    column = torch.tensor([0, 0, 1])
    letter, distinct = (make_likelihood("symmetric", distinct=d).terms(S, column, 70.0).y_hat for d in (False, True))
    torch.testing.assert_close(letter[:2], torch.full((2, 2), 0.5).double(), rtol=1e-6, atol=0)
    assert distinct.min() > 0.999
    contrastive = make_likelihood("contrastive").terms(S, column, 3.0).y_hat
    torch.testing.assert_close(
        make_likelihood("symmetric", distinct=True).terms(S, column, 3.0).y_hat[:, :1], contrastive
    )


@pytest.fixture(scope="module")
def backbone():
    backbone = load_backbone("tiny")
    return dataclasses.replace(backbone, model=copy.deepcopy(backbone.model).double())


@pytest.mark.parametrize("distinct", [False, True])
@pytest.mark.parametrize("templates", [1, 2])
@pytest.mark.parametrize("name", CONFIGS)
def test_jacobian_through_the_towers(backbone, name, templates, distinct):
    """Four images, two of which share a class; y_hat pair by pair, differentiated through everything in float64."""
    encoder = DualEncoder(backbone, CONFIGS[name])
    torch.manual_seed(1)
    encoder.theta.copy_(0.2 * torch.randn(encoder.n))
    size = backbone.image_size
    images = encoder.image.prefix(torch.randn(4, 3, size, size).double())
    texts = encoder.text.prefix(encoder.tokenize(TEXTS))
    labels = torch.tensor([3, 0, 3, 2])
    seen = observe(encoder, make_likelihood("symmetric", distinct=distinct), images, labels, texts, templates)

    def outputs(theta):
        S = functional_call(encoder, encoder.named_views(theta), (images, texts, templates))
        return pair_by_pair(S, labels, backbone.logit_scale, distinct).flatten()

    torch.testing.assert_close(seen.y_hat, outputs(encoder.theta).detach())
    exact = jacrev(outputs)(encoder.theta)
    assert exact.abs().max() > 1e-3
    torch.testing.assert_close(seen.H, exact, rtol=1e-7, atol=1e-10)
    assert seen.R is None
