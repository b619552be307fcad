"""Observe any `torch.nn.Module`: its parameters as one vector, its Jacobian by `torch.func`."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from kalmanclip.errors import ConfigError
from kalmanclip.filtering.observation import Observation


def _trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def flat_parameters(module: nn.Module) -> Tensor:
    """Copy the parameters of `module` that require gradients into one vector (n,), in their order."""
    parts = [parameter.detach().flatten() for parameter in _trainable(module).values()]
    if not parts:
        raise ConfigError("the module has no parameters that require gradients")
    return torch.cat(parts)


def load_flat(module: nn.Module, mean: Tensor) -> None:
    """Write a vector (n,) back into the parameters of `module` that require gradients."""
    parameters = list(_trainable(module).values())
    for parameter, part in zip(parameters, _split(mean, parameters), strict=True):
        parameter.data.copy_(part)


def _split(mean: Tensor, parameters: list[nn.Parameter]) -> list[Tensor]:
    sizes = [parameter.numel() for parameter in parameters]
    if mean.shape != (sum(sizes),):
        raise ConfigError(f"the module has {sum(sizes)} parameters, the vector has shape {tuple(mean.shape)}")
    return [part.view_as(p) for part, p in zip(torch.split(mean, sizes), parameters, strict=True)]


def observe_module(module: nn.Module, x: Tensor, y: Tensor, R: Tensor | None = None) -> Callable[[Tensor], Observation]:
    """Observe the outputs of a module on a batch, for `KalmanFilter.step`.

    Every example must be processed on its own (batch normalisation in evaluation mode, no dropout): the
    Jacobian is taken example by example, at as many backward passes as one example has outputs.

    Args:
        module: any module that maps a batch (b, ...) to outputs (b, ...). It is not changed.
        x: inputs (b, ...).
        y: targets, of the shape of the outputs.
        R: covariance (m, m) of the targets given the outputs, m = the number of elements of y; `None` lets
            the filter estimate it.

    Returns:
        A function from parameters mu (n,), as `flat_parameters` orders them, to the `Observation` at mu.
    """
    linearized = linearize_module(module, x)

    def observe(mu: Tensor) -> Observation:
        y_hat, H = linearized(mu)
        if y.shape != y_hat.shape:
            raise ConfigError(f"targets of shape {tuple(y.shape)} for outputs of shape {tuple(y_hat.shape)}")
        return Observation(y.flatten(), y_hat.flatten(), H.reshape(y.numel(), -1), R)

    return observe


def linearize_module(module: nn.Module, x: Tensor) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Return a function from parameters mu (n,) to outputs (b, ...) and their Jacobian (b, ..., n).

    Args:
        module: as in `observe_module`.
        x: inputs (b, ...).
    """
    trainable = _trainable(module)
    names, parameters = list(trainable), list(trainable.values())

    def outputs(mu: Tensor, example: Tensor) -> tuple[Tensor, Tensor]:
        weights = dict(zip(names, _split(mu, parameters), strict=True))
        y_hat = functional_call(module, weights, (example[None],))[0]
        return y_hat, y_hat

    def linearized(mu: Tensor) -> tuple[Tensor, Tensor]:
        H, y_hat = vmap(jacrev(outputs, has_aux=True), in_dims=(None, 0))(mu.detach(), x)
        return y_hat, H

    return linearized
