"""Images of nothing it knows, and sets of classes: each data set against the others and against its own corruptions.

    python -m benchmarks.unknown ../shared/data --part development                        what choices were made on
    python -m benchmarks.unknown ../shared/data --part test --json results/unknown.json   what is reported

*development*: the familiar images are training images that no draw of this seed uses, the unknown ones the training
images of the other sets. *test*: the test images. Beside the familiarity stand the published reference (MCM, the
largest softmax of zero-shot similarities) and the largest probability of the fitted model. The threshold is set for
5 % false alarms from the shots alone; how many there were is a table of its own. The last table is the coverage of
conformal sets, with four of 16 shots held out to calibrate.
"""

import argparse
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.progress import track
from torch import Tensor

from benchmarks.development import MOST_SHOTS, TEMPLATES, cached_backbone
from benchmarks.table import SETS, Row, add_file, markdown, mean, only, read_rows, shots_head, span, values, write_rows
from kalmanclip.data import FewShotTask, LabelledImages, few_shot_task, read_folder, read_shot_lists
from kalmanclip.data.corruptions import corrupted
from kalmanclip.encoders import Backbone, DualEncoder
from kalmanclip.encoders.features import image_features
from kalmanclip.methods import ClassResiduals, ClassResidualsConfig
from kalmanclip.metrics import detection_auroc, fpr_at_tpr, maximum_softmax
from kalmanclip.prediction import FALSE_ALARMS, OODDetector
from kalmanclip.prediction.conformal import KINDS, Calibration

PARTS = {"pacs": ("photo_train", "photo_test")}
CORRUPTIONS = ("gaussian_noise:5", "fog:5", "defocus_blur:5", "contrast:5", "pixelate:5", "snow:3")
CALIBRATION = 4
COVERAGE = 0.9
SCORES = ("familiarity", "MCM", "softmax")


def table(rows: list[Row] | None = None) -> str:
    """AUROC of familiarity by number of shots, bold where better than MCM, of MCM, and of the fitted softmax."""
    rows = only(read_rows("unknown") if rows is None else rows, kind="detection")
    shots = sorted(values(rows, "shots"))
    lines = []
    for familiar, unknown in _pairs(rows):
        found = only(rows, familiar=familiar, unknown=unknown)
        mcm = mean(found, "AUROC MCM")
        ours = [mean(only(found, shots=k), "AUROC familiarity") for k in shots]
        shown = [f"**{value:.1f}**" if value > mcm else f"{value:.1f}" for value in ours]
        softmax = mean(only(found, shots=shots[-1]), "AUROC softmax")
        lines.append([familiar, unknown.replace(":", " "), *shown, f"{mcm:.1f}", f"{softmax:.1f}"])
    heads = ["familiar", "unknown", *map(shots_head, shots), "MCM", f"softmax, {shots_head(shots[-1])}"]
    return markdown(heads, lines, left=2)


def better(what: str) -> str:
    """On how many data sets, or corruptions, familiarity is better than MCM at every number of shots: '11 of 12'."""
    rows = only(read_rows("unknown"), kind="detection")
    pairs = [pair for pair in _pairs(rows) if (":" in pair[1]) == (what == "corruptions")]

    def wins(familiar: str, unknown: str) -> bool:
        found = only(rows, familiar=familiar, unknown=unknown)
        parts = [only(found, shots=k) for k in values(found, "shots")]
        return all(mean(part, "AUROC familiarity") > mean(part, "AUROC MCM") for part in parts)

    return f"{sum(wins(*pair) for pair in pairs)} of {len(pairs)}"


def means(measured: str, score: str, rows: list[Row] | None = None) -> str:
    """The mean of AUROC or FPR95 over everything unknown, by number of shots: '42, 39 and 38'; once, if all agree."""
    rows = only(read_rows("unknown") if rows is None else rows, kind="detection")
    found = [f"{mean(only(rows, shots=k), f'{measured} {score}'):.0f}" for k in sorted(values(rows, "shots"))]
    return found[0] if len(set(found)) == 1 else f"{', '.join(found[:-1])} and {found[-1]}"


def alarms(rows: list[Row] | None = None) -> str:
    """False alarms / images of other sets that are marked, in %, by number of shots."""
    rows = only(read_rows("unknown") if rows is None else rows, kind="alarms")
    shots = sorted(values(rows, "shots"))

    def text(found: list[Row]) -> str:
        return f"{mean(found, 'false alarms'):.1f} / {mean(found, 'marked'):.1f}"

    lines = [[name, *(text(only(rows, familiar=name, shots=k)) for k in shots)] for name in values(rows, "familiar")]
    first, *others = map(shots_head, shots)
    return markdown(["familiar", f"{first}: alarms / marked", *others], lines)


