"""The contract of a belief: every structure against exact dense algebra in float64."""

import math

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kalmanclip.errors import NumericalError
from kalmanclip.filtering import (
    Diagonal,
    FilterConfig,
    KalmanFilter,
    LowRankPlusDiagonal,
    Observation,
    make_belief,
    restore_belief,
)

from .structures import STRUCTURES, cast, normal, positive_definite

EXACT = {"rtol": 1e-9, "atol": 1e-10}
M, N = 3, 8

every_structure = pytest.mark.parametrize("structure", STRUCTURES, ids=str)
every_device = pytest.mark.parametrize("device", ["cpu"] + ["cuda"] * torch.cuda.is_available())
shapes = st.tuples(st.integers(1, 6), st.integers(1, 12), st.integers(0, 2**31))


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(11)


def belief_of(structure, generator, n=N, device="cpu"):
    belief = structure.make(normal(n, generator=generator), generator)
    return cast(belief, torch.empty(0, dtype=torch.float64, device=device))


def gain(Sigma, H, R):
    return Sigma @ H.mT @ torch.linalg.inv(H @ Sigma @ H.mT + R)


def seen(y, H, R, mu):
    return Observation(y, H @ mu, H, R)


@every_device
@every_structure
def test_products_with_the_covariance(structure, generator, device):
    belief = belief_of(structure, generator, device=device)
    Sigma, H = structure.covariance(belief), normal(M, N, generator=generator).to(device)
    torch.testing.assert_close(belief.times(H), H @ Sigma, **EXACT)
    torch.testing.assert_close(belief.project(H), H @ Sigma @ H.mT, **EXACT)
    torch.testing.assert_close(belief.variance(H), (H @ Sigma @ H.mT).diagonal(), **EXACT)
    torch.testing.assert_close(belief.marginal_variance(), Sigma.diagonal(), **EXACT)


@every_device
@every_structure
@pytest.mark.parametrize("q", [0.0, 1e-3, 2.5])
def test_inflation_adds_q_to_the_diagonal(structure, generator, q, device):
    belief = belief_of(structure, generator, device=device)
    Sigma = structure.covariance(belief)
    belief.inflate(q)
    identity = torch.eye(N, dtype=torch.float64, device=device)
    torch.testing.assert_close(structure.covariance(belief), Sigma + q * identity, **EXACT)
    torch.testing.assert_close(belief.times(identity), Sigma + q * identity, **EXACT)


@every_structure
def test_samples_have_the_mean_and_the_covariance(structure, generator):
    belief, count = belief_of(structure, generator), 40_000
    Sigma = structure.covariance(belief)
    draws = belief.sample(count, generator=torch.Generator().manual_seed(5))
    assert draws.shape == (count, N)
    scale = Sigma.diagonal()
    assert ((draws.mean(0) - belief.mean).abs() < 5 * (scale / count).sqrt()).all()
    error_of_covariance = ((torch.outer(scale, scale) + Sigma.square()) / count).sqrt()
    assert ((draws.mT.cov() - Sigma).abs() < 5 * error_of_covariance).all()
    again = belief.sample(3, generator=torch.Generator().manual_seed(5))
    assert torch.equal(again, belief.sample(3, generator=torch.Generator().manual_seed(5)))


@every_device
@every_structure
@pytest.mark.parametrize("lam", [1.0, 0.3])
def test_one_step_is_the_projected_exact_update(structure, generator, lam, device):
    belief = belief_of(structure, generator, device=device)
    Sigma, mean = structure.covariance(belief), belief.mean.clone()
    H, y = normal(M, N, generator=generator).to(device), normal(M, generator=generator).to(device)
    R = positive_definite(M, generator).to(device)
    e = y - H @ mean
    distance = float((e @ torch.linalg.solve(R, e)).sqrt())
    step = KalmanFilter(belief, config=FilterConfig(alpha=-math.log(lam) / distance)).step(lambda mu: seen(y, H, R, mu))
    assert not step.skipped
    assert step.regulation == pytest.approx(lam)
    torch.testing.assert_close(belief.mean, mean + lam * gain(Sigma, H, R) @ e, **EXACT)
    torch.testing.assert_close(structure.covariance(belief), structure.posterior(Sigma, H, R, lam), **EXACT)


@every_structure
def test_regulation_zero_leaves_the_covariance(structure, generator):
    belief = belief_of(structure, generator)
    Sigma, H, R = structure.covariance(belief), normal(M, N, generator=generator), torch.eye(M).double()
    belief.update_covariance(gain(Sigma, H, R), H, H @ Sigma, R, 0.0)
    torch.testing.assert_close(structure.covariance(belief), Sigma, **EXACT)


@every_structure
def test_the_state_survives_a_file(structure, generator):
    belief = belief_of(structure, generator)
    state = safetensors.torch.load(safetensors.torch.save(belief.state_dict()))
    restored = restore_belief(belief.kind, state)
    H, y, R = normal(M, N, generator=generator), normal(M, generator=generator), torch.eye(M).double()
    for one in (belief, restored):
        KalmanFilter(one).step(lambda mu: seen(y, H, R, mu))
    for name, tensor in belief.state_dict().items():
        assert torch.equal(tensor, restored.state_dict()[name]), name


