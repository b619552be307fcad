"""Algorithm 1 of the paper, line for line and in its symbols.

The paper disagrees with itself on which lines lambda scales: Algorithm 1 as printed scales R_k and mu_k, the prose
scales Sigma_k, too. The default here, `REGULATED`, is the prose, all three. Scaling mu_k and Sigma_k together is an
ordinary Kalman update with more noise; a Sigma_k left unscaled becomes as certain about a discounted batch as about any
other. ``regulate=("mean", "noise")`` is the printed algorithm, which the presets `paper` and `paper-literal` ask for.
"""

from collections.abc import Collection

import torch
from torch import Tensor

from kalmanclip.filtering.beliefs.base import Belief
from kalmanclip.filtering.linalg import check_finite, cholesky, log_density
from kalmanclip.filtering.noise import Noise
from kalmanclip.filtering.observation import Observation

REGULATED = ("mean", "covariance", "noise")


def predict(belief: Belief, q: float) -> None:
    """Predict: mu_{k|k-1} = mu_{k-1} and Sigma_{k|k-1} = Sigma_{k-1} + Q_k with Q_k = q I."""
    belief.inflate(q)


def update(
    belief: Belief, noise: Noise, seen: Observation, alpha: float, regulate: Collection[str] = REGULATED
) -> Tensor:
    """Update belief and noise in place by y_k, y_hat_k = h(B_k, mu_{k|k-1}) and its Jacobian H_k.

    Returns:
        The numbers of `kalmanclip.filtering.filter.Step` (6,).

    Raises:
        NumericalError: the numbers broke down; belief and noise are untouched.
    """
    # Pre-updating
    e, H = check_finite(seen.y - seen.y_hat, "the innovation y - y_hat"), seen.H
    d_M = noise.distance(e)  # sqrt(e^T R_{k-1}^-1 e)
    lam = torch.exp(-alpha * d_M)
    lam_mu, lam_Sigma, lam_R = (lam if line in regulate else 1.0 for line in REGULATED)
    HS = belief.times(H)
    HSH = belief.all_reduce(HS @ H.mT)
    R_k = noise.estimate(e, HSH, lam_R)  # beta R_{k-1} + lam (1 - beta) R_hat_k, R_hat_k = e e^T + H Sigma H^T

    # Updating. S^-1 is small: multiplying by it is far faster than solving for the n columns of H Sigma.
    S_inv = torch.cholesky_inverse(cholesky(HSH + R_k, "the innovation covariance H Sigma H^T + R"))
    K = (S_inv @ HS).mT
    delta_mu = K @ (lam_mu * e)

    # All or nothing: the state changes only after the last check, and the covariance, which has its own, goes first.
    score = log_density(e, HSH + noise.previous(e))
    record = torch.stack([d_M, lam, torch.linalg.vector_norm(e), R_k.trace(), belief.norm(K), score])
    check_finite(record, "the Kalman gain or the distance")
    belief.update_covariance(K, H, HS, R_k, lam_Sigma)  # Sigma_k = Sigma_{k|k-1} - lam K H Sigma_{k|k-1}
    belief.update_mean(delta_mu)  # mu_k = mu_{k|k-1} + lam K e
    noise.accept(R_k)
    return record
