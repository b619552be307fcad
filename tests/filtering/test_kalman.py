"""Algorithm 1: its identities, its regulation, its record, and what it does when the numbers break down."""

import math

import numpy as np
import pytest
import torch

from kalmanclip.errors import ConfigError
from kalmanclip.filtering import (
    Dense,
    FilterConfig,
    KalmanFilter,
    NoiseConfig,
    Observation,
    ObservationNoise,
    make_belief,
)

from .structures import normal, positive_definite

PLAIN = FilterConfig(alpha=0.0)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(3)


def linear(y, H, R=None):
    """A linear model: the observation at mu is H mu."""
    return lambda mu: Observation(y, H @ mu, H, R)


@pytest.mark.parametrize("given_noise", [True, False])
def test_lemma_natural_gradient(generator, given_noise):
    """With lambda = 1: mu - Sigma_k grad L, and Sigma^-1 + H^T R^-1 H, for a nonlinear h. To 1e-8."""
    n, m = 6, 4
    A, y = normal(m, n, generator=generator), normal(m, generator=generator)
    Sigma, mu = positive_definite(n, generator), normal(n, generator=generator)
    R = positive_definite(m, generator) if given_noise else None

    def h(theta):
        return torch.tanh(A @ theta)

    def observe(theta):
        return Observation(y, h(theta), torch.func.jacrev(h)(theta), R)

    H = observe(mu).H
    belief = Dense(mu.clone(), Sigma.clone())
    kalman = KalmanFilter(belief, config=PLAIN)
    kalman.step(observe)
    R_k = R if given_noise else kalman.noise.R

    theta = mu.clone().requires_grad_()
    residual = h(theta) - y
    loss = 0.5 * residual @ torch.linalg.inv(R_k) @ residual
    (gradient,) = torch.autograd.grad(loss, theta)
    precision = torch.linalg.inv(Sigma) + H.mT @ torch.linalg.inv(R_k) @ H
    exact = {"rtol": 1e-8, "atol": 1e-8}
    torch.testing.assert_close(torch.linalg.inv(belief.covariance), precision, **exact)
    torch.testing.assert_close(belief.mean, mu - torch.linalg.inv(precision) @ gradient, **exact)


