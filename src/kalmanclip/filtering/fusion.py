"""Fusion of beliefs learned separately: the product of their Gaussians with the common prior counted once.

Observations that are independent given the parameters add their information. With precisions
``Lambda = Sigma^-1``, the k posteriors ``N(mu_i, Lambda_i^-1)`` of the prior ``N(mu_0, Lambda_0^-1)`` make

    Lambda = sum_i Lambda_i - (k - 1) Lambda_0,        mu = mu_0 + Lambda^-1 sum_i Lambda_i (mu_i - mu_0),

which is ``Lambda mu = sum_i Lambda_i mu_i - (k - 1) Lambda_0 mu_0`` arranged so that little is subtracted. For linear
observations with Gaussian noise this is the posterior of all of them together. Beliefs that began with other precisions
``Lambda_0i`` around the same ``mu_0`` add ``Lambda_i - Lambda_0i``, the information of their observations. The product
is closed in every structure whose precisions form a linear space; that of `LowRankPlusDiagonal` is truncated to its
rank, as after an observation.
"""

from collections.abc import Sequence
from functools import singledispatch

import torch
from torch import Tensor

from kalmanclip.errors import ConfigError, NumericalError
from kalmanclip.filtering.beliefs.base import Belief
from kalmanclip.filtering.beliefs.block_diagonal import BlockDiagonal
from kalmanclip.filtering.beliefs.dense import Dense
from kalmanclip.filtering.beliefs.diagonal import Diagonal
from kalmanclip.filtering.beliefs.kronecker import Kronecker
from kalmanclip.filtering.beliefs.low_rank import LowRankPlusDiagonal
from kalmanclip.filtering.linalg import check_finite, eigh, gram, spectral

_ADVICE = (
    "A belief learned from `prior` is never less certain than it. Give the prior that all of them began "
    "with; beliefs that forget (process noise q > 0) may have to be fused one after the other, or not at all."
)


def fuse(beliefs: Sequence[Belief], prior: Belief, priors: Sequence[Belief] | None = None) -> Belief:
    """Fuse beliefs about the same parameters into one.

    Everything is computed in float64. Dense, block, Kronecker and diagonal beliefs are fused exactly. A low-rank belief
    gets the exact mean; of the sum of the low-rank parts its strongest directions are kept, as many as the prior has,
    and of the others the diagonal, so that the diagonal of the precision is exact.

    Args:
        beliefs: k posteriors about the same n parameters, at least one; left as they are.
        prior: prior of the result, of the same structure.
        priors: each belief before its first observation, with the mean of ``prior``; None: ``prior`` for all.

    Returns:
        A new belief of the structure, dtype and device of the prior.

    Raises:
        ConfigError: there are no beliefs, or their structures or shapes differ, or the means of the priors.
        NumericalError: the product is not a Gaussian: together the beliefs are less certain than the prior.
    """
    if not beliefs:
        raise ConfigError("there are no beliefs to fuse: give at least one")
    for number, belief in enumerate(beliefs, start=1):
        if _form(belief) != _form(prior):
            raise ConfigError(
                f"belief {number} is {_describe(belief)}, but the prior is {_describe(prior)}: only beliefs of one "
                "structure about the same parameters can be fused"
            )
    own = [prior] * len(beliefs) if priors is None else list(priors)
    if len(own) != len(beliefs) or any(_form(o) != _form(prior) for o in own):
        raise ConfigError("give one prior for each belief, of its structure, or one that all of them began with")
    if any(not torch.equal(o.mean, prior.mean) for o in own):
        raise ConfigError("the priors have different means: beliefs that began at different means cannot be fused")
    return _fused(prior, beliefs, own)


def _form(belief: Belief) -> tuple[object, ...]:
    """Return what must agree: the structure, the names and shapes of its tensors, and how it is updated."""
    state = belief._state()
    shapes = {name: tuple(t.shape) for name, t in state.items() if name != "W"}  # ranks may differ
    return belief.kind, tuple(shapes.items()), getattr(belief, "update", None)


