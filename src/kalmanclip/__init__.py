"""Few-shot fine-tuning of CLIP by Bayesian filtering: a Kalman filter over low-rank parameters of both towers."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["KalmanCLIP", "KalmanConfig", "__version__"]

if TYPE_CHECKING:
    from kalmanclip.estimator import KalmanCLIP
    from kalmanclip.methods import KalmanConfig


def __getattr__(name: str) -> Any:
    """Loads the front door when it is first used: `kalmanclip --help` and the filter alone should not wait for it."""
    if name == "KalmanCLIP":
        from kalmanclip.estimator import KalmanCLIP

        return KalmanCLIP
    if name == "KalmanConfig":
        from kalmanclip.methods import KalmanConfig

        return KalmanConfig
    raise AttributeError(f"module 'kalmanclip' has no attribute {name!r}")
