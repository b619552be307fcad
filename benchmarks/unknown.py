"""Images of nothing it knows: classes that were left out, other data sets, and corruptions.

    python -m benchmarks.unknown ../shared/data --part development                        what choices were made on
    python -m benchmarks.unknown ../shared/data --part test --json results/unknown.json   what is reported

*development*: the familiar images are training images that no draw of this seed uses, the unknown ones other training
images. *test*: the test images. *Far*: images of the other data sets. *Near*: a third of the classes of the same set,
drawn by the seed and left out of the fit. Corruptions are those of the familiar images.

Beside our score stand its two parts, and what others use: MCM (the largest softmax of zero-shot similarities); of the
fitted model the largest probability, the largest logit, the energy and the epistemic part; of the features the
Mahalanobis distance to the nearest class, and ViM. The threshold is set for 5 % false alarms from the shots alone; how
many there were is a table of its own. Of 16 shots, four are also held out to make the threshold.

An interrupted run goes on where it was: what it has measured lies beside the file, as NAME.partial.
"""

import argparse
import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.progress import track
from torch import Tensor

from benchmarks.development import MOST_SHOTS, TEMPLATES, cached_backbone
from benchmarks.table import SETS, Row, add_file, markdown, mean, only, read_rows, resumed, shots_head, span, values
from kalmanclip.data import FewShotTask, LabelledImages, few_shot_task, read_folder, read_shot_lists
from kalmanclip.data.corruptions import corrupted
from kalmanclip.encoders import Backbone, DualEncoder
from kalmanclip.encoders.features import image_features
from kalmanclip.methods import ClassResiduals, ClassResidualsConfig
from kalmanclip.metrics import detection_auroc, fpr_at_tpr, maximum_softmax
from kalmanclip.prediction import FALSE_ALARMS, LogitGaussian, OODDetector, Threshold, expected_softmax
from kalmanclip.prediction.mahalanobis import SPHERE

PARTS = {"pacs": ("photo_train", "photo_test")}
CORRUPTIONS = ("gaussian_noise:5", "fog:5", "defocus_blur:5", "contrast:5", "pixelate:5", "snow:3")
CALIBRATION = 4
SCORES = {
    "ours": "**ours**",
    "familiarity": "familiarity",
    "relative": "relative Mahalanobis",
    "MCM": "MCM",
    "softmax": "largest probability",
    "logit": "largest logit",
    "energy": "energy",
    "epistemic": "epistemic part",
    "Mahalanobis": "Mahalanobis",
    "ViM": "ViM",
}
"""By name, what the tables call them; all are larger for familiar images."""
KIND = {"near": "other classes of the set", "far": "other sets", "corrupted": "corruptions"}


def kind_of(unknown: str) -> str:
    """Whether it is near, far or corrupted."""
    return unknown if unknown == "near" else "corrupted" if ":" in unknown else "far"


def overview(name: str = "unknown", rows: list[Row] | None = None) -> str:
    """AUROC / FPR95 of every score by kind of unknown images: means over sets, draws and numbers of shots above one."""
    found = _detection(name, rows)
    several = [row for row in found if row["shots"] > 1]
    kinds = {kind: [row for row in several if kind_of(row["unknown"]) == kind] for kind in KIND}
    kinds = {kind: part for kind, part in kinds.items() if part}
    best = {
        (kind, measured): best_of(f"{_balanced(part, f'{measured} {score}'):.1f}" for score in SCORES)
        for kind, part in kinds.items()
        for measured, best_of in (("AUROC", _largest), ("FPR95", _smallest))
    }

    def text(kind: str, measured: str, score: str) -> str:
        shown = f"{_balanced(kinds[kind], f'{measured} {score}'):.1f}"
        return f"**{shown}**" if shown == best[kind, measured] else shown

    lines = [
        [title, *(f"{text(kind, 'AUROC', score)} / {text(kind, 'FPR95', score)}" for kind in kinds)]
        for score, title in SCORES.items()
    ]
    return markdown(["AUROC / FPR95 in %", *(KIND[kind] for kind in kinds)], lines)


