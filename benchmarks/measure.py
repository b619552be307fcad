"""How everything here is measured, and the one table that all parts share.

Contestants are timed in turn within each round, so that whatever else the machine does hits them alike. A ratio is
taken within each round; what is reported is the median over the rounds, with its quartiles. Peak memory is what a call
allocates beyond what was there before: on CUDA by the allocator's own count, on the CPU by summing up what the profiler
saw allocated and freed, in order. Both are exact for tensors and the same in every run.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import logging
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import torch
from rich.console import Console
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

from kalmanclip.files import write_json_atomic

Contestants = Mapping[str, Callable[[], object]]

WARM_UP = 2
"""Rounds that are not counted: allocators, autotuners and kernels settle."""


@dataclass(frozen=True)
class Options:
    """What every part takes.

    Attributes:
        device: 'cpu' or 'cuda'.
        rounds: how often each contestant is timed.
        models: backbones, for the parts that need one; None: what the part thinks right for the device.
        quick: the smallest sizes, to see that everything runs.
        clock: 'wall', or 'processor': the seconds that all threads of this process had a core, which other processes
            hardly change. For machines that are busy; it does not see threads that wait.
    """

    device: str = "cpu"
    rounds: int = 15
    models: tuple[str, ...] | None = None
    quick: bool = False
    clock: str = "wall"

    def backbones(self, cpu: Sequence[str], cuda: Sequence[str] | None = None) -> tuple[str, ...]:
        """The models given, or the part's own; with ``quick``, `tiny` alone."""
        if self.models is not None:
            return self.models
        return ("tiny",) if self.quick else tuple(cpu if self.device == "cpu" or cuda is None else cuda)


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        part: which benchmark.
        what: what was measured.
        figure: the median; None: it could not be measured, and ``note`` says why.
        low: the lower quartile.
        high: the upper quartile.
        unit: of the figure; a ratio has none.
        bound: what it must not exceed.
        at_least: the bound is what it must reach instead.
        note: what else the reader should know.
    """

    part: str
    what: str
    figure: float | None
    low: float | None = None
    high: float | None = None
    unit: str = ""
    bound: float | None = None
    at_least: bool = False
    note: str = ""

    @property
    def holds(self) -> bool | None:
        """Whether the bound holds; None without one."""
        if self.figure is None or self.bound is None:
            return None
        return self.figure >= self.bound if self.at_least else self.figure <= self.bound


def row(
    part: str,
    what: str,
    values: Sequence[float] | torch.Tensor,
    unit: str = "",
    bound: float | None = None,
    at_least: bool = False,
    note: str = "",
) -> Row:
    """A line from the figures of all rounds."""
    quartiles = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
    low, median, high = torch.as_tensor(values, dtype=torch.float64).quantile(quartiles).tolist()
    return Row(part, what, median, low, high, unit, bound, at_least, note)


def absent(part: str, what: str, why: str) -> Row:
    """A line that says why there is no figure."""
    return Row(part, what, None, note=why)


def missing(package: str) -> bool:
    """Whether a package that only a benchmark needs is not installed."""
    try:
        return importlib.util.find_spec(package) is None
    except ValueError:  # a test may have put None in its place
        return True


def synchronise(device: str) -> None:
    """Waits for the GPU, if it is one."""
    if device != "cpu":
        torch.cuda.synchronize()


def by_stage() -> tuple[dict[str, float], Callable[[str, int, int], None]]:
    """Seconds by stage, and the progress that a fit is given to add them up."""
    stages: dict[str, float] = {}
    last = time.perf_counter()

    def progress(stage: str, done: int, total: int) -> None:
        nonlocal last
        now = time.perf_counter()
        stages[stage] = stages.get(stage, 0.0) + now - last
        last = now

    return stages, progress


def seconds(contestants: Contestants, options: Options, least: float = 0.0) -> dict[str, torch.Tensor]:
    """Seconds per call of each contestant in each round, (rounds,) each.

    Args:
        contestants: called in turn; in every other round in reverse, so that none always follows the same one.
        options: the device and the number of rounds.
        least: seconds that one timing must take: what is shorter is called several times.
    """
    calls = dict.fromkeys(contestants, 1)
    for name, call in contestants.items():
        for _ in range(1 if options.quick else WARM_UP):
            taken = _timed(call, 1, options)
        calls[name] = 1 if options.quick else max(1, math.ceil(least / max(taken, 1e-7)))
    measured: dict[str, list[float]] = {name: [] for name in contestants}
    gc.collect()
    gc.disable()  # a collection in the middle of a call would be its fault
    try:
        for number in range(options.rounds):
            for name in sorted(contestants, key=list(contestants).index, reverse=number % 2 == 1):
                measured[name].append(_timed(contestants[name], calls[name], options))
            gc.collect()
    finally:
        gc.enable()
    return {name: torch.tensor(values, dtype=torch.float64) for name, values in measured.items()}


def _timed(call: Callable[[], object], count: int, options: Options) -> float:
    clock = time.process_time if options.clock == "processor" else time.perf_counter
    synchronise(options.device)
    begin = clock()
    for _ in range(count):
        call()
    synchronise(options.device)
    return (clock() - begin) / count


def peak_memory(call: Callable[[], object], device: str, warm: bool = False) -> int:
    """Bytes that a call takes beyond what was allocated before it. ``warm``: it was called before."""
    if not warm:
        call()  # what stays allocated after the first time is not its peak
    gc.collect()
    if device != "cpu":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as observed:
        call()
    events = [event for event in observed.profiler.kineto_results.events() if event.name() == "[memory]"]
    total = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        total += event.nbytes()
        most = max(most, total)
    return most


def describe(options: Options) -> str:
    """The machine, for the table's title."""
    if options.device == "cpu":
        return f"CPU, {torch.get_num_threads()} threads, {options.clock} clock, torch {torch.__version__}"
    return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"


