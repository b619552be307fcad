"""What arrays of predictions and labels say: this room knows nothing else."""

from kalmanclip.metrics.classification import ClassResult, accuracy, confusion_matrix, per_class
from kalmanclip.metrics.lead import lead

__all__ = ["ClassResult", "accuracy", "confusion_matrix", "lead", "per_class"]