def _describe(belief: Belief) -> str:
    options = [f", {name} {vars(belief)[name]}" for name in ("update", "groups", "rows") if name in vars(belief)]
    return f"{belief.kind} over {belief.mean.shape[0]} parameters{''.join(options)}"


@singledispatch
def _fused(prior: Belief, beliefs: Sequence[Belief], own: Sequence[Belief]) -> Belief:
    raise ConfigError(f"beliefs of the structure {prior.kind!r} cannot be fused")


@_fused.register
def _(prior: Dense, beliefs: Sequence[Dense], own: Sequence[Dense]) -> Dense:
    Lambda_0, *precisions = (spectral(b.covariance, _inverse) for b in (prior, *beliefs, *own))
    shift, Lambda = _product(Lambda_0, precisions, _shifts(prior, beliefs))
    return Dense(_moved(prior, shift), torch.cholesky_inverse(_definite(Lambda)).to(prior.mean))


@_fused.register
def _(prior: BlockDiagonal, beliefs: Sequence[BlockDiagonal], own: Sequence[BlockDiagonal]) -> BlockDiagonal:
    shifts = [torch.split(shift, prior.groups) for shift in _shifts(prior, beliefs)]
    moved, factors = [], []
    for b, L_0 in enumerate(prior.factors):
        precisions = [_precision(belief.factors[b]) for belief in (*beliefs, *own)]
        shift, Lambda = _product(_precision(L_0), precisions, [parts[b] for parts in shifts])
        moved.append(shift)
        factors.append(_root(Lambda).to(L_0))
    return BlockDiagonal(_moved(prior, torch.cat(moved)), factors)


@_fused.register
def _(prior: Kronecker, beliefs: Sequence[Kronecker], own: Sequence[Kronecker]) -> Kronecker:
    shifts = [shift.view(prior.rows, -1).mT for shift in _shifts(prior, beliefs)]  # one column per row of Theta
    precisions = [_precision(belief.factor) for belief in (*beliefs, *own)]
    shift, Lambda = _product(_precision(prior.factor), precisions, shifts)
    return Kronecker(_moved(prior, shift.mT.flatten()), _root(Lambda).to(prior.factor))


@_fused.register
def _(prior: Diagonal, beliefs: Sequence[Diagonal], own: Sequence[Diagonal]) -> Diagonal:
    precisions = [belief.s.double().reciprocal() for belief in (*beliefs, *own)]
    total = _positive(_sum(prior.s.double().reciprocal(), precisions))
    pull = torch.stack([p * shift for p, shift in zip(precisions, _shifts(prior, beliefs), strict=False)])
    return Diagonal(_moved(prior, pull.sum(dim=0) / total), total.reciprocal().to(prior.s), prior.update)


@_fused.register
def _(
    prior: LowRankPlusDiagonal, beliefs: Sequence[LowRankPlusDiagonal], own: Sequence[LowRankPlusDiagonal]
) -> LowRankPlusDiagonal:
    """Fuse with ``Lambda = diag(d) + U diag(e) U^T``, U orthonormal: solved by Woodbury, never formed."""
    d = _positive(_sum(prior.d.double(), [belief.d.double() for belief in (*beliefs, *own)]))
    parts = [(1.0, prior), *((1.0, belief) for belief in beliefs), *((-1.0, belief) for belief in own)]
    columns = torch.cat([belief.W.double() for _, belief in parts], dim=1)
    signs = torch.cat([d.new_full((belief.W.shape[1],), sign) for sign, belief in parts])
    Q, R = torch.linalg.qr(check_finite(columns, "the low-rank part of a precision"))
    e, V = eigh((R * signs) @ R.mT)  # ascending
    U = Q @ V

    pulls = [
        belief.d.double() * shift + belief.W.double() @ (belief.W.double().mT @ shift)
        for belief, shift in zip(beliefs, _shifts(prior, beliefs), strict=True)
    ]
    pull = torch.stack(pulls).sum(dim=0) / d
    # I + diag(e) U^T D^-1 U has the eigenvalues of D^-1/2 Lambda D^-1/2, but for ones
    inner = gram(U * d.rsqrt().unsqueeze(1))
    root = spectral(inner, torch.sqrt)
    identity = torch.eye(len(e)).to(e)
    _definite(identity + root @ (e.unsqueeze(1) * root))
    small = torch.linalg.solve(identity + e.unsqueeze(1) * inner, e * (U.mT @ pull))
    shift = pull - (U @ small) / d

    rank = prior.W.shape[1]
    kept = e[-rank:].clamp_min(0)
    dropped = e.clone()
    dropped[-rank:] -= kept
    rest = _positive(d + U.square() @ dropped)
    W = U[:, -rank:] * kept.sqrt()
    W = torch.cat([W, W.new_zeros(len(W), rank - W.shape[1])], dim=1)  # fewer parameters than the rank
    return LowRankPlusDiagonal(_moved(prior, shift), rest.to(prior.d), W.to(prior.W))