def verdict(line: Row, options: Options) -> bool | None:
    """Whether a line's bound holds; None without one, and of a single round, which is no measurement."""
    return None if options.quick else line.holds


def show(rows: Sequence[Row], options: Options) -> None:
    """Prints the table."""
    title = f"Medians of up to {options.rounds} rounds ({describe(options)})"
    if options.quick:
        title = f"Does everything run? One round says nothing about speed ({describe(options)})"
    table = Table(title=title)
    for column in ("part", "what", "figure", "quartiles", "bound", "holds"):
        table.add_column(column, justify="right" if column in ("figure", "quartiles", "bound") else "left")
    for i, line in enumerate(rows):
        what = f"{line.what}\n[dim]{line.note}[/dim]" if line.note else line.what
        spread = "" if line.low is None or line.high is None else f"{_short(line.low)} to {_short(line.high)}"
        figure = "-" if line.figure is None else f"{_short(line.figure)} {line.unit}".strip()
        bound = "" if line.bound is None else f"{'>=' if line.at_least else '<='} {line.bound:g}"
        holds = {True: "yes", False: "[bold]no[/bold]", None: ""}[verdict(line, options)]
        last = i + 1 == len(rows) or rows[i + 1].part != line.part
        table.add_row(line.part, what, figure, spread, bound, holds, end_section=last)
    console = Console()
    if not console.is_terminal:
        console.width = 140  # a file has no edge
    console.print(table)


def _short(value: float) -> str:
    """Three significant digits, without an exponent where it can be helped."""
    if value == 0 or not 1e-3 <= abs(value) < 1e5:
        return f"{value:.2g}"
    return f"{value:,.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def save(rows: Sequence[Row], options: Options, path: str) -> None:
    """Writes the lines as JSON, completely or not at all."""
    lines = [asdict(line) | {"holds": verdict(line, options)} for line in rows]
    write_json_atomic(path, {"machine": describe(options), "options": asdict(options), "rows": lines})


def parser(description: str | None, rounds: int = 15) -> argparse.ArgumentParser:
    """A command line with the options of `Options`."""
    result = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--device", choices=("cpu", "cuda"), help="a GPU when there is one, if not given")
    result.add_argument("--rounds", type=int, default=rounds)
    result.add_argument("--clock", choices=("wall", "processor"), default="wall", help="processor: on a busy machine")
    result.add_argument("--models", nargs="+", help="backbones, such as tiny or ViT-B-32:random")
    result.add_argument(
        "--quick", action="store_true", help="smallest sizes, one round, no verdicts: does everything run?"
    )
    result.add_argument("--json", metavar="FILE", help="also write the table there")
    return result


def options_from(given: argparse.Namespace) -> Options:
    """`Options` from what `parser` parsed; from here on, what libraries have to say stays out of the table."""
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", message="There is a performance drop because we have not yet implemented")
    device = given.device or ("cuda" if torch.cuda.is_available() else "cpu")
    models = tuple(given.models) if given.models else None
    return Options(device, 1 if given.quick else given.rounds, models, given.quick, given.clock)


def report(rows: Sequence[Row], options: Options, given: argparse.Namespace) -> None:
    """Prints the table, and writes it where that was asked for."""
    show(rows, options)
    if given.json:
        save(rows, options, given.json)


def main(rows: Callable[[Options], list[Row]], description: str | None, arguments: list[str] | None = None) -> None:
    """The command line of one part."""
    given = parser(description).parse_args(arguments)
    options = options_from(given)
    report(rows(options), options, given)
