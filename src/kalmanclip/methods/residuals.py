"""Class residuals: what the text says about each class, plus what its few images add, as a Gaussian belief.

The logits of an image with embedding ``f`` are ``(gain f T^T + f D^T) / tau``: the zero-shot classifier ``T`` (C, d),
with its share, and a residual ``D_c`` for each class, believed a priori to be ``N(0, prior_std^2 M)``. ``M`` (d, d),
of mean size one on the images, allows less where crops of the *same* class differ: that does not tell classes apart.
The update is `kalmanclip.filtering.softmax`: it counts every image once, however many crops stand for it. Of the images
learned before, `kalmanclip.methods.statistics` keeps enough to go on: `learn` takes more images, also of new classes.

To these logits those of a *generative* classifier are added, ``generative`` times: one Gaussian for each class, around
the mean of its images, with ``M`` as the precision that all share. It is right sooner than weights that have to be
found by telling classes apart, above all with one or two images of each.

``prior_std``, ``generative`` and the covariance scale are chosen on training images that are held out in turn. Nothing
that they are predicted from has seen them: neither the residuals, nor the means, nor ``M``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from kalmanclip.config import QUIET, check_seed, check_whole
from kalmanclip.encoders.preprocess import CropConfig
from kalmanclip.errors import ConfigError
from kalmanclip.filtering.linalg import spectral
from kalmanclip.filtering.softmax import SoftmaxBelief, softmax_gradient, softmax_update
from kalmanclip.methods.base import check_scale
from kalmanclip.methods.statistics import MOST, ClassStatistics, check_shapes
from kalmanclip.prediction import (
    TYPICAL_SCALE,
    UNDECIDED,
    JointLogits,
    LogitGaussian,
    ScaleBelief,
    fit_covariance_scale,
    fuse_scales,
    log_likelihood,
    update_scale,
)

TYPICAL_STD = 50**-0.5
"""The centre of the search for ``prior_std``, and its value where no image can be spared to choose by."""

TYPICAL_GENERATIVE = 50.0
"""The centre of the search for ``generative``, and its value where no image can be spared: chosen on training images
outside the shots, of a real CLIP."""

MOST_GENERATIVE = 1e6
"""Far beyond what the search can choose, and far from what overflows."""

_NUMBERS = 2**22  # logits, or features, of held-out images that are computed at a time, for the memory

_FACTOR = math.sqrt(2)  # between values that are tried: a variance four times larger or smaller is no surprise
_FEW = 2048  # pseudo-images while numbers are tried
_ENOUGH = 1000  # held-out images that tell one prior from another


@dataclass(frozen=True)
class ClassResidualsConfig(CropConfig):
    """Options of the class residuals, and of the crops that stand for a training image (`CropConfig`).

    Attributes:
        prior_std: how far, in units of cosine similarity, an image's similarity with a class may move (one standard
            deviation). None: the one with the largest held-out log-likelihood of training images; with a single image
            per class, `TYPICAL_STD`.
        generative: how much of the generative classifier is added: the factor of the difference of two classes'
            log-densities, of which the largest are about one. 0: none. None: the one with the largest held-out
            log-likelihood; with a single image per class, `TYPICAL_GENERATIVE`.
        gain_std: of the text's share in the logits, around one.
        description_spread: share of the prior's covariance, in 0..1, that lies where descriptions of the same class
            differ, if there are any.
        folds: in how many parts the training images are held out to choose ``prior_std``.
        alpha: the regulation of outlying images, see `kalmanclip.filtering.softmax`.
        seed: of the random crops, and of sampled predictions.
    """

    prior_std: float | None = None
    generative: float | None = None
    gain_std: float = 0.5
    description_spread: float = field(default=0.0, metadata=QUIET)
    folds: int = 4
    alpha: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scale(prior_std=self.prior_std, gain_std=self.gain_std)
        if self.centre_weight == 0:
            raise ConfigError("centre_weight must lie in (0, 1]: images are predicted by their centre crops.")
        check_whole(2, folds=self.folds)
        if not 0 <= self.description_spread < 1:
            raise ConfigError(f"description_spread must lie in [0, 1), not {self.description_spread}.")
        for name, value in (("alpha", self.alpha), ("generative", self.generative)):
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"{name} must be finite and not negative, not {value}.")
        if self.generative is not None and self.generative > MOST_GENERATIVE:
            raise ConfigError(f"generative {self.generative:g} cannot be computed with: give something like 50.")
        check_seed(self.seed)

    @property
    def chosen(self) -> bool:
        """Whether anything is chosen on held-out images."""
        return self.prior_std is None or self.generative is None

    @property
    def passes(self) -> int:
        """Passes over the images: one, however many times it linearises."""
        return 1


class Evidence(NamedTuple):
    """Images to learn from.

    Attributes:
        samples: features (n, d), labels (n,) and weights (n,).
        sums: of the images.
    """

    samples: tuple[Tensor, Tensor, Tensor]
    sums: ClassStatistics

    @classmethod
    def of(cls, config: ClassResidualsConfig, crops: Tensor, labels: Tensor, classes: int) -> Evidence:
        """Return images with crops (N, V, d) and labels (N,)."""
        return cls(config.as_samples(crops, labels), ClassStatistics.of(crops, labels, classes))

    @classmethod
    def pseudo(cls, images: ClassStatistics, most: int = MOST) -> Evidence:
        """Return what stands for images learned before."""
        return cls(images.pseudo_images(most), images)

    @classmethod
    def joined(cls, parts: Sequence[Evidence]) -> Evidence:
        """Return all parts, which are of different images, as one."""
        if len(parts) == 1:
            return parts[0]  # not a copy
        samples, sums = zip(*parts, strict=True)
        f, labels, weights = (torch.cat(column) for column in zip(*samples, strict=True))
        return cls((f, labels, weights), sum(sums[1:], start=sums[0]))


@dataclass(frozen=True, eq=False)
class Fold:
    """Training images without a part of them, and the part.

    Attributes:
        crops: features (N, V, d) of the crops of the images that are kept.
        labels: (N,).
        held_crops: (n, V, d), of those held out.
        held_labels: (n,).
        T: the text weights (C, d).
        known: pseudo-images of what was learned before.
    """

    crops: Tensor
    labels: Tensor
    held_crops: Tensor
    held_labels: Tensor
    T: Tensor
    known: tuple[Evidence, ...] = ()


class HeldOut(NamedTuple):
    """What was predicted for training images by classifiers that had not seen them.

    Attributes:
        logits: of the centre crops, at the mean of the belief (n, C).
        labels: (n,).
        folds: numbers of the classifiers (n,).
        weights: of the K classifiers (K, C, d), as `ResidualBelief.weights`.
    """

    logits: Tensor
    labels: Tensor
    folds: Tensor
    weights: Tensor


class ResidualBelief:
    """The belief about the classes' residuals.

    Args:
        config: the options.
        scale: 1 / tau.

    Attributes:
        names: of the classes, in the order of `T`.
        T: text weights (C, d), from `set_classes` on.
        root: a square root of ``M`` (d, d), from the first image on.
        belief: over ``D root^-1``; None before the first image.
        statistics: of the images learned; None before the first.
        generative: how much of the generative classifier is added to the logits.
        shift: what that adds to the class weights (C, d); None: nothing.
        spread: covariance (d, d) of the descriptions around the means of their classes; None: there are none.
        held_out_log_likelihood: the mean over held-out images by ``prior_std``, where it was chosen: without the
            generative classifier, unless its share was given.
        covariance_scale: how much of the belief's covariance a prediction averages over, see
            `kalmanclip.prediction.temperature`.
        scales: what held-out images have said of ``prior_std`` and ``generative`` so far.
        held_out: what was predicted for the images that were held out in turn; None where none were, or where more was
            learned since.
    """

    T: Tensor
    root: Tensor

    def __init__(self, config: ClassResidualsConfig, scale: float) -> None:
        self.config, self.scale = config, scale
        self.names: list[str] = []
        self.belief: SoftmaxBelief | None = None
        self.statistics: ClassStatistics | None = None
        self.generative = 0.0
        self.shift: Tensor | None = None
        self.spread: Tensor | None = None
        self.held_out_log_likelihood: dict[float, float] = {}
        self.covariance_scale = TYPICAL_SCALE
        self.held_out: HeldOut | None = None
        self.scales = Scales()

    @property
    def prior_std(self) -> float | None:
        """The prior's, chosen or given; None before the first image."""
        return None if self.belief is None else self.belief.strength**-0.5

    @property
    def diagnostics(self) -> dict[str, Any]:
        """The prior's standard deviation, given or chosen by held-out log-likelihood, and the text's gain, by name."""
        if self.belief is None:
            return {}
        chosen = {"prior_std": self.prior_std, "given_prior_std": self.config.prior_std, "generative": self.generative}
        scores = dict(self.held_out_log_likelihood)
        return chosen | {"gain": float(self.belief.gain), "held_out_log_likelihood": scores}

    def set_classes(self, names: Sequence[str], T: Tensor) -> None:
        """Name the classes, with their text weights (C, d); what is known about a name stays with it."""
        if self.belief is not None:
            row = {name: i for i, name in enumerate(self.names)}
            rows = [row.get(name) for name in names]
            self.belief = self.belief.select_classes(rows)
            self.statistics = self.statistics and self.statistics.select(rows)
        self.names, self.T = list(names), T
        self._shift()

    def learn(
        self,
        crops: Tensor,
        labels: Tensor,
        tell: Callable[[int, int], None] = lambda done, total: None,
        hold_out: bool = True,
    ) -> None:
        """Update the belief.

        Args:
            crops: unit-length features (N, V, d), the centre crop first.
            labels: (N,), numbers of `names`.
            tell: called with fits done and to do.
            hold_out: whether the prior is chosen on parts of these images; not where the encoder has seen them all.
        """
        known = [] if self.statistics is None else [self.statistics]
        useful = hold_out and (self.config.chosen or not known)
        parts = held_out_parts(labels, self.config.folds) if useful else []
        # what the folds hold is free again before all images are learned
        (std, generative, scales), held_out = self._hold_out(crops, labels, parts, known, tell)
        new = Evidence.of(self.config, crops, labels, len(self.names))
        self._learn(Evidence.joined([*map(Evidence.pseudo, known), new]), std**-2)
        self.generative, self.scales, self.held_out = generative, scales, held_out
        self._shift()
        tell(1, 1)

    def _hold_out(
        self,
        crops: Tensor,
        labels: Tensor,
        parts: Sequence[tuple[Tensor, Tensor]],
        known: Sequence[ClassStatistics],
        tell: Callable[[int, int], None],
    ) -> tuple[tuple[float, float, Scales], HeldOut | None]:
        """Choose the prior by holding out these parts in turn, beside what is known.

        Returns:
            What `_choose` does, and what was predicted where nothing was known: by pseudo-images it is not what is
            predicted in the end.
        """
        few = tuple(Evidence.pseudo(images, _FEW) for images in known) if parts else ()
        held_out = [
            FoldResiduals(self, Fold(crops[kept], labels[kept], crops[held], labels[held], self.T, few))
            for kept, held in parts
        ]
        chosen = self._choose(held_out, tell)
        if known or not held_out:
            return chosen, None
        predicted = [(part.logits(chosen[0]), part.labels) for part in held_out]  # by the crop that predictions use
        self.covariance_scale = fit_covariance_scale(
            lambda s: sum(log_likelihood(logits.scaled(s), y) for logits, y in predicted)
        )
        return chosen, _joined(held_out, chosen[0])

    def relearn(self, known: Sequence[ClassStatistics], strength: float) -> None:
        """Learn anew from the prior, from pseudo-images of all that is known.

        Args:
            known: statistics of different images, of the classes in `names`.
            strength: ``prior_std^-2``.
        """
        self._learn(Evidence.joined([Evidence.pseudo(images) for images in known]), strength)

    def _learn(self, evidence: Evidence, strength: float) -> None:
        """Learn from the prior on; the search for the mode begins at the last one."""
        start = self._start(root := self.metric(evidence.sums))
        self.root = root
        self.belief = self._solved(evidence, strength, start)
        self._store(evidence.sums)

    def _start(self, root: Tensor) -> SoftmaxBelief | None:
        """Return the belief with its mean as a metric of this root has it: where a search may begin."""
        if self.belief is None:
            return None
        return replace(self.belief, mean=self.belief.mean @ self.root.mT @ torch.linalg.inv(root).mT)

    def metric(self, images: ClassStatistics) -> Tensor:
        """Return the square root of ``M`` (d, d), of mean size one on the images.

        With descriptions a share of ``M`` lies where those of one class differ: what they disagree about is open.
        """
        root, share = images.metric(), self.config.description_spread
        if self.spread is None or not share:
            return root
        f = images.means[images.count > 0].double()
        spread = self.spread.double()
        size = (f @ spread * f).sum(dim=1).mean()
        if not size > 0:  # one description of each class
            return root
        return spectral((1 - share) * root.double() @ root.double() + share / size * spread, torch.sqrt).to(root)

    def _store(self, images: ClassStatistics) -> None:
        """Keep the statistics, with the slope that makes the belief's mean the mode of their likelihood."""
        assert self.belief is not None
        f, labels, weights = images.pseudo_images()
        slope, gain_slope = softmax_gradient(
            self.belief, f @ self.root, self._text(f), labels, weights, self.scale, self.config.alpha
        )
        prior = self._prior(self.belief.strength)
        self.statistics = replace(
            images,
            slope=(prior.strength * self.belief.mean - slope) @ torch.linalg.inv(self.root),
            gain_slope=prior.gain_precision * (self.belief.gain - prior.gain) - gain_slope,
        )
        self._shift()

    def _shift(self) -> None:
        """Make the generative classifier of the images that are known."""
        self.shift = None
        if self.generative and self.statistics is not None:
            self.shift = self.generative / self.scale * self.statistics.generative(self.root)

    def _prior(self, strength: float) -> SoftmaxBelief:
        return SoftmaxBelief.prior(len(self.names), self.root, strength, self.config.gain_std)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the belief as named tensors; empty before the first image."""
        b = self.belief
        if b is None or self.statistics is None:
            return {}
        # Python numbers: read back to the last digit
        numbers = {"strength": b.strength, "covariance_scale": self.covariance_scale, "generative": self.generative}
        return {
            **{name: torch.tensor(value, dtype=torch.float64) for name, value in numbers.items()},
            "scales": torch.tensor(self.scales, dtype=torch.float64),
            **{"root": self.root, "mean": b.mean, "gram": b.gram, "curvature": b.curvature},
            **{"gain": b.gain, "gain_precision": b.gain_precision},
            **self.statistics.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Tensor], names: Sequence[str]) -> None:
        """Take over what `state_dict` gave, about the classes of these names."""
        C, d = len(names), state["mean"].shape[-1] if "mean" in state and state["mean"].ndim else 0
        shapes = {"root": (d, d), "mean": (C, d), "gram": (d, d), "curvature": (C,)}
        numbers = {"strength", "gain", "gain_precision", "covariance_scale"} | (state.keys() & {"generative"})
        check_shapes(state, shapes | dict.fromkeys(numbers, ()))
        self.names, self.root = list(names), state["root"]
        tensors = ("gram", "curvature", "gain", "gain_precision")
        self.belief = SoftmaxBelief(state["mean"], float(state["strength"]), *(state[name] for name in tensors))
        self.statistics = ClassStatistics.from_state(state, C, d)
        self.covariance_scale = float(state["covariance_scale"])
        self.generative = float(state.get("generative", 0.0))  # adapters of older versions have none
        if not 0 <= self.generative <= MOST_GENERATIVE:
            raise ConfigError(f"its generative classifier counts {self.generative:g} times")
        if "scales" in state:
            check_shapes(state, {"scales": (2, 2)})
            self.scales = Scales(*(ScaleBelief(*map(float, row)) for row in state["scales"]))
        else:  # adapters of older versions: as if they had been chosen by few images
            self.scales = Scales.around(self.belief.strength**-0.5, self.generative)
        if not all(math.isfinite(mean) and 0 < precision < math.inf for mean, precision in self.scales):
            raise ConfigError(f"its prior cannot have been chosen by held-out images: {tuple(self.scales)}")
        self._shift()

    def logits(self, f: Tensor) -> Tensor:
        """Return logits (N, C) at the mean of the belief, of unit-length features (N, d)."""
        if self.belief is None:
            return self._text(f)
        logits = self.belief.logits(f @ self.root, self._text(f), self.scale)
        return logits if self.shift is None else logits + self.scale * f @ self.shift.mT

    def variance(self, f: Tensor) -> Tensor:
        """Return the variance (N, C) of the logits under the belief."""
        if self.belief is None:
            raise ConfigError("There is no belief yet: call fit first.")
        return self.belief.variance(f @ self.root, self._text(f), self.scale)

    def joint_logits(self, f: Tensor) -> JointLogits:
        """Return the belief about the logits of images with features (N, d) together."""
        if self.belief is None:
            raise ConfigError("There is no belief yet: call fit first.")
        return JointLogits(*self.belief.joint(f @ self.root, self._text(f), self.scale), self.covariance_scale)

    def sampled(self, texts: Sequence[Tensor], generator: torch.Generator) -> Iterator[Tensor]:
        """Yield classifiers drawn from the belief with its covariance scaled, one for each of the texts (C, d)."""
        if self.belief is None:
            raise ConfigError("There is no belief yet: call fit first.")
        for T in texts:
            gain, Z = self.belief.sample(self.covariance_scale, generator)
            centred = T - T.mean(dim=0)  # what all classes share moves no probability, see `variance`
            drawn = self.belief.gain * T + (gain - self.belief.gain) * centred + Z @ self.root.mT
            yield drawn if self.shift is None else drawn + self.shift

    def weights(self) -> Tensor:
        """Return the classifier (C, d), with the generative one: its product with a feature, over tau, is the logit."""
        if self.belief is None:
            return self.T
        return self.belief.gain * self.T + self.residuals()

    def residuals(self) -> Tensor:
        """Return all that the images add to the text's weights (C, d): ``D`` at the mean of the belief, and `shift`."""
        assert self.belief is not None
        D = self.belief.mean @ self.root.mT
        return D if self.shift is None else D + self.shift

    def _text(self, f: Tensor) -> Tensor:
        return f @ (self.scale * self.T).mT  # the features are many more than the texts

    def _solved(
        self, evidence: Evidence, strength: float, start: SoftmaxBelief | None = None, tolerance: float = 1e-5
    ) -> SoftmaxBelief:
        """Return the posterior after images, under the prior of this strength."""
        prior, sums = self._prior(strength), evidence.sums
        # a linear term in the logarithm of a Gaussian moves its mean
        gain = prior.gain + sums.gain_slope / prior.gain_precision
        prior = replace(prior, mean=sums.slope @ self.root / strength, gain=gain)
        f, labels, weights = evidence.samples
        x, text = f @ self.root, self._text(f)
        return softmax_update(prior, x, text, labels, weights, self.scale, self.config.alpha, tolerance, start or prior)

    def _choose(
        self, held_out: Sequence[FoldResiduals], tell: Callable[[int, int], None]
    ) -> tuple[float, float, Scales]:
        """Return ``prior_std``, ``generative``, of which all parts predict from now on, and what is known of them."""
        config = self.config
        if not held_out and self.prior_std is not None:
            return self.prior_std, self.generative, self.scales
        if not held_out:
            generative = TYPICAL_GENERATIVE if config.generative is None else config.generative
            return config.prior_std or TYPICAL_STD, generative, self.scales
        if self.prior_std is not None:  # what was given may have become a mean over sites since
            std = None if config.prior_std is None else self.prior_std
            share = None if config.generative is None else self.generative
            config = replace(config, prior_std=std, generative=share)
        count = sum(len(part.labels) for part in held_out)
        found: dict[float, float] = {}

        def score(std: float, generative: float) -> float:
            for part in held_out:
                part.generative = generative
            total = sum(part.log_likelihood(std) for part in held_out)
            if std not in found:
                found[std] = total / count
                tell(len(found), len(found) + 1)
            return total

        std, generative, scales = choose_scales(config, score, self.scales)
        if config.prior_std is None:
            self.held_out_log_likelihood = found
        score(std, generative)
        return std, generative, scales


