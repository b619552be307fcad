"""Metrics of arrays of probabilities and labels; nothing else of the package is known here."""

import kalmanclip.metrics.lean  # noqa: F401  before any other imports scikit-learn
from kalmanclip.metrics.calibration import (
    BINS,
    ReliabilityBin,
    brier_score,
    expected_calibration_error,
    negative_log_likelihood,
    reliability_table,
)
from kalmanclip.metrics.classification import (
    ClassResult,
    accuracy,
    confusion_matrix,
    per_class,
    summarise,
    top_k_accuracy,
)
from kalmanclip.metrics.retrieval import RetrievalRecall, embedding_recall, recall_at_k
from kalmanclip.metrics.uncertainty import (
    RiskCoverage,
    area_under_risk_coverage,
    detection_auroc,
    failure_auroc,
    fpr_at_tpr,
    maximum_softmax,
    risk_coverage,
    standardized_margin,
)

__all__ = [
    "BINS",
    "ClassResult",
    "ReliabilityBin",
    "RetrievalRecall",
    "RiskCoverage",
    "accuracy",
    "area_under_risk_coverage",
    "brier_score",
    "confusion_matrix",
    "detection_auroc",
    "embedding_recall",
    "expected_calibration_error",
    "failure_auroc",
    "fpr_at_tpr",
    "maximum_softmax",
    "negative_log_likelihood",
    "per_class",
    "recall_at_k",
    "reliability_table",
    "risk_coverage",
    "standardized_margin",
    "summarise",
    "top_k_accuracy",
]
