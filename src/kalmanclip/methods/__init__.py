"""Few-shot methods, one file each, all with the same two verbs (`Method`): ``fit(task)`` and ``logits(images)``."""

from kalmanclip.methods.base import Method, Progress, silent
from kalmanclip.methods.kalman import Kalman, KalmanConfig, LogitBelief

__all__ = ["Kalman", "KalmanConfig", "LogitBelief", "Method", "Progress", "silent"]
