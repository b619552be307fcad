"""Zero-shot CLIP: class prompts are the classifier; nothing is learned."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kalmanclip.data import FewShotTask
from kalmanclip.encoders import Backbone
from kalmanclip.methods.base import Progress
from kalmanclip.methods.features import FeatureMethod


@dataclass(frozen=True)
class ZeroShotConfig:
    """There is nothing to choose."""


class ZeroShot(FeatureMethod):
    """Logits ``f T^T / tau`` with ``T`` the prompts' embeddings.

    Args:
        backbone: the frozen CLIP.
        config: without options.
    """

    def __init__(self, backbone: Backbone, config: ZeroShotConfig | None = None) -> None:
        super().__init__(backbone)
        self.config = config or ZeroShotConfig()

    def learn(self, task: FewShotTask, progress: Progress) -> None:
        """Nothing: the text weights are all there is."""

    def score(self, f: Tensor) -> Tensor:
        """Features (N, d) to logits (N, C)."""
        return self.zero_shot(f)
