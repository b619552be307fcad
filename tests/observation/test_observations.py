"""Every observation through one contract: derivatives by autograd, Jacobians by torch.func, meaning by hand."""

import copy
import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import functional_call, jacrev

from kalmanclip.encoders import DualEncoder, LowRankConfig, load_backbone
from kalmanclip.errors import ConfigError
from kalmanclip.observation import LIKELIHOODS, make_likelihood, observe
from kalmanclip.observation.observe import compared

SCALE = 7.0
VARIANTS = [
    *((name, {}) for name in LIKELIHOODS),
    *(("bounded", {"top": top}) for top in (3, None)),
    ("symmetric", {"distinct": True}),
]


def random_batch(B: int, C: int, seed: int):
    generator = torch.Generator().manual_seed(seed)
    S = torch.rand(B, C, generator=generator, dtype=torch.float64) - 0.3
    return S, torch.randint(C, (B,), generator=generator)


def similarities(likelihood, S, labels):
    """What the observation is shown of the full matrix S: its columns, and which of them is each image's own."""
    if likelihood.paired:
        return S.gather(1, labels.unsqueeze(1)), torch.zeros_like(labels)
    needed = likelihood.texts(labels, S.shape[1])
    return S[:, needed], torch.searchsorted(needed, labels)


def y_hat_alone(name, options, S, column):
    """The outputs as a function of S, written down again, without derivatives."""
    p = torch.softmax(SCALE * S, dim=1)
    own = column.unsqueeze(1)
    if name in ("cosine", "pairwise"):
        return S
    if name in ("classes", "contrastive"):
        return p.gather(1, own)
    log_likelihood = p.gather(1, own).log()
    if name == "deviance":
        return (-2 * log_likelihood).sqrt()
    assert name == "log_likelihood"
    return log_likelihood


@settings(deadline=None, max_examples=25)
@given(B=st.integers(1, 5), C=st.integers(2, 6), seed=st.integers(0, 10_000))
@pytest.mark.parametrize("name", ["cosine", "contrastive", "classes", "pairwise", "log_likelihood", "deviance"])
def test_derivatives_of_gaussian_observations(name, B, C, seed):
    likelihood = make_likelihood(name)
    S, column = similarities(likelihood, *random_batch(B, C, seed))
    terms = likelihood.terms(S, column, SCALE)
    assert torch.allclose(terms.y_hat, y_hat_alone(name, {}, S, column))
    exact = jacrev(lambda s: y_hat_alone(name, {}, s, column))(S)  # (B, K, B, C)
    rows = exact[torch.arange(B), :, torch.arange(B)]
    assert torch.allclose(terms.G, rows, atol=1e-12)
    others = exact.clone()
    others[torch.arange(B), :, torch.arange(B)] = 0
    assert others.abs().max() == 0, "an output may depend on its own image only"


@settings(deadline=None, max_examples=25)
@given(B=st.integers(1, 4), C=st.integers(2, 6), seed=st.integers(0, 10_000), sharp=st.sampled_from([1.0, 7.0, 70.0]))
@pytest.mark.parametrize(("name", "options"), [("categorical", {}), ("bounded", {"top": None})])
def test_exponential_family_gives_the_gradient_and_the_information(name, options, B, C, seed, sharp):
    """H^T e is the gradient of log p(y | x), H^T H the Fisher information (or Boehning's bound on it)."""
    S, labels = random_batch(B, C, seed)
    likelihood = make_likelihood(name, **options)
    terms = likelihood.terms(S, labels, sharp)
    assert likelihood.has_covariance
    e = terms.y - terms.y_hat
    gradient = torch.einsum("bkc,bk->bc", terms.G, e)
    S_ = S.clone().requires_grad_()
    log_p = torch.log_softmax(sharp * S_, dim=1).gather(1, labels.unsqueeze(1)).sum()
    (exact,) = torch.autograd.grad(log_p, S_)
    assert torch.allclose(gradient, exact, atol=1e-9 * sharp, rtol=1e-6)
    information = torch.einsum("bkc,bkd->bcd", terms.G, terms.G)
    p = torch.softmax(sharp * S, dim=1)
    fisher = sharp**2 * (p.diag_embed() - p.unsqueeze(2) * p.unsqueeze(1))
    if name == "categorical":
        assert torch.allclose(information, fisher, atol=1e-8 * sharp**2)
    else:
        assert torch.linalg.eigvalsh(information - fisher).min() > -1e-9 * sharp**2


