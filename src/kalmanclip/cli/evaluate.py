"""``kalmanclip evaluate``: how good an adapter is on labelled images, also corrupted, and on unknown ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kalmanclip.cli.arguments import (
    Adapter,
    Device,
    Json,
    Precision,
    check_share,
    load,
    naming_bad_images,
    split_specs,
    split_values,
)
from kalmanclip.cli.console import bars, facts, listing, note, percent, say
from kalmanclip.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

    from kalmanclip.data.resolve import Shift
    from kalmanclip.estimator import KalmanCLIP
    from kalmanclip.metrics import ClassResult
    from kalmanclip.prediction import Prediction

EXAMPLES = """
kalmanclip evaluate pets.adapter test/
kalmanclip evaluate pets.adapter test/ -o confusion.png
kalmanclip evaluate pets.adapter test/ --pictures pictures/
kalmanclip evaluate pets.adapter test/ --unknown holiday/,drawings/
kalmanclip evaluate pets.adapter test/ --json > result.json
kalmanclip evaluate pets.adapter test/ drawings=sketches/
kalmanclip evaluate imagenet.adapter imagenet_v2 imagenet_a --root ~/data
kalmanclip evaluate pets.adapter test/ --corruption fog:3,gaussian_noise
"""

AVERAGED = ("accuracy", "zero_shot_accuracy", "top5_accuracy", "nll", "ece", "brier", "failure_auroc")


@dataclass(frozen=True)
class Test:
    """One thing to measure on.

    Attributes:
        name: of the images.
        shift: the images, and the classes that they are measured among.
        corruption: such as "fog:3"; None for the images as they are.
    """

    name: str
    shift: Shift
    corruption: str | None = None


def evaluate(
    adapter: Adapter,
    data: Annotated[
        list[str],
        typer.Argument(
            metavar="DATA...",
            help="Images that the adapter was not fitted to: a folder with one folder per class (or with test/), a "
            "list (.csv, .json, .jsonl), a data set's name (kalmanclip data list), hf:...; any may be named: NAME=...",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Draw the confusion matrix into this file (.png, .pdf, .svg)."),
    ] = None,
    corruption: Annotated[
        list[str] | None,
        typer.Option(
            help="Measure on corrupted images, too: NAME:SEVERITY, such as fog:3; NAME for all five severities; all "
            "for the 15 corruptions of ImageNet-C, all:SEVERITY. Several with commas."
        ),
    ] = None,
    pictures: Annotated[
        Path | None,
        typer.Option(
            help="A folder for three drawings: confusion.png, reliability.png (does 80 % mean right in 80 %?) and "
            "risk_coverage.png (mistakes if only the surest are answered)."
        ),
    ] = None,
    unknown: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FOLDER",
            help="Images that show none of the classes: how well are they told from the others? Several with commas.",
        ),
    ] = None,
    false_alarms: Annotated[
        float, typer.Option(help="With --unknown: the share of known images that may be called unknown by mistake.")
    ] = 0.05,
    root: Annotated[Path | None, typer.Option(help="Where the named data sets lie. Default: $KALMANCLIP_DATA.")] = None,
    as_json: Json = False,
    device: Device = None,
    precision: Precision = None,
) -> None:
    """Measure accuracy and calibration on labelled images, one or several sets of them.

    Prints, for each set: top-1 accuracy, that of the untuned model (zero-shot), top-5 accuracy, negative
    log-likelihood, Brier score, expected calibration error, and how well the probability of an answer tells right
    from wrong ones (failure AUROC; 50 % is chance). With --unknown also how well unknown images are told from those
    of the set (AUROC; FPR95, the share that passes where 95 % of the known do), beside the same by the largest softmax
    of the untuned model (MCM), and how many are flagged. With --json one set is one object, several are a list under
    "sets"; the numbers of the curves are in it.
    """
    check_share("false-alarms", false_alarms)
    damages = _damages(corruption)
    plots = _plot_paths(output, pictures)
    if plots and (len(data) > 1 or damages):
        raise ConfigError("Drawings are of one set of images: leave out -o and --pictures, or the others.")
    folders = _unknown_folders(split_specs(unknown))
    clf = load(adapter, device, precision)
    if folders and clf.ood_threshold() is None:
        raise ConfigError("This adapter cannot tell unknown images: that takes the default preset and 3 images.")
    tests = _tests(data, root, clf.class_names_, damages)
    outside = {name: _scores(clf, _pass(clf, name, files, false_alarms)) for name, files in folders.items()}
    results = [_measure(clf, test, outside, false_alarms) for test in tests]
    if as_json:
        typer.echo(json.dumps(_as_json(results), indent=2))
    elif len(results) == 1:
        _print_one(results[0])
    else:
        _print_several(results)
    _plot(plots, results[0], tests[0].shift.images.class_names)


def _damages(given: Sequence[str] | None) -> list[tuple[str, int]]:
    """Return corruptions and severities, as they were asked for."""
    from kalmanclip.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, SEVERITIES, require_package

    found = []
    for word in split_values(given):
        name, colon, severity = word.partition(":")
        if name not in ("all", *CORRUPTIONS, *EXTRA_CORRUPTIONS):
            known = ", ".join((*CORRUPTIONS, *EXTRA_CORRUPTIONS))
            raise ConfigError(f"There is no corruption {name!r}. Give all, or one of: {known}.")
        if colon and severity not in map(str, SEVERITIES):
            raise ConfigError(f"The severity of {word!r} must be a number from 1 (weak) to 5 (strong).")
        names, levels = CORRUPTIONS if name == "all" else (name,), (int(severity),) if colon else SEVERITIES
        found += [(one, level) for one in names for level in levels]
    if found:
        require_package()
    return list(dict.fromkeys(found))


def _tests(
    data: Sequence[str], root: Path | None, classes: Sequence[str], damages: Sequence[tuple[str, int]]
) -> list[Test]:
    """Return what to measure on: every set as it is, then corrupted."""
    from kalmanclip.data.catalog.imagenet import imagenet_class_names
    from kalmanclip.data.corruptions import corrupted
    from kalmanclip.data.resolve import data_name, read_shift

    labels = tuple(range(1000)) if list(classes) == list(imagenet_class_names()) else None
    tests: list[Test] = []
    for spelling in data:
        name = data_name(spelling)
        if any(test.name == name for test in tests):
            raise ConfigError(f"Two sets are called {name!r}. Name one of them: OTHER={spelling}")
        shift = read_shift(spelling, root, classes, labels)
        tests.append(Test(name, shift))
        for damage, level in damages:
            spoilt = replace(shift, images=corrupted(shift.images, damage, level))
            tests.append(Test(name, spoilt, f"{damage}:{level}"))
    return tests


def _unknown_folders(folders: Sequence[str]) -> dict[str, list[Path]]:
    """Return the files of unknown images, by the name of their folder."""
    from kalmanclip.data import read_images
    from kalmanclip.data.resolve import data_name, split_name

    found: dict[str, list[Path]] = {}
    for spelling in folders:
        name = data_name(spelling)
        if name in found:
            raise ConfigError(f"Two folders of unknown images are called {name!r}. Name one of them: OTHER={spelling}")
        found[name] = read_images(split_name(spelling)[1])
    return found


_POINTS = 200  # of a risk-coverage curve, at most


def _pass(clf: KalmanCLIP, name: str, sources: Sequence[Any], false_alarms: float) -> Prediction:
    """Return all that is measured of images, from one pass over them."""
    with bars(f"{name}: ") as progress, naming_bad_images(sources):
        return clf.predict_full(sources, how="mean", false_alarms=false_alarms, zero_shot=True, progress=progress)


def _measure(clf: KalmanCLIP, test: Test, outside: dict[str, Scores], false_alarms: float) -> dict[str, Any]:
    import numpy as np

    from kalmanclip.metrics import (
        BINS,
        accuracy,
        confusion_matrix,
        per_class,
        reliability_table,
        risk_coverage,
        summarise,
    )

    images, columns = test.shift.images, list(test.shift.columns)
    prediction = _pass(clf, f"{test.name} {test.corruption or ''}".strip(), images.sources, false_alarms)
    assert prediction.zero_shot is not None
    tuned, untuned = (scores[:, columns] for scores in (prediction.mean, prediction.zero_shot))
    predicted = tuned.argmax(dim=1).numpy()
    matrix = confusion_matrix(images.labels, predicted, len(columns))
    probabilities, labels = tuned.double().softmax(dim=1).numpy(), np.asarray(images.labels)
    curve = risk_coverage(probabilities.max(axis=1), predicted == labels)
    points = np.unique(np.linspace(0, len(labels) - 1, min(_POINTS, len(labels))).round().astype(int))
    return {
        "name": test.name,
        "corruption": test.corruption,
        "images": len(images),
        **summarise(probabilities, labels),
        "zero_shot_accuracy": accuracy(images.labels, untuned.argmax(dim=1).numpy()),
        "ece_bins": BINS,
        "aurc": float(curve.risk.mean()),
        **(_detection(_scores(clf, prediction), outside, false_alarms) if outside else {}),
        "classes": _class_rows(images.class_names, per_class(matrix)),
        "confusion_matrix": matrix.tolist(),
        "reliability": [asdict(row) for row in reliability_table(probabilities, labels)],
        "risk_coverage": {"coverage": curve.coverage[points].tolist(), "risk": curve.risk[points].tolist()},
    }


@dataclass(frozen=True)
class Scores:
    """What tells unknown images from known ones; the larger a score, the more an image is like the known ones.

    Attributes:
        familiarity: (N,), minus the out-of-distribution score.
        mcm: (N,), the largest softmax of the untuned model: the reference.
        flagged: the share of images above the threshold.
    """

    familiarity: np.ndarray
    mcm: np.ndarray
    flagged: float


def _scores(clf: KalmanCLIP, prediction: Prediction) -> Scores:
    from kalmanclip.metrics import maximum_softmax

    assert prediction.ood_score is not None
    assert prediction.is_ood is not None
    assert prediction.zero_shot is not None
    mcm = maximum_softmax(prediction.zero_shot, temperature=clf.backbone_.logit_scale)
    return Scores(-prediction.ood_score.numpy(), mcm, float(prediction.is_ood.double().mean()))


def _detection(own: Scores, outside: dict[str, Scores], rate: float) -> dict[str, Any]:
    """Return how well the images of one set are told from unknown ones, at a rate of false alarms."""
    from kalmanclip.metrics import detection_auroc, fpr_at_tpr

    rows = [
        {
            "name": name,
            "images": len(other.mcm),
            "auroc": detection_auroc(own.familiarity, other.familiarity),
            "fpr95": fpr_at_tpr(own.familiarity, other.familiarity),
            "mcm_auroc": detection_auroc(own.mcm, other.mcm),
            "mcm_fpr95": fpr_at_tpr(own.mcm, other.mcm),
            "flagged": other.flagged,
        }
        for name, other in outside.items()
    ]
    return {"unknown": rows, "false_alarms": {"asked_for": rate, "found": own.flagged}}


def _class_rows(names: list[str], results: list[ClassResult]) -> list[dict[str, Any]]:
    return [
        {
            "class": name,
            "images": r.images,
            "accuracy": r.accuracy,
            "confused_with": None if r.confused_with is None else names[r.confused_with],
            "times": r.times,
        }
        for name, r in zip(names, results, strict=True)
    ]


def _as_json(results: list[dict[str, Any]]) -> dict[str, Any]:
    if len(results) == 1:
        return results[0]
    means = _corruption_means(results)
    return {"sets": results, **({"corruption_means": means} if means else {})}


def _corruption_means(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return for every set its mean over corruptions, where there are several."""
    means = []
    for name in dict.fromkeys(result["name"] for result in results):
        corrupted = [result for result in results if result["name"] == name and result["corruption"]]
        if len(corrupted) < 2:
            continue
        columns = {measure: [result[measure] for result in corrupted] for measure in AVERAGED}
        numbers = {m: None if None in values else sum(values) / len(values) for m, values in columns.items()}
        means.append({"name": name, "corruptions": len(corrupted), **numbers})
    return means


