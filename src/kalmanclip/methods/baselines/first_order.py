"""First-order optimisation of what the Kalman filter learns: the same parameters, observation, images and order.

The rival that the paper's claim is about. By the lemma (docs/lemma.md) the filter takes the step ``-Sigma_k grad L``,
with ``L = |y - y_hat|^2 / 2`` for ``R = I``; here AdamW or SGD descends the same ``L``: only the optimiser differs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from kalmanclip.config import check_seed
from kalmanclip.data import FewShotTask
from kalmanclip.encoders import Activations, DualEncoder, LowRankConfig
from kalmanclip.encoders.features import ENCODE_BATCH, ActivationStore, Progress, activation_store, silent
from kalmanclip.errors import ConfigError, NumericalError
from kalmanclip.methods.base import Needs, check_positive, labels_of
from kalmanclip.methods.baselines.base import OpenVocabulary, hits
from kalmanclip.methods.baselines.training import Recipe, steps_of, train
from kalmanclip.methods.kalman import KalmanConfig, pass_order
from kalmanclip.methods.presets import preset
from kalmanclip.observation import make_likelihood
from kalmanclip.observation.observe import compared

_PAPER: KalmanConfig = preset("paper")
LOSSES = ("squared", "cross_entropy")
_PROBABILITIES = ("contrastive", "symmetric", "classes")
"""Observations whose outputs are probabilities of what matches, target one."""


@dataclass(frozen=True)
class FirstOrderConfig:
    """The parameters and the observation are those of the preset ``paper``, the optimiser is the paper's for baselines.

    Attributes:
        low_rank: where the low-rank parameters sit.
        observation: what is seen of a batch, see `kalmanclip.observation`.
        observation_options: what that observation takes.
        loss: 'squared', ``|y - y_hat|^2 / 2``: the negative log-likelihood that the filter's lemma is about, with
            ``R = I``; or 'cross_entropy', ``-log`` of the probabilities that the observation is made of. Both are means
            over the images of a batch.
        optimizer: 'adamw' or 'sgd' (momentum 0.9).
        lr: the rate at the start, where it is not chosen.
        lr_grid: the rates tried on the validation images, where there are some; empty: none, ``lr`` it is.
        weight_decay: as the optimiser understands it.
        decay: 'linear' or 'cosine', down to zero at the last step.
        epochs: passes over the images.
        batch_size: images per step.
        seed: of the order of the images and of the low-rank start, as the filter's.
    """

    low_rank: LowRankConfig = field(default_factory=lambda: _PAPER.low_rank)
    observation: str = field(default_factory=lambda: _PAPER.observation)
    observation_options: dict[str, Any] = field(default_factory=lambda: dict(_PAPER.observation_options))
    loss: str = "squared"
    optimizer: str = "adamw"
    lr: float = 1e-3
    lr_grid: tuple[float, ...] = ()
    weight_decay: float = 1e-4
    decay: str = "linear"
    epochs: int = field(default_factory=lambda: _PAPER.epochs)
    batch_size: int = field(default_factory=lambda: _PAPER.batch_size)
    seed: int = 0

    def __post_init__(self) -> None:
        for name, allowed in (("loss", LOSSES), ("optimizer", ("adamw", "sgd")), ("decay", ("linear", "cosine"))):
            if getattr(self, name) not in allowed:
                raise ConfigError(f"{name} must be one of {allowed}, not {getattr(self, name)!r}.")
        check_positive(lr=self.lr, lr_grid=self.lr_grid, epochs=self.epochs, batch_size=self.batch_size)
        check_seed(self.seed)
        if self.weight_decay < 0:
            raise ConfigError(f"weight_decay must not be negative, and is {self.weight_decay}.")
        likelihood = make_likelihood(self.observation, **self.observation_options)
        if self.loss == "squared" and likelihood.has_covariance:
            raise ConfigError(
                f"The observation {self.observation!r} has no squared loss to descend: its outputs are scaled by the "
                "model itself, and their scale moves with the parameters. Choose 'classes' or 'log_likelihood'."
            )
        if self.loss == "cross_entropy" and self.observation not in (*_PROBABILITIES, "log_likelihood"):
            raise ConfigError(
                f"The observation {self.observation!r} is not made of probabilities of matches, so it stands for no "
                f"cross-entropy. Choose one of {', '.join(_PROBABILITIES)}, log_likelihood; or loss 'squared'."
            )


class FirstOrder(OpenVocabulary):
    """Logits ``S_C / tau`` of the adapted towers, whose parameters descend a loss of the filter's observation.

    Attributes:
        lr: the rate that was used.
    """

    Config = FirstOrderConfig
    config: FirstOrderConfig
    needs: ClassVar[Needs] = "towers"
    lr: float

    def _make_encoder(self) -> DualEncoder:
        return DualEncoder(self.backbone, self.config.low_rank, self.config.seed)

    def fit(self, task: FewShotTask, progress: Progress = silent) -> None:
        """Train on ``task.train``; the rate is chosen on ``task.validation``, the last step's parameters stand."""
        labels_of(task.train, self.backbone.device)
        labels = torch.tensor(task.train.labels)  # on the CPU: which texts a batch needs is decided there
        self.encoder = self._make_encoder()
        self.templates = len(task.templates)
        prompts = [prompt for group in task.prompts for prompt in group]
        self._texts = self.encoder.text.prefix(self.encoder.tokenize(prompts))
        store = activation_store(self.encoder, task.train.sources, progress)
        self.lr = self.config.lr
        if self.config.lr_grid and task.validation is not None and len(task.validation):
            self._choose(store, labels, task, progress)
        else:
            self._descend(store, labels, self.lr, progress)
        self.T = self._texts_now()

    def _choose(self, store: ActivationStore, labels: Tensor, task: FewShotTask, progress: Progress) -> None:
        """Keep the rate with the most validation images right; of equal ones, that with the smaller cross-entropy."""
        assert task.validation is not None
        shown = activation_store(self.encoder, task.validation.sources, progress)
        own = labels_of(task.validation, self.backbone.device)
        start = self.encoder.theta.clone()
        best: tuple[tuple[int, float], float, Tensor] | None = None
        reason = ""
        for lr in sorted(self.config.lr_grid):
            self.encoder.theta.copy_(start)
            try:
                self._descend(store, labels, lr, progress)
            except NumericalError as problem:  # too large a rate, which is what validation is for
                reason = str(problem)
                continue
            scores = self._scores(shown, len(own))
            if not torch.isfinite(scores).all():
                reason = f"The scores with learning rate {lr:g} are not finite."
                continue
            rank = hits(scores, own), -float(F.cross_entropy(scores, own))
            if best is None or rank > best[0]:
                best = rank, lr, self.encoder.theta.clone()
        if best is None:
            raise NumericalError(f"No learning rate of {self.config.lr_grid} could be used: {reason}")
        self.lr = best[1]
        self.encoder.theta.copy_(best[2])

    def _descend(self, store: ActivationStore, labels: Tensor, lr: float, progress: Progress) -> None:
        """Train from the current parameters; the batches are those of the Kalman filter with the same options."""
        config, count = self.config, len(labels)
        recipe = Recipe(config.optimizer, lr, config.weight_decay, config.decay, batch_size=config.batch_size)
        parameters, steps = list(self.encoder.parameters()), steps_of(count, config.batch_size, config.epochs)

        def loss(i: Tensor, epoch: int) -> Tensor:
            return self.loss(store[i], labels[i])

        def order(taken: int) -> Tensor:
            return pass_order(count, config.seed, taken)

        train(parameters, recipe, count, steps, loss, config.seed, progress, order=order)

    def loss(self, images: Activations, labels: Tensor) -> Tensor:
        """Return the loss of activations of B images with labels (B,), a scalar: the mean over the images."""
        likelihood = make_likelihood(self.config.observation, **self.config.observation_options)
        classes = len(self._texts[0]) // self.templates
        rows, column, _ = compared(likelihood, labels, classes, self.templates).to(self.backbone.device)
        texts = tuple(t[rows] for t in self._texts)
        if likelihood.paired:
            T = self.encoder.encode_texts(texts, self.templates)
            S = (self.encoder.encode_images(images) * T).sum(dim=-1, keepdim=True)
        else:
            S = self.encoder(images, texts, self.templates)
        terms = likelihood.terms(S, column, self.backbone.logit_scale)
        if self.config.loss == "squared":
            return (terms.y - terms.y_hat).square().sum() / (2 * len(labels))
        if self.config.observation == "log_likelihood":
            return -terms.y_hat.sum() / len(labels)
        smallest = torch.finfo(terms.y_hat.dtype).tiny
        return -terms.y_hat.clamp_min(smallest).log().sum() / len(labels)

    @torch.no_grad()
    def _texts_now(self) -> Tensor:
        """Return the class weights (C, d) of the current parameters."""
        return self.encoder.encode_texts(self._texts, self.templates)

    @torch.no_grad()
    def _scores(self, shown: ActivationStore, count: int) -> Tensor:
        """Return logits (N, C) of stored activations by the current parameters."""
        T = self._texts_now()
        batches = (shown[i] for i in torch.arange(count).split(ENCODE_BATCH))
        return torch.cat([self.scale * self.encoder.encode_images(batch) @ T.mT for batch in batches])