def test_bounded_lets_the_nearest_classes_compete():
    S = torch.tensor([[0.9, 0.1, 0.8, 0.2, 0.7]], dtype=torch.float64)
    terms = make_likelihood("bounded", top=3).terms(S, torch.tensor([1]), SCALE)
    assert terms.y.argmax().item() == 0  # the own class comes first, though it is the least similar
    p = torch.softmax(SCALE * S[0, [1, 0, 2]], dim=0)
    assert torch.allclose(terms.y_hat[0], 2**0.5 * p)
    assert (terms.G[0, :, [3, 4]] == 0).all(), "distant classes do not take part"
    assert (terms.G[0, :, [0, 1, 2]] != 0).all()


def test_bounded_is_the_softmax_of_its_rivals():
    """With fewer classes than there are: the gradient of their softmax, and Boehning's bound for so many."""
    S, labels = random_batch(6, 7, seed=3)
    terms = make_likelihood("bounded", top=3).terms(S, labels, SCALE)
    for s, label, y, y_hat, G in zip(S, labels.tolist(), terms.y, terms.y_hat, terms.G, strict=True):
        others = sorted((c for c in range(7) if c != label), key=lambda c: -s[c])[:2]
        rivals = [label, *others]
        logits = (SCALE * s[rivals]).requires_grad_()
        (gradient,) = torch.autograd.grad(torch.log_softmax(logits, dim=0)[0], logits)
        torch.testing.assert_close((G.mT @ (y - y_hat))[rivals], SCALE * gradient)
        bound = SCALE**2 * (torch.eye(3, dtype=torch.float64) - torch.full((3, 3), 1 / 3)) / 2
        torch.testing.assert_close((G.mT @ G)[rivals][:, rivals], bound)


LABELS = [2, 0, 2]  # two of five classes, one of them twice
TABLE = {  # which texts are shown, and what their images should be like: the table of `kalmanclip.observation`
    "cosine": ([2, 0, 2], [[1], [1], [1]]),
    "contrastive": ([0, 2], [[1], [1], [1]]),
    "symmetric": ([0, 2], [[1, 1], [1, 1], [1, 1]]),
    "classes": ([0, 1, 2, 3, 4], [[1], [1], [1]]),
    "pairwise": ([0, 2], [[0, 1], [1, 0], [0, 1]]),
    "log_likelihood": ([0, 1, 2, 3, 4], [[0], [0], [0]]),
    "deviance": ([0, 1, 2, 3, 4], [[0], [0], [0]]),
    "categorical": ([0, 1, 2, 3, 4], [[0, 0, 1, 0, 0], [1, 0, 0, 0, 0], [0, 0, 1, 0, 0]]),
    "bounded": ([0, 1, 2, 3, 4], [[1, 0, 0, 0, 0]] * 3),  # the own class comes first
}


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_targets_are_those_of_the_table(name):
    texts, targets = TABLE[name]
    likelihood, labels = make_likelihood(name), torch.tensor(LABELS)
    assert likelihood.texts(labels, 5).tolist() == texts
    S, _ = random_batch(3, 5, seed=1)
    terms = likelihood.terms(*similarities(likelihood, S, labels), SCALE)
    unit = {"categorical": torch.softmax(SCALE * S, dim=1).rsqrt(), "bounded": 2**0.5}.get(name, 1.0)
    torch.testing.assert_close(terms.y, torch.tensor(targets, dtype=torch.float64) * unit)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_a_perfect_model_leaves_nothing_to_learn(name, options):
    """Images of different classes, each like its own text and unlike the others: outputs and targets are the same."""
    likelihood, labels = make_likelihood(name, **options), torch.tensor([2, 0, 4])
    S = torch.nn.functional.one_hot(labels, 5).double()
    terms = likelihood.terms(*similarities(likelihood, S, labels), 1e4)
    torch.testing.assert_close(terms.y, terms.y_hat, rtol=0, atol=1e-9)


