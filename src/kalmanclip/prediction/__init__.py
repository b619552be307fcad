"""From a Gaussian over logits to a `Prediction`: probabilities and their uncertainty, sets of classes, OOD scores."""

from kalmanclip.prediction.conformal import Calibration
from kalmanclip.prediction.ood import FALSE_ALARMS, OODDetector
from kalmanclip.prediction.predictive import (
    SAMPLES,
    Averaged,
    LogitGaussian,
    Neighbors,
    Prediction,
    averaged,
    expected_softmax,
    mean_field,
)
from kalmanclip.prediction.temperature import TYPICAL_SCALE, fit_covariance_scale, log_likelihood, most_probable_scale

__all__ = [
    "FALSE_ALARMS",
    "SAMPLES",
    "TYPICAL_SCALE",
    "Averaged",
    "Calibration",
    "LogitGaussian",
    "Neighbors",
    "OODDetector",
    "Prediction",
    "averaged",
    "expected_softmax",
    "fit_covariance_scale",
    "log_likelihood",
    "mean_field",
    "most_probable_scale",
]
