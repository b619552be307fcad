"""Imports open_clip before anything else of this package does: without the libraries that only some backbones need."""

from kalmanclip.deferred import deferred

with deferred("timm", "transformers", "torch._dynamo", "torchvision.models", "torchvision.datasets", "torchvision.io"):
    import open_clip

__all__ = ["open_clip"]
