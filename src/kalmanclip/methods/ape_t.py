"""APE-T: residues on the channels that tell the classes apart, shared by text weights and cache keys."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kalmanclip.encoders import Backbone
from kalmanclip.errors import ConfigError
from kalmanclip.methods.tip_adapter import TipAdapterF, TipAdapterFConfig
from kalmanclip.methods.training import Recipe


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


def prior_refinement(T: Tensor, similarity_weight: float, variance_weight: float) -> Tensor:
    """The criterion (d,) of each channel: large where text weights (C, d) are unlike each other and vary.

    The similarity of channel k is the mean of ``t_ik t_jk`` over all pairs of different classes.
    """
    C = len(T)
    pairs = max(C * (C - 1), 1)
    similarity = (T.sum(dim=0).square() - T.square().sum(dim=0)) / pairs
    return variance_weight * T.var(dim=0) - similarity_weight * similarity


class APET(TipAdapterF):
    """Logits ``f (T + r)^T / tau + alpha exp(-beta (1 - f (K + r_y)^T)) diag(v) V``.

    The residues ``r`` are zero outside the chosen channels; each key gets its own class's. ``v`` weighs the images.

    Args:
        backbone: the frozen CLIP.
        config: the options.

    Attributes:
        r: residues on the chosen channels (C, Q).
        v: weights of the cached images (N, 1).
        chosen: indices of the channels (Q,).
    """

    config: APETConfig
    r: Tensor
    v: Tensor
    chosen: Tensor

    def __init__(self, backbone: Backbone, config: APETConfig | None = None) -> None:
        super().__init__(backbone, config or APETConfig())

    @property
    def published(self) -> Recipe:
        """The published recipe."""
        return Recipe(lr=self.config.lr, eps=self.config.eps, weight_decay=0.1, batch_size=self.config.batch_size)

    def trainable(self) -> list[Tensor]:
        """Residues of zero and weights of one: training starts at Tip-Adapter."""
        assert self.T is not None
        c = self.config
        count = max(1, round(c.channels * self.T.shape[1]))
        self.chosen = prior_refinement(self.T, c.similarity_weight, c.variance_weight).topk(count).indices
        self.r = self.T.new_zeros(len(self.T), count, requires_grad=True)
        self.v = self.T.new_ones(len(self.K), 1, requires_grad=True)
        return [self.r, self.v]

    def parts(self, f: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Features (B, d) to text logits (B, C), affinities to the keys (B, N), and the values (N, C), all refined."""
        shift = f[:, self.chosen] @ self.r.mT  # (B, C): what the residue of each class adds to a product with f
        return self.zero_shot(f) + self.scale * shift, f @ self.K.mT + shift @ self.V.mT, self.v * self.V