def test_a_sure_and_wrong_model_does_not_break_the_step():
    """float32, logits 70 apart: innovation and rows stay finite for every observation."""
    S = torch.tensor([[1.0, -1.0, 0.0]])
    for name, options in VARIANTS:
        likelihood = make_likelihood(name, **options)
        shown, column = similarities(likelihood, S, torch.tensor([1]))
        terms = likelihood.terms(shown, column, 70.0)
        assert torch.isfinite(terms.y - terms.y_hat).all(), name
        assert torch.isfinite(terms.G).all(), name


@pytest.fixture(scope="module")
def encoder():
    backbone = load_backbone("tiny")
    backbone = dataclasses.replace(backbone, model=copy.deepcopy(backbone.model).double())
    encoder = DualEncoder(backbone, LowRankConfig(rank=2))
    torch.manual_seed(0)
    encoder.theta.add_(0.3 * torch.randn(encoder.n))
    return encoder


@pytest.fixture(scope="module")
def batch(encoder):
    torch.manual_seed(1)
    images = (torch.nn.functional.normalize(torch.randn(4, 512, dtype=torch.float64), dim=1),)
    texts = encoder.text.prefix(encoder.tokenize(["cat", "dog", "a red house", "the sea", "rain"]))
    return images, torch.tensor([3, 0, 3, 4]), texts  # two images share a class


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_jacobian_of_the_whole_observation(encoder, batch, name, options):
    """y_hat differentiated through everything, in float64, against `H`."""
    images, labels, texts = batch
    likelihood = make_likelihood(name, **options)
    seen = observe(encoder, likelihood, images, labels, texts)

    def outputs(theta):
        S = functional_call(encoder, encoder.named_views(theta), (images, texts))
        return likelihood.terms(*similarities(likelihood, S, labels), encoder.backbone.logit_scale).y_hat.flatten()

    assert torch.allclose(seen.y_hat, outputs(encoder.theta))
    assert seen.H.shape == (len(seen.y), encoder.n)
    if name in ("categorical", "bounded"):
        assert torch.equal(seen.R, torch.eye(len(seen.y), dtype=torch.float64))
        return  # whitened rows are not the derivative of the scaled outputs; their meaning is tested above
    if name == "deviance":
        assert torch.equal(seen.R, torch.eye(len(seen.y), dtype=torch.float64))
    else:
        assert seen.R is None
    assert torch.allclose(seen.H, jacrev(outputs)(encoder.theta), atol=1e-9)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_targets_of_a_whole_batch(encoder, batch, name):
    """Of labels 3, 0, 3, 4 among five classes; whitened ones in units of their outputs."""
    images, labels, texts = batch
    seen = observe(encoder, make_likelihood(name), images, labels, texts)
    targets = {
        "pairwise": [[0, 1, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]],  # of the texts 0, 3, 4
        "categorical": [[0, 0, 0, 1, 0], [1, 0, 0, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1]],
        "bounded": [[1, 0, 0, 0, 0]] * 4,
        "log_likelihood": [0] * 4,
        "deviance": [0] * 4,
    }.get(name, [1] * len(seen.y_hat))
    # p / sqrt(p) is what 'categorical' foresees: its target times that is the one-hot one
    unit = {"categorical": seen.y_hat, "bounded": 0.5**0.5}.get(name, 1.0)
    torch.testing.assert_close(unit * seen.y, torch.tensor(targets).double().flatten())


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_permuting_the_batch_permutes_the_observation(encoder, batch, name, options):
    images, labels, texts = batch
    order = torch.tensor([2, 3, 1, 0])
    likelihood = make_likelihood(name, **options)
    one = observe(encoder, likelihood, images, labels, texts)
    two = observe(encoder, likelihood, tuple(t[order] for t in images), labels[order], texts)
    K = len(one.y) // len(labels)
    rows = (order.unsqueeze(1) * K + torch.arange(K)).flatten()
    assert torch.allclose(two.y_hat, one.y_hat[rows])
    assert torch.allclose(two.H, one.H[rows], atol=1e-10)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_a_batch_of_one_and_a_repeated_image(encoder, batch, name, options):
    images, labels, texts = batch
    likelihood = make_likelihood(name, **options)
    for rows in ([1], [1, 1]):
        seen = observe(encoder, likelihood, tuple(t[rows] for t in images), labels[rows], texts)
        assert torch.isfinite(seen.H).all()
        assert len(seen.y) % len(rows) == 0


