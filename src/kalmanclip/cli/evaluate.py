"""``kalmanclip evaluate``: how good an adapter is on labelled images, also corrupted, and on unknown ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

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
from kalmanclip.errors import ConfigError, DataError

if TYPE_CHECKING:
    import numpy as np

    from kalmanclip.data.resolve import Shift
    from kalmanclip.estimator import KalmanCLIP
    from kalmanclip.prediction import Prediction

EXAMPLES = """
kalmanclip evaluate pets.adapter test/
kalmanclip evaluate pets.adapter test/ --new-only
kalmanclip evaluate pets.adapter test/ -o confusion.png
kalmanclip evaluate pets.adapter test/ --pictures pictures/
kalmanclip evaluate pets.adapter test/ --unknown holiday/,drawings/
kalmanclip evaluate pets.adapter test/ --json > result.json
kalmanclip evaluate pets.adapter test/ drawings=sketches/
kalmanclip evaluate imagenet.adapter imagenet_v2 imagenet_a --root ~/data
kalmanclip evaluate pets.adapter test/ --corruption fog:3,gaussian_noise
"""

_COLUMNS = {
    "accuracy": "accuracy",
    "zero_shot_accuracy": "zero-shot",
    "top5_accuracy": "top-5",
    "nll": "NLL",
    "brier": "Brier",
    "ece": "ECE",
    "failure_auroc": "failure AUROC",
}
_POINTS = 200  # of a risk-coverage curve, at most


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
    new_only: Annotated[
        bool, typer.Option("--new-only", help="Leave out images that the adapter was fitted to.")
    ] = False,
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
    "sets"; the numbers of the curves are in it. One set is also shown class by class: precision (how many of the
    images that were taken for the class are of it), recall (how many of its images were recognised), and F1.
    """
    check_share("false-alarms", false_alarms)
    corruptions = _corruptions(corruption)
    plots = _plot_paths(output, pictures)
    if plots and (len(data) > 1 or corruptions):
        raise ConfigError("Drawings are of one set of images: leave out -o and --pictures, or the others.")
    from kalmanclip.data import read_images
    from kalmanclip.data.resolve import split_name

    named = _by_name(split_specs(unknown), "folders of unknown images")
    folders = {name: read_images(split_name(spec)[1]) for name, spec in named.items()}
    clf = load(adapter, device, precision)
    if folders and clf.ood_threshold() is None:
        raise ConfigError("This adapter cannot tell unknown images: that takes 3 training images. Fit again.")
    tests = list(_tests(clf, _by_name(data, "sets"), root, corruptions, new_only))
    outside = {name: _predict(clf, name, files, false_alarms) for name, files in folders.items()}
    results = [_measure(clf, test, outside, false_alarms) for test in tests]
    if as_json:
        means = _corruption_means(results)
        several = {"sets": results, **({"corruption_means": means} if means else {})}
        typer.echo(json.dumps(results[0] if len(results) == 1 else several, indent=2))
    elif len(results) == 1:
        _print_one(results[0])
    else:
        _print_several(results)
    _plot(plots, results[0])


def _corruptions(given: Sequence[str] | None) -> list[tuple[str, int]]:
    """Return corruptions and severities, as they were asked for."""
    from kalmanclip.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, SEVERITIES, require_package

    found = []
    for value in split_values(given):
        name, colon, severity = value.partition(":")
        if name not in ("all", *CORRUPTIONS, *EXTRA_CORRUPTIONS):
            known = ", ".join((*CORRUPTIONS, *EXTRA_CORRUPTIONS))
            raise ConfigError(f"There is no corruption {name!r}. Give all, or one of: {known}.")
        if colon and severity not in map(str, SEVERITIES):
            raise ConfigError(f"The severity of {value!r} must be a number from 1 (weak) to 5 (strong).")
        names, levels = CORRUPTIONS if name == "all" else (name,), (int(severity),) if colon else SEVERITIES
        found += [(one, level) for one in names for level in levels]
    if found:
        require_package()
    return list(dict.fromkeys(found))


def _by_name(specs: Sequence[str], what: str) -> dict[str, str]:
    """Return the specs of data sets by their names, which must differ."""
    from kalmanclip.data.resolve import data_name

    found: dict[str, str] = {}
    for spec in specs:
        name = data_name(spec)
        if name in found:
            raise ConfigError(f"Two {what} are called {name!r}. Name one of them: OTHER={spec}")
        found[name] = spec
    return found


class _Test(NamedTuple):
    """What to measure on: a set of images, how it was corrupted, and how many of them were learned from."""

    name: str
    corruption: str | None
    shift: Shift
    trained_on: int


