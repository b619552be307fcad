"""The filter's steps on batches of images: plain ones, captured ones on a GPU, and ones that several ranks share."""

from __future__ import annotations

import warnings
from typing import Any

from torch import Tensor

from kalmanclip.encoders import Activations, DualEncoder
from kalmanclip.errors import ConfigError
from kalmanclip.filtering import CapturedStep, KalmanFilter, Observation, Ranks, Step
from kalmanclip.filtering.accelerated.distributed import shard
from kalmanclip.observation import Likelihood, observe
from kalmanclip.observation.observe import Compared, compared


class Stepper:
    """Takes steps of one filter over one encoder.

    Args:
        encoder: whose ``theta`` is the filter's mean.
        kalman: the filter.
        likelihood: what it observes.
        texts: activations of all prompts.
        templates: prompts per class.
        capture: whether to capture steps where that is possible.
    """

    def __init__(
        self,
        encoder: DualEncoder,
        kalman: KalmanFilter,
        likelihood: Likelihood,
        texts: Activations,
        templates: int,
        capture: bool = True,
    ) -> None:
        self.encoder, self.kalman, self.likelihood = encoder, kalman, likelihood
        self.texts, self.templates = texts, templates
        self._captured: CapturedStep | None = None
        self._size: int | None = None  # of the first batch: a shorter one, the last, is not worth a graph
        self._capture = capture and likelihood.fixed and CapturedStep.possible(kalman)

    def __call__(self, images: Activations, labels: Tensor, share: float = 1.0) -> Step:
        """Take one step on activations of B images with labels (B,), best on the CPU: a share of the whole pass."""
        if self._capture and len(labels) == self._size:
            step = self._replayed(images, labels, share)
            if step is not None:
                return step
        self._size = self._size or len(labels)  # the first step is a plain one: it sets the noise
        seen = self._compared(labels)
        return self.kalman.step(lambda mean: self._observe(images, seen), share)

    def end_pass(self) -> Stepper | None:
        """Return what takes the steps of the next pass; None: another one must be made."""
        return self

    def _replayed(self, images: Activations, labels: Tensor, share: float) -> Step | None:
        """Take the step by a graph; None where there cannot be one."""
        device = self.encoder.theta.device
        inputs = (*images, *(t for t in self._compared(labels, fill=True).to(device) if t is not None))
        if self._captured is None or not self._captured.current or self._captured.share != share:
            try:
                self._captured = CapturedStep(self.kalman, self._observe_inputs, inputs, share)
            except ConfigError:  # not yet: the first step was refused
                return None
            except RuntimeError as problem:  # something in this model cannot be captured
                self._capture = False
                warnings.warn(f"Going on without captured steps: {problem}", RuntimeWarning, stacklevel=2)
                return None
        return self._captured(*inputs)

    def _compared(self, labels: Tensor, fill: bool = False) -> Compared:
        return compared(self.likelihood, labels, len(self.texts[0]) // self.templates, self.templates, fill)

    def _observe(self, images: Activations, seen: Compared) -> Observation:
        return observe(self.encoder, self.likelihood, images, seen, self.texts, self.templates)

    def _observe_inputs(self, mean: Tensor, *inputs: Tensor) -> Observation:
        """Observe one flat tuple: the images' activations, then what they are compared with."""
        count = len(inputs) - (3 if self.likelihood.of_batch else 2)
        return self._observe(inputs[:count], Compared(*inputs[count:]))


class SharedStepper(Stepper):
    """A `Stepper` on all ranks together; between passes the belief is whole again.

    The filter's belief, which every rank has, is shared out here, and `end_pass` makes it whole.

    Args:
        ranks: who steps together.
        stepper: the arguments of a `Stepper`.
    """

    def __init__(self, ranks: Ranks, *stepper: Any) -> None:
        super().__init__(*stepper)
        self.ranks, self._capture = ranks, False
        self.belief = self.kalman.belief = shard(self.kalman.belief, ranks)

    def __call__(self, images: Activations, labels: Tensor, share: float = 1.0) -> Step:
        """Take one step on activations of this rank's images, and the labels (B,) of the whole batch."""
        shares = self.ranks.shares(len(labels))
        seen = self._share(labels, self.ranks.own_slice(shares))
        return self.kalman.step(self.belief.observe_distributed(lambda mean: self._observe(images, seen), shares))

    def _share(self, labels: Tensor, mine: slice) -> Compared:
        """Return what a share of a batch is compared with: the texts of the whole batch."""
        if self.likelihood.paired:  # each image has a text of its own
            return self._compared(labels[mine])
        seen = self._compared(labels)
        return seen._replace(column=seen.column[mine])

    def end_pass(self) -> None:
        """Make the belief whole on every rank: to be saved, or to predict with."""
        self.kalman.belief = self.belief.gather()