@pytest.mark.parametrize("seed", range(4))
def test_linear_gaussian_posterior_in_any_order_and_any_split(seed):
    """Bayesian linear regression has one posterior, however the data arrive."""
    generator = torch.Generator().manual_seed(seed)
    n, count, noise = 5, 24, 0.3
    X, y = normal(count, n, generator=generator), normal(count, generator=generator)
    prior_mean, Sigma = normal(n, generator=generator), positive_definite(n, generator)
    precision = torch.linalg.inv(Sigma) + X.mT @ X / noise
    exact_mean = torch.linalg.solve(precision, torch.linalg.solve(Sigma, prior_mean) + X.mT @ y / noise)

    belief = Dense(prior_mean.clone(), Sigma.clone())
    kalman = KalmanFilter(belief, config=PLAIN)
    left = torch.randperm(count, generator=generator)
    while len(left):
        m = int(torch.randint(1, 8, (1,), generator=generator))
        batch, left = left[:m], left[m:]
        kalman.step(linear(y[batch], X[batch], noise * torch.eye(len(batch)).double()))
    torch.testing.assert_close(belief.mean, exact_mean, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(belief.covariance, torch.linalg.inv(precision), rtol=1e-9, atol=1e-10)


def test_the_predictive_scores_add_up_to_the_evidence(generator):
    """The log-likelihoods of the steps are a factorisation of log p(y), exact in the linear Gaussian case."""
    n, count, noise = 4, 12, 0.5
    X, y = normal(count, n, generator=generator), normal(count, generator=generator)
    kalman = KalmanFilter(make_belief("dense", torch.zeros(n).double(), 2.0), config=PLAIN)
    steps = [kalman.step(linear(y[i : i + 3], X[i : i + 3], noise * torch.eye(3))) for i in range(0, count, 3)]
    covariance = 2.0 * X @ X.mT + noise * torch.eye(count)
    evidence = torch.distributions.MultivariateNormal(torch.zeros(count).double(), covariance).log_prob(y)
    assert sum(step.log_likelihood for step in steps) == pytest.approx(evidence.item())


def test_the_predictive_score_does_not_look_at_its_own_batch(generator):
    """It is taken under the noise before this batch, or a short memory would always win."""
    H, y, R = (
        normal(3, 2, generator=generator),
        normal(3, generator=generator),
        positive_definite(3, generator),
    )
    scores = []
    for beta in (0.0, 0.98):
        noise = ObservationNoise(NoiseConfig(beta=beta))
        noise.accept(R)
        kalman = KalmanFilter(make_belief("dense", torch.zeros(2).double(), 1.0), noise)
        scores.append(kalman.step(linear(y, H)).log_likelihood)
    assert scores[0] == scores[1]


@pytest.mark.parametrize("update", ["covariance", "precision"])
def test_diagonal_is_exact_for_one_parameter(generator, update):
    beliefs = [
        make_belief("diagonal", torch.zeros(1).double(), 1.0, update=update),
        make_belief("dense", torch.zeros(1).double(), 1.0),
    ]
    data = [(normal(2, generator=generator), normal(2, 1, generator=generator)) for _ in range(20)]
    for belief in beliefs:
        kalman = KalmanFilter(belief, config=FilterConfig(q=0.01, regulate=("mean", "noise")))
        for y, H in data:
            kalman.step(linear(y, H))
    torch.testing.assert_close(beliefs[0].mean, beliefs[1].mean)
    torch.testing.assert_close(beliefs[0].marginal_variance(), beliefs[1].marginal_variance())


@pytest.mark.parametrize("update", ["covariance", "precision"])
def test_diagonal_is_exact_where_parameters_do_not_meet(generator, update):
    """Every target depends on one parameter of its own and the noise is independent: nothing to correlate."""
    s = torch.rand(6, generator=generator, dtype=torch.float64) + 0.1
    beliefs = [make_belief("diagonal", torch.zeros(6).double(), s, update=update)]
    beliefs.append(make_belief("dense", torch.zeros(6).double(), s))
    for _ in range(10):
        which = torch.randperm(6, generator=generator)[:3]
        H = torch.zeros(3, 6).double()
        H[torch.arange(3), which] = normal(3, generator=generator)
        R = torch.diag(torch.rand(3, generator=generator, dtype=torch.float64) + 0.1)
        y = normal(3, generator=generator)
        for belief in beliefs:
            KalmanFilter(belief, config=PLAIN).step(linear(y, H, R))
    torch.testing.assert_close(beliefs[0].mean, beliefs[1].mean)
    torch.testing.assert_close(torch.diag(beliefs[0].s), beliefs[1].covariance)


@pytest.mark.parametrize("regulated", ["mean", "covariance", "noise"])
def test_each_update_is_regulated_on_its_own(generator, regulated):
    """Algorithm 1 by hand, with lambda on exactly one of the three updates."""
    H, y, R = (
        normal(3, 4, generator=generator),
        normal(3, generator=generator),
        positive_definite(3, generator),
    )
    mu, Sigma = normal(4, generator=generator), positive_definite(4, generator)
    noise = ObservationNoise(NoiseConfig(beta=0.9))
    noise.accept(R)
    belief = Dense(mu.clone(), Sigma.clone())
    KalmanFilter(belief, noise, FilterConfig(alpha=0.5, q=0.2, regulate=(regulated,))).step(linear(y, H))

    Sigma = Sigma + 0.2 * torch.eye(4)
    e = y - H @ mu
    lam = torch.exp(-0.5 * (e @ torch.linalg.solve(R, e)).sqrt())
    lams = {name: lam if name == regulated else 1.0 for name in ("mean", "covariance", "noise")}
    R_k = 0.9 * R + lams["noise"] * 0.1 * (torch.outer(e, e) + H @ Sigma @ H.mT)
    K = Sigma @ H.mT @ torch.linalg.inv(H @ Sigma @ H.mT + R_k)
    torch.testing.assert_close(noise.R, R_k)
    torch.testing.assert_close(belief.mean, mu + lams["mean"] * K @ e)
    torch.testing.assert_close(belief.covariance, Sigma - lams["covariance"] * K @ H @ Sigma)


def test_a_given_noise_is_used_for_everything_and_never_averaged(generator):
    H, y, R = (
        normal(2, 3, generator=generator),
        normal(2, generator=generator),
        positive_definite(2, generator),
    )
    noise = ObservationNoise()
    noise.accept(100 * torch.eye(2).double())
    kalman = KalmanFilter(make_belief("dense", torch.zeros(3).double(), 1.0), noise)
    step = kalman.step(linear(y, H, R))
    assert step.distance == pytest.approx((y @ torch.linalg.solve(R, y)).sqrt().item())
    assert step.trace_R == pytest.approx(R.trace().item())
    assert noise.R.tolist() == [[100, 0], [0, 100]]


def test_the_record_of_a_step(generator):
    H, y = normal(2, 3, generator=generator), torch.tensor([3.0, 4.0]).double()
    step = KalmanFilter(make_belief("dense", torch.zeros(3).double(), 1.0)).step(linear(y, H))
    R_0 = 12.5 * torch.eye(2)
    lam = math.exp(-0.1 * math.sqrt(2))
    R_1 = 0.98 * R_0 + lam * 0.02 * (torch.outer(y, y) + H @ H.mT)
    assert step.innovation == pytest.approx(5)
    assert step.distance == pytest.approx(math.sqrt(2))
    assert step.regulation == pytest.approx(lam)
    assert step.trace_R == pytest.approx(R_1.trace().item())
    assert step.gain == pytest.approx(torch.linalg.norm(H.mT @ torch.linalg.inv(H @ H.mT + R_1)).item())
    assert not step.skipped
    assert step.reason == ""


def test_an_outlier_moves_the_regulated_filter_less(generator):
    H, y = normal(4, 3, generator=generator), normal(4, generator=generator)
    moved = []
    for alpha in (0.0, 0.1, 1.0):
        noise = ObservationNoise(NoiseConfig(initial=1.0))
        belief = make_belief("dense", torch.zeros(3).double(), 1.0)
        KalmanFilter(belief, noise, FilterConfig(alpha=alpha)).step(linear(y + 50, H))
        moved.append(belief.mean.norm().item())
    assert moved[0] > 10 * moved[1] > 100 * moved[2]


def test_process_noise_is_added_before_looking():
    belief = make_belief("diagonal", torch.zeros(1).double(), 1.0)
    KalmanFilter(belief, config=FilterConfig(alpha=0, q=1.0)).step(
        linear(torch.ones(1), torch.ones(1, 1).double(), 2 * torch.ones(1, 1))
    )
    assert belief.mean.item() == pytest.approx(2 / 4)
    assert belief.s.item() == pytest.approx(1)


def test_batches_of_one():
    """The smallest batch, with estimated noise, by hand."""
    belief = make_belief("diagonal", torch.zeros(2).double(), 1.0)
    kalman = KalmanFilter(belief, ObservationNoise(NoiseConfig(beta=0.5)), PLAIN)
    kalman.step(linear(torch.tensor([2.0]).double(), torch.tensor([[1.0, 1.0]]).double()))
    # R_0 = 4, H Sigma H^T = 2, R_1 = 2 + 0.5 * (4 + 2) = 5, S = 7, K = 1/7
    assert kalman.noise.R.item() == pytest.approx(5)
    assert belief.mean.tolist() == pytest.approx([2 / 7, 2 / 7])
    assert belief.s.tolist() == pytest.approx([6 / 7, 6 / 7])


GOOD_H = torch.tensor([[1.0, 0.5, 0.0], [0.0, 1.0, 2.0]])
BAD_STEPS = {
    "NaN target": linear(torch.tensor([1.0, math.nan]), GOOD_H),
    "infinite target": linear(torch.tensor([1.0, math.inf]), GOOD_H),
    "NaN target, given R": linear(torch.tensor([1.0, math.nan]), GOOD_H, torch.eye(2)),
    "NaN Jacobian": lambda mu: Observation(torch.ones(2), torch.zeros(2), GOOD_H.log().sqrt()),
    "infinite Jacobian": lambda mu: Observation(torch.ones(2), torch.zeros(2), GOOD_H.log()),
    "NaN Jacobian, given R": lambda mu: Observation(torch.ones(2), torch.zeros(2), GOOD_H.log().sqrt(), torch.eye(2)),
    "overflowing Jacobian": lambda mu: Observation(torch.ones(2), torch.zeros(2), 1e30 * GOOD_H),
    "overflowing distance": linear(torch.full((2,), 1e25), GOOD_H, torch.eye(2)),
    "zero R": linear(torch.ones(2), GOOD_H, torch.zeros(2, 2)),
    "indefinite R": linear(torch.ones(2), GOOD_H, torch.diag(torch.tensor([1.0, -1.0]))),
    "NaN R": linear(torch.ones(2), GOOD_H, torch.full((2, 2), math.nan)),
}
KINDS = {
    "diagonal": {},
    "diagonal-precision": {"update": "precision"},
    "block": {"groups": [2, 1]},
    "low_rank": {"rank": 2},
    "dense": {},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", BAD_STEPS)
@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
def test_a_broken_step_is_skipped_and_poisons_nothing(kind, bad, first):
    belief = make_belief(kind.split("-")[0], torch.zeros(3), 1.0, **KINDS[kind])
    kalman = KalmanFilter(belief)
    good = linear(torch.tensor([1.0, -1.0]), GOOD_H)
    if not first:
        kalman.step(good)
    before = {**belief.state_dict(), **kalman.noise.state_dict()}
    step = kalman.step(BAD_STEPS[bad])
    assert step.skipped
    assert step.reason
    assert math.isnan(step.gain)
    now = {**belief.state_dict(), **kalman.noise.state_dict()}
    assert now.keys() == before.keys()
    assert all(torch.equal(now[name], before[name]) for name in before)
    assert (kalman.steps, kalman.skipped) == (1 + (not first), 1)

    moved = belief.mean.clone()
    assert not kalman.step(good).skipped
    assert not torch.equal(belief.mean, moved)
    assert kalman.skipped == 1


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("NaN target", "the innovation y - y_hat is not finite"),
        ("NaN Jacobian", "the innovation covariance H Sigma H^T + R is not finite"),
        ("overflowing distance", "the Kalman gain or the distance is not finite"),
        ("zero R", "the observation noise R is not positive definite"),
    ],
)
def test_the_record_says_what_broke_down(bad, reason):
    assert KalmanFilter(make_belief("diagonal", torch.zeros(3), 1.0)).step(BAD_STEPS[bad]).reason == reason