def _tests(
    clf: KalmanCLIP,
    specs: dict[str, str],
    root: Path | None,
    corruptions: Sequence[tuple[str, int]],
    new_only: bool,
) -> Iterator[_Test]:
    """Yield what to measure on: every set as it is, then corrupted."""
    from kalmanclip.data.catalog.imagenet import imagenet_class_names
    from kalmanclip.data.corruptions import corrupted
    from kalmanclip.data.resolve import read_shift

    classes = clf.class_names_
    labels = tuple(range(1000)) if classes == list(imagenet_class_names()) else None
    for name, spec in specs.items():
        shift, trained_on = _look_for_known(clf, name, read_shift(spec, root, classes, labels), new_only)
        yield _Test(name, None, shift, trained_on)
        for corruption, level in corruptions:
            spoilt = replace(shift, images=corrupted(shift.images, corruption, level))
            yield _Test(name, f"{corruption}:{level}", spoilt, trained_on)


def _look_for_known(clf: KalmanCLIP, name: str, shift: Shift, new_only: bool) -> tuple[Shift, int]:
    """Return a set, and how many images in it were learned from; leave these out if only new ones are wanted."""
    images = shift.images
    known = clf.were_learned(images)
    found, total = int(known.sum()), len(images)
    if not found:
        return shift, 0
    if not new_only:
        note(
            f"{name}: {found} of {total} pictures were trained on: the accuracy below is too good. "
            "Leave them out with --new-only."
        )
        return shift, found
    if found == total:
        raise DataError(f"All {total} pictures of {name} were trained on: none is left to measure on. Give others.")
    note(f"{name}: {found} of {total} pictures were trained on, and are left out.")
    return replace(shift, images=images.subset(i for i in range(total) if not known[i])), 0


def _predict(clf: KalmanCLIP, name: str, sources: Sequence[Any], false_alarms: float) -> Prediction:
    """Return all that is measured of images, from one pass over them."""
    with bars(f"{name}: ") as progress, naming_bad_images(sources):
        return clf.predict_full(sources, how="mean", false_alarms=false_alarms, zero_shot=True, progress=progress)


def _measure(clf: KalmanCLIP, test: _Test, outside: dict[str, Prediction], false_alarms: float) -> dict[str, Any]:
    """Return the result of one set, as it is printed for JSON."""
    import numpy as np

    from kalmanclip import metrics

    name, corruption, images, columns = test.name, test.corruption, test.shift.images, list(test.shift.columns)
    prediction = _predict(clf, f"{name} {corruption or ''}".strip(), images.sources, false_alarms)
    assert prediction.zero_shot is not None
    tuned, untuned = (scores[:, columns] for scores in (prediction.mean, prediction.zero_shot))
    predicted = tuned.argmax(dim=1).numpy()
    matrix = metrics.confusion_matrix(images.labels, predicted, len(columns))
    probabilities, labels = tuned.double().softmax(dim=1).numpy(), np.asarray(images.labels)
    curve = metrics.risk_coverage(probabilities.max(axis=1), predicted == labels)
    points = np.unique(np.linspace(0, len(labels) - 1, min(_POINTS, len(labels))).round().astype(int))
    classes = [{"class": c, **asdict(r)} for c, r in zip(images.class_names, metrics.per_class(matrix), strict=True)]
    for row in classes:
        row["confused_with"] = images.class_names[row["confused_with"]] if row["times"] else None
    return {
        "name": name,
        "corruption": corruption,
        "images": len(images),
        "trained_on": test.trained_on,
        **metrics.summarise(probabilities, labels),
        "zero_shot_accuracy": metrics.accuracy(images.labels, untuned.argmax(dim=1).numpy()),
        "ece_bins": metrics.BINS,
        "aurc": float(curve.risk.mean()),
        **(_detection(clf, prediction, outside, false_alarms) if outside else {}),
        "classes": classes,
        "confusion_matrix": matrix.tolist(),
        "reliability": [asdict(row) for row in metrics.reliability_table(probabilities, labels)],
        "risk_coverage": {"coverage": curve.coverage[points].tolist(), "risk": curve.risk[points].tolist()},
    }


