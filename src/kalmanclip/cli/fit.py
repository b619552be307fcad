"""``kalmanclip fit``: from labelled or captioned images to an adapter, resumable after every pass."""

from __future__ import annotations

import hashlib
import os
import time
import warnings
from contextlib import nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kalmanclip.cli.arguments import (
    Device,
    Precision,
    check_device,
    earlier_adapter,
    naming_bad_images,
    save_adapter,
    writable_folder,
)
from kalmanclip.cli.command import INTERRUPTED
from kalmanclip.cli.console import (
    bars,
    calibrated_on,
    command_line,
    expected_facts,
    facts,
    fit_facts,
    note,
    percent,
    say,
    size_of,
    some,
    suggest,
    waiting,
)
from kalmanclip.cli.lean import import_models, model_of
from kalmanclip.cli.ranks import first, restarted, several, working_together
from kalmanclip.config import flatten, to_dict
from kalmanclip.errors import AdapterError, ConfigError, DataError, RepeatedImagesWarning
from kalmanclip.files import check_path, read_options

if TYPE_CHECKING:
    from kalmanclip.data import CaptionedImages, CaptionedSplits, LabelledImages
    from kalmanclip.estimator import KalmanCLIP
    from kalmanclip.methods import MethodConfig
    from kalmanclip.prediction import Calibration

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

_METHOD = "The method (what is left out keeps the preset's value)"
_LOW_RANK = "For the presets head, paper, paper-literal and paper-tuned"


