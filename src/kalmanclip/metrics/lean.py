"""Imports scikit-learn before anything else of this package does: without what its classifiers need."""

from kalmanclip.deferred import deferred

with deferred("scipy.stats", "pandas"):
    import sklearn.metrics

__all__ = ["sklearn"]
