"""What the baselines share: unit-length features, text weights, one way to score, and zero-shot CLIP."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from kalmanclip.data import FewShotTask, ImageSource, class_prompts
from kalmanclip.encoders import Backbone, DualEncoder
from kalmanclip.encoders.features import Progress, crop_features, epoch_features, image_features, silent, text_weights
from kalmanclip.encoders.preprocess import RandomCropConfig
from kalmanclip.errors import ConfigError, DataError
from kalmanclip.methods.base import Needs, labels_of
from kalmanclip.methods.baselines.training import Recipe, steps_of, train


class FeatureMethod:
    """A method that scores unit-length features ``f`` (N, d) beside text weights ``T`` (C, d).

    Subclasses learn in `learn`, and score otherwise than zero-shot in `score`.

    Args:
        backbone: the frozen CLIP.
        config: the options; None: the defaults of ``Config``.

    Attributes:
        encoder: what makes features of images; frozen, unless the method trains towers.
        T: the text weights (C, d), from `fit` on.
        scale: 1 / tau; the "100" of the papers, which is its value in OpenAI's models.
    """

    Config: ClassVar[type[Any]]
    needs: ClassVar[Needs] = "features"
    T: Tensor

    def __init__(self, backbone: Backbone, config: Any = None) -> None:
        self.backbone = backbone
        self.config = self.Config() if config is None else config
        self.encoder = self._make_encoder()
        self.scale = backbone.logit_scale

    def _make_encoder(self) -> DualEncoder:
        """Return the towers before anything is learned."""
        return DualEncoder(self.backbone)

    def fit(self, task: FewShotTask, progress: Progress = silent) -> None:
        """Learn from ``task.train``; options are chosen on ``task.validation`` if there is one, else published."""
        self.T = text_weights(self.backbone, task.class_names, task.templates)
        self.learn(task, progress)

    def logits(self, images: Iterable[ImageSource], progress: Progress = silent) -> Tensor:
        """Return scores (N, C) on the CPU, whose softmax are the class probabilities."""
        if not hasattr(self, "T"):
            raise ConfigError("The classifier has no classes yet: call fit first.")
        f = image_features(self.encoder, images, progress)
        with torch.no_grad():
            return self.score(f).cpu()

    def zero_shot(self, f: Tensor) -> Tensor:
        """Return ``f T^T / tau`` (N, C)."""
        return self.scale * f @ self.T.mT

    def learn(self, task: FewShotTask, progress: Progress) -> None:
        """Set whatever `score` needs beyond the text weights."""
        raise NotImplementedError

    def score(self, f: Tensor) -> Tensor:
        """Turn features (N, d) into logits (N, C)."""
        return self.zero_shot(f)

    def labels(self, task: FewShotTask) -> Tensor:
        """Return the training labels (N,)."""
        return labels_of(task.train, self.backbone.device)

    def crops(self, task: FewShotTask, config: RandomCropConfig, progress: Progress) -> Tensor:
        """Return features (N, V, d) of the crops of each training image."""
        return crop_features(self.encoder, task.train.sources, config, task.seed, progress)

    def samples(self, task: FewShotTask, config: RandomCropConfig, progress: Progress) -> tuple[Tensor, Tensor, Tensor]:
        """Return every crop as a sample: features (N V, d), labels (N V,), and weights (N V,) of mean one."""
        labels, f = self.labels(task), self.crops(task, config, progress)
        f, y, shares = config.as_samples(f, labels)
        return f, y, shares * len(config.weights)

    def train_on_crops(
        self,
        task: FewShotTask,
        crops: int | None,
        recipe: Recipe,
        epochs: int,
        parameters: Sequence[Tensor],
        loss: Callable[[Tensor, Tensor], Tensor],
        progress: Progress,
        after_epoch: Callable[[], None] | None = None,
    ) -> None:
        """Train parameters on features of the training images, whose crops may differ from epoch to epoch.

        Args:
            task: the training images and the seed.
            crops: None: fresh ones in every epoch; V: so many passes, taken in turn; 0: centre crops.
            recipe: of the descent.
            epochs: passes over the images.
            parameters: changed in place.
            loss: features (B, d) and labels (B,) to a scalar.
            progress: told about reading and training.
            after_epoch: called after each epoch.
        """
        y = self.labels(task)
        f = epoch_features(self.encoder, task.train.sources, self.config.crop_scale, crops, task.seed, progress)
        steps = steps_of(len(y), recipe.batch_size, epochs)

        def batch_loss(i: Tensor, epoch: int) -> Tensor:
            return loss(f(epoch)[i], y[i])

        train(parameters, recipe, len(y), steps, batch_loss, task.seed, progress, after_epoch)

    def validation(self, task: FewShotTask, progress: Progress) -> tuple[Tensor, Tensor] | None:
        """Return features and labels of the validation images, if any. The test images are never looked at."""
        if task.validation is None or not len(task.validation):
            return None
        f = image_features(self.encoder, task.validation.sources, progress)
        return f, labels_of(task.validation, f.device)


@dataclass(frozen=True)
class ZeroShotConfig:
    """There is nothing to choose."""


class OpenVocabulary(FeatureMethod):
    """A method whose parameters belong to no class: it classifies among any, by their texts."""

    @torch.no_grad()
    def set_classes(self, class_names: Sequence[str], templates: Sequence[str]) -> None:
        """Name other classes than those that were learned from."""
        prompts = [prompt for group in class_prompts(templates, class_names) for prompt in group]
        texts = self.encoder.text.prefix(self.encoder.tokenize(prompts))
        self.T = self.encoder.encode_texts(texts, len(templates))


class ZeroShot(OpenVocabulary):
    """Zero-shot CLIP: logits ``f T^T / tau`` with ``T`` the prompts' embeddings."""

    Config = ZeroShotConfig

    def learn(self, task: FewShotTask, progress: Progress) -> None:
        """Learn nothing: the text weights are all there is."""