@dataclass(frozen=True)
class MethodOptions:
    """Method and options, as options of a command."""

    preset: Annotated[
        str | None,
        typer.Option(
            help="residuals (fast), joint (adapts the image tower, too: better, and for a GPU), head, paper, "
            "paper-literal, paper-tuned (low-rank parameters alone); left out, joint with a GPU, else residuals.",
            rich_help_panel=_METHOD,
        ),
    ] = None
    prior_std: Annotated[
        float | None,
        typer.Option(
            help="How far similarities may move, a priori; left out, class residuals choose it on the images.",
            rich_help_panel=_METHOD,
        ),
    ] = None
    crops: Annotated[
        int | None,
        typer.Option(
            help="Random crops of each image beside the centre crop (presets residuals and joint).",
            rich_help_panel=_METHOD,
        ),
    ] = None
    alpha: Annotated[
        float | None, typer.Option(help="How strongly surprising images are damped.", rich_help_panel=_METHOD)
    ] = None
    seed: Annotated[int | None, typer.Option(help="Of everything that is random.", rich_help_panel=_METHOD)] = None
    config: Annotated[
        Path | None,
        typer.Option(help="A JSON or YAML file with any of the method's options; flags win.", rich_help_panel=_METHOD),
    ] = None
    epochs: Annotated[int | None, typer.Option(help="Passes over the images.", rich_help_panel=_LOW_RANK)] = None
    batch_size: Annotated[int | None, typer.Option(help="Images per step.", rich_help_panel=_LOW_RANK)] = None
    rank: Annotated[int | None, typer.Option(help="Rank of the tuned corrections.", rich_help_panel=_LOW_RANK)] = None
    placement: Annotated[
        str | None,
        typer.Option(help="Where they sit: head (fast) or towers (inside the transformer).", rich_help_panel=_LOW_RANK),
    ] = None
    observation: Annotated[
        str | None,
        typer.Option(help="What the filter sees of a batch; a wrong name lists them.", rich_help_panel=_LOW_RANK),
    ] = None
    belief: Annotated[
        str | None,
        typer.Option(help="Structure of the covariance; a wrong name lists them.", rich_help_panel=_LOW_RANK),
    ] = None
    beta: Annotated[
        float | None, typer.Option(help="Forgetting factor of the noise estimate.", rich_help_panel=_LOW_RANK)
    ] = None

    def resolve(self, before: dict[str, Any] | None, captions: bool, device: str | None, described: bool) -> Any:
        """Return a `MethodConfig`: a preset, or the options of an interrupted fit; then the file, then flags.

        The usual preset depends on the device, and on whether classes are described.
        """
        from kalmanclip.adapter import read_config
        from kalmanclip.encoders.backbone import usual_device
        from kalmanclip.estimator import make_config
        from kalmanclip.methods import usual_preset
        from kalmanclip.retrieval import pair_config

        given: dict[str, Any] = {}
        if self.config is not None:
            given = read_options(self.config, ConfigError)
        groups = {"rank": "low_rank.rank", "placement": "low_rank.placement", "beta": "noise.beta"}
        flags = {groups.get(f.name, f.name): getattr(self, f.name) for f in fields(self)}
        flags = {name: v for name, v in flags.items() if v is not None and name not in ("preset", "config")}
        start = read_config(before) if before else pair_config() if captions else None

        def as_typed(name: str) -> str:
            return "--" + name.rpartition(".")[2].replace("_", "-") if name in flags else name

        chosen = self.preset or given.pop("preset", None)
        if start is None and chosen in (None, "default"):
            chosen = usual_preset(device or usual_device(), images=not described, together=several())
        return make_config(chosen, start, given | flags, as_typed)


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
            help="Set so many images of each class aside, and calibrate sets of classes (predict --sets) on those. "
            "Without it they are calibrated on all images, each held out once, where the preset does that.",
            min=1,
        ),
    ] = None,
    template: Annotated[
        list[str] | None,
        typer.Option(help='A prompt such as "a photo of a {}."; give several and they are averaged.'),
    ] = None,
    descriptions: Annotated[
        Path | None,
        typer.Option(help="A text file with lines 'class name: how it looks', or JSON: further prompts of classes."),
    ] = None,
    *,
    method: MethodOptions,
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
    import_models(model or model_of(output) or "tiny")
    before = earlier_adapter(output, force, resume or restarted())
    if resume and not before:
        raise AdapterError(
            f"There is nothing in {output} to go on with: no pass was finished, or the name is another. "
            "Start again without --resume, with all options."
        )

    with waiting("Loading"):
        from kalmanclip.data import read_descriptions
        from kalmanclip.estimator import KalmanCLIP
        from kalmanclip.methods import KalmanConfig
        from kalmanclip.retrieval import CAPTION_TEMPLATES, learnable

    source = read_source(data)  # first: which options are the usual ones depends on it
    captions = source.pairs is not None
    if captions and template:
        raise ConfigError("Captions are prompts themselves: leave --template out, or put its words into them.")
    if descriptions and (captions or before):
        raise ConfigError("Descriptions are of classes, and from the beginning: leave --descriptions out.")
    described = read_descriptions(descriptions) if descriptions else None
    options = method.resolve(before, captions, device, described is not None)
    if before:
        noted = {"shots": shots, "calibrate": calibrate, "precision": precision}
        _require_same_options(before, options, model, template, noted)
        shots, calibrate, precision = (before["notes"].get(name) for name in noted)
    elif captions and not isinstance(options, KalmanConfig):
        raise ConfigError("Captions have no classes to learn residuals of: leave --preset out, or give head.")
    if captions and calibrate:
        raise ConfigError("Captions have no classes to make sets of: leave --calibrate out.")
    held = None
    if source.labelled is not None:
        labelled = source.labelled
        if calibrate:
            from kalmanclip.data import hold_out

            labelled, held = hold_out(labelled, calibrate, options.seed)
        images, seen = _choose(source, labelled, shots, options.seed, before)
    check_device(None if several() else device, precision)  # each of several has a device of its own

    writing = writable_folder(output) if first() else nullcontext()
    with working_together(device) as (ranks, device), writing:
        with waiting("Loading the model"):
            if before:
                clf = KalmanCLIP.load(output, device=device, precision=precision, ranks=ranks)
            else:
                given: dict[str, Any] = {"model": model, "descriptions": described}
                given["templates"] = template or (CAPTION_TEMPLATES if captions else source.templates)
                named: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
                clf = KalmanCLIP(config=options, device=device, precision=precision, ranks=ranks, **named)
                clf.load_backbone()
        done = 0 if before is None else before["notes"]["epochs_done"]
        if done >= options.passes and (held is None or _is_set_aside(clf.calibration_)):
            say(f"{output} is finished: all {options.passes} passes are done. There is nothing to resume.")
            return
        if before:
            note(f"Going on after pass {done} of {options.passes}.")
        backbone = clf.load_backbone()
        if source.pairs is not None:  # only the model can say which captions it reads as the same
            labelled = learnable(source.pairs, backbone, options.seed).train
            images, seen = _choose(source, labelled, shots, options.seed, before)
        notes = {"folder": data, "shots": shots, "images": seen, "captions": captions, "epochs": options.passes}
        notes |= {"epochs_done": done, "calibrate": calibrate, "precision": backbone.precision}
        notes["learned_from"] = images.counts()
        try:
            if done < options.passes:
                _learn(clf, images, output, notes)
            if held is not None:
                with bars("calibrating: ") as progress, naming_bad_images(held.sources):
                    clf.calibrate(held, progress=progress)
                _save(clf, output, notes)
        except KeyboardInterrupt:
            if notes["epochs_done"]:
                saved = f"{notes['epochs_done']} of {notes['epochs']} passes are saved in {output}. Go on with:"
                note(f"Stopped. {saved}\n  {command_line('fit', data, '-o', output, '--resume')}")
            else:
                note("Stopped before the first pass was finished: nothing was saved. The same command starts again.")
            raise typer.Exit(INTERRUPTED) from None
    if first():
        _summarise(clf, len(images), data, output, time.monotonic() - started)


