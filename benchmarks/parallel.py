"""Several ranks that filter together: what each sends and holds, and what that predicts for eight GPUs.

Processes on this machine exchange real steps over gloo, on the CPU. What they send is counted where it is handed over,
compared with the formula, and with what the system says has gone through its loopback device. The Jacobian is a copy of
given numbers, so that a step's time is that of the filter alone: ranks that share the cores of one machine cannot be
faster than one process, which uses all cores already, and they send to each other what a single one has.

    python -m benchmarks.parallel [--rounds 15] [--quick]
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import Options, Row, absent, main, peak_memory
from kalmanclip.encoders import DualEncoder, LowRankConfig, load_backbone
from kalmanclip.filtering import Diagonal, KalmanFilter, Observation, Ranks, ShardedDiagonal

RANKS = (1, 2, 4)
GPUS = 8
BATCH = 16
LINK = 450e9  # bytes per second that a GPU sends to the others: NVLink of the Hopper generation, by its data sheet
MEMORY = 4.8e12  # bytes per second of an H200's memory, by its data sheet
WAIT = 20e-6  # seconds until a small exchange among eight GPUs is over: an assumption
EXCHANGES = 6  # of a step: targets, columns, sums of H Sigma H^T, decision, means, sum of the squared gain


def volume(m: int, n: int, P: int, width: int = 4) -> dict[str, float]:
    """Bytes that each of P ranks sends in a step of m targets and n parameters, by what they are."""
    return {
        "columns": width * (m / P) * n * (P - 1) / P,
        "means": width * n * (P - 1) / P,
        "sums": width * (P - 1) * (m * m + 1),
        "targets": width * (P - 1) * 2 * m / P,
        "decisions": P - 1,
    }


def rows(options: Options) -> list[Row]:
    """Measured on this machine; then predicted."""
    n = 1 << (14 if options.quick else 20)
    lines: list[Row] = []
    for P in RANKS[:2] if options.quick else RANKS:
        found = _measured(P, n, options.rounds)
        what = f"{P} {'ranks' if P > 1 else 'process'}, n = {n:,}, m = {BATCH}: "
        median = statistics.median(found["seconds"])
        lines.append(Row("parallel", what + "time per step", 1e3 * median, unit="ms"))
        lines.append(Row("parallel", what + "mean and variances on a rank", found["state"] / 1e6, unit="MB"))
        lines.append(Row("parallel", what + "peak of a step beside them", found["peak"] / 1e6, unit="MB"))
        if P == 1:
            continue
        formula = sum(volume(BATCH, n, P).values())
        lines.append(Row("parallel", what + "sent by a rank, counted", found["sent"] / 1e6, unit="MB"))
        lines.append(Row("parallel", what + "counted / formula", found["sent"] / formula))
        what += "through the loopback device / formula"
        note = "with the headers of the packets, and whatever else used it meanwhile"
        if found["loopback"] is None:
            lines.append(absent("parallel", what, "the system does not count it"))
        else:
            lines.append(Row("parallel", what, found["loopback"] / (P * formula), note=note))
    return lines + predicted(options)


def predicted(options: Options) -> list[Row]:
    """What the formula says of eight GPUs: the exchange beside the two passes over H, which are bound by memory."""
    model = "tiny" if options.quick else "ViT-B-16:random"
    encoder = DualEncoder(load_backbone(model), LowRankConfig(placement="towers", rank=4, last_blocks=2))
    lines = []
    for name, n in ((f"{model.split(':')[0]}, rank 4, last 2 blocks", encoder.n), ("a large model", 10**8)):
        sent = volume(BATCH, n, GPUS)
        wires, waits = sum(sent.values()) / LINK, EXCHANGES * WAIT
        alone, shared = passes(BATCH, n, 1), passes(BATCH, n, GPUS)
        what = f"predicted, {GPUS} GPUs, {name} (n = {n:,}), m = {BATCH}: "
        parts = ", ".join(f"{key} {value / 1e6:,.3g}" for key, value in sent.items())
        lines += [
            Row("parallel", what + "sent by a GPU", sum(sent.values()) / 1e6, unit="MB", note=f"MB: {parts}"),
            Row("parallel", what + "time on the wires", 1e3 * wires, unit="ms", note=f"{LINK / 1e9:g} GB/s"),
            Row("parallel", what + "waiting", 1e3 * waits, unit="ms", note=f"{EXCHANGES} exchanges, 20 us each"),
            Row("parallel", what + "update of a single GPU", 1e3 * alone, unit="ms", note=f"{MEMORY / 1e12:g} TB/s"),
            Row("parallel", what + "update of each", 1e3 * shared, unit="ms"),
            Row("parallel", what + "update with its exchange / of a single GPU", (shared + wires + waits) / alone),
            Row(
                "parallel",
                what + "least time of a Jacobian for which they are faster than one",
                max(0.0, 1e3 * (shared + wires + waits - alone) / (1 - 1 / GPUS)),
                unit="ms",
            ),
            Row("parallel", what + "H, mean and variances on a GPU", held(BATCH, n, GPUS) / 1e6, unit="MB"),
            Row("parallel", what + "the same on a single GPU", held(BATCH, n, 1) / 1e6, unit="MB"),
        ]
    return lines


def passes(m: int, n: int, P: int) -> float:
    """Seconds for the two passes over a rank's columns of H, which also read s, and read and write mean and s."""
    return 4 * (2 * m + 5) * n / P / MEMORY


