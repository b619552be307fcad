"""How long a whole fit takes, from files on disk to the classifier, and where the time goes. Seconds, not ratios.

Beside the fit, its parts are measured alone on the same images: decoding (reading, decoding, preprocessing, in as many
threads as the fit uses) and the frozen prefix of the image tower. What bounds a fit is the part that alone takes about
as long as the whole; decoding and prefix overlap.

    python -m benchmarks.fit DATA/pets/train --presets paper --shots 16 [--models tiny]
    python -m benchmarks.fit --images 16000 --classes 1000 --size 224 --epochs 5 --models ViT-B-16:random --device cuda

Without a folder, pictures are made up: smooth colours with grain, about as large as photographs when compressed.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.measure import Options, Row, by_stage, options_from, parser, report, synchronise
from benchmarks.pictures import make_pictures
from kalmanclip.data import FewShotTask, LabelledImages, read_folder, sample_shots
from kalmanclip.encoders import Backbone, load_backbone
from kalmanclip.encoders.features import ENCODE_BATCH, decoded
from kalmanclip.methods import Classifier, KalmanConfig, make_classifier, preset

ALONE = 1024  # images that decoding and prefix are measured on


@dataclass(frozen=True)
class Job:
    """What is fitted.

    Attributes:
        folder: of class folders; None: made-up pictures.
        images: how many are made up.
        classes: of how many classes.
        size: width and height of a made-up picture.
        presets: each is fitted once.
        epochs: passes over the images; None: the preset's own.
        shots: images of each class of ``folder``; None: all.
        bound: seconds that a fit may take.
        precision: of the towers.
    """

    folder: Path | None = None
    images: int = 592
    classes: int = 37
    size: tuple[int, int] = (500, 375)
    presets: tuple[str, ...] = ("paper",)
    epochs: int | None = 2
    shots: int | None = None
    bound: float | None = None
    precision: str = "float32"


PETS = Job()
"""As many made-up pictures as OxfordPets has with 16 shots, and as large."""


def rows(options: Options) -> list[Row]:
    """The fit that is as large as OxfordPets with 16 shots."""
    if options.quick:
        return measured(replace(PETS, images=4, classes=2, size=(80, 60)), options)
    bound = 20.0 if options.device == "cpu" else 10.0
    return measured(replace(PETS, bound=bound), options)


def measured(job: Job, options: Options) -> list[Row]:
    """The lines of one job, model by model and preset by preset."""
    lines = []
    with tempfile.TemporaryDirectory() as made:
        if job.folder is None:
            make_pictures(Path(made), job.images, job.classes, job.size)
        images = read_folder(job.folder or made)
        images = sample_shots(images, job.shots, seed=1)
        for model in options.backbones(["tiny"], ["ViT-B-16:random"]):
            backbone = load_backbone(model, options.device, job.precision)
            for name in job.presets:
                lines += _fit(backbone, images, name, job, options)
    return lines


def _fit(backbone: Backbone, images: LabelledImages, name: str, job: Job, options: Options) -> list[Row]:
    config = preset(name)
    if job.epochs is not None and isinstance(config, KalmanConfig):
        config = replace(config, epochs=job.epochs)
    method = make_classifier(backbone, config)
    begin = time.perf_counter()
    stages, progress = by_stage()
    method.fit(FewShotTask(images), progress)
    synchronise(options.device)
    whole = time.perf_counter() - begin
    stages["the rest"] = whole - sum(stages.values())
    what = f"{backbone.name} in {job.precision}, {name}, {len(images):,} images, {len(images.class_names):,} classes"
    note = f"{config.passes} passes; texts, beginning and end {stages.pop('the rest'):.1f} s"
    lines = [Row("fit", f"{what}: fit", whole, unit="s", bound=job.bound, note=note)]
    lines += [Row("fit", f"  {stage}", taken, unit="s") for stage, taken in stages.items()]
    share = min(1.0, ALONE / len(images))
    decoding, prefix = _alone(backbone, method, images, options.device)
    for part, taken in (("decoding", decoding), ("frozen prefix", prefix)):
        note = f"{len(images) * share / taken:,.0f} images a second"
        lines.append(Row("fit", f"  {part} alone, every image once", taken / share, unit="s", note=note))
    return lines


def _alone(backbone: Backbone, method: Classifier, images: LabelledImages, device: str) -> tuple[float, float]:
    """Seconds that decoding and the frozen prefix take for the first `ALONE` images."""
    sources = images.sources[:ALONE]
    begin = time.perf_counter()
    *_, batch = decoded(backbone, sources)
    synchronise(device)
    decoding = time.perf_counter() - begin
    encode = method.encoder.image.prefix
    batch = batch[:1].expand(min(len(sources), ENCODE_BATCH), -1, -1, -1).contiguous()
    encode(batch)
    synchronise(device)
    begin = time.perf_counter()
    for _ in range(-(-len(sources) // ENCODE_BATCH)):
        encode(batch)
    synchronise(device)
    return decoding, time.perf_counter() - begin


def main(arguments: list[str] | None = None) -> None:
    """The command line: what is fitted can be chosen here."""
    command = parser(__doc__)
    command.add_argument("folder", nargs="?", type=Path, help="a folder of class folders")
    command.add_argument("--images", type=int, default=PETS.images)
    command.add_argument("--classes", type=int, default=PETS.classes)
    command.add_argument("--size", type=int, help="of made-up pictures, width and height")
    command.add_argument("--presets", nargs="+", default=list(PETS.presets))
    command.add_argument("--epochs", type=int, default=PETS.epochs)
    command.add_argument("--shots", type=int)
    command.add_argument("--bound", type=float, help="seconds that a fit may take")
    command.add_argument("--precision", default=PETS.precision, help="of the towers: float32 or bfloat16")
    given: argparse.Namespace = command.parse_args(arguments)
    size = PETS.size if given.size is None else (given.size, given.size)
    job = Job(
        given.folder,
        given.images,
        given.classes,
        size,
        tuple(given.presets),
        given.epochs,
        given.shots,
        given.bound,
        given.precision,
    )
    options = options_from(given)
    report(measured(job, options), options, given)


if __name__ == "__main__":
    main()