def _product(prior: Tensor, precisions: list[Tensor], shifts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return ``mu - mu_0`` (n,) or (n, C), and ``Lambda`` (n, n).

    Args:
        prior: ``Lambda_0``.
        precisions: ``Lambda_1 ... Lambda_k``, then ``Lambda_01 ... Lambda_0k``.
        shifts: ``mu_i - mu_0``, k of the shape of the result.
    """
    Lambda = _sum(prior, precisions)
    columns = [shift.unsqueeze(1) if shift.ndim == 1 else shift for shift in shifts]
    pull = torch.stack([P @ shift for P, shift in zip(precisions[: len(shifts)], columns, strict=True)]).sum(dim=0)
    return torch.cholesky_solve(pull, _definite(Lambda)).view_as(shifts[0]), Lambda


def _sum(prior: Tensor, precisions: Sequence[Tensor]) -> Tensor:
    """Return ``Lambda_0 + sum_i (Lambda_i - Lambda_0i)``, of the precisions in the order of `_product`."""
    k = len(precisions) // 2
    return prior + torch.stack([mine - own for mine, own in zip(precisions[:k], precisions[k:], strict=True)]).sum(0)


def _shifts(prior: Belief, beliefs: Sequence[Belief]) -> list[Tensor]:
    """Return ``mu_i - mu_0`` (n,), each."""
    return [belief.mean.to(prior.mean.device).double() - prior.mean.double() for belief in beliefs]


def _moved(prior: Belief, shift: Tensor) -> Tensor:
    """Return the new mean (n,)."""
    return check_finite((prior.mean.double() + shift).to(prior.mean), "the fused mean")


def _precision(L: Tensor) -> Tensor:
    """Return ``(L L^T)^-1`` for any square root L."""
    inverse = torch.linalg.inv(check_finite(L, "a root of a covariance").double())
    precision: Tensor = inverse.mT @ inverse
    return precision


def _inverse(values: Tensor) -> Tensor:
    return values.clamp_min(torch.finfo(values.dtype).tiny).reciprocal()


def _root(Lambda: Tensor) -> Tensor:
    """Return a square root of ``Lambda^-1``: the transposed inverse of the Cholesky factor."""
    factor = _definite(Lambda)
    identity = torch.eye(len(factor)).to(factor)
    root: Tensor = torch.linalg.solve_triangular(factor.mT, identity, upper=True)
    return root


def _definite(Lambda: Tensor) -> Tensor:
    """Return the Cholesky factor of a precision; no jitter repairs one that is not positive definite."""
    check_finite(Lambda, "the fused precision")
    factor: Tensor
    factor, info = torch.linalg.cholesky_ex((Lambda + Lambda.mT) / 2)
    if info.item():
        raise NumericalError(f"the fused precision is not positive definite. {_ADVICE}")
    return factor


def _positive(precision: Tensor) -> Tensor:
    """Return a diagonal precision (n,) unchanged, or raise if it is not positive."""
    if not bool((check_finite(precision, "the fused precision") > 0).all()):
        raise NumericalError(f"the fused precision is not positive. {_ADVICE}")
    return precision
