"""From a Gaussian over logits to a `Prediction`: probabilities and their uncertainty, sets of classes, OOD scores."""

from kalmanclip.prediction.acquisition import JointLogits
from kalmanclip.prediction.conformal import Calibration
from kalmanclip.prediction.expected import ExpectedAccuracy
from kalmanclip.prediction.label_noise import SUSPECT, LabelCheck, label_noise
from kalmanclip.prediction.ood import CONFIDENCE, FALSE_ALARMS, OODDetector, Threshold
from kalmanclip.prediction.predictive import (
    NONE_OF_THESE,
    SAMPLES,
    Averaged,
    LogitGaussian,
    Neighbors,
    Prediction,
    averaged,
    expected_softmax,
    mean_field,
)
from kalmanclip.prediction.records import SURE, records
from kalmanclip.prediction.temperature import (
    TYPICAL_SCALE,
    UNDECIDED,
    ScaleBelief,
    fit_covariance_scale,
    fuse_scales,
    log_likelihood,
    most_probable_scale,
    update_scale,
)

__all__ = [
    "CONFIDENCE",
    "FALSE_ALARMS",
    "NONE_OF_THESE",
    "SAMPLES",
    "SURE",
    "SUSPECT",
    "TYPICAL_SCALE",
    "UNDECIDED",
    "Averaged",
    "Calibration",
    "ExpectedAccuracy",
    "JointLogits",
    "LabelCheck",
    "LogitGaussian",
    "Neighbors",
    "OODDetector",
    "Prediction",
    "ScaleBelief",
    "Threshold",
    "averaged",
    "expected_softmax",
    "fit_covariance_scale",
    "fuse_scales",
    "label_noise",
    "log_likelihood",
    "mean_field",
    "most_probable_scale",
    "records",
    "update_scale",
]