def _print_one(result: dict[str, Any]) -> None:
    untuned, alarms = percent(result["zero_shot_accuracy"]), []
    if "unknown" in result:
        found, asked = (percent(result["false_alarms"][name]) for name in ("found", "asked_for"))
        alarms = [("false alarms", f"{found} called unknown ({asked} asked for)")]
    facts(
        [
            ("accuracy", f"{percent(result['accuracy'])} of {result['images']} images"),
            ("zero-shot", f"{untuned} (the same backbone and prompts, untuned)"),
            *([] if result["top5_accuracy"] is None else [("top-5 accuracy", percent(result["top5_accuracy"]))]),
            ("NLL", f"{result['nll']:.3f}"),
            ("Brier score", f"{result['brier']:.3f}"),
            ("ECE", f"{percent(result['ece'])} ({result['ece_bins']} bins)"),
            ("failure AUROC", percent(result["failure_auroc"])),
            *alarms,
        ]
    )
    _print_unknown([result])
    table = listing("class", "images", "accuracy", "mostly taken for", right=("images", "accuracy"))
    for row in result["classes"]:
        confusion = f"{row['confused_with']} ({row['times']})" if row["times"] else ""
        table.add_row(row["class"], str(row["images"]), percent(row["accuracy"]), confusion)
    say(table)


