"""The exponential family: class probabilities, with the covariance that the categorical distribution itself has."""

from torch import Tensor

from kalmanclip.observation.likelihood import Likelihood, Terms, softmax_rows


class Categorical(Likelihood):
    """``T(y)`` = one-hot, ``y_hat = p``, ``R = diag(p) - p p^T``, whitened.

    ``R`` is singular (probabilities sum to one), so the observation is given in coordinates in which it is the
    identity: with ``L = diag(sqrt p) - p sqrt(p)^T``, ``L L^T = R``, the rows are ``L^T J`` (``J`` the derivative of
    the logits), and the innovation is ``(y - p) / sqrt(p)``, for which ``L innovation = y - p``. Then ``H^T H = J^T R
    J`` is exactly the Fisher information and ``H^T innovation = J^T (y - p)`` exactly the gradient of the
    log-likelihood.
    """

    has_covariance = True

    def terms(self, S: Tensor, column: Tensor, scale: float) -> Terms:
        """C outputs per image, of unit covariance."""
        p, target, _ = softmax_rows(S, column, scale)
        root = p.clamp_min(1e-20).sqrt()  # 1 / root stays finite; root times it cancels in the gradient
        G = scale * (root.diag_embed() - root.unsqueeze(2) * p.unsqueeze(1))
        return Terms(target / root, p / root, G)