@every_structure
def test_a_saved_state_is_a_copy(structure, generator):
    belief = belief_of(structure, generator)
    saved, kept = belief.state_dict(), {k: v.clone() for k, v in belief.state_dict().items()}
    H, y, R = normal(M, N, generator=generator), normal(M, generator=generator), torch.eye(M).double()
    KalmanFilter(belief, config=FilterConfig(q=0.1)).step(lambda mu: seen(y, H, R, mu))
    assert all(torch.equal(saved[name], kept[name]) for name in kept)


@every_structure
def test_the_mean_is_updated_where_it_lies(structure, generator):
    storage = torch.zeros(N + 2, dtype=torch.float64)
    belief = structure.make(storage[1:-1], generator)
    H, y, R = normal(M, N, generator=generator), normal(M, generator=generator), torch.eye(M).double()
    KalmanFilter(belief).step(lambda mu: seen(y, H, R, mu))
    assert storage[1:-1].abs().min() > 0
    assert storage[0] == storage[-1] == 0


@every_structure
def test_a_broken_update_is_refused_and_changes_nothing(structure, generator):
    belief = belief_of(structure, generator)
    before = belief.state_dict()
    Sigma, H, R = structure.covariance(belief), normal(M, N, generator=generator), torch.eye(M).double()
    K, bad = gain(Sigma, H, R), H.clone()
    bad[1, 2] = math.nan
    with pytest.raises(NumericalError):
        belief.update_covariance(K, bad, bad @ Sigma, R, 1.0)
    assert all(torch.equal(tensor, before[name]) for name, tensor in belief.state_dict().items())


@every_device
@every_structure
def test_float32_follows_float64(structure, generator, device):
    """Fifty regulated steps; single precision stays within 1e-3 of double, relative to the largest entry."""
    exact = belief_of(structure, generator)
    single = cast(exact, torch.empty(0, dtype=torch.float32, device=device))
    data = [(normal(M, generator=generator), normal(M, N, generator=generator)) for _ in range(50)]
    R = 0.1 * positive_definite(M, generator)
    for belief in (exact, single):
        kalman = KalmanFilter(belief, config=FilterConfig(q=1e-4))
        for y, H in data:
            assert not kalman.step(lambda mu, y=y, H=H: Observation(y, H @ mu.cpu().double(), H, R)).skipped
    assert single.mean.dtype == torch.float32
    for name in ("mean", "marginal_variance"):
        a, b = (getattr(belief, name) for belief in (exact, single))
        a, b = (a(), b()) if callable(a) else (a, b)
        assert (a - b.cpu().double()).abs().max() < 1e-3 * a.abs().max(), name


@every_structure
def test_variances_stay_positive_under_precise_observations(structure, generator):
    """In float32, where a covariance updated by subtraction turns negative."""
    belief = cast(belief_of(structure, generator), torch.empty(0))
    kalman = KalmanFilter(belief, config=FilterConfig(alpha=0))
    R = structure.least_noise * torch.eye(M)
    for _ in range(200):
        H = normal(M, N, generator=generator).float()
        assert not kalman.step(lambda mu, H=H: seen(torch.zeros(M), H, R, mu)).skipped
    assert (belief.marginal_variance() > 0).all()
    assert torch.isfinite(belief.mean).all()


@every_structure
def test_certainty_is_never_reached(structure, generator):
    """One parameter seen all but exactly, again and again, in float32: it keeps some variance."""
    belief = cast(belief_of(structure, generator, n=1), torch.empty(0))
    kalman = KalmanFilter(belief, config=FilterConfig(alpha=0))
    for _ in range(20):
        assert not kalman.step(lambda mu: seen(torch.ones(1), torch.ones(1, 1), 1e-20 * torch.ones(1, 1), mu)).skipped
        assert belief.marginal_variance().item() > 0
    assert belief.mean.item() == pytest.approx(1)
    belief.inflate(1.0)
    assert belief.marginal_variance().item() == pytest.approx(1)


@pytest.mark.parametrize("rounding", [0.0, 1e-6])
def test_a_diagonal_variance_shrinks_at_most_to_rounding_error(rounding):
    """A gain that rounding has brought to 1 or above would make the variance zero or negative."""
    belief = Diagonal(torch.zeros(1), torch.ones(1))
    one = torch.ones(1, 1)
    belief.update_covariance((1 + rounding) * one, one, one, 1e-9 * one, 1.0)
    assert belief.s.item() == torch.finfo(torch.float32).eps


@pytest.mark.parametrize("update", ["covariance", "precision"])
def test_a_diagonal_variance_does_not_underflow(update):
    tiny = torch.finfo(torch.float32).tiny
    belief = Diagonal(torch.zeros(1), 2 * tiny * torch.ones(1), update)
    one = torch.ones(1, 1)
    belief.update_covariance(one, one, one, tiny * one, 1.0)
    belief.update_covariance(one, one, one, tiny * one, 1.0)
    assert belief.s.item() >= tiny


