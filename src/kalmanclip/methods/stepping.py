"""The filter's steps on batches of images: plain ones, and on a GPU a captured one for all batches of full size."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from kalmanclip.encoders import Activations, DualEncoder
from kalmanclip.errors import ConfigError
from kalmanclip.filtering import CapturedStep, Diagonal, KalmanFilter, Observation, Step
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
        self._captured: dict[tuple[torch.Size, ...], CapturedStep] = {}
        self._capture = capture and encoder.theta.is_cuda and likelihood.fixed and isinstance(kalman.belief, Diagonal)

    def __call__(self, images: Activations, labels: Tensor) -> Step:
        """One step on activations of B images with labels (B,), best on the CPU."""
        if self._capture and self.kalman.steps:  # the first step sets the noise
            step = self._replayed(images, labels)
            if step is not None:
                return step
        seen = self._compared(labels, fill=False)
        return self.kalman.step(lambda mean: self._observe(images, seen))

    def _replayed(self, images: Activations, labels: Tensor) -> Step | None:
        """The step by a graph; None where there is none for such batches."""
        inputs = (
            *images,
            *(t for t in self._compared(labels, fill=True).to(self.encoder.theta.device) if t is not None),
        )
        shapes = tuple(t.shape for t in inputs)
        captured = self._captured.get(shapes)
        if captured is None or not captured.current:
            if len(self._captured) >= 1 and captured is None:  # an odd last batch: not worth a graph of its own
                return None
            try:
                captured = CapturedStep(self.kalman, self._observe_inputs, inputs)
            except (ConfigError, RuntimeError) as problem:  # RuntimeError: something in this model cannot be captured
                self._capture = False
                if not isinstance(problem, ConfigError):
                    warnings.warn(f"Going on without captured steps: {problem}", RuntimeWarning, stacklevel=2)
                return None
            self._captured[shapes] = captured
        return captured(*inputs)

    def _compared(self, labels: Tensor, fill: bool) -> Compared:
        return compared(self.likelihood, labels, len(self.texts[0]) // self.templates, self.templates, fill)

    def _observe(self, images: Activations, seen: Compared) -> Observation:
        return observe(self.encoder, self.likelihood, images, seen, self.texts, self.templates)

    def _observe_inputs(self, mean: Tensor, *inputs: Tensor) -> Observation:
        """The same of one flat tuple: the images' activations, then what they are compared with."""
        count = len(inputs) - (3 if self.likelihood.of_batch else 2)
        return self._observe(inputs[:count], Compared(*inputs[count:]))
