"""``kalmanclip fit``: from labelled or captioned images to an adapter, resumable after every pass."""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kalmanclip.cli import resume as resuming
from kalmanclip.cli.common import (
    Device,
    Precision,
    check_device,
    check_precision,
    naming_bad_images,
    refuse_foreign,
    writable_folder,
)
from kalmanclip.cli.guard import INTERRUPTED
from kalmanclip.cli.learned import about
from kalmanclip.cli.options import build_config
from kalmanclip.cli.ranks import first, restarted, several, working_together
from kalmanclip.cli.screen import bars, command_line, facts, note, percent, say, size_of, some, suggest, waiting
from kalmanclip.cli.training import Material, fingerprint, read_material
from kalmanclip.errors import ConfigError

if TYPE_CHECKING:
    from kalmanclip.data import LabelledImages
    from kalmanclip.estimator import KalmanCLIP

EXAMPLES = """
kalmanclip fit photos/ -o pets.adapter
kalmanclip fit photos/ -o pets.adapter --shots 16 --model ViT-B-16:openai
kalmanclip fit photos/ -o pets.adapter --template "a photo of a {}, a type of pet."
kalmanclip fit photos/ -o pets.adapter --calibrate 4
kalmanclip fit photos/ -o pets.adapter --resume
kalmanclip fit photos.csv -o pets.adapter
kalmanclip fit captions.jsonl -o captions.adapter
kalmanclip fit hf:OWNER/NAME -o pets.adapter
torchrun --nproc-per-node 8 -m kalmanclip fit photos/ -o pets.adapter --preset paper
"""

METHOD = "The method (what is left out keeps the preset's value)"
LOW_RANK = "For the presets head, paper and paper-literal"


