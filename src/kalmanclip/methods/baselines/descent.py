"""Steps of gradient descent: plain ones, and on a GPU whole steps as a CUDA graph.

At the batch sizes of a few shots a GPU waits for the host to launch thousands of small kernels, in every step of every
method with gradients. Filter steps are captured for that reason (`kalmanclip.filtering.CapturedStep`); so that their
times can be compared, steps of descent are, too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

WARM_UP = 3
"""Plain steps with batches of one shape before such a step is recorded."""

Loss = Callable[..., Tensor]
"""From the tensors of a batch to a scalar."""


class Descent:
    """AdamW's steps on batches of tensors.

    Args:
        optimiser: any; to be captured, as `make_adamw` makes it.
        loss: takes what a step is given. To be captured these must be tensors, and it must not wait for the device, nor
            use anything that changes but them, the parameters and the generators.
        generators: of random numbers that the loss draws on the device.
    """

    def __init__(
        self, optimiser: torch.optim.Optimizer, loss: Loss, generators: Sequence[torch.Generator] = ()
    ) -> None:
        self.optimiser, self._loss, self._generators = optimiser, loss, generators
        self._captures = all(group.get("capturable", False) for group in optimiser.param_groups)
        self._shapes: list[torch.Size] | None = None
        self._warmed = 0  # plain steps with batches of these shapes
        self._graph: torch.cuda.CUDAGraph | None = None

    def step(self, rate: float, *inputs: Any) -> Tensor:
        """Take one step with this learning rate, and return the loss before it."""
        for group in self.optimiser.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        if self._captures and self._usual(inputs):
            if self._warmed == WARM_UP and self._graph is None:
                self._captures = self._capture(inputs)
            if self._graph is not None:
                return self._replayed(self._graph, inputs)
            self._warmed += 1
        return self._plain(inputs)

    def _usual(self, inputs: Sequence[Tensor]) -> bool:
        """Return whether this batch is like the first: a shorter one, the last of a pass, is not worth a graph."""
        shapes = [t.shape for t in inputs]
        if self._shapes is None:
            self._shapes = shapes
        return shapes == self._shapes

    def _replayed(self, graph: torch.cuda.CUDAGraph, inputs: Sequence[Tensor]) -> Tensor:
        for static, given in zip(self._inputs, inputs, strict=True):
            static.copy_(given, non_blocking=True)
        graph.replay()
        return self._value

    def _plain(self, inputs: Sequence[Any]) -> Tensor:
        value = self._loss(*inputs)
        self.optimiser.zero_grad()
        value.backward()
        self.optimiser.step()
        return value.detach()

    def _capture(self, inputs: Sequence[Tensor]) -> bool:
        """Record a step, if that is possible; nothing is learned by that."""
        self._inputs = [t.clone() for t in inputs]
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        self.optimiser.zero_grad()
        try:
            with torch.cuda.graph(graph):
                self._value = self._plain(self._inputs)
        except RuntimeError as problem:  # something in this model cannot be captured
            warnings.warn(f"Going on without captured steps: {problem}", RuntimeWarning, stacklevel=2)
            return False
        self._graph = graph
        return True


def make_adamw(parameters: Sequence[Tensor], lr: float, weight_decay: float, eps: float = 1e-8) -> torch.optim.AdamW:
    """Return AdamW, on a CUDA device such that its steps can be captured."""
    device = parameters[0].device
    capturable = device.type == "cuda"
    rate = torch.tensor(lr, device=device) if capturable else lr
    return torch.optim.AdamW(parameters, lr=rate, weight_decay=weight_decay, eps=eps, capturable=capturable)
