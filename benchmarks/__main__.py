"""`make bench`: what everything costs, in one table; ratios measured inside one run, medians with their quartiles.

python -m benchmarks [--device cpu] [--quick] [--only step peers ...] [--json FILE]

| part | |
| --- | --- |
| step | a Kalman step against an AdamW step; on a GPU also captured as a graph |
| peers | against posteriors' EKF and torch.func; peak memory |
| classes | a step's growth with the number of classes, against CLIP-LoRA's |
| update | bandwidth, linearity and memory of the update itself |
| fit | a whole fit from files, and where its time goes |
| predict | a prediction against the bare model; averaging over the belief |

Each is also a command of its own, with more options: python -m benchmarks.step. Those that need data:

python -m benchmarks.fit DATA           how long a fit takes
python -m benchmarks.large              a fit with very many images and classes: stages, peak memory
python -m benchmarks.bulk               predictions on a Ray cluster: throughput by workers, memory by pictures
python -m benchmarks.precision DATA     what bfloat16 towers cost in accuracy
python -m benchmarks.parallel           what several processes send each other, and hold
python -m benchmarks.robustness         whether odd arguments, damage, kills and hostile requests are withstood
python -m benchmarks.mutation           whether the tests notice a mistake, one at a time
python -m benchmarks.one_pass --before CHECKOUT  what one pass over the images saves
python -m benchmarks.commands --before CHECKOUT  processor time of fit and predict, now and then
python -m benchmarks.study DATA         what each part of the default brings
python -m benchmarks.towers MODEL DATA  what each part of joint and paper-tuned brings
python -m benchmarks.optimizers MODEL DATA  the filter of joint against AdamW, by images seen and by seconds
python -m benchmarks.observations DATA  which observation learns
python -m benchmarks.departures DATA    what each departure of the preset `paper` from the paper is worth
python -m benchmarks.pairs DATA         captions
python -m benchmarks.uncertainty DATA   whether probabilities mean what they say
python -m benchmarks.stream DATA        classes that arrive one group after the other
python -m benchmarks.fusion DATA        two sites that learn apart
python -m benchmarks.unknown DATA       images of nothing it knows, and sets of classes

python -m benchmarks.figures            draws the figures of the docs from the files in results/

Accuracy beside other methods: kalmanclip compare --config benchmarks/comparison.json (see docs/results.md)
"""

from __future__ import annotations

import importlib
import time

from rich.console import Console

from benchmarks.measure import Options, Row, absent, options_from, parser, report

PARTS = ("step", "peers", "classes", "update", "fit", "predict")


def rows(options: Options, only: tuple[str, ...] = PARTS) -> list[Row]:
    """The lines of all parts, or of some. A part whose package is missing says so, and the others go on."""
    lines: list[Row] = []
    console = Console(stderr=True)
    for name in only:
        begin = time.perf_counter()
        try:
            lines += importlib.import_module(f"benchmarks.{name}").rows(options)
        except ModuleNotFoundError as problem:
            if (problem.name or "").split(".")[0] in ("", "benchmarks", "kalmanclip"):
                raise
            lines.append(absent(name, "not measured", f"not installed here: {problem.name}"))
        console.print(f"{name}: {time.perf_counter() - begin:.0f} s", style="dim")
    return lines


def main(arguments: list[str] | None = None) -> None:
    """All parts, one table."""
    command = parser(__doc__)
    command.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART")
    given = command.parse_args(arguments)
    options = options_from(given)
    report(rows(options, tuple(given.only)), options, given)


if __name__ == "__main__":
    main()