def _print_several(results: list[dict[str, Any]]) -> None:
    numbers = ["images", "accuracy", "zero-shot", "top-5", "NLL", "Brier", f"ECE ({results[0]['ece_bins']} bins)"]
    numbers.append("failure AUROC")
    table = listing("set", "corruption", *numbers, right=numbers)
    for result in results:
        table.add_row(result["name"], result["corruption"] or "none", str(result["images"]), *_cells(result))
    for mean in _corruption_means(results):
        table.add_row(mean["name"], f"mean of {mean['corruptions']}", "", *_cells(mean), style="bold")
    say(table)
    _print_unknown(results)


def _cells(result: dict[str, Any]) -> list[str]:
    shares = [percent(result[name]) for name in ("accuracy", "zero_shot_accuracy", "top5_accuracy")]
    return [
        *shares,
        f"{result['nll']:.3f}",
        f"{result['brier']:.3f}",
        percent(result["ece"]),
        percent(result["failure_auroc"]),
    ]


def _print_unknown(results: Sequence[dict[str, Any]]) -> None:
    """Print how well unknown images were told from those of each set, if that was measured."""
    if "unknown" not in results[0]:
        return
    numbers = ("images", "AUROC", "FPR95", "flagged", "MCM AUROC", "MCM FPR95")
    table = listing("known", "corruption", "unknown", *numbers, right=numbers)
    for result in results:
        for row in result["unknown"]:
            shares = (row[name] for name in ("auroc", "fpr95", "flagged", "mcm_auroc", "mcm_fpr95"))
            cells = [result["name"], result["corruption"] or "none", row["name"], str(row["images"])]
            table.add_row(*cells, *map(percent, shares))
    say(table)


