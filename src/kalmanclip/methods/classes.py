"""Class residuals: what the text says about each class, plus what its few images add, as a Gaussian belief.

The logits of an image with embedding ``f`` are ``(gain f T^T + f D^T) / tau``: the zero-shot classifier ``T`` (C, d),
with its share, and a residual ``D_c`` for each class, believed a priori to be ``N(0, prior_std^2 M)``. ``M`` (d, d),
of mean size one on the images, allows less where views of the *same* class differ: that does not tell classes apart.
The update is `kalmanclip.filtering.softmax`: it counts every image once, however many crops stand for it. Of the images
learned before, `kalmanclip.methods.recollection` keeps enough to go on: `learn` takes more images, also of new classes.

``prior_std`` and the tempering are chosen on training images that are held out in turn. Nothing that they are predicted
from has seen them: not the residuals, not ``M``, and, where the towers learn too, not the towers (`Fold`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from kalmanclip.errors import ConfigError
from kalmanclip.filtering.softmax import SoftmaxBelief, softmax_gradient, softmax_update
from kalmanclip.methods.recollection import Recollection
from kalmanclip.prediction import TYPICAL_TEMPER, LogitGaussian, fit_temper, log_score

TYPICAL_STD = 50**-0.5
"""The centre of the search for ``prior_std``, and its value where no image can be spared to choose by."""

_STEP = math.sqrt(2)  # of the search: a factor of two in the variance
_SPREAD = 2.0  # steps, one standard deviation: a variance four times larger or smaller is no surprise
_REACH = 12  # steps either way at most
_ENOUGH = 1000  # held-out images that tell one prior from another


@dataclass(frozen=True)
class ClassConfig:
    """Options of the class residuals.

    Attributes:
        prior_std: how far, in units of cosine similarity, an image's similarity with a class may move (one standard
            deviation). None: chosen among the training images, by how well a part of them is foreseen from the rest;
            with a single image per class, `TYPICAL_STD`.
        gain_std: of the text's share in the logits, around one.
        views: random crops of each training image beside the centre crop; 0: none.
        crop_scale: smallest and largest share of a picture's area in a crop.
        centre_weight: how much of an image's weight its centre crop has; the random crops share the rest.
        folds: in how many parts the training images are held out to choose ``prior_std``.
    """

    prior_std: float | None = None
    gain_std: float = 0.5
    views: int = 5
    crop_scale: tuple[float, float] = (0.3, 1.0)
    centre_weight: float = 0.5
    folds: int = 4

    def __post_init__(self) -> None:
        for name in ("prior_std", "gain_std"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{name} must be positive and finite, not {value}.")
        if not isinstance(self.views, int) or self.views < 0:
            raise ConfigError(f"views must be a whole number, 0 for centre crops alone; not {self.views!r}.")
        if not (len(self.crop_scale) == 2 and 0 < self.crop_scale[0] <= self.crop_scale[1] <= 1):
            raise ConfigError(f"crop_scale must be two shares of a picture's area in (0, 1], not {self.crop_scale}.")
        if not 0 < self.centre_weight <= 1:
            raise ConfigError(f"centre_weight must lie in (0, 1], not {self.centre_weight}.")
        if not isinstance(self.folds, int) or self.folds < 2:
            raise ConfigError(f"folds must be at least 2, not {self.folds!r}.")


@dataclass(frozen=True, eq=False)
class Fold:
    """Training images without a part of them, and the part, both as encoders see them that have not seen the part.

    Attributes:
        views: (N, 1 + V, d), of the images that are kept.
        labels: (N,).
        held_views: (n, 1 + V, d), of those held out.
        held_labels: (n,).
        T: the text weights (C, d).
    """

    views: Tensor
    labels: Tensor
    held_views: Tensor
    held_labels: Tensor
    T: Tensor


class ClassResiduals:
    """The belief about the classes' residuals.

    Args:
        config: the options.
        scale: 1 / tau.
        alpha: the regulation of outlying images, see `softmax_update`.

    Attributes:
        names: of the classes, in the order of `T`.
        root: a square root of ``M`` (d, d); None before the first image.
        belief: over ``D root^-1``; None before the first image.
        memory: of the images learned; None before the first.
        foreseen: the mean log-probability of held-out images by ``prior_std``, where it was chosen.
        temper: how much of the belief's covariance a prediction averages over, see `kalmanclip.prediction.tempering`.
    """

    def __init__(self, config: ClassConfig, scale: float, alpha: float = 0.0) -> None:
        self.config, self.scale, self.alpha = config, scale, alpha
        self.names: list[str] = []
        self.T: Tensor | None = None
        self.root: Tensor | None = None
        self.belief: SoftmaxBelief | None = None
        self.memory: Recollection | None = None
        self.foreseen: dict[float, float] = {}
        self.temper = TYPICAL_TEMPER

    @property
    def prior_std(self) -> float | None:
        """The prior's, chosen or given; None before the first image."""
        return None if self.belief is None else self.belief.strength**-0.5

    def set_classes(self, names: Sequence[str], T: Tensor) -> None:
        """Names the classes, with their text weights (C, d); what is known about a name stays with it."""
        if self.belief is not None:
            row = {name: i for i, name in enumerate(self.names)}
            rows = [row.get(name) for name in names]
            self.belief = self.belief.select_classes(rows)
            self.memory = self.memory and self.memory.chosen(rows)
        self.names, self.T = list(names), T

    def learn(
        self,
        views: Tensor,
        labels: Tensor,
        tell: Callable[[int, int], None] = lambda done, total: None,
        folds: Sequence[Fold] | None = None,
    ) -> None:
        """Updates the belief.

        Args:
            views: unit-length features (N, 1 + V, d), the centre crop first.
            labels: (N,), numbers of `names`.
            tell: called with fits done and to do.
            folds: what the prior is chosen on; None: parts of these images, whose encoders have learned nothing.
        """
        new = Recollection.of(views, labels, len(self.names))
        if self.belief is None:
            if folds is None:
                folds = self._folds(views, labels)
            held_out = [_HeldOut(self, fold) for fold in folds]
            std = self.config.prior_std or self._choose(held_out, tell)
            self.temper = self._fit_temper(held_out, std)
            self.root = new.metric()
            self.belief = self._solved(self._prior(std**-2), *self._weighted(views, labels))
            self._remember(new)
        else:
            self.settle([self.recollection], self.belief.strength, (views, labels))
        tell(1, 1)

    def settle(self, known: Sequence[Recollection], strength: float, more: tuple[Tensor, Tensor] | None = None) -> None:
        """Makes the belief that of all images that are recalled, under one prior, and of more.

        Args:
            known: recollections of different images, of the classes in `names`.
            strength: ``prior_std^-2``.
            more: views and labels, as in `learn`, of images that are not among the known.
        """
        memory = sum(known[1:], start=known[0])
        if more is not None:
            memory = memory + Recollection.of(*more, len(self.names))
        guess = None if self.belief is None else self.belief.mean @ self._root.mT
        self.root = memory.metric()
        prior = self._prior(strength)
        recalled = [images.recalled() for images in known]
        if more is not None:
            recalled.append(self._weighted(*more))
        f, labels, weights = (torch.cat(column) for column in zip(*recalled, strict=True))
        slope = torch.stack([images.slope for images in known]).sum(dim=0) @ self.root
        gain_slope = torch.stack([images.gain_slope for images in known]).sum()
        # a linear term in the logarithm of a Gaussian moves its mean
        tilted = replace(prior, mean=slope / strength, gain=prior.gain + gain_slope / prior.gain_precision)
        start = tilted
        if guess is not None and self.belief is not None:
            start = replace(tilted, mean=guess @ torch.linalg.inv(self.root).mT, gain=self.belief.gain)
        self.belief = self._solved(tilted, f, labels, weights, start)
        self._remember(memory)

    def _remember(self, images: Recollection) -> None:
        """Keeps them, with the slope that makes the belief's mean the mode of what is kept."""
        assert self.belief is not None
        f, labels, weights = images.recalled()
        x = f @ self._root
        slope, gain_slope = softmax_gradient(self.belief, x, self._text(f), labels, weights, self.scale, self.alpha)
        prior = self._prior(self.belief.strength)
        self.memory = replace(
            images,
            slope=(prior.strength * self.belief.mean - slope) @ torch.linalg.inv(self._root),
            gain_slope=prior.gain_precision * (self.belief.gain - prior.gain) - gain_slope,
        )

    def _prior(self, strength: float) -> SoftmaxBelief:
        return SoftmaxBelief.prior(len(self.names), self._root, strength, self.config.gain_std)

    @property
    def recollection(self) -> Recollection:
        """What is kept of the images learned, for learning more or for fusing."""
        if self.memory is None:
            raise ConfigError(
                "this adapter was saved by an older kalmanclip, which did not keep what further learning needs: "
                "fit again to learn more"
            )
        return self.memory

    def state_dict(self) -> dict[str, Tensor]:
        """The belief as named tensors."""
        assert self.belief is not None
        b = self.belief
        strength = torch.tensor(b.strength, dtype=torch.float64)  # a Python number: read back to the last digit
        temper = torch.tensor(self.temper, dtype=torch.float64)
        numbers = {"strength": strength, "gain": b.gain, "gain_precision": b.gain_precision, "temper": temper}
        memory = self.memory.state_dict() if self.memory else {}
        return {"root": self._root, "mean": b.mean, "gram": b.gram, "curvature": b.curvature} | numbers | memory

    def load_state_dict(self, state: Mapping[str, Tensor], names: Sequence[str]) -> None:
        """Takes over what `state_dict` gave, about the classes of these names.

        Raises:
            ConfigError: a tensor is missing or has another shape.
        """
        C, d = len(names), state["mean"].shape[-1] if "mean" in state and state["mean"].ndim else 0
        shapes = {"root": (d, d), "mean": (C, d), "gram": (d, d), "curvature": (C,)}
        # adapters from before predictions were averaged have no tempering
        state = {"temper": torch.tensor(TYPICAL_TEMPER, dtype=torch.float64)} | dict(state)
        for name, shape in (shapes | dict.fromkeys(("strength", "gain", "gain_precision", "temper"), ())).items():
            if name not in state or state[name].shape != shape:
                raise ConfigError(f"its class residuals lack the tensor {name!r}, or it has another shape")
        self.names, self.root = list(names), state["root"]
        self.belief = SoftmaxBelief(
            state["mean"],
            float(state["strength"]),
            state["gram"],
            state["curvature"],
            state["gain"],
            state["gain_precision"],
        )
        self.memory = Recollection.from_state(state, C, d)
        self.temper = float(state["temper"])

    def logits(self, f: Tensor) -> Tensor:
        """Logits (N, C) at the mean of the belief, of unit-length features (N, d)."""
        if self.belief is None:
            return self._text(f)
        return self.belief.logits(f @ self._root, self._text(f), self.scale)

    def variance(self, f: Tensor) -> Tensor:
        """Variance (N, C) of the logits under the belief."""
        if self.belief is None:
            raise ConfigError("There is no belief yet: call fit first.")
        return self.belief.variance(f @ self._root, self._text(f), self.scale)

    def sampled(self, texts: Sequence[Tensor], generator: torch.Generator) -> Iterator[Tensor]:
        """Classifiers (C, d), as `weights` gives one, drawn from the belief with its covariance tempered.

        Args:
            texts: the text weights (C, d) of each draw.
            generator: on the CPU.
        """
        if self.belief is None:
            raise ConfigError("There is no belief yet: call fit first.")
        for T in texts:
            gain, Z = self.belief.sample(self.temper, generator)
            centred = T - T.mean(dim=0)  # what all classes share moves no probability, see `variance`
            yield self.belief.gain * T + (gain - self.belief.gain) * centred + Z @ self._root.mT

    def weights(self) -> Tensor:
        """The classifier ``gain T + D`` (C, d): its product with a unit-length feature, over tau, is the logit."""
        assert self.T is not None
        if self.belief is None:
            return self.T
        return self.belief.gain * self.T + self.residuals()

    def residuals(self) -> Tensor:
        """``D`` (C, d) at the mean of the belief."""
        assert self.belief is not None
        return self.belief.mean @ self._root.mT

    @property
    def _root(self) -> Tensor:
        assert self.root is not None
        return self.root

    def _text(self, f: Tensor) -> Tensor:
        assert self.T is not None
        return self.scale * f @ self.T.mT

    def _weighted(self, views: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Every view as an image of its own: features, labels and weights."""
        share = self._share(views).repeat(len(views))
        return views.flatten(0, 1), labels.repeat_interleave(views.shape[1]), share

    def _solved(
        self,
        prior: SoftmaxBelief,
        f: Tensor,
        labels: Tensor,
        weights: Tensor,
        start: SoftmaxBelief | None = None,
        tolerance: float = 1e-5,
    ) -> SoftmaxBelief:
        """The posterior after features (N, d) with labels and weights (N,)."""
        x, text = f @ self._root, self._text(f)
        return softmax_update(prior, x, text, labels, weights, self.scale, self.alpha, tolerance, start)

    def _share(self, views: Tensor) -> Tensor:
        """How much each view of an image counts, (1 + V,); together one."""
        V = views.shape[1] - 1
        if V == 0:
            return views.new_ones(1)
        centre = self.config.centre_weight
        return torch.cat([views.new_tensor([centre]), views.new_full((V,), (1 - centre) / V)])

    def _folds(self, views: Tensor, labels: Tensor) -> list[Fold]:
        """Parts of the images, as encoders that have learned from none of them see them."""
        assert self.T is not None
        parts = held_out_parts(labels, self.config.folds)
        return [Fold(views[kept], labels[kept], views[held], labels[held], self.T) for kept, held in parts]

    def _choose(self, held_out: Sequence[_HeldOut], tell: Callable[[int, int], None]) -> float:
        """The prior under which held-out images are most probable, itself less probable if unusual."""
        if not held_out:
            return TYPICAL_STD
        scores: dict[int, float] = {}

        def score(step: int) -> float:
            if not -_REACH <= step <= _REACH:
                return -math.inf
            if step not in scores:
                std = TYPICAL_STD * _STEP**step
                total = sum(part.log_likelihood(std) for part in held_out)
                self.foreseen[std] = total / sum(len(part.labels) for part in held_out)
                scores[step] = total - (step / _SPREAD) ** 2 / 2
                tell(len(scores), len(scores) + 1)
            return scores[step]

        best = 0  # the score has one summit: climb it
        for direction in (-1, 1):
            while score(best + direction) > score(best):
                best += direction
        return TYPICAL_STD * _STEP**best

    def _fit_temper(self, held_out: Sequence[_HeldOut], std: float) -> float:
        """The tempering under which held-out images are most probable, by the crop that predictions use."""
        if not held_out:
            return TYPICAL_TEMPER
        known = [(part.logits(std), part.labels) for part in held_out]
        return fit_temper(lambda t: sum(log_score(logits.tempered(t), truth) for logits, truth in known))


class _HeldOut:
    """Residuals learned from the kept images of a fold, under one prior after the other, beside the held-out images.

    Args:
        whole: whose options to use.
        fold: the images.
    """

    def __init__(self, whole: ClassResiduals, fold: Fold) -> None:
        self.labels = fold.held_labels
        self._views = fold.held_views
        # an image that is regulated away is one image less to tell priors by, and solving for the weights takes time
        self._residuals = ClassResiduals(whole.config, whole.scale, alpha=0.0)
        self._residuals.set_classes(whole.names, fold.T)
        self._residuals.root = Recollection.of(fold.views, fold.labels, len(whole.names)).metric()
        self._images = self._residuals._weighted(fold.views, fold.labels)
        self._found: dict[float, SoftmaxBelief] = {}

    def _learn(self, std: float) -> ClassResiduals:
        """The residuals under that prior; those under the nearest one are where the search for the mode begins."""
        residuals = self._residuals
        if std not in self._found:
            near = min(self._found, key=lambda known: abs(math.log(known / std)), default=None)
            start = None if near is None else self._found[near]
            prior = residuals._prior(std**-2)
            self._found[std] = residuals._solved(prior, *self._images, start, tolerance=1e-4)
        residuals.belief = self._found[std]
        return residuals

    def log_likelihood(self, std: float) -> float:
        """Log-probability of the held-out images, each by all its views."""
        residuals = self._learn(std)
        f, labels, weights = residuals._weighted(self._views, self.labels)
        return -float((F.cross_entropy(residuals.logits(f), labels, reduction="none") * weights).sum())

    def logits(self, std: float) -> LogitGaussian:
        """What is believed about the held-out images, by their centre crops."""
        residuals, f = self._learn(std), self._views[:, 0]
        return LogitGaussian(residuals.logits(f), residuals.variance(f))


def held_out_parts(labels: Tensor, folds: int) -> list[tuple[Tensor, Tensor]]:
    """Which images to keep and which to hold out, part by part; classes with one image always keep it."""
    seen: dict[int, int] = {}
    position = []
    for label in labels.tolist():
        position.append(seen.get(label, 0))
        seen[label] = position[-1] + 1
    lone = torch.tensor([seen[label] < 2 for label in labels.tolist()])
    part = torch.tensor(position) % min(folds, max(seen.values()))
    parts: list[tuple[Tensor, Tensor]] = []
    held_out = 0
    for number in range(int(part.max()) + 1):
        held = (part == number) & ~lone
        if held.any() and held_out < _ENOUGH:
            parts.append((torch.where(~held)[0], torch.where(held)[0]))
            held_out += int(held.sum())
    return parts