def alarms_by_fit() -> str:
    """The least and the largest share of false alarms of single fits, in %, and how many fits there are."""
    rows = only(read_rows("unknown"), kind="alarms")
    return f"from {span(row['false alarms'] for row in rows)} % in these {len(rows)} fits"


def conformal(rows: list[Row] | None = None) -> str:
    """Coverage in % and size of conformal sets, by data set and kind."""
    rows = only(read_rows("unknown") if rows is None else rows, kind="conformal")
    lines = []
    for name in values(rows, "data"):
        found = only(rows, data=name)
        shown = [f"{mean(found, f'{kind} covered'):.1f} / {mean(found, f'{kind} size'):.1f}" for kind in KINDS]
        lines.append([name, str(found[0]["classes"]), f"{mean(found, 'accuracy'):.1f}", *shown])
    first, *others = (f"`{kind}`" for kind in KINDS)
    return markdown(["set", "classes", "accuracy", f"{first}: covered / size", *others], lines)


def below_coverage() -> str:
    """Where the mean coverage is below what was asked for."""
    rows = only(read_rows("unknown"), kind="conformal")
    covered = {
        f"{SETS.get(name, name)} with `{kind}`": mean(only(rows, data=name), f"{kind} covered")
        for name in values(rows, "data")
        for kind in KINDS
    }
    below = [f"{name} ({value:.1f} %)" for name, value in covered.items() if value < 100 * COVERAGE]
    return ", ".join(below) or "nowhere"


def _pairs(rows: list[Row]) -> list[tuple[str, str]]:
    """Familiar and unknown, in the order of the data sets; corruptions after data sets."""
    order = {name: number for number, name in enumerate((*SETS, *CORRUPTIONS))}
    pairs = {(row["familiar"], row["unknown"]) for row in rows}
    return sorted(pairs, key=lambda pair: [order.get(name, len(order)) for name in pair])


@dataclass
class DataSet:
    """One data set with the features of everything that is measured on."""

    name: str
    train: LabelledImages
    folder: Path
    inside: LabelledImages  # of it, familiar images are taken
    features: Tensor
    damaged: dict[str, Tensor]

    def task(self, shots: int, seed: int) -> FewShotTask:
        lists = read_shot_lists(self.folder, self.train)
        images = few_shot_task(self.train, None, None, shots, seed, shot_lists=lists).train
        template = TEMPLATES.get(self.name, "a photo of a {}.")
        return FewShotTask(images, templates=(template,), seed=seed)

    def familiar(self, part: str, seed: int) -> list[int]:
        """Positions of images that no task of this seed learns from."""
        used = set(self.task(MOST_SHOTS, seed).train.sources) if part == "development" else set()
        return [i for i, source in enumerate(self.inside.sources) if source not in used]


def read(root: Path, name: str, part: str, backbone: Backbone, damages: Sequence[str]) -> DataSet:
    folder = root / name
    train_part, test_part = PARTS.get(name, ("train", "test"))
    train = read_folder(folder / train_part)
    inside = train if part == "development" else read_folder(folder / test_part, train.class_names)
    spoilt = {}
    for damage in damages:
        kind, _, level = damage.partition(":")
        spoilt[damage] = image_features(DualEncoder(backbone), corrupted(inside, kind, int(level)).sources)
    return DataSet(name, train, folder, inside, image_features(DualEncoder(backbone), inside.sources), spoilt)


def fitted(backbone: Backbone, task: FewShotTask) -> tuple[ClassResiduals, OODDetector]:
    method = ClassResiduals(backbone, ClassResidualsConfig(seed=task.seed))
    method.fit(task)
    f = image_features(DualEncoder(backbone), task.train.sources)
    labels = torch.tensor(task.train.labels, device=f.device)
    return method, OODDetector.of(f, labels, method.residuals.T, [""] * len(labels))


def scores(method: ClassResiduals, known: OODDetector, f: Tensor) -> dict[str, np.ndarray]:
    """By name, larger for familiar images."""
    with torch.no_grad():
        return {
            "familiarity": -known.score(f).cpu().numpy(),
            "MCM": maximum_softmax((f @ known.texts.mT).cpu()),
            "softmax": maximum_softmax(method.residuals.logits(f).cpu()),
        }


