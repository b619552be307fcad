"""CLIP-Adapter: a bottleneck on the image embedding, blended with the embedding itself."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kalmanclip.data import FewShotTask
from kalmanclip.encoders.features import Progress
from kalmanclip.errors import ConfigError
from kalmanclip.methods.base import check_positive
from kalmanclip.methods.baselines.base import OpenVocabulary, hits, joint_loss
from kalmanclip.methods.baselines.training import CoOpTrainingConfig, coop_epochs


@dataclass(frozen=True)
class CLIPAdapterConfig(CoOpTrainingConfig):
    """Options of CLIP-Adapter, and of its training, that of the code it was built into (`CoOpTrainingConfig`).

    Attributes:
        ratio: of the adapter's output in the blend. Used without validation images; published: 0.2.
        ratio_grid: the values tried on the validation images, where there are some: one adapter is trained with each,
            and the first of the best stays. Empty: ``ratio``, whatever images there are.
        reduction: the bottleneck is d / reduction wide.
    """

    ratio: float = 0.2
    ratio_grid: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    reduction: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(reduction=self.reduction)
        for ratio in (self.ratio, *self.ratio_grid):
            if not 0 <= ratio <= 1:
                raise ConfigError(f"ratio must lie in 0..1, not {ratio}.")


class CLIPAdapter(OpenVocabulary):
    """Logits ``normalise(r g(f) + (1 - r) f) T^T / tau`` with ``g(f) = relu(U relu(D f))``.

    The published code adapts embeddings before they are normalised; as ``g`` is homogeneous and the blend is
    normalised, unit-length features give the same logits. With several prompts their mean is the class weight; the
    publication has one.

    Attributes:
        D: down (d / reduction, d).
        U: up (d, d / reduction).
        ratio: r, the one that was used.
    """

    Config = CLIPAdapterConfig
    config: CLIPAdapterConfig
    D: Tensor
    U: Tensor
    ratio: float

    def learn(self, task: FewShotTask, progress: Progress) -> None:
        """Train the bottleneck; the last step's stands. The ratio is chosen on the validation images only."""
        c, d, held_out = self.config, self.T.shape[1], self.validation(task, progress)
        candidates: list[CLIPAdapter] = []
        for ratio in (c.ratio_grid if held_out is not None else ()) or (c.ratio,):
            one, generator = copy.copy(self), torch.Generator().manual_seed(task.seed)
            one.D = _linear(d // c.reduction, d, generator).to(self.T).requires_grad_()
            one.U = _linear(d, d // c.reduction, generator).to(self.T).requires_grad_()
            one.ratio = ratio
            candidates.append(one)
        parameters = [p for one in candidates for p in (one.D, one.U)]
        epochs = c.epochs or coop_epochs(max(task.train.counts()))
        self.train_on_crops(task, c.crops, c.recipe(), epochs, parameters, joint_loss(candidates), progress)
        chosen = candidates[0]
        if held_out is not None:
            f, y = held_out
            with torch.no_grad():
                chosen = max(candidates, key=lambda one: hits(one.score(f), y))  # the first of the best
        self.D, self.U, self.ratio = chosen.D.detach(), chosen.U.detach(), chosen.ratio

    def score(self, f: Tensor) -> Tensor:
        """Turn features (N, d) into logits (N, C)."""
        adapted = F.relu(F.relu(f @ self.D.mT) @ self.U.mT)
        return self.zero_shot(F.normalize(self.ratio * adapted + (1 - self.ratio) * f, dim=-1))


def _linear(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """Draw torch's own start of a linear map: uniform within one over the square root of its inputs."""
    return (2 * torch.rand(rows, columns, generator=generator) - 1) / math.sqrt(columns)
