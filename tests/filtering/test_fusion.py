"""Fusion: every structure against dense algebra in float64, and against the posterior of all observations at once."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kalmanclip.errors import ConfigError, NumericalError
from kalmanclip.filtering import (
    Diagonal,
    FilterConfig,
    KalmanFilter,
    LowRankPlusDiagonal,
    Observation,
    fuse,
    make_belief,
)

from .structures import STRUCTURES, cast, normal, positive_definite

EXACT = {"rtol": 1e-8, "atol": 1e-9}
N = 6
OPTIONS = {
    "dense": {},
    "diagonal": {"update": "precision"},
    "block": {"groups": [2, 1, 3]},
    "kronecker": {"rows": 2},
    "low_rank": {"rank": N},
}
every_structure = pytest.mark.parametrize("structure", [s for s in STRUCTURES if s.kind in OPTIONS], ids=str)
every_kind = pytest.mark.parametrize("kind", OPTIONS)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(3)


def copy_of(belief):
    return cast(belief, belief.mean)


def learned(prior, generator, batches=2, m=3):
    """A copy of the prior after some observations."""
    belief = copy_of(prior)
    kalman = KalmanFilter(belief, config=FilterConfig(alpha=0.0))
    for _ in range(batches):
        H, y = normal(m, len(prior.mean), generator=generator), normal(m, generator=generator)
        R = positive_definite(m, generator)
        assert not kalman.step(lambda mu, H=H, y=y, R=R: Observation(y, H @ mu, H, R)).skipped
    return belief


def dense_product(structure, beliefs, prior):
    """Mean and precision by the definition."""
    Lambda_0, mu_0 = torch.linalg.inv(structure.covariance(prior)), prior.mean
    precisions = [torch.linalg.inv(structure.covariance(b)) for b in beliefs]
    k = len(beliefs)
    Lambda = sum(precisions) - (k - 1) * Lambda_0
    eta = sum(L @ b.mean for L, b in zip(precisions, beliefs, strict=True)) - (k - 1) * Lambda_0 @ mu_0
    return torch.linalg.solve(Lambda, eta), Lambda


@every_structure
@pytest.mark.parametrize("k", [1, 2, 4])
def test_natural_parameters_add_and_the_prior_counts_once(structure, k, generator):
    prior = structure.make(normal(N, generator=generator), generator)
    beliefs = [learned(prior, generator) for _ in range(k)]
    before = [belief.state_dict() for belief in (prior, *beliefs)]
    fused = fuse(beliefs, prior)
    mean, Lambda = dense_product(structure, beliefs, prior)
    torch.testing.assert_close(fused.mean, mean, **EXACT)
    torch.testing.assert_close(structure.covariance(fused), torch.linalg.inv(Lambda), **EXACT)
    for belief, state in zip((prior, *beliefs), before, strict=True):  # nobody was changed
        assert all(torch.equal(t, state[name]) for name, t in belief.state_dict().items())


def linear_site(kind, H, y, noise, generator, mean, variance=0.7):
    """The exact posterior of one site in that structure, batch by batch."""
    belief = make_belief(kind, mean.clone(), variance, **OPTIONS[kind])
    kalman = KalmanFilter(belief, config=FilterConfig(alpha=0.0))
    for i in range(0, len(y), 2):
        h, t = H[i : i + 2], y[i : i + 2]
        R = noise * torch.eye(len(t), dtype=torch.float64)
        kalman.step(lambda mu, h=h, t=t, R=R: Observation(t, h @ mu, h, R))
    return belief


@pytest.mark.parametrize("kind", ["dense", "low_rank"])
@given(seed=st.integers(0, 2**31), sites=st.integers(1, 4), noise=st.sampled_from([1e-2, 1.0, 30.0]))
@settings(max_examples=20, deadline=None)
def test_fused_is_the_joint_posterior_of_a_linear_gaussian_problem(kind, seed, sites, noise):
    generator = torch.Generator().manual_seed(seed)
    H, y = normal(4 * sites, N, generator=generator), normal(4 * sites, generator=generator)
    mean, variance = normal(N, generator=generator), 0.7
    prior = make_belief(kind, mean, variance, **OPTIONS[kind])
    parts = [linear_site(kind, h, t, noise, generator, mean) for h, t in zip(H.split(4), y.split(4), strict=True)]
    fused = fuse(parts, prior)
    Lambda = torch.eye(N, dtype=torch.float64) / variance + H.mT @ H / noise
    posterior = torch.linalg.solve(Lambda, mean / variance + H.mT @ y / noise)
    torch.testing.assert_close(fused.mean, posterior, rtol=1e-6, atol=1e-7)
    identity = torch.eye(N, dtype=torch.float64)
    torch.testing.assert_close(fused.times(identity), torch.linalg.inv(Lambda), rtol=1e-6, atol=1e-7)


def structured_design(kind, rows, generator):
    """Observations whose information the structure holds without a projection."""
    H = normal(rows, N, generator=generator)
    if kind == "diagonal":
        return torch.eye(N, dtype=torch.float64)[torch.arange(rows) % N]
    if kind == "block":
        start = [0, 2, 3, 6]
        for i, row in enumerate(H):
            b = i % 3
            row[: start[b]], row[start[b + 1] :] = 0, 0
        return H
    if kind == "kronecker":  # each row of Theta is told the same
        half = H[: rows // 2, : N // 2]
        return torch.cat([torch.block_diag(h, h) for h in half.split(1)])
    return H


@every_kind
def test_every_structure_meets_the_joint_posterior_where_it_can_hold_it(kind, generator):
    H = structured_design(kind, 12, generator)
    y, mean, noise, variance = normal(12, generator=generator), normal(N, generator=generator), 0.3, 0.7
    prior = make_belief(kind, mean, variance, **OPTIONS[kind])
    parts = [linear_site(kind, h, t, noise, generator, mean) for h, t in zip(H.split(6), y.split(6), strict=True)]
    Lambda = torch.eye(N, dtype=torch.float64) / variance + H.mT @ H / noise
    fused = fuse(parts, prior)
    torch.testing.assert_close(fused.mean, torch.linalg.solve(Lambda, mean / variance + H.mT @ y / noise), **EXACT)
    torch.testing.assert_close(fused.marginal_variance(), torch.linalg.inv(Lambda).diagonal(), **EXACT)


@every_structure
def test_order_and_grouping_do_not_matter(structure, generator):
    prior = structure.make(normal(N, generator=generator), generator)
    a, b, c = (learned(prior, generator) for _ in range(3))
    together = fuse([a, b, c], prior)
    for other in (fuse([c, a, b], prior), fuse([fuse([a, b], prior), c], prior)):
        torch.testing.assert_close(other.mean, together.mean, **EXACT)
        torch.testing.assert_close(structure.covariance(other), structure.covariance(together), **EXACT)


@every_structure
def test_the_prior_adds_nothing(structure, generator):
    prior = structure.make(normal(N, generator=generator), generator)
    belief = learned(prior, generator)
    fused = fuse([copy_of(prior), belief, copy_of(prior)], prior)
    torch.testing.assert_close(fused.mean, belief.mean, **EXACT)
    torch.testing.assert_close(structure.covariance(fused), structure.covariance(belief), **EXACT)


def test_a_truncated_low_rank_belief_keeps_the_mean_and_the_diagonal_of_the_precision(generator):
    prior = make_belief("low_rank", normal(N, generator=generator), 0.7, rank=2)
    beliefs = [learned(prior, generator) for _ in range(3)]
    precisions = [torch.diag(b.d) + b.W @ b.W.mT for b in beliefs]
    Lambda = sum(precisions) - 2 * torch.diag(prior.d)
    eta = sum(L @ b.mean for L, b in zip(precisions, beliefs, strict=True)) - 2 * prior.d * prior.mean
    fused = fuse(beliefs, prior)
    assert isinstance(fused, LowRankPlusDiagonal)
    assert fused.W.shape == (N, 2)
    torch.testing.assert_close(fused.mean, torch.linalg.solve(Lambda, eta), **EXACT)
    precision = torch.diag(fused.d) + fused.W @ fused.W.mT
    torch.testing.assert_close(precision.diagonal(), Lambda.diagonal(), **EXACT)


@every_structure
def test_float32_beliefs_fuse_in_float32(structure, generator):
    prior = structure.make(normal(N, generator=generator), generator)
    beliefs = [learned(prior, generator) for _ in range(2)]
    exact = fuse(beliefs, prior)
    single = fuse([cast(b, torch.empty(0)) for b in beliefs], cast(prior, torch.empty(0)))
    assert single.mean.dtype == torch.float32
    torch.testing.assert_close(single.mean.double(), exact.mean, rtol=1e-3, atol=1e-3)


@every_structure
def test_what_forgot_more_than_it_learned_is_refused(structure, generator):
    prior = structure.make(normal(N, generator=generator), generator)
    beliefs = [copy_of(prior) for _ in range(3)]
    for belief in beliefs:
        belief.inflate(1e3)
    with pytest.raises(NumericalError, match=r"not positive.*prior"):
        fuse(beliefs, prior)


def mean_of(n=4):
    return torch.zeros(n, dtype=torch.float64)


@pytest.mark.parametrize(
    ("belief", "prior"),
    [
        (make_belief("dense", mean_of(), 1.0), make_belief("diagonal", mean_of(), 1.0)),
        (make_belief("dense", mean_of(5), 1.0), make_belief("dense", mean_of(), 1.0)),
        (make_belief("block", mean_of(), 1.0, groups=[2, 2]), make_belief("block", mean_of(), 1.0, groups=[1, 3])),
        (make_belief("kronecker", mean_of(), 1.0, rows=2), make_belief("kronecker", mean_of(), 1.0, rows=4)),
        (Diagonal.prior(mean_of(), 1.0, "covariance"), Diagonal.prior(mean_of(), 1.0, "precision")),
    ],
)
def test_different_beliefs_are_refused(belief, prior):
    with pytest.raises(ConfigError, match=r"belief 2 is .* the prior is "):
        fuse([copy_of(prior), belief], prior)


@every_structure
def test_information_does_not_depend_on_the_prior_it_was_added_to(structure, generator):
    """Sites with other precisions around the same mean: what they have seen is added to the common prior."""
    mean = normal(N, generator=generator)
    prior, *own = (structure.make(mean.clone(), generator) for _ in range(3))
    beliefs = [learned(site, generator) for site in own]
    Lambda = torch.linalg.inv(structure.covariance(prior))
    eta = Lambda @ mean
    for belief, site in zip(beliefs, own, strict=True):
        after, before = (torch.linalg.inv(structure.covariance(b)) for b in (belief, site))
        Lambda, eta = Lambda + after - before, eta + after @ belief.mean - before @ mean
    fused = fuse(beliefs, prior, own)
    torch.testing.assert_close(fused.mean, torch.linalg.solve(Lambda, eta), **EXACT)
    torch.testing.assert_close(structure.covariance(fused), torch.linalg.inv(Lambda), **EXACT)


@every_kind
def test_priors_ten_times_apart_count_once_each(kind, generator):
    """Sites that began with variances 0.2 and 2: the posterior of all data under the common prior, and no other."""
    H = structured_design(kind, 12, generator)
    y, mean, noise, variance = normal(12, generator=generator), normal(N, generator=generator), 0.3, 0.7
    prior, *own = (make_belief(kind, mean.clone(), v, **OPTIONS[kind]) for v in (variance, 0.2, 2.0))
    parts = [
        linear_site(kind, h, t, noise, generator, mean, v)
        for h, t, v in zip(H.split(6), y.split(6), (0.2, 2.0), strict=True)
    ]
    Lambda = torch.eye(N, dtype=torch.float64) / variance + H.mT @ H / noise
    fused = fuse(parts, prior, own)
    torch.testing.assert_close(fused.mean, torch.linalg.solve(Lambda, mean / variance + H.mT @ y / noise), **EXACT)
    torch.testing.assert_close(fused.marginal_variance(), torch.linalg.inv(Lambda).diagonal(), **EXACT)


def test_priors_must_agree_in_their_mean_and_number():
    prior, other = make_belief("dense", mean_of(), 1.0), make_belief("dense", mean_of() + 1, 1.0)
    with pytest.raises(ConfigError, match="different means"):
        fuse([prior], prior, [other])
    with pytest.raises(ConfigError, match="one prior for each"):
        fuse([prior, prior], prior, [prior])


def test_nothing_cannot_be_fused():
    with pytest.raises(ConfigError, match="at least one"):
        fuse([], make_belief("dense", mean_of(), 1.0))
