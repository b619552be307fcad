"""Fit a small network to a noisy sine with the Kalman filter, and draw how sure it is.

    python examples/regression.py --out regression.png

Every structure of the covariance makes the same few passes over the same batches as AdamW does.
"""

import argparse
import copy
import math
from collections.abc import Sequence

import matplotlib
import torch
from torch import Tensor, nn

from kalmanclip.filtering import (
    Belief,
    FilterConfig,
    KalmanFilter,
    NoiseConfig,
    ObservationNoise,
    flat_parameters,
    load_flat,
    make_belief,
    observe_module,
)

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # after choosing the backend

STRUCTURES = {
    "diagonal": ("diagonal", {}),
    "diagonal, precision": ("diagonal", {"update": "precision"}),
    "block": ("block", {"groups": [16, 16, 16, 1]}),  # one block per parameter of the network
    "low rank": ("low_rank", {"rank": 10}),
    "dense": ("dense", {}),
}


def sine(count: int) -> tuple[Tensor, Tensor]:
    """Noisy observations of sin(2 x), with a gap in the middle where nothing is known."""
    x = torch.rand(count, 1) * 1.5 + 0.5
    x = x * torch.sign(torch.randn(count, 1))
    return x, torch.sin(2 * x) + 0.1 * torch.randn(count, 1)


def rmse(module: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return (module(x) - y).square().mean().sqrt().item()


def batches(x: Tensor, y: Tensor, passes: int, size: int = 10) -> list[tuple[Tensor, Tensor]]:
    orders = [torch.randperm(len(x)) for _ in range(passes)]
    return [(x[rows], y[rows]) for order in orders for rows in order.split(size)]


def fit_kalman(module: nn.Module, data: list[tuple[Tensor, Tensor]], structure: str) -> Belief:
    kind, options = STRUCTURES[structure]
    belief = make_belief(kind, flat_parameters(module), variance=1.0, **options)
    kalman = KalmanFilter(belief, ObservationNoise(NoiseConfig(beta=0.9)), FilterConfig(alpha=0.05))
    for x, y in data:
        kalman.step(observe_module(module, x, y))
    load_flat(module, belief.mean)
    return belief


def fit_adamw(module: nn.Module, data: list[tuple[Tensor, Tensor]], lr: float) -> None:
    optimizer = torch.optim.AdamW(module.parameters(), lr=lr)
    for x, y in data:
        optimizer.zero_grad()
        nn.functional.mse_loss(module(x), y).backward()
        optimizer.step()


def draw(fits: dict[str, tuple[nn.Module, Belief]], x: Tensor, y: Tensor, path: str) -> None:
    grid = torch.linspace(-3.0, 3.0, 200)[:, None]
    figure, axes = plt.subplots(1, len(fits), figsize=(3.2 * len(fits), 3), sharey=True, layout="constrained")
    for axis, (name, (module, belief)) in zip(axes, fits.items(), strict=True):
        seen = observe_module(module, grid, grid)(belief.mean)
        mean, sigma = seen.y_hat, belief.variance(seen.H).sqrt()
        axis.fill_between(grid[:, 0], mean - 2 * sigma, mean + 2 * sigma, alpha=0.3, label="2 sigma")
        axis.plot(grid, mean, label="mean")
        axis.plot(x, y, ".", color="black", markersize=3, label="data")
        axis.set(title=name, ylim=(-2.5, 2.5))
    axes[0].legend(loc="upper left", fontsize="small")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description="Fit a noisy sine with the Kalman filter and with AdamW.")
    parser.add_argument("--out", default="regression.png", help="where the picture goes")
    parser.add_argument("--passes", type=int, default=10, help="passes over the data")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)

    torch.manual_seed(options.seed)
    x, y = sine(100)
    x_test, y_test = sine(1000)
    start = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
    data = batches(x, y, options.passes)

    errors = {"before": rmse(start, x_test, y_test)}
    for lr in (1e-3, 1e-2, 1e-1):  # all are shown: the filter's prior variance was picked by hand too
        module = copy.deepcopy(start)
        fit_adamw(module, data, lr)
        errors[f"AdamW, lr {lr}"] = rmse(module, x_test, y_test)
    fits = {}
    for structure in STRUCTURES:
        module = copy.deepcopy(start)
        fits[structure] = module, fit_kalman(module, data, structure)
        errors[structure] = rmse(module, x_test, y_test)

    for name, error in errors.items():
        print(f"{name:20s} test RMSE {error:.3f}")
    print(f"(the noise itself    {0.1:.3f}; {options.passes} passes, {math.ceil(len(x) / 10)} batches each)")
    draw(fits, x, y, options.out)
    print(f"picture: {options.out}")
    return errors


if __name__ == "__main__":
    main()
