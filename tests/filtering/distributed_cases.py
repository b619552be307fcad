"""What the ranks do in `test_distributed`: found by name in each process, so not in the test module itself."""

import math
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from kalmanclip.errors import NumericalError
from kalmanclip.filtering import (
    Diagonal,
    FilterConfig,
    KalmanFilter,
    NoiseConfig,
    Observation,
    ObservationNoise,
    Ranks,
    ShardedDiagonal,
)

BATCHES = (10, 10, 7, 2, 1, 10)  # on four ranks also: shares of nothing
CASES = [
    {"update": update, **noise, **options}
    for update in ("covariance", "precision")
    for noise in ({"R": True}, {"structure": "full"}, {"structure": "exchangeable"})
    for options in ({"q": 1e-3, "alpha": 0.5, "outputs": 2, "n": 201}, {"reference": True})
]
SPOILT = 3  # the batch that may have a NaN in it
RUNS = [(i, torch.float64, None) for i in range(len(CASES))]
RUNS += [(i, torch.float32, None) for i in range(0, len(CASES), 2)]
RUNS += [(i, torch.float64, SPOILT) for i in range(0, len(CASES), 3)]


def problem(case, dtype, spoilt=None, device="cpu"):
    """Inputs (N, K, n) and targets (N, K) batch by batch, and the first mean; ``spoilt``: a batch with a NaN in it."""
    g = torch.Generator().manual_seed(3)
    n, K = case.get("n", 67), case.get("outputs", 1)
    batches = []
    for number, size in enumerate(BATCHES):
        x = torch.randn(size, K, n, generator=g, dtype=torch.float64)
        y = torch.randn(size, K, generator=g, dtype=torch.float64).tanh()
        if number == spoilt:
            x[-1, 0, n // 2] = torch.nan
        batches.append((x.to(device, dtype), y.to(device, dtype)))
    return batches, 0.1 * torch.randn(n, generator=g, dtype=torch.float64).to(device, dtype)


def seen(mean, x, y, brings_R):
    """What is observed of a batch: tanh of a linear function, not linear so that every mean on the way matters."""
    y_hat = torch.tanh(x @ mean)
    H = ((1 - y_hat.square()).unsqueeze(-1) * x).flatten(0, 1)
    R = None
    if brings_R:  # correlated within an example, as those of a likelihood are
        block = 0.5 * torch.eye(x.shape[1], dtype=x.dtype, device=x.device) + 0.1
        R = torch.block_diag(*[block] * len(x))
    return Observation(y.flatten(), y_hat.flatten(), H, R)


def kalman_filter(case, belief):
    noise = ObservationNoise(NoiseConfig(structure=case.get("structure", "full")))
    config = FilterConfig(alpha=case.get("alpha", 0.1), q=case.get("q", 0.0))
    return KalmanFilter(belief, noise, config, reference=case.get("reference", False))


def result(kalman, steps):
    belief = kalman.belief.state_dict()
    R = kalman.noise.R
    numbers = [[s.distance, s.regulation, s.innovation, s.trace_R, s.gain, s.log_likelihood] for s in steps]
    return {
        "mean": belief["mean"].double().cpu().numpy(),
        "s": belief["s"].double().cpu().numpy(),
        "R": None if R is None else R.double().cpu().numpy(),
        "numbers": numbers,
        "skipped": [s.skipped for s in steps],
    }


def alone(case, dtype, spoilt=None):
    """The single-process filter."""
    batches, start = problem(case, dtype, spoilt)
    kalman = kalman_filter(case, Diagonal.prior(start, 0.2, case["update"]))
    steps = [kalman.step(lambda mean, x=x, y=y: seen(mean, x, y, "R" in case)) for x, y in batches]
    return result(kalman, steps)


def shared(ranks, case, dtype, spoilt=None, device="cpu"):
    """The same filter, shared by the ranks."""
    batches, start = problem(case, dtype, spoilt, device)
    kalman = kalman_filter(case, ShardedDiagonal.prior(start, 0.2, case["update"], ranks))
    return result(kalman, [step_together(kalman, x, y, "R" in case) for x, y in batches])


def step_together(kalman, x, y, brings_R=False):
    belief = kalman.belief
    shares = belief.ranks.shares(len(x))
    mine = belief.ranks.own_slice(shares)
    return kalman.step(belief.observe_distributed(lambda mean: seen(mean, x[mine], y[mine], brings_R), shares))


def on_gpu(ranks):
    """All cases by ranks that share one GPU."""
    return [shared(ranks, case, torch.float64, SPOILT, "cuda") for case in CASES]


def all_cases(ranks):
    """Everything that can be asked of ranks that live, in one start."""
    return {
        "filters": {
            (number, str(dtype), spoilt): shared(ranks, CASES[number], dtype, spoilt) for number, dtype, spoilt in RUNS
        },
        "memory": memory(ranks),
        "refusal": refusal(ranks),
        "resumed": resumed(ranks),
        "numbers": exchanges(ranks),
    }


def memory(ranks):
    """Parameters on this rank, bytes of its variances, and whether its means are memory of its own."""
    whole = torch.zeros(100_003)
    belief = ShardedDiagonal.prior(whole, 1.0, ranks=ranks)
    inside = belief.mean.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
    return len(belief.mean), belief.s.untyped_storage().nbytes(), inside


def refusal(ranks):
    """One rank alone has variances that cannot be: all refuse, and none has changed anything."""
    belief = ShardedDiagonal.prior(torch.zeros(50), 1.0, ranks=ranks)
    new = torch.full_like(belief.s, 0.5)
    if ranks.rank == ranks.size - 1:
        new[0] = math.inf
    try:
        belief._accept(new)
    except NumericalError:
        return bool((belief.s == 1).all())
    return False


def resumed(ranks):
    """A filter put away in the middle by these ranks, and gone on with by a single process and by these ranks."""
    case = CASES[2]
    batches, start = problem(case, torch.float64)
    first = kalman_filter(case, ShardedDiagonal.prior(start, 0.2, case["update"], ranks))
    for x, y in batches[:3]:
        step_together(first, x, y, "R" in case)
    state, noise = first.belief.state_dict(), first.noise.state_dict()

    def again(belief):
        kalman = kalman_filter(case, belief)
        kalman.noise = ObservationNoise.from_state(kalman.noise.config, {k: v.clone() for k, v in noise.items()})
        return kalman

    single = again(Diagonal.from_state({k: v.clone() for k, v in state.items()}))
    steps = [single.step(lambda mean, x=x, y=y: seen(mean, x, y, "R" in case)) for x, y in batches[3:]]
    many = again(ShardedDiagonal.from_state({k: v.clone() for k, v in state.items()}, ranks))
    steps_of_many = [step_together(many, x, y, "R" in case) for x, y in batches[3:]]
    return result(single, steps), result(many, steps_of_many)


def exchanges(ranks):
    """A sum whose bits depend on the order of its addends, words, and what one step has sent."""
    g = torch.Generator().manual_seed(ranks.rank)
    total = ranks.all_reduce(torch.randn(100, generator=g) * 10.0 ** torch.randint(-6, 7, (100,), generator=g))
    words = ranks.all_gather_text("é" * ranks.rank)
    x, y = torch.randn(8, 1, 320, generator=torch.Generator().manual_seed(0)), torch.ones(8, 1)
    kalman = kalman_filter({}, ShardedDiagonal.prior(torch.zeros(320), 0.1, ranks=ranks))
    step_together(kalman, x, y)
    ranks.sent.clear()
    step_together(kalman, x, y)
    return total.numpy().tobytes(), words, dict(ranks.sent)


def dying(ranks, how, timeout, folder):
    """The last rank dies, or hangs, in the middle of a pass; what the others get, and how long it took them."""
    ranks = Ranks(dist.new_group(timeout=timedelta(seconds=timeout)))  # coming together may take longer
    case = CASES[2]
    batches, start = problem(case, torch.float32)
    kalman = kalman_filter(case, ShardedDiagonal.prior(start, 0.2, case["update"], ranks))
    for number, (x, y) in enumerate(batches):
        if number == 2 and ranks.rank == ranks.size - 1:
            if how == "dies":
                os._exit(9)
            while len(list(folder.glob("gave-up-*"))) < ranks.size - 1:
                time.sleep(0.05)
        begin = time.monotonic()
        try:
            step_together(kalman, x, y)
        except Exception as error:
            (folder / f"gave-up-{ranks.rank}").touch()
            return type(error).__name__, str(error), time.monotonic() - begin
    return None
