"""The update itself: linear in the number of parameters n, fast enough that memory is what bounds it, and no larger.

- *share of copy bandwidth*: bytes that must move (`project` reads H and s; `update` reads H, mu and s, and writes mu
  and s), per second, over what a plain copy of a large tensor reaches in the same run. Each number is counted once:
  whoever reads it twice gets a smaller share.
- *cost per parameter*, relative to a million of them: linear in n if it stays at one.
- *m x m part*: a whole step of the filter whose H has hardly any columns, over one with a million: what does not
  depend on n.
- *reference / fast path*: the same step by Algorithm 1 line for line.
- *memory*: what a step takes at its peak, H included, over `predicted`, the formula in the documentation.

    python -m benchmarks.update [--rounds 15] [--device cpu]
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from benchmarks.measure import Options, Row, main, peak_memory, row, seconds
from kalmanclip.filtering import KalmanFilter, Observation, Step, make_belief
from kalmanclip.filtering.accelerated import fused_diagonal

M, REFERENCE = 10, 10**6
SWEEP = {"cpu": (10**5, 10**6, 10**7), "cuda": (10**5, 10**6, 10**7, 10**8)}
ROWS = (10, 64, 256)
COPY = {"cpu": 1 << 26, "cuda": 1 << 30}
"""Numbers in the tensor that is copied: far more than any cache holds."""
LARGE = 10**7  # from here on a GPU is busy long enough that launching does not count
SHARE, LINEAR, NEGLIGIBLE, EXACT = 0.6, 1.1, 0.1, 1.01
LEAST = 5e-3  # seconds in one timing


def rows(options: Options) -> list[Row]:
    """All of the above."""
    return [*_bandwidth_and_linearity(options), *_small_part(options), *_memory(options)]


def _bandwidth_and_linearity(options: Options) -> list[Row]:
    shares, per_parameter = [], {}
    sweep = (10**4, 10**5) if options.quick else SWEEP[options.device]
    for n in sweep:
        source = torch.zeros(10**6 if options.quick else COPY[options.device], device=options.device)
        target = torch.empty_like(source)
        taken = seconds(
            {"copy": partial(target.copy_, source), **_passes(n, options.device)},
            options,
            LEAST if not options.quick else 0,
        )
        copied = 2 * source.nbytes / taken["copy"]
        moved = {"project": (M + 1) * n * 4, "update": (M + 4) * n * 4, "update by precision": (M + 4) * n * 4}
        bound = SHARE if options.device != "cpu" and n >= LARGE else None
        for name, size in moved.items():
            note = f"copying {copied.median() / 1e9:,.0f} GB/s; {1e6 * taken[name].median():,.0f} microseconds"
            what = f"{name}, n = {n:,}: share of copy bandwidth"
            shares.append(row("update", what, size / taken[name] / copied, bound=bound, at_least=True, note=note))
        per_parameter[n] = (taken["project"] + taken["update"]) / n
    reference = per_parameter[REFERENCE if REFERENCE in per_parameter else sweep[-1]]
    linear = []
    for n, cost in per_parameter.items():
        if cost is reference:
            continue
        bound = LINEAR if n > REFERENCE else None  # below, caches help and launches hurt
        # rounds of different n are minutes apart: medians, not rounds, are compared
        what = f"cost per parameter, n = {n:,} / {REFERENCE:,}"
        linear.append(row("update", what, cost / reference.median(), bound=bound))
    return shares + linear


def _passes(n: int, device: str) -> dict[str, Callable[[], Tensor]]:
    mu, s, H, S_inv, e, lam, ok = _numbers(n, M, device)
    R_inv = S_inv.clone()
    return {
        "project": lambda: fused_diagonal.project(H, s),
        "update": lambda: fused_diagonal.update(mu, s, H, S_inv, e, lam, None, ok),
        "update by precision": lambda: fused_diagonal.update(mu, s, H, S_inv, e, lam, R_inv, ok),
    }


def _numbers(n: int, m: int, device: str) -> tuple[Tensor, ...]:
    """mu, s, H, S^-1, e, lambda and ok that leave mu and s where they are, however often the update is called."""
    mu, s = torch.zeros(n, device=device), torch.full((n,), 1e-4, device=device)
    H = torch.randn(m, n, generator=torch.Generator(device).manual_seed(0), device=device)
    e, lam, ok = torch.zeros(m, device=device), torch.zeros((), device=device), torch.ones((), device=device).bool()
    return mu, s, H, torch.eye(m, device=device), e, lam, ok


def _step(n: int, m: int, device: str, reference: bool = False) -> Callable[[], Step]:
    """A whole step of the filter, with an H that lies ready."""
    mu, _, H, *_ = _numbers(n, m, device)
    H *= n**-0.5
    kalman_filter = KalmanFilter(make_belief("diagonal", mu, 1e-4), reference=reference)
    seen = Observation(torch.ones(m, device=device), torch.zeros(m, device=device), H)
    return lambda: kalman_filter.step(lambda mean: seen)


def _small_part(options: Options) -> list[Row]:
    lines = []
    n = 10**5 if options.quick else REFERENCE
    for m in ROWS[:2] if options.quick else ROWS:
        steps = {"small": _step(16, m, options.device), "whole": _step(n, m, options.device)}
        if m == M:
            steps["reference"] = _step(n, m, options.device, reference=True)
        taken = seconds(steps, options, LEAST if not options.quick else 0)
        note = f"whole step {1000 * taken['whole'].median():.2f} ms, of which {1000 * taken['small'].median():.2f}"
        bound = NEGLIGIBLE if options.device == "cpu" else None  # on a GPU this is launches; see `step`
        what = f"m x m part of a step, m = {m}, n = {n:,}"
        lines.append(row("update", what, taken["small"] / taken["whole"], bound=bound, note=note))
        if "reference" in taken:
            what = f"reference / fast path, whole step, m = {m}, n = {n:,}"
            lines.append(row("update", what, taken["reference"] / taken["whole"]))
    return lines


def predicted(n: int, m: int, device: str) -> int:
    """Bytes at the peak of a step beyond the state (mu, s and R): H, and what the passes over it need.

    4 (m n + 2 c m + c + 6 m^2), with c the columns of a chunk: two chunks of the gain and a factor for each column. The
    kernels of a GPU need no chunks; each of their P programs has its own sum: 4 (m n + P m^2 + 6 m^2). Where only the
    projection is a kernel (more than 16 targets), one chunk is enough: 4 (m n + c (m + 2) + 6 m^2).
    """
    H, small = 4 * m * n, 6 * 4 * m * m
    columns = min(n, max(1, fused_diagonal.CHUNK[device] // m))
    if device == "cpu" or m > fused_diagonal.PROJECT_ROWS:
        return H + small + 4 * columns * (2 * m + 1)
    if m > fused_diagonal.UPDATE_ROWS:
        return H + small + 4 * columns * (m + 2)
    from kalmanclip.filtering.accelerated import triton_kernels as kernels

    return (
        H + small + 4 * m * m * kernels._PROJECT["programs"] * torch.cuda.get_device_properties(0).multi_processor_count
    )


def _memory(options: Options) -> list[Row]:
    lines = []
    for n, m in ((10**5, M),) if options.quick else ((REFERENCE, M), (REFERENCE, 64), (LARGE, M)):
        mu = torch.zeros(n, device=options.device)
        kalman_filter = KalmanFilter(make_belief("diagonal", mu, 1e-4))
        y = torch.ones(m, device=options.device)

        def observe(mean: Tensor, m: int = m, y: Tensor = y) -> Observation:
            return Observation(y, torch.zeros_like(y), torch.ones(m, len(mean), device=mean.device))

        measured = peak_memory(partial(kalman_filter.step, observe), options.device)
        expected = predicted(n, m, options.device)
        note = f"{measured / 2**20:,.2f} MiB; predicted {expected / 2**20:,.2f}; H alone {4 * m * n / 2**20:,.2f}"
        what = f"memory of a step, m = {m}, n = {n:,}: measured / predicted"
        lines.append(Row("update", what, measured / expected, bound=EXACT, note=note))
    return lines


if __name__ == "__main__":
    main(rows, __doc__)