def measure(
    sets: list[DataSet], shots: int, seeds: Sequence[int], part: str, backbone: Backbone, rate: float
) -> list[Row]:
    """Rows of detection and of false alarms."""
    found: list[Row] = []
    for own in sets:
        for seed in seeds:
            method, known = fitted(backbone, own.task(shots, seed))
            rows = own.familiar(part, seed)
            run: Row = {"familiar": own.name, "shots": shots, "seed": seed}
            inside = scores(method, known, own.features[rows])
            threshold = known.threshold(rate)
            outside = {other.name: other.features for other in sets if other is not own}
            outside |= {damage: f[rows] for damage, f in own.damaged.items()}
            flagged = []
            for name, f in outside.items():
                theirs = scores(method, known, f)
                row = {f"AUROC {s}": 100 * detection_auroc(inside[s], theirs[s]) for s in SCORES}
                row |= {f"FPR95 {s}": 100 * fpr_at_tpr(inside[s], theirs[s]) for s in SCORES}
                found.append({"kind": "detection", **run, "unknown": name, **row})
                if ":" not in name:
                    flagged.append(float((theirs["familiarity"] < -threshold.value).mean()))
            false = float((inside["familiarity"] < -threshold.value).mean())
            row = {"false alarms": 100 * false, "marked": 100 * float(np.mean(flagged)), "counted": threshold.counted}
            found.append({"kind": "alarms", **run, **row})
    return found


def measure_sets(sets: list[DataSet], seeds: Sequence[int], part: str, backbone: Backbone) -> list[Row]:
    """Rows of conformal sets."""
    found: list[Row] = []
    for own in sets:
        for seed in seeds:
            task = own.task(MOST_SHOTS, seed)
            seen: dict[int, int] = {}
            place = []
            for label in task.train.labels:
                place.append(seen.get(label, 0))
                seen[label] = place[-1] + 1
            held = task.train.subset(i for i, p in enumerate(place) if p >= MOST_SHOTS - CALIBRATION)
            kept = task.train.subset(i for i, p in enumerate(place) if p < MOST_SHOTS - CALIBRATION)
            method, _ = fitted(backbone, dataclasses.replace(task, train=kept))
            rows = own.familiar(part, seed)
            with torch.no_grad():
                before, after = (
                    method.residuals.logits(f).softmax(dim=1).cpu().numpy()
                    for f in (image_features(DualEncoder(backbone), held.sources), own.features[rows])
                )
            labels = np.array(own.inside.labels)[rows]
            row: Row = {"kind": "conformal", "data": own.name, "classes": len(own.train.class_names), "seed": seed}
            row["accuracy"] = 100 * float((after.argmax(axis=1) == labels).mean())
            for kind in KINDS:
                inside = Calibration.of(before, held.labels, kind).sets(after, COVERAGE)
                row[f"{kind} covered"] = 100 * float(inside[np.arange(len(labels)), labels].mean())
                row[f"{kind} size"] = float(inside.sum(axis=1).mean())
            found.append(row)
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path)
    parser.add_argument("--part", choices=["development", "test"], default="test")
    parser.add_argument("--sets", nargs="+", default=["eurosat", "pets", "dtd37", "pacs"])
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shots", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--corruptions", nargs="*", default=CORRUPTIONS)
    parser.add_argument("--rate", type=float, default=FALSE_ALARMS)
    add_file(parser)
    options = parser.parse_args(arguments)
    backbone = cached_backbone(options.model, options.device)
    sets = [
        read(options.root, name, options.part, backbone, options.corruptions)
        for name in track(options.sets, "reading", transient=True)
    ]
    rows: list[Row] = []
    for shots in options.shots if len(sets) > 1 else ():
        rows += measure(sets, shots, options.seeds, options.part, backbone, options.rate)
    rows += measure_sets(sets, options.seeds, options.part, backbone)
    write_rows(options, rows)
    print(f"{options.model}, {options.part} images, seeds {options.seeds}; AUROC in %")
    if len(sets) > 1:
        print(table(rows), alarms(rows), sep="\n\n", end="\n\n")
        for measured in ("AUROC", "FPR95"):
            shown = (f"{score} {means(measured, score, rows)}" for score in SCORES)
            print(f"mean {measured} at {options.shots} shots: {'; '.join(shown)}")
    print(conformal(rows))


if __name__ == "__main__":
    main()