class Scales(NamedTuple):
    """What held-out images have said of the two numbers that are chosen by them, in steps of their searches."""

    std: ScaleBelief = UNDECIDED
    generative: ScaleBelief = UNDECIDED

    @classmethod
    def around(cls, std: float, generative: float) -> Scales:
        """Return the prior moved to these values."""

        def moved(value: float, typical: float) -> ScaleBelief:
            return UNDECIDED._replace(mean=math.log(value / typical) / math.log(_FACTOR)) if value else UNDECIDED

        return cls(moved(std, TYPICAL_STD), moved(generative, TYPICAL_GENERATIVE))

    @classmethod
    def fused(cls, parts: Sequence[Scales]) -> Scales:
        """Return what the held-out images of all parts say; the prior counts once."""
        return cls(*(fuse_scales(beliefs, UNDECIDED) for beliefs in zip(*parts, strict=True)))


def choose_scales(
    config: ClassResidualsConfig, score: Callable[[float, float], float], before: Scales | None = None
) -> tuple[float, float, Scales]:
    """Return ``prior_std`` and ``generative``, each where it is not given the one of largest posterior probability.

    Args:
        config: the options.
        score: the log-likelihood of held-out labels, in nats, under both. The first is chosen without the generative
            classifier, unless how much of it there is is given; then the second.
        before: what other held-out images have said; None: there were none.

    Returns:
        Both, and what is known of them now.
    """
    std, generative = config.prior_std, config.generative
    of_std, of_generative = before or Scales()
    if std is None:
        first = generative or 0.0
        std, of_std = update_scale(lambda std: score(std, first), TYPICAL_STD, _FACTOR, of_std, reach=12)
    if generative is None:
        chosen = std
        generative, of_generative = update_scale(
            lambda value: score(chosen, value), TYPICAL_GENERATIVE, _FACTOR, of_generative, reach=8
        )
    return std, generative, Scales(of_std, of_generative)


