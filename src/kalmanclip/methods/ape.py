"""APE: a cache on the channels that tell the classes apart, whose images count by how surprising they are to CLIP."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kalmanclip.data import FewShotTask
from kalmanclip.encoders import Backbone
from kalmanclip.errors import ConfigError
from kalmanclip.methods.base import Progress
from kalmanclip.methods.features import FeatureMethod, augmented_features, labels_of, unit
from kalmanclip.methods.training import check_positive

EPSILON = 1e-6
"""Keeps the divergence of a label from a prediction finite, as published."""


@dataclass(frozen=True)
class APEConfig:
    """Options of training-free APE. The published ones differ by data set; the defaults are ImageNet's but for these.

    Attributes:
        alpha: weight of the cache. Used, like ``beta`` and ``gamma``, without validation images.
        beta: sharpness of the cache.
        gamma: how much more an image counts that the text weights do not recognise.
        search_scale: the largest beta, alpha and gamma of the grid that is searched on the validation images. The
            largest that are published for any data set: most have 7, 7, 1; EuroSAT 30, 5, 1.5; Aircraft 20, 10, 1.
        search_steps: how many of each; beta and alpha start at 0.1, gamma at 0. The first best triple wins.
        channels: the share of channels that the cache sees; published 500 (ImageNet) to 800 of 1024, DTD 400.
        similarity_weight: of the similarity between classes in the channels' criterion; published 0.1 to 0.9.
        variance_weight: of the variance over classes; the two sum to one.
        views: passes of random crops whose mean is a key; 0: centre crops once.
        crop_scale: of the random crops.
    """

    alpha: float = 2.0
    beta: float = 1.0
    gamma: float = 0.1
    search_scale: tuple[float, float, float] = (30.0, 10.0, 1.5)
    search_steps: tuple[int, int, int] = (200, 20, 20)
    channels: float = 700 / 1024
    similarity_weight: float = 0.7
    variance_weight: float = 0.3
    views: int = 10
    crop_scale: tuple[float, float] = (0.5, 1.0)

    def __post_init__(self) -> None:
        check_positive(alpha=self.alpha, beta=self.beta)
        if not 0 < self.channels <= 1:
            raise ConfigError(f"channels is a share in (0, 1], not {self.channels}.")
        if not (math.isfinite(self.gamma) and self.gamma >= 0):
            raise ConfigError(f"gamma must be finite and not negative, not {self.gamma}.")
        if self.views < 0 or min(self.search_steps) < 1:
            raise ConfigError("views must be 0 (centre crops) or more, and search_steps at least 1.")


class APE(FeatureMethod):
    """Logits ``f T^T / tau + alpha exp(-beta (1 - f' K'^T)) diag(exp(gamma D)) V``.

    A prime restricts to the chosen channels and normalises again. ``D`` is the divergence, in bits, of the label of
    each cached image from ``softmax(K' T'^T)``, a softmax without temperature, as published.

    Args:
        backbone: the frozen CLIP.
        config: the options.

    Attributes:
        chosen: indices of the channels (Q,).
        K: the keys (N, Q), one per training image, on the chosen channels.
        V: the values (N, C), one-hot labels.
        D: the divergences (N,).
        alpha: the weight that was used.
        beta: the sharpness that was used.
        gamma: the exponent that was used.
    """

    chosen: Tensor
    K: Tensor
    V: Tensor
    D: Tensor

    def __init__(self, backbone: Backbone, config: APEConfig | None = None) -> None:
        super().__init__(backbone)
        self.config = c = config or APEConfig()
        self.alpha, self.beta, self.gamma = c.alpha, c.beta, c.gamma

    def learn(self, task: FewShotTask, progress: Progress) -> None:
        """Fills the cache; ``alpha``, ``beta`` and ``gamma`` are searched on the validation images only."""
        c = self.config
        labels = labels_of(task.train, self.backbone.device)
        features = augmented_features(self.backbone, task, c.crop_scale, c.views, progress)
        self.fill(unit(torch.stack([features(view) for view in range(max(c.views, 1))]).mean(dim=0)), labels)
        self.alpha, self.beta, self.gamma = c.alpha, c.beta, c.gamma
        held_out = self.validation(task, progress)
        if held_out is not None:
            f, y = held_out
            self.search(f, y)

    def fill(self, keys: Tensor, labels: Tensor) -> None:
        """Chooses the channels, and sets keys, values and divergences from features (N, d) and labels (N,)."""
        assert self.T is not None
        c = self.config
        criterion = channel_criterion(self.T, keys, labels, c.similarity_weight, c.variance_weight)
        self.chosen = criterion.topk(max(1, int(c.channels * self.T.shape[1]))).indices
        self.K = unit(keys[:, self.chosen])
        self.V = F.one_hot(labels, len(self.T)).to(keys)
        p = (self.K @ unit(self.T[:, self.chosen]).mT).softmax(dim=1)
        self.D = ((1 + EPSILON) / (p[torch.arange(len(labels)), labels] + EPSILON)).log2()

    def search(self, f: Tensor, labels: Tensor) -> None:
        """Sets ``alpha``, ``beta`` and ``gamma`` to the first best triple of the grid, beta slowest, gamma fastest."""
        scale, steps = self.config.search_scale, self.config.search_steps
        betas, alphas = (
            [0.1 + i * (top - 0.1) / n for i in range(n)] for top, n in zip(scale, steps[:2], strict=False)
        )
        gammas = [i * scale[2] / steps[2] for i in range(steps[2])]
        clip, affinity = self.zero_shot(f).unsqueeze(1), self.affinity(f)
        # (N, G C): the values with every gamma side by side
        values = torch.cat([self.weighed(gamma) for gamma in gammas], dim=1)
        most = -1
        for beta in betas:
            votes = ((beta * (affinity - 1)).exp() @ values).unflatten(1, (len(gammas), -1))
            for alpha in alphas:
                right = ((clip + alpha * votes).argmax(dim=-1) == labels.unsqueeze(1)).sum(dim=0).tolist()
                if max(right) > most:
                    most = max(right)
                    self.alpha, self.beta, self.gamma = alpha, beta, gammas[right.index(most)]

    def affinity(self, f: Tensor) -> Tensor:
        """``f' K'^T`` (B, N) of features (B, d)."""
        return unit(f[:, self.chosen]) @ self.K.mT

    def weighed(self, gamma: float) -> Tensor:
        """``diag(exp(gamma D)) V`` (N, C)."""
        return (gamma * self.D).exp().unsqueeze(1) * self.V

    def score(self, f: Tensor) -> Tensor:
        """Features (N, d) to logits (N, C)."""
        votes = (self.beta * (self.affinity(f) - 1)).exp() @ self.weighed(self.gamma)
        return self.zero_shot(f) + self.alpha * votes


def channel_criterion(T: Tensor, f: Tensor, labels: Tensor, similarity_weight: float, variance_weight: float) -> Tensor:
    """The criterion (d,) of each channel: large where the classes are unlike each other and their text weights vary.

    The similarity of channel k is the mean of ``x_k z_k`` over all pairs ``x``, ``z`` of different classes, out of the
    text weights (C, d) and the features (N, d) with their labels (N,) together.
    """
    counts = 1 + torch.bincount(labels, minlength=len(T))
    sums = T.index_add(0, labels, f)  # of each class
    total = counts.sum()
    pairs = (total.square() - counts.square().sum()).clamp(min=1)
    similarity = (sums.sum(dim=0).square() - sums.square().sum(dim=0)) / pairs
    return variance_weight * T.var(dim=0) - similarity_weight * similarity