@dataclass(frozen=True)
class Source:
    """What a fit learns from: images with classes, or with captions, and the data set's own templates if it has any."""

    location: str
    labelled: LabelledImages | None = None
    pairs: CaptionedImages | None = None
    templates: tuple[str, ...] | None = None


def read_source(location: str) -> Source:
    """Return what to learn from in a folder, a list or a data set of the Hub; of one with parts, the train part."""
    from kalmanclip.data import hub, lists, read_folder
    from kalmanclip.data.hub import HUB
    from kalmanclip.data.lists import is_list

    on_hub = location.startswith(HUB)
    check_path(location, DataError)
    if not on_hub and not is_list(location):
        if Path(location).is_file():
            raise DataError(f"{location} is neither a folder nor a list; a list ends in .csv, .json or .jsonl")
        return Source(location, read_folder(location))
    if hub.has_captions_only(location) if on_hub else lists.has_captions_only(location):
        return Source(location, pairs=caption_splits(location).get("train", location))
    splits = hub.read_hugging_face(location) if on_hub else lists.read_list(location)
    if splits.train is None:
        raise DataError(f"{location} has nothing to learn from: none of its rows belongs to train")
    return Source(location, splits.train, templates=splits.templates)


def caption_splits(location: str) -> CaptionedSplits:
    """Return the parts of a list of pairs, or of such a data set of Hugging Face."""
    from kalmanclip.data import read_caption_splits, read_hugging_face_captions
    from kalmanclip.data.resolve import HUB

    return read_hugging_face_captions(location) if location.startswith(HUB) else read_caption_splits(location)


def _require_same_options(
    before: dict[str, Any],
    options: MethodConfig,
    model: str | None,
    template: list[str] | None,
    noted: dict[str, int | str | None],
) -> None:
    """Refuse to resume a fit with other options than it began with; None is not given."""
    from kalmanclip.adapter import read_config
    from kalmanclip.methods import method_name

    notes = {"precision": "float32"} | before.get("notes", {})
    if "epochs_done" not in notes:
        raise ConfigError(
            "This adapter does not say how far its fit came (it was not saved by `kalmanclip fit`). "
            "Start again with --force."
        )
    old, new = flatten(to_dict(read_config(before))), flatten(to_dict(options))
    changed: list[tuple[str, Any, Any]] = []
    if before["method"] != method_name(options):
        changed.append(("method", before["method"], method_name(options)))
    changed += [(name, old.get(name), new[name]) for name in new if old.get(name) != new[name]]
    given = {
        "model": (before["backbone"]["name"], model),
        "template": (before["templates"], template or None),
        **{name: (notes.get(name), value) for name, value in noted.items()},
    }
    changed += [(name, was, now) for name, (was, now) in given.items() if now is not None and now != was]
    if changed:
        name, was, now = changed[0]
        raise ConfigError(
            f"The interrupted fit began with other options ({name} was {was!r}, now {now!r}). "
            "Resume it without that option, or start again with --force."
        )