def held(m: int, n: int, P: int) -> float:
    """Bytes of a rank in a step: all means, its variances, its rows of H and its columns of H, which are as many."""
    return 4 * (n + n / P + (m / P * n * (2 if P > 1 else 1)))


def _measured(P: int, n: int, steps: int) -> dict[str, Any]:
    """What P processes find; of times and bytes, those of the first."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        queue = context.Queue()
        store = str(Path(folder) / "store")
        workers = [context.Process(target=_work, args=(rank, P, n, steps, store, queue)) for rank in range(P)]
        for worker in workers:
            worker.start()
        found: dict[str, Any] = queue.get(timeout=600)
        for worker in workers:
            worker.join()
    return found


def _work(rank: int, P: int, n: int, steps: int, store: str, queue: Any) -> None:
    torch.set_num_threads(max(1, torch.get_num_threads() // P))
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=P)
    ranks = Ranks()
    shares = ranks.shares(BATCH)
    generator = torch.Generator().manual_seed(rank)
    x = torch.randn(shares[rank], n, generator=generator)
    belief = ShardedDiagonal.prior(torch.zeros(n), 1e-3, ranks=ranks) if P > 1 else Diagonal.prior(torch.zeros(n), 1e-3)
    kalman = KalmanFilter(belief)

    def observe(mean: torch.Tensor) -> Observation:
        return Observation(torch.ones(len(x)), x @ mean, x.clone())  # made anew, as a model's Jacobian is

    def step() -> None:
        kalman.step(belief.observe_distributed(observe, shares) if isinstance(belief, ShardedDiagonal) else observe)

    step()
    peak = peak_memory(step, "cpu")
    ranks.sent.clear()
    torch.distributed.barrier()
    before = _loopback()
    seconds = []
    for _ in range(steps):
        begin = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begin)
    sent = sum(ranks.sent.values()) / steps
    torch.distributed.barrier()
    after = _loopback()
    if rank == 0:
        loopback = None if before is None or after is None else (after - before) / steps
        state = belief.mean.numel() * belief.mean.element_size() + belief.s.untyped_storage().nbytes()
        queue.put({"seconds": seconds, "state": state, "peak": peak, "sent": sent, "loopback": loopback})
    torch.distributed.destroy_process_group()


def _loopback() -> int | None:
    """Bytes that went through the loopback device so far; None where the system does not say."""
    try:
        lines = Path("/proc/net/dev").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[9]) for line in lines if line.strip().startswith("lo:")), None)


if __name__ == "__main__":
    main(rows, __doc__)
