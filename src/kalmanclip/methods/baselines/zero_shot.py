"""Zero-shot CLIP: class prompts are the classifier; nothing is learned."""

from __future__ import annotations

from dataclasses import dataclass

from kalmanclip.data import FewShotTask
from kalmanclip.encoders.features import Progress
from kalmanclip.methods.baselines.base import FeatureMethod


@dataclass(frozen=True)
class ZeroShotConfig:
    """There is nothing to choose."""


class ZeroShot(FeatureMethod):
    """Logits ``f T^T / tau`` with ``T`` the prompts' embeddings."""

    Config = ZeroShotConfig

    def learn(self, task: FewShotTask, progress: Progress) -> None:
        """Learn nothing: the text weights are all there is."""
