"""Softmax regression by iterated Kalman updates, next to an independent solver and to dense algebra in float64."""

import dataclasses
import math
from itertools import pairwise

import numpy as np
import pytest
import scipy
import torch
from benchmarks.measure import peak_memory
from hypothesis import given, settings
from hypothesis import strategies as st

from kalmanclip.errors import NumericalError
from kalmanclip.filtering import FilterConfig, KalmanFilter, Observation, make_belief, softmax
from kalmanclip.filtering.softmax import SoftmaxBelief, softmax_gradient, softmax_update
from kalmanclip.observation.categorical import BoundedCategorical

from .structures import normal, positive_definite

EXACT = {"rtol": 1e-9, "atol": 1e-10}
TO_THE_END = {"tolerance": 1e-15}
sizes = st.tuples(st.integers(1, 12), st.integers(1, 4), st.integers(1, 5), st.integers(0, 2**31))  # N, C, d, seed


@dataclasses.dataclass(frozen=True)
class Problem:
    """A prior that has seen something, and observations."""

    prior: SoftmaxBelief
    x: torch.Tensor
    offsets: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor
    scale: float

    def update(self, **options):
        return softmax_update(
            self.prior, self.x, self.offsets, self.labels, self.weights, self.scale, **(TO_THE_END | options)
        )

    def log_posterior(self, Z, gain):
        """What the mode maximises, written out image by image and class by class."""
        total = -self.prior.gain_precision * (gain - self.prior.gain) ** 2 / 2
        for x, o, label, w in zip(self.x, self.offsets, self.labels.tolist(), self.weights, strict=True):
            total = total + w * torch.log_softmax(gain * o + self.scale * Z @ x, dim=0)[label]
        for c, z in enumerate(Z - self.prior.mean):
            total = total - z @ precision(self.prior, c) @ z / 2
        return total

    def at(self, belief):
        return self.log_posterior(belief.mean, belief.gain).item()

    def but(self, **changes):
        return dataclasses.replace(self, **changes)


def precision(belief, c):
    """Lambda_c, by its definition."""
    return belief.strength * torch.eye(belief.mean.shape[1]).to(belief.mean) + belief.curvature[c] * belief.gram


def problem(N=14, C=4, d=5, seed=0, informed=True, scale=3.0, gain_std=0.5, strength=0.7):
    generator = torch.Generator().manual_seed(seed)
    x = normal(N, d, generator=generator)
    prior = SoftmaxBelief.prior(C, x, strength, gain_std)
    if informed:
        prior = dataclasses.replace(
            prior,
            mean=0.3 * normal(C, d, generator=generator),
            gram=3 * positive_definite(d, generator),
            curvature=torch.rand(C, generator=generator, dtype=torch.float64),
            gain=1 + 0.2 * normal(1, generator=generator)[0],
        )
    offsets = 2 * normal(N, C, generator=generator)
    labels = torch.randint(C, (N,), generator=generator)
    weights = 0.2 + torch.rand(N, generator=generator, dtype=torch.float64)
    return Problem(prior, x, offsets, labels, weights, scale)


def assert_same(a, b, rtol=1e-6, atol=1e-7):
    for field in ("mean", "gram", "curvature", "gain", "gain_precision"):
        torch.testing.assert_close(getattr(a, field), getattr(b, field), rtol=rtol, atol=atol)
    assert a.strength == b.strength