def test_prediction_happens_even_when_the_update_is_skipped():
    belief = make_belief("diagonal", torch.zeros(3), 1.0)
    KalmanFilter(belief, config=FilterConfig(q=0.5)).step(BAD_STEPS["NaN target"])
    assert belief.s.tolist() == [1.5, 1.5, 1.5]


def test_a_perfect_first_batch_is_skipped_because_it_shows_no_noise():
    kalman = KalmanFilter(make_belief("diagonal", torch.zeros(3), 1.0))
    assert "observation noise" in kalman.step(linear(torch.zeros(2), GOOD_H)).reason
    assert kalman.noise.R is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_singular_categorical_noise_is_fine(generator, kind):
    """Class probabilities sum to one: R is singular along the ones, and so are e and H. Nothing is lost."""
    belief = make_belief(kind.split("-")[0], torch.zeros(3), 1.0, **KINDS[kind])
    kalman, y = KalmanFilter(belief, config=PLAIN), torch.tensor([0.0, 0.0, 1.0, 0.0])
    W = normal(4, 3, generator=generator).float()

    def observe(mu):
        p = torch.softmax(W @ mu, 0)
        R = torch.diag(p) - torch.outer(p, p)
        return Observation(y, p, R @ W, R)

    scores = []
    for _ in range(20):
        assert not kalman.step(observe).skipped
        scores.append(torch.softmax(W @ belief.mean, 0)[2].item())
    assert scores[-1] > 0.8
    assert (belief.marginal_variance() > 0).all()