def table(name: str = "unknown", rows: list[Row] | None = None) -> str:
    """AUROC of our score by number of shots, bold where nothing else is better, and the best other with its name."""
    rows = _detection(name, rows)
    shots = sorted(values(rows, "shots"))
    lines = []
    for familiar, unknown in _pairs(rows):
        found = only(rows, familiar=familiar, unknown=unknown)
        shown = []
        for k in shots:
            part = only(found, shots=k)
            ours = f"{mean(part, 'AUROC ours'):.1f}"
            best = max(mean(part, f"AUROC {score}") for score in SCORES)
            shown.append(f"**{ours}**" if ours == f"{best:.1f}" else ours)
        last = only(found, shots=shots[-1])
        other = max((score for score in SCORES if score != "ours"), key=lambda score: mean(last, f"AUROC {score}"))
        columns = [f"{mean(last, f'AUROC {score}'):.1f}" for score in ("familiarity", "softmax", other)]
        lines.append([familiar, unknown.replace(":", " "), *shown, *columns, SCORES[other]])
    last_head = shots_head(shots[-1])
    heads = [
        "familiar",
        "unknown",
        *map(shots_head, shots),
        f"familiarity, {last_head}",
        "largest probability",
        "best other",
    ]
    return markdown([*heads, "which"], lines, left=2)


def shortfall(kind: str, name: str = "unknown", rows: list[Row] | None = None) -> str:
    """By how much our mean AUROC is below the best single score's, in points, by number of shots; or above."""
    found = [row for row in _detection(name, rows) if kind_of(row["unknown"]) == kind]
    said = []
    for k in sorted(values(found, "shots")):
        part = only(found, shots=k)
        best = max((s for s in SCORES if s != "ours"), key=lambda s: _balanced(part, f"AUROC {s}"))
        gap = _balanced(part, "AUROC ours") - _balanced(part, f"AUROC {best}")
        said.append(f"{shots_head(k)}: {gap:+.1f} ({SCORES[best]})".replace("-", "−"))
    return "; ".join(said)


def _detection(name: str, rows: list[Row] | None) -> list[Row]:
    return only(read_rows(name) if rows is None else rows, kind="detection")


def _balanced(rows: list[Row], name: str) -> float:
    """The mean over data sets of the means over all else: a set with more corruptions counts no more."""
    return float(np.mean([mean(only(rows, familiar=own), name) for own in values(rows, "familiar")]))


def _largest(shown: Iterable[str]) -> str:
    return max(shown, key=float)


def _smallest(shown: Iterable[str]) -> str:
    return min(shown, key=float)


def alarms(name: str = "unknown", rows: list[Row] | None = None) -> str:
    """False alarms / images of other sets that are marked, in %, by number of shots."""
    rows = only(read_rows(name) if rows is None else rows, kind="alarms")
    shots = sorted(values(rows, "shots"))

    def text(found: list[Row]) -> str:
        return f"{mean(found, 'false alarms'):.1f} / {mean(found, 'marked'):.1f}"

    sets = values(rows, "familiar")
    lines = [[familiar, *(text(only(rows, familiar=familiar, shots=k)) for k in shots)] for familiar in sets]
    first, *others = map(shots_head, shots)
    return markdown(["familiar", f"{first}: alarms / marked", *others], lines)


def alarms_by_fit(name: str = "unknown") -> str:
    """The least and the largest share of false alarms of single fits, in %, and how many fits there are."""
    rows = only(read_rows(name), kind="alarms")
    return f"from {span(row['false alarms'] for row in rows)} % in these {len(rows)} fits"


def intervals(held_out: str, name: str = "unknown") -> str:
    """In how many fits the share of false alarms is inside the interval: '20 of 24'; of images ``held_out`` or not."""
    rows = only(read_rows(name), kind="held out" if held_out == "held_out" else "alarms", counted=True)
    return f"{sum(row['in interval'] for row in rows)} of {len(rows)}"


def held_out_alarms(name: str = "unknown") -> str:
    """The mean share of false alarms where held-out images make the threshold, and the least and the largest, in %."""
    rows = only(read_rows(name), kind="held out", counted=True)
    return f"{mean(rows, 'false alarms'):.1f} % (single fits: {span(row['false alarms'] for row in rows)} %)"