def _detection(clf: KalmanCLIP, known: Prediction, outside: dict[str, Prediction], rate: float) -> dict[str, Any]:
    """Return how well unknown images are detected beside those of one set, and by MCM of the untuned model."""
    from kalmanclip.metrics import detection_auroc, fpr_at_tpr, maximum_softmax

    def scores(prediction: Prediction) -> tuple[np.ndarray, np.ndarray, float]:
        """Return two scores, larger for known images, and the share of flagged ones."""
        ood, flags, zero_shot = prediction.ood_score, prediction.is_ood, prediction.zero_shot
        assert ood is not None
        assert flags is not None
        assert zero_shot is not None
        mcm = maximum_softmax(zero_shot, temperature=clf.backbone_.logit_scale)
        return -ood.numpy(), mcm, float(flags.double().mean())

    own, own_mcm, found = scores(known)
    rows = []
    for name, prediction in outside.items():
        other, mcm, flagged = scores(prediction)
        row: dict[str, Any] = {"name": name, "images": len(mcm)}
        row |= {"auroc": detection_auroc(own, other), "fpr95": fpr_at_tpr(own, other)}
        row |= {"mcm_auroc": detection_auroc(own_mcm, mcm), "mcm_fpr95": fpr_at_tpr(own_mcm, mcm), "flagged": flagged}
        rows.append(row)
    threshold = clf.ood_calibration(rate)
    interval = None if threshold is None or threshold.interval is None else list(threshold.interval)
    return {"unknown": rows, "false_alarms": {"asked_for": rate, "interval": interval, "found": found}}


def _corruption_means(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return for every set its mean over corruptions, where there are several."""
    means = []
    for name in dict.fromkeys(result["name"] for result in results):
        corrupted = [result for result in results if result["name"] == name and result["corruption"]]
        if len(corrupted) > 1:
            columns = {measure: [result[measure] for result in corrupted] for measure in _COLUMNS}
            numbers = {m: None if None in values else sum(values) / len(values) for m, values in columns.items()}
            means.append({"name": name, "corruptions": len(corrupted), **numbers})
    return means


def _cells(result: dict[str, Any]) -> list[str]:
    return [f"{result[m]:.3f}" if m in ("nll", "brier") else percent(result[m]) for m in _COLUMNS]


def _print_one(result: dict[str, Any]) -> None:
    accuracy, untuned, top5, nll, brier, ece, failure = _cells(result)
    rows = [
        ("accuracy", f"{accuracy} of {result['images']} images"),
        ("zero-shot", f"{untuned} (the same backbone and prompts, untuned)"),
        *([] if result["top5_accuracy"] is None else [("top-5 accuracy", top5)]),
        ("NLL", nll),
        ("Brier score", brier),
        ("ECE", f"{ece} ({result['ece_bins']} bins)"),
        ("failure AUROC", failure),
    ]
    if "unknown" in result:
        found, asked = (percent(result["false_alarms"][name]) for name in ("found", "asked_for"))
        interval = result["false_alarms"]["interval"]
        expected = f", {' to '.join(map(percent, interval))} expected" if interval else ""
        rows.append(("false alarms", f"{found} called unknown ({asked} asked for{expected})"))
    facts(rows)
    _print_unknown([result])
    _print_classes(result["classes"])


def _print_classes(classes: Sequence[dict[str, Any]]) -> None:
    numbers = ("images", "precision", "recall", "F1")
    table = listing("class", *numbers, "mostly taken for", right=numbers)
    for row in classes:
        confusion = f"{row['confused_with']} ({row['times']})" if row["times"] else ""
        shares = (percent(row[name]) for name in ("precision", "recall", "f1"))
        table.add_row(row["class"], str(row["images"]), *shares, confusion)
    say(table)


def _print_several(results: list[dict[str, Any]]) -> None:
    numbers = ["images", *(_COLUMNS | {"ece": f"ECE ({results[0]['ece_bins']} bins)"}).values()]
    table = listing("set", "corruption", *numbers, right=numbers)
    for result in results:
        table.add_row(result["name"], result["corruption"] or "none", str(result["images"]), *_cells(result))
    for mean in _corruption_means(results):
        table.add_row(mean["name"], f"mean of {mean['corruptions']}", "", *_cells(mean), style="bold")
    say(table)
    _print_unknown(results)


def _print_unknown(results: Sequence[dict[str, Any]]) -> None:
    """Print how well unknown images were detected beside those of each set, if that was measured."""
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


def _plot(paths: dict[str, Path], result: dict[str, Any]) -> None:
    """Draw what is asked for of one set's result."""
    if not paths:
        return
    import numpy as np

    from kalmanclip.metrics import ReliabilityBin, RiskCoverage
    from kalmanclip.plots import draw_confusion, draw_reliability, draw_risk_coverage

    if path := paths.get("confusion"):
        draw_confusion(path, np.asarray(result["confusion_matrix"]), [row["class"] for row in result["classes"]])
        note(f"Confusion matrix: {path}")
    if path := paths.get("reliability"):
        draw_reliability(path, [ReliabilityBin(**row) for row in result["reliability"]], result["ece"])
        note(f"Reliability diagram: {path}")
    if path := paths.get("risk_coverage"):
        curve = RiskCoverage(*(np.array(result["risk_coverage"][name]) for name in ("coverage", "risk")))
        draw_risk_coverage(path, curve, result["aurc"])
        note(f"Risk and coverage: {path}")
