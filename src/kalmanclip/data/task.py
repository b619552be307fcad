"""The few-shot task: what a method is given to learn from, and how it is drawn from a data set."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kalmanclip.config import check_seed
from kalmanclip.data.labelled import LabelledImages, fingerprint, shown
from kalmanclip.data.prompts import DEFAULT_TEMPLATES, class_prompts, validate_templates
from kalmanclip.data.shots import ShotLists, sample_indices
from kalmanclip.errors import ConfigError, DataError

VALIDATION_SHOTS = 4
"""At most so many validation images per class, as in CoOp: nobody with K images to learn from has more to choose on."""


@dataclass(frozen=True)
class Draw:
    """Which images a few-shot task was made of, so that it can be made again.

    Attributes:
        shots: K; None for all images.
        seed: of the draw.
        train: positions in the train split.
        validation: positions in the val split, or in the train split where there is no val split.
        validation_from: "val", "train", or None if there are no validation images.
        fingerprints: a hash of each split that was drawn from (`labelled.fingerprint`), by "train" and "val".
        shot_list: the name of the file that the training images were taken from; None if they were drawn.
    """

    shots: int | None
    seed: int
    train: tuple[int, ...]
    validation: tuple[int, ...]
    validation_from: str | None
    fingerprints: Mapping[str, str]
    shot_list: str | None = None


@dataclass(frozen=True, eq=False)
class FewShotTask:
    """Everything a method may know about a problem. Made by `data`, consumed by `methods`.

    Attributes:
        train: the images to learn from (none at all for a method that only reads class names).
        validation: the images to choose options on, if any.
        test: the images to measure on, if any; never to be chosen on.
        templates: T prompt templates, averaged when there are several.
        seed: whatever is random in a method starts from this.
        draw: how `few_shot_task` chose the images, if it did.
    """

    train: LabelledImages
    validation: LabelledImages | None = None
    test: LabelledImages | None = None
    templates: tuple[str, ...] = DEFAULT_TEMPLATES
    seed: int = 0
    draw: Draw | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "templates", validate_templates(self.templates))
        check_seed(self.seed)
        for split in ("validation", "test"):
            images = getattr(self, split)
            if images is not None and images.class_names != self.train.class_names:
                raise DataError(
                    f"the {split} images have other class names than the training images, or another order: "
                    f"{_first_difference(self.train.class_names, images.class_names)}. "
                    "Read all of them with the same class_names"
                )

    @property
    def class_names(self) -> list[str]:
        """The C class names, the same in every split."""
        return self.train.class_names

    @property
    def prompts(self) -> list[list[str]]:
        """The prompts of every class, C lists of T strings."""
        return class_prompts(self.templates, self.class_names)

    def to_dict(self) -> dict[str, Any]:
        """Return what `from_dict` needs besides the data set: the draw and the templates, ready for JSON."""
        if self.draw is None:
            raise ConfigError("this task was not drawn by few_shot_task, so there is no draw to record")
        draw = asdict(self.draw) | {"train": list(self.draw.train), "validation": list(self.draw.validation)}
        return {"draw": draw, "templates": list(self.templates)}

    @classmethod
    def from_dict(
        cls,
        record: Mapping[str, Any],
        train: LabelledImages,
        val: LabelledImages | None = None,
        test: LabelledImages | None = None,
    ) -> "FewShotTask":
        """Return the task that was recorded, from the same splits of the same data set.

        Raises:
            DataError: the record is damaged, or the splits hold other images than they did.
        """
        try:
            fields = dict(record["draw"])
            fields["train"], fields["validation"] = tuple(fields["train"]), tuple(fields["validation"])
            draw, templates = Draw(**fields), tuple(record["templates"])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"this is not the record of a few-shot task ({error!r}); give what to_dict wrote"
            ) from error
        splits = {"train": train} if val is None else {"train": train, "val": val}
        for split, expected in draw.fingerprints.items():
            if split not in splits or fingerprint(splits[split]) != expected:
                raise DataError(
                    f"the {split} split is not the one that the task was drawn from: images or classes were added, "
                    "removed, renamed or reordered. Restore the data set and its splits, or draw again"
                )
        return cls.of_draw(draw, train, val, test, templates)

    @classmethod
    def of_draw(
        cls,
        draw: Draw,
        train: LabelledImages,
        val: LabelledImages | None,
        test: LabelledImages | None,
        templates: Iterable[str],
    ) -> "FewShotTask":
        """Return the task that a draw from these splits makes."""
        pool = {"train": train, "val": val, None: None}[draw.validation_from]
        validation = None if pool is None else pool.subset(draw.validation)
        return cls(train.subset(draw.train), validation, test, tuple(templates), draw.seed, draw)


def few_shot_task(
    train: LabelledImages,
    val: LabelledImages | None,
    test: LabelledImages | None,
    shots: int | None,
    seed: int,
    templates: str | Iterable[str] = DEFAULT_TEMPLATES,
    replacement: bool = True,
    shot_lists: ShotLists | None = None,
) -> FewShotTask:
    """Draw a few-shot task: K images per class to learn from, min(K, 4) per class to choose on.

    Where the data set comes with a list of the seed's images, the first K of each class in it are taken instead.

    Validation images come from `val`. Without a val split they are drawn, the same way, from the training images
    that are left over; a class that has none left over has no validation images. No image is in both.

    Args:
        train: what to draw from; every class must have at least one image.
        val: the val split of the data set, if it has one.
        test: taken whole.
        shots: K; None learns from all training images (and chooses on all of `val`).
        seed: of the draw, and of whatever is random in the method.
        templates: prompt templates.
        replacement: whether a class with fewer than K images (in train, or in val) is filled up by drawing some of
            its images again. Left-over training images are never repeated.
        shot_lists: the lists of `train`, if it has any.

    Raises:
        DataError: a class has no training images or too few in its list, or the splits have different classes.
    """
    empty = [name for name, count in zip(train.class_names, train.counts(), strict=True) if count == 0]
    if empty:
        raise DataError(
            f"{len(empty)} classes have no training images ({shown(empty)}); add some, or leave the classes out"
        )
    listed = None if shot_lists is None else shot_lists.find(shots, seed)
    if listed is None or shots is None:
        chosen = sample_indices(train, shots, seed, replacement)
    else:
        chosen = listed.first(train, shots)
    wanted = None if shots is None else min(shots, VALIDATION_SHOTS)
    validation: list[int] = []
    if val is not None:
        validation = sample_indices(val, wanted, seed, replacement)
    elif wanted is not None:
        taken = set(chosen)
        rest = [position for position in range(len(train)) if position not in taken]
        validation = [rest[i] for i in sample_indices(train.subset(rest), wanted, seed)]
    draw = Draw(
        shots,
        seed,
        tuple(chosen),
        tuple(validation),
        validation_from=None if not validation else "train" if val is None else "val",
        fingerprints={"train": fingerprint(train)} | ({} if val is None else {"val": fingerprint(val)}),
        shot_list=None if listed is None else listed.name,
    )
    return FewShotTask.of_draw(draw, train, val, test, validate_templates(templates))


def _first_difference(expected: list[str], found: list[str]) -> str:
    """Describe where two different lists of class names part."""
    if len(expected) != len(found):
        return f"{len(found)} classes instead of {len(expected)}"
    label = next(i for i, (one, other) in enumerate(zip(expected, found, strict=True)) if one != other)
    return f"class {label} is {found[label]!r} instead of {expected[label]!r}"