def fit(
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="A folder with one folder per class, named like the class; or a .csv, .json or .jsonl list with the "
            "columns image and class, or image and caption; or hf:OWNER/NAME, a data set of Hugging Face.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where the adapter goes: a new folder.", show_default=False)
    ],
    model: Annotated[
        str | None,
        typer.Option(help="The CLIP to tune: tiny (embedded, the default), ViT-B-16:openai, RN50:openai, ..."),
    ] = None,
    shots: Annotated[
        int | None, typer.Option(help="Use only so many images of each class, drawn with the seed.", min=1)
    ] = None,
    calibrate: Annotated[
        int | None,
        typer.Option(
            help="Learn from all but so many images of each class, and calibrate sets of classes on those (predict "
            "--sets). More of them: finer promises, less to learn from.",
            min=1,
        ),
    ] = None,
    template: Annotated[
        list[str] | None,
        typer.Option(help='A prompt such as "a photo of a {}."; give several and they are averaged.'),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="default (class residuals), head, paper (both: low-rank, can be merged into the model), "
            "paper-literal.",
            rich_help_panel=METHOD,
        ),
    ] = None,
    prior_std: Annotated[
        float | None,
        typer.Option(
            help="How far similarities may move, a priori; left out, the default preset chooses it on the images.",
            rich_help_panel=METHOD,
        ),
    ] = None,
    views: Annotated[
        int | None,
        typer.Option(
            help="Random crops of each image beside the centre crop (default preset).", rich_help_panel=METHOD
        ),
    ] = None,
    alpha: Annotated[
        float | None, typer.Option(help="How strongly surprising images are damped.", rich_help_panel=METHOD)
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the images.", rich_help_panel=LOW_RANK)] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images per step.", rich_help_panel=LOW_RANK)] = None,
    rank: Annotated[int | None, typer.Option(help="Rank of the tuned corrections.", rich_help_panel=LOW_RANK)] = None,
    placement: Annotated[
        str | None,
        typer.Option(help="Where they sit: head (fast) or towers (inside the transformer).", rich_help_panel=LOW_RANK),
    ] = None,
    observation: Annotated[
        str | None,
        typer.Option(help="What the filter sees of a batch; a wrong name lists them.", rich_help_panel=LOW_RANK),
    ] = None,
    belief: Annotated[
        str | None,
        typer.Option(help="Structure of the covariance; a wrong name lists them.", rich_help_panel=LOW_RANK),
    ] = None,
    beta: Annotated[
        float | None, typer.Option(help="Forgetting factor of the noise estimate.", rich_help_panel=LOW_RANK)
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of everything that is random.", rich_help_panel=METHOD)] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="A JSON file with any of the method's options; flags win.", rich_help_panel=METHOD),
    ] = None,
    device: Device = None,
    precision: Precision = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an interrupted fit; its options are remembered.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an adapter that is already there.")] = False,
) -> None:
    """Learn classes, or captions, from a few images and write an adapter.

    Captions are told apart within each batch (--observation contrastive) unless you choose otherwise. Of a list with
    a column split, the rows of train are used.

    The presets of low-rank parameters save the adapter after every pass over the images, so little is lost when
    something stops the run: --resume goes on from there and ends with the same adapter.

    Several GPUs, or processors, fit together when torchrun starts the command: torchrun --nproc-per-node 8 -m
    kalmanclip fit, and so on as usual.
    """
    started = time.monotonic()
    if resume and force:
        raise ConfigError("--resume goes on with an adapter, --force replaces it. Give one of them.")
    refuse_foreign(output, ours=("adapter.json", "belief*.safetensors"))
    before = None if force else resuming.find(output)  # what is to be replaced may be damaged
    resume = resume or (before is not None and restarted())  # an adapter that was not there at the first start
    if before and not resume:
        resuming.refuse_overwriting(output, before)
    if resume and not before:
        resuming.refuse_beginning(output)

    with waiting("Loading"):
        from kalmanclip.adapter import read_config
        from kalmanclip.estimator import KalmanCLIP
        from kalmanclip.methods import ClassResidualsConfig, KalmanConfig
        from kalmanclip.retrieval import CAPTION_TEMPLATES, learnable, pair_config

    flags = {
        "epochs": epochs,
        "batch_size": batch_size,
        "low_rank.rank": rank,
        "low_rank.placement": placement,
        "observation": observation,
        "belief": belief,
        "crops": views,
        "noise.beta": beta,
        "seed": seed,
    }
    material = read_material(data)  # first: which options are the usual ones depends on it
    captions = material.pairs is not None
    if captions and template:
        raise ConfigError("Captions are prompts themselves: leave --template out, or put its words into them.")
    start = read_config(before) if before else pair_config() if captions else None
    residuals = isinstance(build_config({}, config, start, preset), ClassResidualsConfig)
    flags |= {"alpha" if residuals else "filter.alpha": alpha, "prior_std": prior_std}
    options = build_config(flags, config, start, preset)
    if before:
        noted = {"shots": shots, "calibrate": calibrate, "precision": precision}
        resuming.require_same_options(before, options, model, template, noted)
        shots, calibrate, precision = (before["notes"].get(name) for name in noted)
    elif captions and not isinstance(options, KalmanConfig):
        raise ConfigError("Captions have no classes to learn residuals of: leave --preset out, or give head.")
    if captions and calibrate:
        raise ConfigError("Captions have no classes to make sets of: leave --calibrate out.")
    templates = template or (CAPTION_TEMPLATES if captions else material.templates)
    held = None
    if material.labelled is not None:
        labelled = material.labelled
        if calibrate:
            from kalmanclip.data import hold_out

            labelled, held = hold_out(labelled, calibrate, options.seed)
        images, seen = _choose(material, labelled, shots, options.seed, before)
    if not several():  # each of several has a device of its own
        check_device(device)
    check_precision(precision)

    writing = writable_folder(output) if first() else nullcontext()
    with working_together(device) as (ranks, device), writing:
        with waiting("Loading the model"):
            if before:
                clf = KalmanCLIP.load(output, device=device, precision=precision, ranks=ranks)
            else:
                given: dict[str, Any] = {"model": model, "templates": templates, "device": device}
                given |= {"precision": precision, "ranks": ranks}
                clf = KalmanCLIP(config=options, **{k: v for k, v in given.items() if v is not None})
        done = clf.notes.get("epochs_done", 0)
        if done >= options.passes and (held is None or clf.method.calibration is not None):
            say(f"{output} is finished: all {options.passes} passes are done. There is nothing to resume.")
            return
        if before:
            note(f"Going on after pass {done} of {options.passes}.")
        if material.pairs is not None:  # only the model can say which captions it reads as the same
            labelled = learnable(material.pairs, clf.backbone, options.seed).train
            images, seen = _choose(material, labelled, shots, options.seed, before)
        clf.notes |= {"folder": data, "shots": shots, "images": seen, "captions": captions}
        clf.notes |= {"epochs": options.passes, "epochs_done": done, "calibrate": calibrate}
        clf.notes |= {"precision": clf.backbone.precision}
        try:
            if done < options.passes:
                _learn(clf, images, output)
            if held is not None:
                _calibrate(clf, held, output)
        except KeyboardInterrupt:
            _say_how_to_resume(data, output, clf.notes)
            raise typer.Exit(INTERRUPTED) from None
    if first():
        _summarise(clf, len(images), data, output, time.monotonic() - started)


