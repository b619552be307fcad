"""Few-shot fine-tuning of CLIP by Bayesian filtering."""

__version__ = "0.1.0"
