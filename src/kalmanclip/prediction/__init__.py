"""From a Gaussian over logits to class probabilities, and what they leave open; sets of classes; unknown images."""

from kalmanclip.prediction.conformal import Calibration
from kalmanclip.prediction.decomposition import Decomposition, decompose
from kalmanclip.prediction.gaussian_softmax import (
    SAMPLES,
    Averaged,
    LogitGaussian,
    averaged,
    expected_softmax,
    mean_field,
)
from kalmanclip.prediction.prediction import Prediction
from kalmanclip.prediction.tempering import TYPICAL_TEMPER, fit_temper, log_score
from kalmanclip.prediction.unknown import FALSE_ALARMS, KnownImages, Threshold

__all__ = [
    "FALSE_ALARMS",
    "SAMPLES",
    "TYPICAL_TEMPER",
    "Averaged",
    "Calibration",
    "Decomposition",
    "KnownImages",
    "LogitGaussian",
    "Prediction",
    "Threshold",
    "averaged",
    "decompose",
    "expected_softmax",
    "fit_temper",
    "log_score",
    "mean_field",
]
