"""Few-shot fine-tuning of CLIP by Bayesian filtering: a Kalman filter over low-rank parameters of both towers."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kalmanclip.process import before_torch

__version__ = "0.1.0"
__all__ = ["KalmanCLIP", "KalmanConfig", "Prediction", "__version__"]

if TYPE_CHECKING:
    from kalmanclip.estimator import KalmanCLIP
    from kalmanclip.methods import KalmanConfig
    from kalmanclip.prediction import Prediction

before_torch()  # which reads the choice when it is imported

_MODULES = {"KalmanCLIP": "estimator", "KalmanConfig": "methods", "Prediction": "prediction"}


def __getattr__(name: str) -> Any:
    """Load what is heavy when it is first used: `kalmanclip --help` and the filter alone should not wait for it."""
    if name not in _MODULES:
        raise AttributeError(f"module 'kalmanclip' has no attribute {name!r}")
    return getattr(import_module(f"kalmanclip.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    """Return also what is not loaded yet, so that it can be completed by the Tab key."""
    return sorted({*globals(), *__all__})
