"""The Kronecker belief: what the shared contract (test_contract.py) does not ask of every structure."""

import math

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import MultivariateNormal, kl_divergence

from kalmanclip.errors import ConfigError, NumericalError
from kalmanclip.filtering import (
    Dense,
    FilterConfig,
    KalmanFilter,
    Kronecker,
    Observation,
    make_belief,
    restore_belief,
)
from kalmanclip.observation import make_likelihood

from .structures import cast, informed, normal, positive_definite

EXACT = {"rtol": 1e-9, "atol": 1e-10}
shapes = st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(1, 5), st.integers(0, 2**31))  # m, C, d, seed


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(7)


def belief_of(C, d, generator):
    return Kronecker(normal(C * d, generator=generator), torch.linalg.cholesky(positive_definite(d, generator)))


def row_covariance(belief):
    return belief.factor @ belief.factor.mT


def dense(belief):
    """Sigma, by its definition."""
    return torch.kron(torch.eye(belief.rows, dtype=torch.float64), row_covariance(belief))


def average_block(matrix, C):
    """The average of the C diagonal blocks of a (C d, C d) matrix."""
    d = len(matrix) // C
    return torch.einsum("cicj->ij", matrix.reshape(C, d, C, d)) / C


def contract(belief, H, R, lam=1.0):
    HS = belief.times(H)
    belief.update_covariance(HS.mT @ torch.linalg.inv(HS @ H.mT + R), H, HS, R, lam)


def observed(belief, y, H, R, alpha=0.0):
    """One step of the filter, which must not be skipped."""
    step = KalmanFilter(belief, config=FilterConfig(alpha=alpha)).step(lambda mu: Observation(y, H @ mu, H, R))
    assert not step.skipped, step.reason


@given(shape=shapes)
@settings(max_examples=30, deadline=None)
def test_products_are_those_of_the_kronecker_product(shape):
    m, C, d, seed = shape
    generator = torch.Generator().manual_seed(seed)
    belief, H = belief_of(C, d, generator), normal(m, C * d, generator=generator)
    Sigma = dense(belief)
    torch.testing.assert_close(belief.times(H), H @ Sigma, **EXACT)
    torch.testing.assert_close(belief.project(H), H @ Sigma @ H.mT, **EXACT)
    torch.testing.assert_close(belief.variance(H), (H @ Sigma @ H.mT).diagonal(), **EXACT)
    torch.testing.assert_close(belief.marginal_variance(), Sigma.diagonal(), **EXACT)
    torch.testing.assert_close(belief.times(H.mT.contiguous().mT), H @ Sigma, **EXACT)  # laid out by columns


@given(shape=shapes, lam=st.sampled_from([0.0, 0.3, 1.0]))
@settings(max_examples=40, deadline=None)
def test_an_observation_adds_the_average_of_the_diagonal_blocks_of_its_information(shape, lam):
    """Against the dense posterior and, independently of it, against the double sum over the observed values."""
    m, C, d, seed = shape
    generator = torch.Generator().manual_seed(seed)
    belief, H, R = belief_of(C, d, generator), normal(m, C * d, generator=generator), positive_definite(m, generator)
    Sigma, P = dense(belief), row_covariance(belief)
    contract(belief, H, R, lam)
    of_the_posterior = average_block(torch.linalg.inv(informed(Sigma, H, R, lam)), C)
    precision, H_ = torch.linalg.inv(R), H.reshape(m, C, d)
    summed = sum(precision[a, b] * H_[a].mT @ H_[b] for a in range(m) for b in range(m))
    close = {"rtol": 1e-7, "atol": 1e-8}
    torch.testing.assert_close(torch.linalg.inv(row_covariance(belief)), of_the_posterior, **close)
    torch.testing.assert_close(row_covariance(belief), torch.linalg.inv(of_the_posterior), **close)
    torch.testing.assert_close(of_the_posterior, torch.linalg.inv(P) + lam / C * summed, **close)


def test_it_is_the_variational_projection_of_the_posterior(generator):
    """The derivative of KL(q || p) vanishes there, that of KL(p || q) does not; and q is the surer of the two."""
    m, C, d = 4, 3, 2
    belief, H, R = belief_of(C, d, generator), normal(m, C * d, generator=generator), positive_definite(m, generator)
    exact = informed(dense(belief), H, R, 1.0)
    contract(belief, H, R)
    P = row_covariance(belief).requires_grad_()
    zero = torch.zeros(C * d, dtype=torch.float64)
    p = MultivariateNormal(zero, exact)
    q = MultivariateNormal(zero, torch.kron(torch.eye(C, dtype=torch.float64), P))
    (variational,) = torch.autograd.grad(kl_divergence(q, p), P, retain_graph=True)
    (other,) = torch.autograd.grad(kl_divergence(p, q), P)
    assert (variational + variational.mT).abs().max() < 1e-10
    assert other.abs().max() > 1e-2
    assert torch.linalg.eigvalsh(average_block(exact, C) - P.detach()).min() > 0


