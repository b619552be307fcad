"""A filter step captured as a CUDA graph and replayed: one launch where there were thousands.

At the batch sizes of a few shots a GPU spends most of a step waiting for the host to launch the next small kernel. A
CUDA graph holds them all, forward and backward passes included.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from kalmanclip.errors import ConfigError
from kalmanclip.filtering.beliefs.diagonal import Diagonal
from kalmanclip.filtering.filter import KalmanFilter, Step
from kalmanclip.filtering.observation import Observation

WARM_UP = 3
"""Runs before recording, in which libraries take their memory and kernels are built."""


class CapturedStep:
    """`KalmanFilter.step` for batches of one shape, as a CUDA graph.

    The graph reads and writes the memory of the belief and the noise, so plain steps (a last, shorter batch) may be
    taken in between.

    Args:
        kalman: its belief must be diagonal and on a GPU, and it must have taken a first step: that one sets the noise.
        observe: maps the mean (n,) and the inputs to the observation. It must neither wait for the device (``.item()``,
            a shape that depends on values) nor use anything that changes but the mean and the inputs.
        inputs: a first batch; all others must have its shapes and dtypes. Nothing is learned from it.
        share: of all data of a pass, how much every batch is; see `KalmanFilter.step`.
        state: further tensors that `observe` changes; they are put back after capturing.

    Raises:
        ConfigError: the step cannot be captured.
    """

    def __init__(
        self,
        kalman: KalmanFilter,
        observe: Callable[..., Observation],
        inputs: tuple[Tensor, ...],
        share: float = 1.0,
        state: tuple[Tensor, ...] = (),
    ) -> None:
        self.kalman, self.share = kalman, share
        self._inputs = tuple(t.clone() for t in inputs)
        if not self.possible(kalman):
            raise ConfigError("only accelerated steps of a diagonal belief on a CUDA device can be captured")
        self._device = kalman.belief.mean.device
        self._state, self._settings = self._tensors(), self._options()
        changed = [*self._state, *state]
        saved = [t.clone() for t in changed]
        try:
            with torch.cuda.device(self._device):
                self._capture(lambda mean: observe(mean, *self._inputs))
        finally:
            torch.cuda.synchronize(self._device)
            for now, before in zip(changed, saved, strict=True):
                now.copy_(before)

    @staticmethod
    def possible(kalman: KalmanFilter) -> bool:
        """Return whether steps of this filter can be captured."""
        # `is`: the exchanges of a sharded belief cannot be captured
        return type(kalman.belief) is Diagonal and kalman.belief.mean.is_cuda and not kalman.reference

    def _capture(self, observe: Callable[[Tensor], Observation]) -> None:
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                _, numbers = self.kalman.launch(observe, self.share)
                if numbers is None:
                    raise ConfigError("take a plain step with such a batch first: it sets the noise")
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._seen, self._numbers = self.kalman.launch(observe, self.share)

    def __call__(self, *inputs: Tensor) -> Step:
        """Take one step; inputs as when it was captured.

        Raises:
            ConfigError: an input has another shape, or the state of the filter was replaced since.
        """
        for static, given in zip(self._inputs, inputs, strict=True):
            if static.shape != given.shape or static.dtype != given.dtype:
                raise ConfigError(
                    f"the step was captured for inputs of shape {tuple(static.shape)} and {static.dtype}, not "
                    f"{tuple(given.shape)} and {given.dtype}: take a plain step instead"
                )
        if not self.current:
            raise ConfigError(
                "the belief, the noise or their options were replaced since the step was captured: capture it again"
            )
        for static, given in zip(self._inputs, inputs, strict=True):
            static.copy_(given, non_blocking=True)
        with torch.cuda.device(self._device):
            return self.kalman.complete(self._replay)

    @property
    def current(self) -> bool:
        """Whether the filter still has the state and the options that were captured."""
        now = self._tensors()
        same = len(now) == len(self._state) and all(a is b for a, b in zip(now, self._state, strict=True))
        return same and self._options() == self._settings

    def _options(self) -> tuple[object, ...]:
        """Return all that a step depends on and that is not a tensor."""
        belief = self.kalman.belief
        assert isinstance(belief, Diagonal)
        return self.kalman.config, self.kalman.noise.config, belief.update, self.kalman.reference, id(self.kalman.prior)

    def _tensors(self) -> list[Tensor]:
        """Return all tensors that a step changes."""
        belief = self.kalman.belief
        assert isinstance(belief, Diagonal)
        return [belief.mean, belief.s, *self.kalman.noise.tensors()]

    def _replay(self) -> tuple[Observation, Tensor | None]:
        self._graph.replay()
        return self._seen, self._numbers