def _choose(
    source: Source, labelled: LabelledImages, shots: int | None, seed: int, before: dict[str, Any] | None
) -> tuple[LabelledImages, str]:
    """Return the images that are used and their hash; refuse others than a resumed fit began with."""
    from kalmanclip.data import sample_shots

    images = sample_shots(labelled, shots, seed)
    few = [f"{name} {n}" for name, n in zip(labelled.class_names, labelled.counts(), strict=True) if n < (shots or 0)]
    if few and source.pairs is None:  # each caption is a class of its own
        note(f"{len(few)} classes have fewer than {shots} images, and all of theirs are used: {some(few)}.")
    seen = _fingerprint(source, images)
    if before and images.class_names != before["class_names"]:
        raise DataError(
            f"The interrupted fit was about other classes ({some(before['class_names'])}; "
            f"now {some(images.class_names)}). Give its folder, or start again with --force."
        )
    if before and seen != before["notes"].get("images"):
        raise DataError(
            "The images are not those that the interrupted fit began with: files were added, removed or changed. "
            "Restore them, or start again with --force."
        )
    return images, seen


def _fingerprint(source: Source, images: LabelledImages) -> str:
    """Return a hash of the images' names, sizes and texts, wherever their folder or list lies."""
    from kalmanclip.data.images import content_identity, image_identity

    location = Path(source.location)
    root = location if location.is_dir() else location.parent
    digest = hashlib.sha256()
    for image, label in zip(images.sources, images.labels, strict=True):
        if isinstance(image, str | os.PathLike):
            path = Path(image)
            name = (path.relative_to(root) if path.is_relative_to(root) else path).as_posix()  # a list may name any
            content = str(path.stat().st_size if path.exists() else None)  # a broken link is reported when it is read
        else:
            name, content = image_identity(image), str(content_identity(image))
        digest.update(f"{name} {content} {images.class_names[label]}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _learn(clf: KalmanCLIP, images: LabelledImages, output: Path, notes: dict[str, Any]) -> None:
    """Make the passes that are not done yet; save, and note it, after each."""
    done = notes["epochs_done"]

    def save(passes: int) -> None:
        notes["epochs_done"] = done + passes
        _save(clf, output, notes)

    with bars() as progress, naming_bad_images(images.sources):
        if done:
            with warnings.catch_warnings():  # the same images on purpose
                warnings.simplefilter("ignore", RepeatedImagesWarning)
                clf.partial_fit(images, epochs=notes["epochs"] - done, progress=progress, after_epoch=save)
        else:
            clf.fit(images, progress=progress, after_epoch=save)


def _is_set_aside(calibration: Calibration | None) -> bool:
    """Return whether sets are calibrated on images that were set aside, not on those of the fit."""
    return calibration is not None and not calibration.in_turn


def _save(clf: KalmanCLIP, output: Path, notes: dict[str, Any]) -> None:
    if first():
        save_adapter(clf, output, notes)


def _summarise(clf: KalmanCLIP, images: int, data: str, output: Path, seconds: float) -> None:
    from kalmanclip.encoders.backbone import licence_of

    captions, names, calibrated = clf.notes_["captions"], clf.class_names_, []
    model = clf.backbone_.name
    if clf.calibration_ is not None:
        n, in_turn = len(clf.calibration_), clf.calibration_.in_turn
        coverage = percent(n / (n + 1))
        calibrated = [
            ("sets of classes", f"with a coverage of up to {coverage} (predict --sets)"),
            ("", f"calibrated on {calibrated_on(n, in_turn)}"),
        ]
    facts(
        [
            ("model", f"{model} (weights: {licence_of(model)})"),
            ("captions" if captions else "classes", f"{len(names)} ({some(names, 2 if captions else 8)})"),
            ("images", images),
            *fit_facts(clf.diagnostics_),
            *expected_facts(clf.expected_accuracy_),
            *calibrated,
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