def test_a_single_row_is_the_dense_belief(generator):
    """Twenty steps, with inflation; regulation off, since it scales precisions here and covariances there."""
    n, m = 5, 3
    one = belief_of(1, n, generator)
    other = Dense(one.mean.clone(), row_covariance(one))
    for _ in range(20):
        H, y, R = normal(m, n, generator=generator), normal(m, generator=generator), positive_definite(m, generator)
        for belief in (one, other):
            belief.inflate(0.01)
            observed(belief, y, H, R)
    torch.testing.assert_close(one.mean, other.mean, **EXACT)
    torch.testing.assert_close(row_covariance(one), other.covariance, **EXACT)


@pytest.mark.parametrize("batch", [1, 4, 12])
def test_linear_regression_is_solved_exactly(generator, batch):
    """y = Theta x + noise tells every row the same: the belief is the exact posterior, however the data are cut."""
    C, d, N, variance, noise = 3, 4, 12, 0.7, 0.3
    x, y = normal(N, d, generator=generator), normal(N, C, generator=generator)
    mean = normal(C * d, generator=generator)
    precision = torch.eye(d, dtype=torch.float64) / variance + x.mT @ x / noise
    Theta = torch.linalg.solve(precision, mean.reshape(C, d).mT / variance + x.mT @ y / noise).mT
    belief = make_belief("kronecker", mean, variance, rows=C)
    for x_k, y_k in zip(x.split(batch), y.split(batch), strict=True):
        H = torch.einsum("bd,ce->bced", x_k, torch.eye(C, dtype=torch.float64)).reshape(-1, C * d)
        observed(belief, y_k.flatten(), H, noise * torch.eye(len(H), dtype=torch.float64))
    torch.testing.assert_close(belief.mean.reshape(C, d), Theta, **EXACT)
    torch.testing.assert_close(row_covariance(belief), torch.linalg.inv(precision), **EXACT)


@pytest.mark.parametrize("lam", [1.0, 0.25])
def test_softmax_regression_with_the_bounded_curvature(generator, lam):
    """Every image x adds (C - 1) / C x x^T / 2 scale^2 to the precision of a row, whatever the labels and the mean."""
    B, C, d, scale = 3, 4, 6, 5.0
    belief, x = belief_of(C, d, generator), normal(B, d, generator=generator)
    similarities = x @ belief.mean.reshape(C, d).mT
    terms = make_likelihood("bounded", top=None).terms(similarities, torch.tensor([2, 0, 2]), scale)
    H = torch.einsum("bkc,bd->bkcd", terms.G, x).reshape(B * C, C * d)
    before = torch.linalg.inv(row_covariance(belief))
    contract(belief, H, torch.eye(B * C, dtype=torch.float64), lam)
    growth = torch.linalg.inv(row_covariance(belief)) - before
    expected = lam * (C - 1) / C * x.mT @ x / 2 * scale**2
    torch.testing.assert_close(growth, expected, rtol=1e-9, atol=1e-8)


def test_the_order_of_the_batch_and_of_the_rows_does_not_matter(generator):
    m, C, d = 4, 3, 2
    H, y, R = normal(m, C * d, generator=generator), normal(m, generator=generator), positive_definite(m, generator)
    one = belief_of(C, d, generator)
    batch, rows = torch.tensor([2, 0, 3, 1]), torch.tensor([1, 2, 0])
    other = Kronecker(one.mean.reshape(C, d)[rows].flatten(), one.factor.clone())
    H_other = H.reshape(m, C, d)[batch][:, rows].reshape(m, C * d)
    observed(one, y, H, R, alpha=0.1)
    observed(other, y[batch], H_other, R[batch][:, batch], alpha=0.1)
    torch.testing.assert_close(other.mean, one.mean.reshape(C, d)[rows].flatten(), **EXACT)
    torch.testing.assert_close(row_covariance(other), row_covariance(one), **EXACT)