def hits(logits: Tensor, labels: Tensor) -> int:
    """Count the images (N, C) that are recognised."""
    return int((logits.argmax(dim=-1) == labels).sum())


def joint_loss(candidates: Sequence[FeatureMethod]) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the sum of the candidates' cross-entropies; they share no parameters, so none feels the others."""
    return lambda f, y: torch.stack([F.cross_entropy(one.score(f), y) for one in candidates]).sum()


class BestOnValidation:
    """Remember the parameters of the epoch with the most validation images right; of equal ones the last.

    Without validation images nothing is remembered, and the last step's parameters stand.

    Args:
        method: whose `score` is asked.
        parameters: watched, and put back by `restore`.
        held_out: features and labels of the validation images; None: there are none.
    """

    def __init__(
        self, method: FeatureMethod, parameters: Sequence[Tensor], held_out: tuple[Tensor, Tensor] | None
    ) -> None:
        self.method, self.parameters, self.held_out = method, parameters, held_out
        self.most = -1
        self.best: list[Tensor] = []

    def __call__(self) -> None:
        """After an epoch: is it the best so far?"""
        if self.held_out is None:
            return
        f, y = self.held_out
        with torch.no_grad():
            right = hits(self.method.score(f), y)
        if right >= self.most:
            self.most, self.best = right, [p.detach().clone() for p in self.parameters]

    def restore(self) -> None:
        """Put the best parameters back."""
        with torch.no_grad():
            for p, best in zip(self.parameters, self.best, strict=False):
                p.copy_(best)


def kernel(similarity: Tensor, beta: float) -> Tensor:
    """Return ``exp(-beta (1 - similarity))``: how much a training image so similar has to say."""
    return (beta * (similarity - 1)).exp()


def search_grid(top: float, steps: int) -> list[float]:
    """Return so many values from 0.1 to one step before ``top``."""
    return [0.1 + i * (top - 0.1) / steps for i in range(steps)]


def class_means(f: Tensor, labels: Tensor, class_names: Sequence[str], weights: Tensor | None = None) -> Tensor:
    """Return the mean feature of each class, (C, d), of features (N, d), labels (N,) and weights (N,), None: equal."""
    weights = f.new_ones(len(f)) if weights is None else weights
    counts = f.new_zeros(len(class_names)).index_add_(0, labels, weights)
    if (counts == 0).any():
        missing = [name for name, n in zip(class_names, counts.tolist(), strict=True) if n == 0]
        raise DataError(f"This method needs an image of every class; there is none of {', '.join(missing[:5])}.")
    sums = f.new_zeros(len(class_names), f.shape[1]).index_add_(0, labels, weights.unsqueeze(1) * f)
    return sums / counts.unsqueeze(1)
