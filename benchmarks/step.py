"""One Kalman step against one AdamW step on the same low-rank layers, the same batch, in the same precision.

Rank 2 on q, k, v of every block of both towers, ten image-text pairs, the paper's observation (matched cosine) and its
diagonal belief. On a GPU also the step captured as a graph, which must end at the same parameters.

    python -m benchmarks.step [--models tiny ViT-B-32:random] [--rounds 15] [--device cpu]
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.measure import Options, Row, main, row, seconds
from benchmarks.setting import Setting
from kalmanclip.filtering import CapturedStep, KalmanFilter

ON_CPU = {"tiny": 1.10, "ViT-B-32:random": 1.05}
EAGER_ON_GPU, CAPTURED, SAME = 1.10, 0.5, 1e-5
STEPS = 5  # that the two ways take before their parameters are compared
SMALL, VARIANCE = 1e-8, 1e-4  # of the parameters; where results are compared, so much that they move


def rows(options: Options) -> list[Row]:
    """The Kalman step over AdamW's, model by model; on a GPU eager and captured."""
    lines = []
    for model in options.backbones(["tiny", "ViT-B-32:random"], ["tiny", "ViT-B-32:random", "ViT-B-16:random"]):
        setting = Setting.of(model, options)
        steps: dict[str, Callable[[], object]] = {"AdamW": setting.adamw(), "Kalman": setting.kalman()}
        if options.device != "cpu":
            steps["captured"] = captured(setting, warm(setting, SMALL))
            half = Setting.of(model, options, "bfloat16")
            steps["captured in bfloat16"] = captured(half, warm(half, SMALL))
        taken = seconds(steps, options)
        reference = taken["AdamW"]
        note = f"{setting.encoder.n:,} parameters; AdamW {1000 * reference.median():.1f} ms"
        bound = ON_CPU.get(model) if options.device == "cpu" else EAGER_ON_GPU
        lines.append(row("step", f"{model}: Kalman / AdamW", taken["Kalman"] / reference, bound=bound, note=note))
        if options.device == "cpu":
            continue
        what = f"{model}: captured Kalman / eager AdamW"
        lines.append(row("step", what, taken["captured"] / reference, bound=CAPTURED))
        what = f"{model}: captured Kalman with bfloat16 towers / eager AdamW in float32"
        lines.append(row("step", what, taken["captured in bfloat16"] / reference))
        what = f"{model}: captured and eager, difference of the parameters"
        lines.append(Row("step", what, difference(model, options), bound=SAME, note=f"after {STEPS} steps"))
    return lines


def captured(setting: Setting, kalman_filter: KalmanFilter) -> Callable[[], object]:
    """The step as a graph. The filter must have taken a first step, which sets the size of its noise."""
    step = CapturedStep(kalman_filter, setting.observe, setting.inputs)
    return lambda: step(*setting.inputs)


def warm(setting: Setting, variance: float = SMALL) -> KalmanFilter:
    """A filter that has taken its first step."""
    kalman_filter = setting.filter(variance)
    kalman_filter.step(lambda mu: setting.observe(mu, *setting.inputs))
    return kalman_filter


def difference(model: str, options: Options) -> float:
    """How far captured and eager steps end apart, relative to how far they went."""
    eager, graph = Setting.of(model, options), Setting.of(model, options)
    start = eager.encoder.theta.clone()
    kalman_filter = warm(eager, VARIANCE)
    replay = captured(graph, warm(graph, VARIANCE))
    for _ in range(STEPS):
        kalman_filter.step(lambda mu: eager.observe(mu, *eager.inputs))
        replay()
    apart = (eager.encoder.theta - graph.encoder.theta).norm()
    return float(apart / (eager.encoder.theta - start).norm())


if __name__ == "__main__":
    main(rows, __doc__)