@pytest.mark.parametrize("noise", [1.0, 1e-4])
def test_many_steps_in_single_precision(generator, noise):
    """Three hundred steps: symmetric, positive, and within 1e-4 of double precision, in P and in P^-1.

    The error is that of `L^-1 (L' L'^T) L^-T - I`, L the root in double precision: relative to the variance in every
    direction, not to the largest one.
    """
    m, C, d = 3, 4, 6
    exact = belief_of(C, d, generator)
    single = cast(exact, torch.empty(0))
    filters = [KalmanFilter(belief, config=FilterConfig(alpha=0.1, q=1e-6)) for belief in (exact, single)]
    R = noise * positive_definite(m, generator)
    for _ in range(300):
        H, y = normal(m, C * d, generator=generator), normal(m, generator=generator)
        for kalman in filters:
            assert not kalman.step(lambda mu, H=H, y=y: Observation(y, H @ mu.double(), H, R)).skipped
    assert single.factor.dtype == torch.float32
    Sigma = single.times(torch.eye(C * d))
    torch.testing.assert_close(Sigma, Sigma.mT, rtol=1e-5, atol=1e-6 * Sigma.max().item())
    assert single.marginal_variance().min() > 0
    assert torch.linalg.eigvalsh(row_covariance(cast(single, exact.mean))).min() > 0
    relative = torch.linalg.solve(exact.factor, single.factor.double())
    assert (relative @ relative.mT - torch.eye(d)).abs().max() < 1e-4
    assert (single.mean - exact.mean).abs().max() < 1e-3 * exact.mean.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_very_precise_observation_says_nothing_about_other_directions(dtype):
    """Information 10^20 times the prior's, along one direction: the orthogonal ones keep their variance."""
    C, d = 2, 3
    belief = make_belief("kronecker", torch.zeros(C * d, dtype=dtype), 4.0, rows=C)
    seen = torch.tensor([1.0, 1.0, 1.0], dtype=dtype)
    contract(belief, torch.cat([seen, -seen])[None], torch.full((1, 1), 1e-20, dtype=dtype))
    unseen = torch.tensor([[1.0, -1.0, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0, 1.0, -2.0]], dtype=dtype)
    torch.testing.assert_close(belief.variance(unseen), 4 * unseen.square().sum(1), rtol=1e-5, atol=0)
    left = belief.variance(torch.cat([seen, 0 * seen])[None]).item()
    assert 0 < left < 1e-10


def test_inflation_is_accurate_where_the_variances_differ_widely():
    """Variances 1 and 1e-10 in a turned basis, q = 1e-9, single precision: next to 1, `P + q I` would lose q."""
    turn = torch.tensor([[0.6, -0.8], [0.8, 0.6]])
    belief = Kronecker(torch.zeros(4), turn @ torch.diag(torch.tensor([1.0, 1e-5])))
    belief.inflate(1e-9)
    variance = belief.variance(torch.cat([turn.mT, torch.zeros(2, 2)], dim=1))
    torch.testing.assert_close(variance, torch.tensor([1.0, 1.1e-9]), rtol=1e-2, atol=0)
    untouched = belief.factor
    belief.inflate(0.0)
    assert belief.factor is untouched


def test_rows_are_sampled_independently(generator):
    belief, count = belief_of(3, 2, generator), 40_000
    draws = belief.sample(count, generator=torch.Generator().manual_seed(1))
    Sigma = dense(belief)
    scale = Sigma.diagonal()
    error = ((torch.outer(scale, scale) + Sigma.square()) / count).sqrt()
    assert ((draws.mT.cov() - Sigma).abs() < 5 * error).all()


def test_a_prior_may_differ_within_a_row_but_not_between_rows():
    row = torch.tensor([0.5, 1.0, 2.0])
    belief = make_belief("kronecker", torch.zeros(6), row.repeat(2), rows=2)
    torch.testing.assert_close(belief.times(torch.eye(6)), torch.diag(row.repeat(2)))
    assert belief.rows == 2
    with pytest.raises(ConfigError, match=r"prior variances must be equal.*2 rows"):
        make_belief("kronecker", torch.zeros(6), torch.cat([row, 2 * row]), rows=2)
    with pytest.raises(ConfigError, match="positive"):
        make_belief("kronecker", torch.zeros(6), 0.0, rows=2)
    with pytest.raises(ConfigError, match="divides 0 parameters"):
        make_belief("kronecker", torch.zeros(0), 1.0, rows=1)
    with pytest.raises(ConfigError, match="must be a float32 or float64 vector"):
        make_belief("kronecker", torch.zeros(2, 3), 1.0, rows=2)


def test_saved_and_restored(generator):
    belief = belief_of(3, 4, generator)
    belief.inflate(0.1)
    contract(belief, normal(2, 12, generator=generator), torch.eye(2).double())
    state = safetensors.torch.load(safetensors.torch.save(belief.state_dict()))
    restored = restore_belief("kronecker", state)
    assert restored.rows == 3
    assert torch.equal(restored.mean, belief.mean)
    assert torch.equal(restored.factor, belief.factor)
    del state["factor"]
    with pytest.raises(ConfigError, match="'factor'"):
        restore_belief("kronecker", state)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_broken_update_changes_nothing(generator, bad):
    belief = belief_of(2, 3, generator)
    before = belief.state_dict()
    H, R = normal(2, 6, generator=generator), torch.eye(2).double()
    H[0, 4] = bad
    with pytest.raises(NumericalError, match="not finite"):
        belief.update_covariance(H.mT, H, H, R, 1.0)
    with pytest.raises(NumericalError, match="observation noise"):
        belief.update_covariance(H.mT, H.nan_to_num(), H, -R, 1.0)
    single = cast(belief, torch.empty(0))
    with pytest.raises(NumericalError, match="not finite"):
        single.inflate(1e300)
    assert all(torch.equal(tensor, before[name]) for name, tensor in belief.state_dict().items())
    assert torch.equal(single.factor, before["factor"].float())
