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
from kalmanclip.filtering.linalg import solve_lower
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
    # On a GPU every line below costs a launch or several, whatever its size: there are as few as can be.
    H, e = seen.H, seen.innovation
    m, one = e.shape[0], e.new_ones(())
    R = noise.previous(e)
    root_R, broken = torch.linalg.cholesky_ex(R)
    d_M = torch.linalg.vector_norm(solve_lower(root_R, e.unsqueeze(1)))
    lam = torch.exp(-alpha * d_M)
    lam_mu, lam_Sigma, lam_R = (lam if regulated else one for regulated in regulate)
    HSH = belief.project(H)
    R_k = noise.estimate(e, HSH, lam_R)

    matrices = torch.stack([HSH + R, HSH + R_k] + [R_k] * (belief.update == "precision"))
    roots, broken_too = torch.linalg.cholesky_ex(matrices)
    L_inv = solve_lower(roots, torch.eye(m, dtype=e.dtype, device=e.device).expand_as(roots))
    S_inv, *R_inv = (L_inv[1:].mT @ L_inv[1:]).unbind()
    white = L_inv[0] @ e
    log_likelihood = torch.sub(L_inv[0].diagonal().log().sum(), white @ white, alpha=0.5) - m / 2 * math.log(
        2 * math.pi
    )
    # no entry of the gain is larger than sqrt(s) times the root of this
    gain_bound = HSH.trace() * torch.linalg.vector_norm(S_inv).square()
    numbers = torch.stack([d_M, lam, torch.linalg.vector_norm(e), R_k.trace(), log_likelihood, gain_bound])

    # As in `linalg.cholesky`, a pivot smaller than rounding error is noise. NaN compares false, and 0 * inf is NaN.
    pivots = torch.cat([root_R.diagonal(), roots.diagonal(dim1=-2, dim2=-1).flatten()])
    entries = torch.cat([R.diagonal(), matrices.diagonal(dim1=-2, dim2=-1).flatten()])
    sound = (pivots.square() > m * torch.finfo(e.dtype).eps * entries).all()
    ok = sound & (broken + broken_too.sum() == 0) & ((0 * numbers).sum() == 0)

    gain = belief.condition(H, S_inv, lam_mu * e, lam_Sigma, R_inv[0] if R_inv else None, ok)
    noise.accept(R_k, ok)
    return torch.cat([numbers[:4], torch.stack([gain.sqrt(), log_likelihood, ok.to(e.dtype)])])
