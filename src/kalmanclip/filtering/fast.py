"""Algorithm 1 for independent parameters, as fast as memory allows; `kalmanclip.filtering.kalman` is its reference.

Three things make it fast: two fused passes over the n parameters (`kalmanclip.filtering.fused`), small algebra that is
done for all m x m matrices together, and no decision that waits for a device: whether the numbers can be trusted is
itself a number, which the update obeys. What is not plainly sound (a matrix that cannot be factored as it is, anything
that is not finite) is left undone, for the reference to repair or to refuse.
"""

import math

import torch
from torch import Tensor

from kalmanclip.filtering.belief import Belief
from kalmanclip.filtering.diagonal import Diagonal
from kalmanclip.filtering.linalg import symmetrise
from kalmanclip.filtering.noise import Noise
from kalmanclip.filtering.observation import Observation


def has_fast_update(belief: Belief, noise: Noise, m: int) -> bool:
    """Whether `fast_update` can take a batch of m targets."""
    return isinstance(belief, Diagonal) and noise.holds(m)


def fast_update(belief: Belief, noise: Noise, seen: Observation, alpha: float, regulate: tuple[bool, ...]) -> Tensor:
    """Update belief and noise in place, or leave both untouched.

    Args:
        belief: already inflated.
        noise: R, of this observation or of the filter.
        seen: in the belief's dtype and on its device.
        alpha: of the regulation.
        regulate: whether lambda scales the update of mean, covariance and noise.

    Returns:
        Six numbers as `kalmanclip.filtering.kalman.Step` has them (distance, regulation, length of the innovation,
        trace of R_k, norm of the gain, log-likelihood) and a seventh, which is 1 if the update was made: (7,).
    """
    assert isinstance(belief, Diagonal)
    H, e = seen.H, seen.innovation
    m, one = e.shape[0], e.new_ones(())
    R = noise.previous(e)
    root_R, trusted = _inverse_roots(R.unsqueeze(0))
    d_M = torch.linalg.vector_norm(root_R[0] @ e)
    lam = torch.exp(-alpha * d_M)
    lam_mu, lam_Sigma, lam_R = (lam if regulated else one for regulated in regulate)
    HSH = belief.project(H)
    R_k = noise.estimate(e, HSH, lam_R)

    by_precision = belief.update == "precision"
    roots, sound = _inverse_roots(torch.stack([HSH + R, HSH + R_k] + [R_k] * by_precision))
    S_inv = roots[1].mT @ roots[1]
    half_log_determinant = -roots[0].diagonal().log().sum()
    log_likelihood = -(roots[0] @ e).square().sum() / 2 - half_log_determinant - m / 2 * math.log(2 * math.pi)
    foreseen = torch.stack([d_M, lam, torch.linalg.vector_norm(e), R_k.diagonal().sum()])
    # no entry of the gain is larger than sqrt(s) times the root of this
    gain_bound = HSH.diagonal().sum() * S_inv.square().sum()
    numbers = torch.cat([foreseen, torch.stack([log_likelihood, gain_bound])])
    ok = torch.isfinite(numbers).all() & trusted.all() & sound.all()

    gain = belief.condition(H, S_inv, lam_mu * e, lam_Sigma, roots[2] if by_precision else None, ok)
    noise.accept(R_k, ok)
    return torch.cat([foreseen, torch.stack([gain.sqrt(), log_likelihood, ok.to(e.dtype)])])


def _inverse_roots(A: Tensor) -> tuple[Tensor, Tensor]:
    """Inverse Cholesky factors L^-1 (k, m, m) of symmetric matrices, and which of them can be trusted (k,).

    As in `linalg.cholesky`, a pivot smaller than rounding error is noise.
    """
    A = symmetrise(A)
    m = A.shape[-1]
    factors, info = torch.linalg.cholesky_ex(A)
    pivots, entries = (M.diagonal(dim1=-2, dim2=-1) for M in (factors, A))
    trusted = (info == 0) & (pivots.square() > m * torch.finfo(A.dtype).eps * entries.abs()).all(-1)
    identity = torch.eye(m, dtype=A.dtype, device=A.device).expand_as(A)
    return torch.linalg.solve_triangular(factors, identity, upper=False), trusted