@pytest.mark.parametrize(
    "options", [{"alpha": -1.0}, {"alpha": math.nan}, {"q": -1.0}, {"q": math.inf}, {"regulate": ("gain",)}]
)
def test_bad_options(options):
    with pytest.raises(ConfigError):
        FilterConfig(**options)


def test_a_list_from_a_file_is_as_good_as_a_tuple():
    assert FilterConfig(regulate=["mean"]) == FilterConfig(regulate=("mean",))


def reference_run(H, y, alpha, beta):
    """The diagonal filter of Algorithm 1 in float64, written out in NumPy for batches of two."""
    mu, s = np.zeros(H.shape[2]), np.ones(H.shape[2])
    R = np.eye(2) * (y[0] @ y[0]) / 2
    for H_k, y_k in zip(H, y, strict=True):
        e = y_k - H_k @ mu
        lam = np.exp(-alpha * np.sqrt(e @ inverse(R) @ e))
        HS = H_k * s
        HSH = HS @ H_k.T
        R = beta * R + lam * (1 - beta) * (np.outer(e, e) + HSH)
        K = HS.T @ inverse(HSH + R)
        mu = mu + lam * (K @ e)
        s = s - lam * (K.T * HS).sum(0)
    return mu, s, R


def inverse(A):
    (a, b), (c, d) = A
    return np.array([[d, -b], [-c, a]]) / (a * d - b * c)


@pytest.mark.parametrize("count", [6_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_many_float32_steps(count):
    """Single precision stays finite, positive, and within 1e-2 of double precision over 100,000 steps."""
    rng = np.random.default_rng(0)
    truth = rng.normal(size=8)
    H = rng.normal(size=(count, 2, 8)).astype(np.float32)
    y = (H @ truth + 0.1 * rng.normal(size=(count, 2))).astype(np.float32)

    belief = make_belief("diagonal", torch.zeros(8), 1.0)
    kalman = KalmanFilter(belief)
    for H_k, y_k in zip(torch.from_numpy(H), torch.from_numpy(y), strict=True):
        kalman.step(linear(y_k, H_k))
    assert kalman.skipped == 0
    mu, s, R = reference_run(H.astype(np.float64), y.astype(np.float64), alpha=0.1, beta=0.98)
    assert (belief.s > 0).all()
    np.testing.assert_allclose(belief.mean.numpy(), mu, rtol=1e-2)
    np.testing.assert_allclose(belief.s.numpy(), s, rtol=1e-2)
    np.testing.assert_allclose(kalman.noise.R.numpy(), R, rtol=1e-2)
    assert np.abs(mu - truth).max() < 1e-2  # and it has learned what there was to learn