@pytest.mark.parametrize("informed", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_the_mean_is_the_mode_that_another_solver_finds(seed, informed):
    p = problem(seed=seed, informed=informed)
    Z = torch.zeros_like(p.prior.mean, requires_grad=True)
    gain = torch.ones((), dtype=torch.float64, requires_grad=True)
    solver = torch.optim.LBFGS(
        [Z, gain], max_iter=2000, tolerance_grad=1e-11, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure():
        solver.zero_grad()
        loss = -p.log_posterior(Z, gain)
        loss.backward()
        return loss

    solver.step(closure)
    belief = p.update()
    torch.testing.assert_close(belief.mean, Z.detach(), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(belief.gain, gain.detach(), rtol=1e-6, atol=1e-7)


def test_the_gradient_at_the_mode_is_zero_by_finite_differences():
    p = problem(N=6, C=3, d=3, seed=5)
    mode, h = p.update(), 1e-5
    Z, gain = mode.mean, mode.gain
    slopes = [(p.log_posterior(Z, gain + h) - p.log_posterior(Z, gain - h)).item() / (2 * h)]
    for i in range(Z.numel()):
        nudge = torch.zeros_like(Z)
        nudge.view(-1)[i] = h
        slopes.append((p.log_posterior(Z + nudge, gain) - p.log_posterior(Z - nudge, gain)).item() / (2 * h))
    assert max(map(abs, slopes)) < 1e-6


@given(size=sizes)
@settings(max_examples=25, deadline=None)
def test_the_mean_is_the_fixed_point_of_the_iterated_kalman_filter(size):
    """All images at once, whitened by Boehning's bound, linearised at the mean: an update of the prior ends there."""
    N, C, d, seed = size
    p = problem(N, C, d, seed, informed=False, gain_std=1e-9)
    p = p.but(weights=torch.ones(N, dtype=torch.float64))
    mean = p.update().mean.flatten()
    S = p.offsets / p.scale + p.x @ mean.view(C, d).mT
    terms = BoundedCategorical(top=None).terms(S, p.labels, p.scale)
    H = torch.einsum("ikc,id->ikcd", terms.G, p.x).reshape(N * C, C * d)
    R = torch.eye(N * C, dtype=torch.float64)
    # linearised at the mean and seen from the prior: y - (y_hat + H (theta - mean))
    e = (terms.y - terms.y_hat).flatten() + H @ (mean - p.prior.mean.flatten())
    belief = make_belief("dense", p.prior.mean.flatten(), 1 / p.prior.strength)
    kalman = KalmanFilter(belief, config=FilterConfig(alpha=0))
    assert not kalman.step(lambda _: Observation(e, torch.zeros_like(e), H, R)).skipped
    torch.testing.assert_close(belief.mean, mean, rtol=1e-5, atol=1e-6)


def clusters(C, each, d=64, seed=0, noise=0.7, dtype=torch.float64):
    """Images around class means, with offsets that know a little; unit-length features and a logit scale."""
    generator = torch.Generator().manual_seed(seed)
    means = normal(C, d, generator=generator)
    labels = torch.arange(C).repeat_interleave(each)
    away = noise * d**0.5 / 4 * normal(C * each, d, generator=generator)
    x = torch.nn.functional.normalize(means[labels] + away, dim=1)
    T = torch.nn.functional.normalize(means + 2 * normal(C, d, generator=generator), dim=1)
    prior = SoftmaxBelief.prior(C, x.to(dtype), 2.0, 0.5)
    return Problem(prior, x.to(dtype), (70 * x @ T.mT).to(dtype), labels, torch.ones(C * each, dtype=dtype), 70.0)


@pytest.mark.parametrize(
    ("C", "each"), [(2, 4), (10, 8), (40, 4), (300, 2), pytest.param(1000, 2, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("strength", [0.5, 10.0, 400.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_default_tolerance_ends_at_the_optimum(C, each, strength, dtype):
    """Beside scipy's optimum: so close that neither probabilities nor a choice between priors can tell."""
    p = clusters(C, each, dtype=dtype)
    p = p.but(prior=dataclasses.replace(p.prior, strength=strength))
    x, o, labels = (t.double().numpy() if t.is_floating_point() else t.numpy() for t in (p.x, p.offsets, p.labels))

    def objective(flat):
        Z, gain = flat[:-1].reshape(C, -1), flat[-1]
        logits = gain * o + p.scale * x @ Z.T
        log_p = scipy.special.log_softmax(logits, axis=1)
        e = np.exp(log_p)
        e[np.arange(len(x)), labels] -= 1
        value = -log_p[np.arange(len(x)), labels].sum() + strength / 2 * (Z**2).sum() + 2 * (gain - 1) ** 2
        return value, np.append((p.scale * e.T @ x + strength * Z).ravel(), (e * o).sum() + 4 * (gain - 1))

    start = np.append(np.zeros(C * x.shape[1]), 1.0)
    options = {"maxiter": 5000, "maxfun": 6000, "ftol": 1e-13, "gtol": 1e-7}
    best = scipy.optimize.minimize(objective, start, jac=True, method="L-BFGS-B", options=options)
    # scipy's own way ends a little early in these coordinates; it goes on from where ours ends, too
    found = softmax_update(p.prior, p.x, p.offsets, p.labels, p.weights, p.scale)
    ours = np.append(found.mean.double().numpy().ravel(), float(found.gain))
    on = scipy.optimize.minimize(objective, ours, jac=True, method="L-BFGS-B", options=options)
    least = min(best.fun, on.fun)
    assert objective(ours)[0] - least < 2e-4 * len(x)

    def probabilities(flat):
        return scipy.special.softmax(flat[-1] * o + p.scale * x @ flat[:-1].reshape(C, -1).T, axis=1)

    assert np.abs(probabilities(ours) - probabilities(on.x)).max() < 0.02


def test_where_it_begins_changes_nothing():
    p = problem(seed=3)
    start = dataclasses.replace(p.prior, mean=5 * torch.ones_like(p.prior.mean), gain=p.prior.gain + 3)
    assert_same(p.update(start=start), p.update())


@pytest.mark.parametrize("numbers", [1, 15])  # an image at a time; three, and two at the end
@pytest.mark.parametrize("alpha", [0.0, 0.4])
def test_images_that_are_read_some_at_a_time_are_all_read(monkeypatch, numbers, alpha):
    p = problem(N=14, C=4, d=5, seed=4)
    arguments = (p.prior, p.x, p.offsets, p.labels, p.weights, p.scale, alpha)
    whole, slopes = p.update(alpha=alpha), softmax_gradient(*arguments)
    monkeypatch.setattr(softmax, "_NUMBERS", numbers)
    assert_same(p.update(alpha=alpha), whole)
    torch.testing.assert_close(softmax_gradient(*arguments), slopes, **EXACT)


def test_the_memory_does_not_grow_with_images_times_classes(monkeypatch):
    """But for a number or two of each image: neither logits of all images nor copies of their features are made."""
    monkeypatch.setattr(softmax, "_NUMBERS", 2**10)
    p = problem(N=6000, C=30, d=20, informed=False)
    taken = peak_memory(lambda: p.update(alpha=0.1, tolerance=1e-3), "cpu")
    assert taken < min(p.x.nbytes, p.offsets.nbytes) // 2


def halves(p):
    first, second = (p.but(x=p.x[s], offsets=p.offsets[s], labels=p.labels[s], weights=p.weights[s]) for s in SPLIT)
    return second.but(prior=first.update()).update()


SPLIT = (slice(0, None, 2), slice(1, None, 2))


@pytest.mark.parametrize("seed", range(5))
def test_two_halves_are_almost_the_whole(seed):
    """One after the other is not exact, as the first half's posterior is no Gaussian; predictions differ little."""
    generator = torch.Generator().manual_seed(seed)
    p = problem(N=80, C=3, d=5, seed=seed, informed=False, scale=2.0, strength=2.0)
    truth = normal(3, 5, generator=generator)
    p = p.but(labels=(p.offsets + 2 * p.x @ truth.mT + normal(80, 3, generator=generator)).argmax(dim=1))
    joint, both = p.update(), halves(p)
    x, o = normal(200, 5, generator=generator), 2 * normal(200, 3, generator=generator)
    first, second = (b.logits(x, o, p.scale).softmax(dim=1) for b in (joint, both))
    prior = p.prior.logits(x, o, p.scale).softmax(dim=1)
    assert (first - second).abs().mean() < 0.03
    assert (first - second).abs().mean() < 0.2 * (first - prior).abs().mean()
    torch.testing.assert_close(both.gram, joint.gram, **EXACT)  # information adds up whatever the order


@pytest.mark.parametrize("scale", [1e-2, 1e-3])
def test_two_halves_are_the_whole_in_the_gaussian_limit(scale):
    """With a small scale the logits hardly move, the curvature stays what it was, and Gaussians add up."""
    p = problem(informed=False, scale=scale, gain_std=1e-4)
    p = p.but(x=p.x / p.x.norm(dim=1, keepdim=True))
    joint, both = p.update(), halves(p)
    assert joint.mean.norm() > 0.1 * scale
    assert (joint.mean - both.mean).norm() < scale**2 * joint.mean.norm()
    torch.testing.assert_close(both.curvature, joint.curvature, rtol=scale**2, atol=0)


@given(size=sizes)
@settings(max_examples=25, deadline=None)
def test_the_variance_is_that_of_dense_algebra(size):
    N, C, d, seed = size
    p = problem(N, C, d, seed)
    belief = p.prior
    blocks = [torch.linalg.inv(precision(belief, c)) for c in range(C)]
    Sigma = torch.block_diag(*blocks, 1 / belief.gain_precision.view(1, 1))
    found = belief.variance(p.x, p.offsets, p.scale)
    for x, o, row in zip(p.x, p.offsets, found, strict=True):
        J = torch.cat(
            [p.scale * torch.kron(torch.eye(C), x), (o - o.mean()).unsqueeze(1)], dim=1
        )  # softmax ignores means
        torch.testing.assert_close(row, (J @ Sigma @ J.mT).diagonal(), **EXACT)
    features, variances, shared = belief.joint(p.x, p.offsets, p.scale)
    for c in range(C):
        o = p.offsets[:, c] - p.offsets.mean(dim=1)
        dense = p.scale**2 * p.x @ blocks[c] @ p.x.mT + torch.outer(o, o) / belief.gain_precision
        together = features * variances[c] @ features.mT + torch.outer(shared[:, c], shared[:, c])
        torch.testing.assert_close(together, dense, **EXACT)


def test_what_is_known_afterwards():
    """The trace of each class's information adds up, that of the gain too, and nothing gets less certain."""
    p = problem(seed=2)
    after = p.update()
    q = after.logits(p.x, p.offsets, p.scale).softmax(dim=1)
    for c in range(4):
        own = p.scale**2 * torch.einsum("n,ni,ni->", p.weights * q[:, c] * (1 - q[:, c]), p.x, p.x)
        expected = p.prior.curvature[c] * p.prior.gram.trace() + own
        torch.testing.assert_close(after.curvature[c] * after.gram.trace(), expected, **EXACT)
    variance = (q * p.offsets**2).sum(dim=1) - (q * p.offsets).sum(dim=1) ** 2
    torch.testing.assert_close(after.gain_precision - p.prior.gain_precision, (p.weights * variance).sum(), **EXACT)
    fresh = problem(seed=2, informed=False)
    known = fresh.update()
    args = (p.x, p.offsets, p.scale)
    assert (known.variance(*args) < fresh.prior.variance(*args)).all()


def test_classes_can_be_selected():
    belief = problem(C=3).update()
    other = belief.select_classes([2, None, 0])
    assert torch.equal(other.mean[[0, 2]], belief.mean[[2, 0]])
    assert torch.equal(other.curvature[[0, 2]], belief.curvature[[2, 0]])
    assert (other.mean[1] == 0).all()
    torch.testing.assert_close(other.curvature[1], belief.curvature.mean())  # no image was the new class's either
    assert torch.equal(other.gram, belief.gram)
    assert (other.gain, other.gain_precision) == (belief.gain, belief.gain_precision)
    assert belief.select_classes([1]).mean.shape == (1, 5)  # the others are dropped
    assert_same(belief.select_classes([0, 1, 2]), belief, 0, 0)


def outlier(C=2):
    """Ten images of two classes on two axes, and one of the wrong class on an axis of its own."""
    x = torch.eye(3, dtype=torch.float64)[[0] * 5 + [1] * 5 + [2]]
    offsets = torch.tensor([[4.0, 0.0]] * 5 + [[0.0, 4.0]] * 5 + [[6.0, 0.0]], dtype=torch.float64)
    labels = torch.tensor([0] * 5 + [1] * 6)
    prior = SoftmaxBelief.prior(C, x, 5.0, 0.1)
    return Problem(prior, x, offsets, labels, torch.full((11,), 1.5, dtype=torch.float64), 1.0)


def test_an_outlier_weighs_less_with_alpha():
    p = outlier()
    weights = [p.update(alpha=alpha).gram[2, 2].item() for alpha in (0, 0.1, 0.3, 1, 3, 10)]  # on its own axis
    assert weights[0] == 1.5
    assert all(after < before for before, after in pairwise(weights))
    assert weights[-1] < 1e-3
    ordinary = p.update(alpha=1).gram[0, 0].item() / 5
    assert ordinary > 3 * p.update(alpha=1).gram[2, 2].item()


def test_the_regulated_weight_is_that_of_the_distance_at_the_mode():
    p, alpha = outlier(), 0.5
    belief = p.update(alpha=alpha)
    e = math.sqrt(2) * (torch.tensor([0.0, 1.0]) - belief.logits(p.x[-1:], p.offsets[-1:], 1.0).softmax(dim=1))
    assert belief.gram[2, 2].item() == pytest.approx(1.5 * math.exp(-alpha * e.norm()), rel=1e-9)
    # and the mode is the one for those weights, nearly: re-weighting has settled
    again = p.but(weights=p.weights * torch.exp(-alpha * distances(p, belief))).update()
    torch.testing.assert_close(belief.mean, again.mean, rtol=0, atol=1e-3)


def distances(p, belief):
    q = belief.logits(p.x, p.offsets, p.scale).softmax(dim=1)
    return math.sqrt(2) * (torch.eye(2, dtype=torch.float64)[p.labels] - q).norm(dim=1)


@given(size=sizes, data=st.data())
@settings(max_examples=25, deadline=None)
def test_the_order_of_images_and_of_classes_does_not_matter(size, data):
    N, C, d, seed = size
    p = problem(N, C, d, seed)
    images = torch.tensor(data.draw(st.permutations(range(N))))
    classes = data.draw(st.permutations(range(C)))  # new class c is the old one classes[c]
    number = torch.tensor([classes.index(c) for c in range(C)])
    other = p.but(
        prior=p.prior.select_classes(list(classes)),
        x=p.x[images],
        offsets=p.offsets[images][:, classes],
        labels=number[p.labels[images]],
        weights=p.weights[images],
    )
    assert_same(other.update(alpha=0.3), p.update(alpha=0.3).select_classes(list(classes)))


@given(size=sizes)
@settings(max_examples=15, deadline=None)
def test_a_weight_of_two_is_the_image_twice(size):
    p = problem(*size)
    weights = p.weights.clone()
    weights[0] *= 2
    twice = [torch.cat([t, t[:1]]) for t in (p.x, p.offsets, p.labels, p.weights)]
    expected = Problem(p.prior, *twice, p.scale).update(alpha=0.2)
    assert_same(p.but(weights=weights).update(alpha=0.2), expected)


def test_a_shift_of_all_offsets_of_an_image_does_not_matter():
    p = problem()
    shifted = p.but(offsets=p.offsets + 100 * torch.arange(14.0, dtype=torch.float64).unsqueeze(1))
    assert_same(shifted.update(), p.update())


DEGENERATE = {
    "equal features": lambda p: p.but(x=p.x[:1].expand_as(p.x)),
    "features of zero": lambda p: p.but(x=torch.zeros_like(p.x)),
    "equal offsets": lambda p: p.but(offsets=torch.ones_like(p.offsets)),
    "one class has all images": lambda p: p.but(labels=torch.zeros_like(p.labels)),
    "an extreme scale": lambda p: p.but(scale=1e6),
    "sure and wrong": lambda p: p.but(offsets=1e4 * (torch.arange(4) != p.labels.unsqueeze(1)).double()),
    "weights of zero": lambda p: p.but(weights=torch.zeros_like(p.weights)),
}


@pytest.mark.parametrize("alpha", [0.0, 1.0, 1e4])
@pytest.mark.parametrize("informed", [False, True])
@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_problems_have_finite_answers(name, informed, alpha):
    p = DEGENERATE[name](problem(informed=informed))
    belief = p.update(alpha=alpha, tolerance=1e-5)
    for field in ("mean", "gram", "curvature", "gain", "gain_precision"):
        assert getattr(belief, field).isfinite().all(), field
    assert (belief.curvature >= 0).all()
    assert (belief.variance(p.x, p.offsets, p.scale) > 0).all()


@pytest.mark.parametrize("informed", [False, True])
def test_images_that_do_not_count_change_nothing(informed):
    p = problem(informed=informed)
    p = p.but(weights=torch.zeros_like(p.weights))
    assert_same(p.update(), p.prior, 1e-12, 1e-12)


@pytest.mark.parametrize("where", ["x", "offsets", "weights"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_that_are_none_are_refused(where, value):
    p = problem()
    broken = getattr(p, where).clone()
    broken.view(-1)[3] = value
    with pytest.raises(NumericalError):
        p.but(**{where: broken}).update()


@pytest.mark.parametrize("informed", [False, True])
def test_single_precision_is_enough(informed):
    p = problem(N=40, C=5, d=16, informed=informed, scale=10.0)
    prior = {name: getattr(p.prior, name).float() for name in ("mean", "gram", "curvature", "gain", "gain_precision")}
    single = p.but(
        prior=dataclasses.replace(p.prior, **prior),
        x=p.x.float(),
        offsets=p.offsets.float(),
        weights=p.weights.float(),
    )
    a, b = (q.update(alpha=0.1, tolerance=1e-7) for q in (single, p))
    assert a.mean.dtype == a.curvature.dtype == a.gain.dtype == torch.float32
    for field in ("mean", "gram", "curvature", "gain", "gain_precision"):
        torch.testing.assert_close(getattr(a, field).double(), getattr(b, field), rtol=2e-3, atol=2e-3)
    found, expected = (q.variance(r.x, r.offsets, r.scale) for q, r in ((a, single), (b, p)))
    torch.testing.assert_close(found.double(), expected, rtol=2e-3, atol=2e-3)