def _plot_paths(output: Path | None, folder: Path | None) -> dict[str, Path]:
    """Return where which plot goes; refuse, before the work, a place that cannot be written to."""
    found = {}
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise ConfigError(f"Cannot create the folder {folder}: {problem.strerror}. Choose another.") from problem
        found = {kind: folder / f"{kind}.png" for kind in ("confusion", "reliability", "risk_coverage")}
    if output is not None:
        found["confusion"] = output
    if found:
        from kalmanclip.plots import check_plot_path

        for path in found.values():
            check_plot_path(path)
    return found


def _plot(paths: dict[str, Path], result: dict[str, Any], names: list[str]) -> None:
    """Draw what is asked for of one set's result."""
    if not paths:
        return
    import numpy as np

    from kalmanclip.metrics import ReliabilityBin, RiskCoverage
    from kalmanclip.plots import draw_confusion, draw_reliability, draw_risk_coverage

    if path := paths.get("confusion"):
        draw_confusion(path, np.asarray(result["confusion_matrix"]), names)
        note(f"Confusion matrix: {path}")
    if path := paths.get("reliability"):
        draw_reliability(path, [ReliabilityBin(**row) for row in result["reliability"]], result["ece"])
        note(f"Reliability diagram: {path}")
    if path := paths.get("risk_coverage"):
        curve = RiskCoverage(*(np.array(result["risk_coverage"][name]) for name in ("coverage", "risk")))
        draw_risk_coverage(path, curve, result["aurc"])
        note(f"Risk and coverage: {path}")