class FoldResiduals:
    """Residuals learned from the kept images of a fold, under one prior after the other, beside the held-out images.

    Args:
        whole: whose options to use.
        fold: the images.

    Attributes:
        generative: how much of the generative classifier of the kept images is added.
    """

    def __init__(self, whole: ResidualBelief, fold: Fold) -> None:
        self.labels = fold.held_labels
        self.generative = 0.0
        self._crops = fold.held_crops
        # an image that is regulated away is one image less to tell priors by, and solving for the weights takes time
        self._residuals = ResidualBelief(replace(whole.config, alpha=0.0), whole.scale)
        self._residuals.set_classes(whole.names, fold.T)
        others = Evidence.of(whole.config, fold.crops, fold.labels, len(whole.names))
        self._images = Evidence.joined([*fold.known, others])
        self._residuals.root = whole.metric(self._images.sums)
        self._classifier = self._images.sums.generative(self._residuals.root)
        self._start = whole._start(self._residuals.root)
        self._found: dict[float, SoftmaxBelief] = {}

    def _learn(self, std: float) -> ResidualBelief:
        """Return the residuals under that prior; the search for the mode begins at those under the nearest."""
        residuals = self._residuals
        if std not in self._found:
            near = min(self._found, key=lambda known: abs(math.log(known / std)), default=None)
            start = self._start if near is None else self._found[near]
            self._found[std] = residuals._solved(self._images, std**-2, start, tolerance=1e-4)
        residuals.belief = self._found[std]
        residuals.shift = self.generative / residuals.scale * self._classifier
        return residuals

    def _samples(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield the crops of some held-out images at a time; see `RandomCropConfig.as_samples`."""
        rows = max(1, _NUMBERS // (self._crops.shape[1] * max(self._residuals.T.shape)))
        for crops, labels in zip(self._crops.split(rows), self.labels.split(rows), strict=True):
            yield self._residuals.config.as_samples(crops, labels)

    def log_likelihood(self, std: float) -> float:
        """Return the log-likelihood of the held-out images, each by all its crops."""
        residuals = self._learn(std)
        losses = (F.cross_entropy(residuals.logits(f), y, reduction="none") @ w for f, y, w in self._samples())
        return -float(torch.stack(list(losses)).double().sum())

    def probabilities(self, std: float) -> Tensor:
        """Return the probabilities (n, C) of the held-out images at the mean, averaged over their crops."""
        residuals, crops = self._learn(std), self._crops.shape[1]
        p = (residuals.logits(f).softmax(dim=1) * w.unsqueeze(1) for f, _, w in self._samples())
        return torch.cat([part.unflatten(0, (-1, crops)).sum(dim=1) for part in p])

    def logits(self, std: float) -> LogitGaussian:
        """Return the belief about the logits of the held-out images, by their centre crops."""
        residuals, f = self._learn(std), self._crops[:, 0]
        return LogitGaussian(residuals.logits(f), residuals.variance(f))

    def weights(self, std: float) -> Tensor:
        """Return the classifier (C, d) that predicts them."""
        return self._learn(std).weights()


def _joined(parts: Sequence[FoldResiduals], std: float) -> HeldOut:
    """Return what all parts say under a prior."""
    logits, labels = torch.cat([part.logits(std).mean for part in parts]), torch.cat([part.labels for part in parts])
    folds = torch.cat([torch.full_like(part.labels, number) for number, part in enumerate(parts)])
    return HeldOut(logits, labels, folds, torch.stack([part.weights(std) for part in parts]))


def held_out_parts(labels: Tensor, folds: int) -> list[tuple[Tensor, Tensor]]:
    """Return which images to keep and which to hold out, part by part; classes with one image always keep it."""
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