@every_structure
@given(shape=shapes)
@settings(max_examples=25, deadline=None)
def test_any_shape(structure, shape):
    """The update matches dense algebra for any m and n, and yields a symmetric positive covariance."""
    m, n, seed = shape
    generator = torch.Generator().manual_seed(seed)
    belief = belief_of(structure, generator, n)
    Sigma, H = structure.covariance(belief), normal(m, n, generator=generator)
    R, y, mean = positive_definite(m, generator), normal(m, generator=generator), belief.mean.clone()
    KalmanFilter(belief, config=FilterConfig(alpha=0)).step(lambda mu: seen(y, H, R, mu))
    close = {"rtol": 1e-6, "atol": 1e-7}
    torch.testing.assert_close(belief.mean, mean + gain(Sigma, H, R) @ (y - H @ mean), **close)
    after = belief.times(torch.eye(n, dtype=torch.float64))
    torch.testing.assert_close(after, structure.posterior(Sigma, H, R, 1.0), **close)
    torch.testing.assert_close(after, after.mT, **close)
    assert (belief.marginal_variance() > 0).all()
    assert (belief.marginal_variance() <= Sigma.diagonal() * (1 + 1e-9)).all()


@every_structure
@given(shape=shapes)
@settings(max_examples=15, deadline=None)
def test_the_order_within_a_batch_does_not_matter(structure, shape):
    m, n, seed = shape
    generator = torch.Generator().manual_seed(seed)
    one = belief_of(structure, generator, n)
    other = cast(one, one.mean)
    H, y, R = (
        normal(m, n, generator=generator),
        normal(m, generator=generator),
        positive_definite(m, generator),
    )
    p = torch.randperm(m, generator=generator)
    KalmanFilter(one).step(lambda mu: seen(y, H, R, mu))
    KalmanFilter(other).step(lambda mu: seen(y[p], H[p], R[p][:, p], mu))
    torch.testing.assert_close(one.mean, other.mean, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(structure.covariance(one), structure.covariance(other), rtol=1e-6, atol=1e-8)


@every_structure
def test_duplicate_rows(structure, generator):
    """The same image twice in a batch: H is rank deficient, the algebra is not."""
    belief = belief_of(structure, generator)
    Sigma, mean = structure.covariance(belief), belief.mean.clone()
    H = normal(1, N, generator=generator).repeat(M, 1)
    R, y = 0.5 * torch.eye(M).double(), torch.ones(M).double()
    step = KalmanFilter(belief, config=FilterConfig(alpha=0)).step(lambda mu: seen(y, H, R, mu))
    assert not step.skipped
    torch.testing.assert_close(belief.mean, mean + gain(Sigma, H, R) @ (y - H @ mean), **EXACT)
    torch.testing.assert_close(structure.covariance(belief), structure.posterior(Sigma, H, R, 1.0), **EXACT)


@pytest.mark.parametrize("lam", [1.0, 0.3])
@pytest.mark.parametrize("rank", [1, 3])
def test_low_rank_truncation_keeps_the_diagonal_of_the_precision(generator, rank, lam):
    d = torch.rand(N, generator=generator, dtype=torch.float64) + 0.5
    W = normal(N, rank, generator=generator)
    belief = LowRankPlusDiagonal(torch.zeros(N).double(), d, W)
    H, R = normal(M, N, generator=generator), positive_definite(M, generator)
    Sigma = torch.linalg.inv(torch.diag(d) + W @ W.mT)
    belief.update_covariance(gain(Sigma, H, R), H, H @ Sigma, R, lam)
    exact = torch.diag(d) + W @ W.mT + lam * H.mT @ torch.linalg.inv(R) @ H
    kept = torch.diag(belief.d) + belief.W @ belief.W.mT
    torch.testing.assert_close(kept.diagonal(), exact.diagonal(), **EXACT)
    # What is kept of the low-rank part is the best of that rank: its eigenvalues are the largest ones.
    strongest = torch.linalg.eigvalsh(exact - torch.diag(d))[-rank:]
    torch.testing.assert_close(torch.linalg.eigvalsh(belief.W.mT @ belief.W), strongest, **EXACT)
    assert belief.W.shape == (N, rank)


@every_structure
@pytest.mark.parametrize("varied", [False, True])
def test_every_prior_is_diagonal(structure, varied):
    mean, variance = torch.arange(float(N)), structure.prior_variance(N) if varied else 0.25
    belief = make_belief(structure.kind, mean, variance, **structure.options(N))
    expected = torch.as_tensor(variance).expand(N)
    torch.testing.assert_close(belief.times(torch.eye(N)), torch.diag(expected))
    assert belief.mean.data_ptr() == mean.data_ptr()
    assert restore_belief(structure.kind, belief.state_dict()).kind == structure.kind
