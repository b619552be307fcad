"""One Kalman step against one AdamW step on the same low-rank layers, batch and precision.

Rank 2 on q, k, v of every block of both towers, ten image-text pairs, the paper's observation (matched cosine) and its
diagonal belief. All contestants are timed in turn within each round, so that whatever else the machine does hits them
alike; what is printed is the median over rounds of the ratio to AdamW in the same round, with its quartiles.

    python -m benchmarks.step [--models tiny ViT-B-32:random] [--rounds 15] [--device cpu]
"""

import argparse
import time
from collections.abc import Callable
from contextlib import nullcontext

import torch
from rich.console import Console
from rich.table import Table
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from kalmanclip.encoders import DualEncoder, LowRankConfig, load_backbone
from kalmanclip.filtering import KalmanFilter, make_belief
from kalmanclip.observation import make_likelihood, observe

BATCH = 10


def contestants(model: str, device: str, slow: bool) -> tuple[dict[str, Callable[[], None]], DualEncoder]:
    encoder = DualEncoder(load_backbone(model, device), LowRankConfig(placement="towers", rank=2))
    torch.manual_seed(0)
    size = encoder.backbone.image_size
    images = encoder.image.prefix(torch.randn(BATCH, 3, size, size, device=device))
    texts = encoder.text.prefix(encoder.tokenize([f"a photo of a number {i}." for i in range(BATCH)]))
    labels = torch.arange(BATCH, device=device)

    optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-6)

    def adamw() -> None:
        optimizer.zero_grad()
        S = (encoder.encode_images(images) * encoder.encode_texts(texts)).sum(dim=1)
        (1 - S).square().mean().backward()
        optimizer.step()

    kalman_filter = KalmanFilter(make_belief("diagonal", encoder.theta, 1e-8))
    likelihood = make_likelihood("cosine")

    def kalman() -> None:
        step = kalman_filter.step(lambda mu: observe(encoder, likelihood, images, labels, texts))
        assert not step.skipped, step.reason

    def one(theta, image, text):
        views = encoder.named_views(theta)
        return functional_call(encoder, views, (tuple(t[None] for t in image), tuple(t[None] for t in text)))[0, 0]

    def vmapped() -> None:
        # the fused attention kernels of CUDA cannot be vmapped over a mask
        with sdpa_kernel(SDPBackend.MATH) if device != "cpu" else nullcontext():
            vmap(grad(one), in_dims=(None, 0, 0))(encoder.theta, images, texts)

    def row_by_row() -> None:
        parameters = list(encoder.parameters())
        S = (encoder.encode_images(images) * encoder.encode_texts(texts)).sum(dim=1)
        for i in range(BATCH):
            torch.autograd.grad(S[i], parameters, retain_graph=i < BATCH - 1)

    steps = {"AdamW step": adamw, "Kalman step": kalman}
    if slow:
        steps |= {"vmap(grad), Jacobian only": vmapped, "10 backward passes": row_by_row}
    return steps, encoder


def measure(steps: dict[str, Callable[[], None]], rounds: int, device: str) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for round_ in range(rounds + 2):
        for name, step in steps.items():
            if device != "cpu":
                torch.cuda.synchronize()
            begin = time.perf_counter()
            step()
            if device != "cpu":
                torch.cuda.synchronize()
            if round_ >= 2:  # the first two warm up
                seconds[name].append(time.perf_counter() - begin)
    return seconds


def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["tiny", "ViT-B-32:random"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args(arguments)
    console, result = Console(), {}
    table = Table(title=f"Ratio to an AdamW step ({options.device}, {torch.get_num_threads()} threads, batch {BATCH})")
    for column in ("model", "parameters", "what", "ratio (median)", "quartiles", "AdamW step"):
        table.add_column(column, justify="right" if column not in ("model", "what") else "left")
    for model in options.models:
        steps, encoder = contestants(model, options.device, slow=True)
        seconds = measure(steps, options.rounds, options.device)
        reference = torch.tensor(seconds["AdamW step"])
        for name, values in seconds.items():
            if name == "AdamW step":
                continue
            low, median, high = (torch.tensor(values) / reference).quantile(torch.tensor([0.25, 0.5, 0.75])).tolist()
            result[f"{model}: {name}"] = median
            table.add_row(
                model,
                f"{encoder.n:,}",
                name,
                f"{median:.2f}",
                f"{low:.2f} to {high:.2f}",
                f"{1000 * reference.median().item():.0f} ms",
            )
    console.print(table)
    return result


if __name__ == "__main__":
    main()
