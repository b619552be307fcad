"""APE: a cache on the channels that tell the classes apart. APE-T: residues on them, trained."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kalmanclip.data import FewShotTask
from kalmanclip.encoders.features import Progress
from kalmanclip.encoders.preprocess import RandomCropConfig
from kalmanclip.encoders.towers import unit
from kalmanclip.errors import ConfigError
from kalmanclip.methods.base import check_positive
from kalmanclip.methods.baselines.base import FeatureMethod, kernel, search_grid
from kalmanclip.methods.baselines.tip_adapter import TipAdapterF, TipAdapterFConfig
from kalmanclip.methods.baselines.training import Recipe

EPSILON = 1e-6
"""Keeps the divergence of a label from a prediction finite, as published."""


@dataclass(frozen=True)
class APEConfig(RandomCropConfig):
    """Options of training-free APE, and of the crops whose mean is a key (`RandomCropConfig`).

    The published ones differ by data set; the defaults are ImageNet's but for these.

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
    """

    alpha: float = 2.0
    beta: float = 1.0
    gamma: float = 0.1
    search_scale: tuple[float, float, float] = (30.0, 10.0, 1.5)
    search_steps: tuple[int, int, int] = (200, 20, 20)
    channels: float = 700 / 1024
    similarity_weight: float = 0.7
    variance_weight: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(alpha=self.alpha, beta=self.beta)
        if not 0 < self.channels <= 1:
            raise ConfigError(f"channels is a share in (0, 1], not {self.channels}.")
        if not (math.isfinite(self.gamma) and self.gamma >= 0):
            raise ConfigError(f"gamma must be finite and not negative, not {self.gamma}.")
        if min(self.search_steps) < 1:
            raise ConfigError("search_steps must be at least 1.")


class APE(FeatureMethod):
    """Logits ``f T^T / tau + alpha exp(-beta (1 - f' K'^T)) diag(exp(gamma D)) V``.

    A prime restricts to the chosen channels and normalises again. ``D`` is the divergence, in bits, of the label of
    each cached image from ``softmax(K' T'^T)``, a softmax without temperature, as published.

    Attributes:
        chosen: indices of the channels (Q,).
        K: the keys (N, Q), one per training image, on the chosen channels.
        V: the values (N, C), one-hot labels.
        D: the divergences (N,).
        alpha: the weight that was used.
        beta: the sharpness that was used.
        gamma: the exponent that was used.
    """

    Config = APEConfig
    config: APEConfig
    chosen: Tensor
    K: Tensor
    V: Tensor
    D: Tensor

    def learn(self, task: FewShotTask, progress: Progress) -> None:
        """Fill the cache; ``alpha``, ``beta`` and ``gamma`` are searched on the validation images only."""
        c = self.config
        self.fill(unit(self.crops(task, c, progress).mean(dim=1)), self.labels(task))
        self.alpha, self.beta, self.gamma = c.alpha, c.beta, c.gamma
        held_out = self.validation(task, progress)
        if held_out is not None:
            self.search(*held_out)

    def fill(self, keys: Tensor, labels: Tensor) -> None:
        """Choose the channels, and set keys, values and divergences from features (N, d) and labels (N,)."""
        c = self.config
        criterion = channel_criterion(self.T, keys, labels, c.similarity_weight, c.variance_weight)
        self.chosen = criterion.topk(max(1, int(c.channels * self.T.shape[1]))).indices
        self.K = unit(keys[:, self.chosen])
        self.V = F.one_hot(labels, len(self.T)).to(keys)
        p = (self.K @ unit(self.T[:, self.chosen]).mT).softmax(dim=1)
        self.D = ((1 + EPSILON) / (p[torch.arange(len(labels)), labels] + EPSILON)).log2()

    def search(self, f: Tensor, labels: Tensor) -> None:
        """Set ``alpha``, ``beta`` and ``gamma`` to the first best triple of the grid, beta slowest, gamma fastest."""
        scale, steps = self.config.search_scale, self.config.search_steps
        betas, alphas = map(search_grid, scale[:2], steps[:2])
        gammas = [i * scale[2] / steps[2] for i in range(steps[2])]
        clip, affinity = self.zero_shot(f).unsqueeze(1), self.affinity(f)
        # (N, G C): the values with every gamma side by side
        values = torch.cat([self.weighed(gamma) for gamma in gammas], dim=1)
        most = -1
        for beta in betas:
            votes = (kernel(affinity, beta) @ values).unflatten(1, (len(gammas), -1))
            for alpha in alphas:
                right = ((clip + alpha * votes).argmax(dim=-1) == labels.unsqueeze(1)).sum(dim=0).tolist()
                if max(right) > most:
                    most = max(right)
                    self.alpha, self.beta, self.gamma = alpha, beta, gammas[right.index(most)]

    def affinity(self, f: Tensor) -> Tensor:
        """Return ``f' K'^T`` (B, N) of features (B, d)."""
        return unit(f[:, self.chosen]) @ self.K.mT

    def weighed(self, gamma: float) -> Tensor:
        """Return ``diag(exp(gamma D)) V`` (N, C)."""
        return (gamma * self.D).exp().unsqueeze(1) * self.V

    def score(self, f: Tensor) -> Tensor:
        """Turn features (N, d) into logits (N, C)."""
        votes = kernel(self.affinity(f), self.beta) @ self.weighed(self.gamma)
        return self.zero_shot(f) + self.alpha * votes


def channel_criterion(T: Tensor, f: Tensor, labels: Tensor, similarity_weight: float, variance_weight: float) -> Tensor:
    """Return a criterion (d,) of channels: large where classes are unlike each other and their text weights vary.

    The similarity of channel k is the mean of ``x_k z_k`` over all pairs ``x``, ``z`` of different classes, out of the
    text weights (C, d) and the features (N, d) with their labels (N,) together.
    """
    counts = 1 + torch.bincount(labels, minlength=len(T))
    sums = T.index_add(0, labels, f)  # of each class
    total = counts.sum()
    pairs = (total.square() - counts.square().sum()).clamp(min=1)
    similarity = (sums.sum(dim=0).square() - sums.square().sum(dim=0)) / pairs
    return variance_weight * T.var(dim=0) - similarity_weight * similarity


@dataclass(frozen=True)
class APETConfig(TipAdapterFConfig):
    """Options of APE-T: those of Tip-Adapter-F, with its own published values, and the channels.

    Attributes:
        epochs: as for Tip-Adapter-F; published: 20 to 60 (EuroSAT 200).
        lr: published: 1e-3, but 1e-4 on ImageNet, OxfordPets, Food101 and SUN397.
        eps: published: 1e-3 to 5e-3.
        channels: the share of channels that are refined; published: between 500 and 900 of 1024, by data set.
        similarity_weight: of the similarity between classes in the channels' criterion.
        variance_weight: of the variance over classes.
    """

    alpha: float = 2.0
    epochs: int = 200
    eps: float = 1e-3
    channels: float = 800 / 1024
    similarity_weight: float = 0.2
    variance_weight: float = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.channels <= 1:
            raise ConfigError(f"channels is a share in (0, 1], not {self.channels}.")


class APET(TipAdapterF):
    """Logits ``f (T + r)^T / tau + alpha exp(-beta (1 - f (K + r_y)^T)) diag(v) V``.

    The residues ``r`` are zero outside the chosen channels; each key gets its own class's. ``v`` weighs the images.

    Attributes:
        r: residues on the chosen channels (C, Q).
        v: weights of the cached images (N, 1).
        chosen: indices of the channels (Q,).
    """

    Config = APETConfig
    config: APETConfig
    r: Tensor
    v: Tensor
    chosen: Tensor

    @property
    def published(self) -> Recipe:
        """The published recipe."""
        return Recipe(lr=self.config.lr, eps=self.config.eps, weight_decay=0.1, batch_size=self.config.batch_size)

    def trainable(self) -> list[Tensor]:
        """Return residues of zero and weights of one: training starts at Tip-Adapter."""
        c = self.config
        count = max(1, round(c.channels * self.T.shape[1]))
        # of the texts alone
        none, labels = self.T[:0], torch.empty(0, dtype=torch.long, device=self.T.device)
        criterion = channel_criterion(self.T, none, labels, c.similarity_weight, c.variance_weight)
        self.chosen = criterion.topk(count).indices
        self.r = self.T.new_zeros(len(self.T), count, requires_grad=True)
        self.v = self.T.new_ones(len(self.K), 1, requires_grad=True)
        return [self.r, self.v]

    def parts(self, f: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return, all refined, text logits (B, C) and affinities (B, N) of features (B, d), and the values (N, C)."""
        shift = f[:, self.chosen] @ self.r.mT  # (B, C): what the residue of each class adds to a product with f
        return self.zero_shot(f) + self.scale * shift, f @ self.K.mT + shift @ self.V.mT, self.v * self.V