def _pairs(rows: list[Row]) -> list[tuple[str, str]]:
    """Familiar and unknown, in the order of the data sets; corruptions after data sets."""
    order = {name: number for number, name in enumerate(("near", *SETS, *CORRUPTIONS))}
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

    def task(self, shots: int, seed: int, classes: Sequence[int] | None = None) -> FewShotTask:
        """The shots of all classes, or of those with these numbers."""
        lists = read_shot_lists(self.folder, self.train)
        images = few_shot_task(self.train, None, None, shots, seed, shot_lists=lists).train
        if classes is not None:
            number = {label: i for i, label in enumerate(classes)}
            some = images.subset(i for i, label in enumerate(images.labels) if label in number)
            names = [images.class_names[label] for label in classes]
            images = LabelledImages(some.sources, [number[label] for label in some.labels], names)
        template = TEMPLATES.get(self.name, "a photo of a {}.")
        return FewShotTask(images, templates=(template,), seed=seed)

    def kept_classes(self, seed: int) -> list[int]:
        """Two thirds of the classes; images of the others are unknown."""
        classes = len(self.train.class_names)
        order = np.random.default_rng(seed).permutation(classes)
        return sorted(order[classes // 3 :].tolist())

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


class Rivals:
    """What others use beside the score of a fitted model: Gaussians of the features, and ViM.

    The covariance within classes is drawn towards a sphere as ours is, and is one where every class has one image.
    """

    def __init__(self, method: ClassResiduals, known: OODDetector) -> None:
        self.method, self.known = method, known
        f, labels = known.features.double(), known.labels
        C, d = len(known.texts), f.shape[1]
        self.means = torch.stack([f[labels == c].mean(dim=0) for c in range(C)])
        self.middle = self.means.mean(dim=0)
        around = f - self.means[labels]
        S = around.mT @ around / max(len(f) - C, 1)
        size = float(S.trace()) / d or 1.0
        S = (1 - SPHERE) * S + SPHERE * size * torch.eye(d, dtype=f.dtype, device=f.device)
        self.root = torch.linalg.inv(torch.linalg.cholesky(S)).mT
        # ViM: what lies outside the principal directions, scaled to the logits of the training images
        centred = f - self.middle
        directions = torch.linalg.eigh(centred.mT @ centred)[1]
        self.outside = directions[:, : d - min(len(f) // 2, d // 2)]
        largest = method.residuals.logits(known.features).amax(dim=1).double()
        self.alpha = float(largest.mean() / (centred @ self.outside).norm(dim=1).mean())

    @torch.no_grad()
    def scores(self, f: Tensor) -> dict[str, np.ndarray]:
        """By name, larger for familiar images."""
        residuals = self.method.residuals
        logits = residuals.logits(f)
        gaussian = LogitGaussian(logits, residuals.covariance_scale * residuals.variance(f))
        z = (f.double() - self.middle) @ self.root
        nearest = torch.cdist(z, (self.means - self.middle) @ self.root).square().amin(dim=1)
        energy = logits.double().logsumexp(dim=1)
        found = {
            "ours": -self.known.score(f),
            "familiarity": -self.known.unfamiliarity(f),
            "relative": z.square().sum(dim=1) - nearest,
            "MCM": torch.from_numpy(maximum_softmax((f @ self.known.texts.mT).cpu())),
            "softmax": logits.double().log_softmax(dim=1).amax(dim=1),  # its logarithm: no ties at one
            "logit": logits.amax(dim=1),
            "energy": energy,
            "epistemic": -expected_softmax(gaussian).decompose().epistemic,
            "Mahalanobis": -nearest,
            "ViM": energy - self.alpha * ((f.double() - self.middle) @ self.outside).norm(dim=1),
        }
        return {name: score.cpu().numpy() for name, score in found.items()}


def compared(inside: dict[str, np.ndarray], outside: dict[str, np.ndarray]) -> Row:
    """AUROC and FPR95 of every score, in %."""
    row: Row = {f"AUROC {s}": 100 * detection_auroc(inside[s], outside[s]) for s in SCORES}
    return row | {f"FPR95 {s}": 100 * fpr_at_tpr(inside[s], outside[s]) for s in SCORES}


def false_alarms(threshold: Threshold, inside: np.ndarray) -> Row:
    """The share of familiar images with these scores that are marked, and whether that is in the interval."""
    share = float((inside < -threshold.value).mean())
    low, high = threshold.interval or (0.0, 1.0)
    return {"false alarms": 100 * share, "counted": threshold.counted, "in interval": low <= share <= high}


def measure(
    sets: list[DataSet], own: DataSet, shots: int, seed: int, part: str, backbone: Backbone, rate: float
) -> list[Row]:
    """Rows of detection and of false alarms of one fit."""
    found: list[Row] = []
    run: Row = {"familiar": own.name, "shots": shots, "seed": seed}
    rows = own.familiar(part, seed)
    rivals = Rivals(*fitted(backbone, own.task(shots, seed)))
    inside = rivals.scores(own.features[rows])
    outside = {other.name: other.features for other in sets if other is not own}
    outside |= {damage: f[rows] for damage, f in own.damaged.items()}
    threshold = rivals.known.threshold(rate)
    flagged = []
    for name, f in outside.items():
        theirs = rivals.scores(f)
        found.append({"kind": "detection", **run, "unknown": name, **compared(inside, theirs)})
        if ":" not in name:
            flagged.append(float((theirs["ours"] < -threshold.value).mean()))
    row = false_alarms(threshold, inside["ours"]) | {"marked": 100 * float(np.mean(flagged))}
    found.append({"kind": "alarms", **run, **row})
    found.append({"kind": "detection", **run, "unknown": "near", **near(own, shots, seed, rows, part, backbone)})
    return found


def near(own: DataSet, shots: int, seed: int, rows: list[int], part: str, backbone: Backbone) -> Row:
    """Two thirds of the classes learned, the others shown."""
    kept = own.kept_classes(seed)
    rivals = Rivals(*fitted(backbone, own.task(shots, seed, kept)))
    labels = np.array(own.inside.labels)
    inside = [i for i in rows if labels[i] in kept]
    outside = np.where(~np.isin(labels, kept))[0]
    return compared(rivals.scores(own.features[inside]), rivals.scores(own.features[outside]))


def measure_held_out(own: DataSet, seed: int, part: str, backbone: Backbone, rate: float) -> Row:
    """The row of false alarms where a part of the most shots is held out to make the threshold."""
    task = own.task(MOST_SHOTS, seed)
    seen: dict[int, int] = {}
    place = []
    for label in task.train.labels:
        place.append(seen.get(label, 0))
        seen[label] = place[-1] + 1
    held = task.train.subset(i for i, p in enumerate(place) if p >= MOST_SHOTS - CALIBRATION)
    kept = task.train.subset(i for i, p in enumerate(place) if p < MOST_SHOTS - CALIBRATION)
    _, known = fitted(backbone, dataclasses.replace(task, train=kept))
    calibration = known.score(image_features(DualEncoder(backbone), held.sources))
    threshold = dataclasses.replace(known, calibration=calibration).threshold(rate)
    inside = -known.score(own.features[own.familiar(part, seed)]).cpu().numpy()
    return {"kind": "held out", "familiar": own.name, "seed": seed, **false_alarms(threshold, inside)}


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
    sets = {
        name: read(options.root, name, options.part, backbone, options.corruptions)
        for name in track(options.sets, "reading", transient=True)
    }

    def measured(name: str, shots: int, seed: int) -> list[Row]:
        own = sets[name]
        rows = measure(list(sets.values()), own, shots, seed, options.part, backbone, options.rate)
        if shots == MOST_SHOTS:
            rows.append(measure_held_out(own, seed, options.part, backbone, options.rate))
        return rows

    with torch.no_grad():
        cells = [(name, shots, seed) for shots in options.shots for name in sets for seed in options.seeds]
        rows = resumed(options, track(cells, "fits", transient=True), measured)
    print(f"{options.model}, {options.part} images, seeds {options.seeds}; AUROC in %")
    print(overview(rows=rows), table(rows=rows), alarms(rows=rows), sep="\n\n", end="\n\n")
    for kind in KIND:
        print(f"{KIND[kind]}: ours less the best single score: {shortfall(kind, rows=rows)}")


if __name__ == "__main__":
    main()