def _choose(
    material: Material, labelled: LabelledImages, shots: int | None, seed: int, before: dict[str, Any] | None
) -> tuple[LabelledImages, str]:
    """The images that are used and their fingerprint; those of ``before``, if a fit is resumed."""
    from kalmanclip.data import sample_shots

    images = sample_shots(labelled, shots, seed)
    seen = fingerprint(material, images)
    if before:
        resuming.require_same_images(before, images, seen)
    return images, seen


def _learn(clf: KalmanCLIP, images: LabelledImages, output: Path) -> None:
    """Filters the passes that are not done yet; saves after each."""
    done, notes = clf.notes["epochs_done"], clf.notes

    def save(passes: int) -> None:
        clf.notes = notes | {"epochs_done": done + passes}
        _save(clf, output)

    with bars() as progress, naming_bad_images(images.sources):
        if done and notes["captions"]:  # `partial_fit` would clean captions as if they were class names
            clf.method.update(images, notes["epochs"] - done, progress, save)
        elif done:
            clf.partial_fit(images, epochs=notes["epochs"] - done, progress=progress, after_epoch=save)
        else:
            clf.fit(images, progress=progress, after_epoch=save)


def _calibrate(clf: KalmanCLIP, held: LabelledImages, output: Path) -> None:
    with bars("calibrating: ") as progress, naming_bad_images(held.sources):
        clf.method.calibrate(held, progress=progress)
    _save(clf, output)


def _save(clf: KalmanCLIP, output: Path) -> None:
    if first():
        clf.save(output)


def _say_how_to_resume(data: str, output: Path, notes: dict[str, Any]) -> None:
    if notes["epochs_done"] == 0:
        note("Stopped before the first pass was finished: nothing was saved. The same command starts again.")
        return
    note(
        f"Stopped. {notes['epochs_done']} of {notes['epochs']} passes are saved in {output}. Go on with:\n"
        f"  {command_line('fit', data, '-o', output, '--resume')}"
    )


def _calibrated(clf: KalmanCLIP) -> list[tuple[str, str]]:
    calibration = clf.method.calibration
    if calibration is None:
        return []
    n = len(calibration)
    return [("calibrated on", f"{n} further images, for sets with a coverage of up to {percent(n / (n + 1))}")]


def _summarise(clf: KalmanCLIP, images: int, data: str, output: Path, seconds: float) -> None:
    captions = clf.notes["captions"]
    learned = f"{len(clf.classes_)} ({some(clf.classes_, 2 if captions else 8)})"
    facts(
        [
            ("captions" if captions else "classes", learned),
            ("images", images),
            *about(clf.method),
            *_calibrated(clf),
            ("time", f"{seconds:.1f} s"),
            ("saved in", f"{output} ({size_of(output)})"),
        ]
    )
    if captions:
        suggest(
            (command_line("retrieve", data, "--adapter", output), "recall, on the rows of test if there are any"),
            (command_line("predict", output, "IMAGES"), "the most similar captions for files or folders"),
        )
        return
    suggest(
        (command_line("predict", output, "IMAGES"), "classify files or folders"),
        (command_line("evaluate", output, "FOLDER"), "measure it on labelled images it has not seen"),
    )
