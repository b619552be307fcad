"""A Kalman step against other ways to the same end, and what memory each takes, on the layers and batch of `step`.

- *posteriors* `ekf.diag_fisher`: an extended Kalman filter with a diagonal covariance, told that its log-likelihood is
  per sample (its faster way). Needs the package: pip install -e .[bench].
- `torch.func.vmap(grad)`, and one backward pass per pair: the Jacobian alone, without any update; a step that is built
  on them takes longer.

    python -m benchmarks.peers [--models tiny ViT-B-32:random] [--rounds 15] [--device cpu]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.measure import Options, Row, absent, main, missing, peak_memory, row, seconds
from benchmarks.setting import Setting
from benchmarks.step import captured, warm

EKF, VMAP, ROWS = "posteriors ekf.diag_fisher", "vmap(grad), Jacobian only", "a backward pass per pair, Jacobian only"
FASTER = {EKF: 8.0, VMAP: 2.0, ROWS: None}
MEMORY = 1.2


def rows(options: Options) -> list[Row]:
    """How many times faster the Kalman step is than each peer; peak memory of all over AdamW's."""
    lines = []
    for model in options.backbones(["tiny", "ViT-B-32:random"]):
        setting = Setting.of(model, options)
        peers = _peers(setting, options.device)
        steps = {"AdamW": setting.adamw(), "Kalman": setting.kalman(), **peers}
        # on a GPU the bounds are about what a fit does there: captured steps
        replayed = {} if options.device == "cpu" else {"captured Kalman": captured(setting, warm(setting))}
        ours = ["Kalman", *replayed]
        taken = seconds(steps | replayed, replace(options, rounds=max(1, options.rounds // 3)))  # peers take their time
        for our in ours:
            note = f"{our} step {1000 * taken[our].median():.1f} ms"
            for name, faster in FASTER.items():
                what, bound = f"{model}: {name} / {our}", faster if our == ours[-1] else None
                if name in taken:
                    lines.append(row("peers", what, taken[name] / taken[our], "", bound, at_least=True, note=note))
                else:
                    lines.append(absent("peers", what, "not installed here: pip install posteriors"))
        memory = {name: peak_memory(step, options.device, warm=True) for name, step in steps.items()}
        reference = memory.pop("AdamW")
        note = f"AdamW step {reference / 2**20:,.1f} MiB beyond weights and moments"
        for name, taken_bytes in memory.items():
            bound = MEMORY if name == "Kalman" else None
            what = f"{model}: peak memory, {name} / AdamW"
            lines.append(
                Row("peers", what, taken_bytes / reference, bound=bound, note=note if name == "Kalman" else "")
            )
    return lines


def _peers(setting: Setting, device: str) -> dict[str, Callable[[], object]]:
    encoder, images, texts = setting.encoder, setting.images, setting.texts
    theta = encoder.theta.clone()

    def one(theta: Tensor, image: tuple[Tensor, ...], text: tuple[Tensor, ...]) -> Tensor:
        alone = tuple(t[None] for t in image), tuple(t[None] for t in text)
        similarity: Tensor = functional_call(encoder, encoder.named_views(theta), alone)[0, 0]
        return similarity

    def vmapped() -> None:
        with _plain_attention(device):
            vmap(grad(one), in_dims=(None, 0, 0))(theta, images, texts)

    def row_by_row() -> None:
        parameters = list(encoder.parameters())
        S = setting.similarities()
        for i in range(len(S)):
            torch.autograd.grad(S[i], parameters, retain_graph=i < len(S) - 1)

    peers: dict[str, Callable[[], object]] = {} if missing("posteriors") else {EKF: _ekf(setting, device)}
    return peers | {VMAP: vmapped, ROWS: row_by_row}


def _ekf(setting: Setting, device: str) -> Callable[[], object]:
    from posteriors.ekf import diag_fisher  # type: ignore[import-untyped, import-not-found, unused-ignore]

    encoder = setting.encoder

    def log_likelihood(parameters: dict[str, Tensor], batch: tuple[tuple[Tensor, ...], ...]) -> tuple[Tensor, Tensor]:
        # the pairs' similarities are the diagonal of what the encoder gives: ten by ten, next to nothing
        S = functional_call(encoder, parameters, batch).diagonal()
        return -(1 - S).square() / 2, S.detach()

    transform = diag_fisher.build(log_likelihood, lr=1e-6, per_sample=True, init_sds=1e-4)
    state = transform.init({name: p.detach().clone() for name, p in encoder.named_parameters()})

    def step() -> None:
        nonlocal state
        with _plain_attention(device):
            state, _ = transform.update(state, (setting.images, setting.texts))

    return step


@contextmanager
def _plain_attention(device: str) -> Iterator[None]:
    """The fused attention kernels of CUDA cannot be vmapped over a mask."""
    if device == "cpu":
        yield
        return
    with sdpa_kernel(SDPBackend.MATH):
        yield


if __name__ == "__main__":
    main(rows, __doc__)