def test_several_templates(encoder):
    """Two prompts per class: texts of a class stay together when only some classes are needed."""
    texts = encoder.text.prefix(encoder.tokenize(["cat", "a cat", "dog", "a dog", "sea", "the sea"]))
    images = (torch.nn.functional.normalize(torch.randn(2, 512, dtype=torch.float64), dim=1),)
    seen = observe(encoder, make_likelihood("cosine"), images, torch.tensor([2, 1]), texts, templates=2)
    expected = encoder(images, texts, 2)[[0, 1], [2, 1]]
    assert torch.allclose(seen.y_hat, expected.detach())


def test_unknown_names_and_options():
    with pytest.raises(ConfigError, match="cosine"):
        make_likelihood("euclid")
    with pytest.raises(ConfigError, match="does not take"):
        make_likelihood("cosine", top=3)
    with pytest.raises(ConfigError, match="at least 2"):
        make_likelihood("bounded", top=1)
    with pytest.raises(ConfigError, match="True or False"):
        make_likelihood("symmetric", distinct="no")


@pytest.mark.parametrize(
    ("name", "options"), [("contrastive", {}), ("symmetric", {}), ("symmetric", {"distinct": True})]
)
def test_texts_that_fill_up_a_fixed_shape_change_nothing(encoder, batch, name, options):
    """With the batch's three distinct texts, and with four of which one is absent."""
    images, labels, texts = batch
    likelihood = make_likelihood(name, **options)
    filled = compared(likelihood, labels, len(texts[0]), fill=True)
    assert filled.present.tolist() == [True, True, True, False]
    exact, padded = (observe(encoder, likelihood, images, seen, texts) for seen in (labels, filled))
    torch.testing.assert_close(padded.y_hat, exact.y_hat, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(padded.H, exact.H, rtol=1e-10, atol=1e-12)


def test_the_deviance_residual_has_the_gradient_of_the_log_likelihood():
    S = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    column = torch.tensor([0, 1, 2, 3, 0, 1])
    loss = torch.nn.functional.cross_entropy(3 * S, column, reduction="none")
    (gradient,) = torch.autograd.grad(loss.sum(), S)
    terms = make_likelihood("deviance").terms(S.detach(), column, 3.0)
    torch.testing.assert_close(terms.y_hat[:, 0] ** 2 / 2, loss.detach())
    torch.testing.assert_close((terms.y_hat.unsqueeze(2) * terms.G).sum(1), gradient)


def test_an_image_that_is_certain_leaves_nothing_undefined():
    terms = make_likelihood("deviance").terms(torch.tensor([[50.0, 0.0]]), torch.tensor([0]), 100.0)
    assert terms.y_hat.item() == 0
    assert torch.isfinite(terms.G).all()
