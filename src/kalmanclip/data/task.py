"""The few-shot task: what a method is given to learn from, and the drawing of K images per class."""

import random
from dataclasses import dataclass

from kalmanclip.data.labelled import LabelledImages
from kalmanclip.data.prompts import DEFAULT_TEMPLATES, class_prompts, validate_templates
from kalmanclip.errors import ConfigError, DataError


@dataclass(frozen=True, eq=False)
class FewShotTask:
    """Everything a method may know about a problem. Made by `data`, consumed by `methods`.

    Attributes:
        train: the images to learn from (none at all for a method that only reads class names).
        validation: the images to choose options on, if any.
        test: the images to measure on, if any; never to be chosen on.
        templates: T prompt templates, averaged when there are several.
        seed: whatever is random in a method starts from this.
    """

    train: LabelledImages
    validation: LabelledImages | None = None
    test: LabelledImages | None = None
    templates: tuple[str, ...] = DEFAULT_TEMPLATES
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "templates", validate_templates(self.templates))
        for view in ("validation", "test"):
            images = getattr(self, view)
            if images is not None and images.class_names != self.train.class_names:
                raise DataError(
                    f"the {view} images have other class names than the training images, or another order: "
                    f"{_first_difference(self.train.class_names, images.class_names)}. "
                    "Read all of them with the same class_names"
                )

    @property
    def class_names(self) -> list[str]:
        """The C class names, the same in every view."""
        return self.train.class_names

    @property
    def prompts(self) -> list[list[str]]:
        """The prompts of every class, C lists of T strings."""
        return class_prompts(self.templates, self.class_names)


def sample_shots(images: LabelledImages, shots: int | None, seed: int, replacement: bool = False) -> LabelledImages:
    """Return `shots` random images of each class, in their original order: the same for the same seed.

    A class's draw depends on the seed, its name and its own images alone, so adding, removing or reordering
    other classes does not change it. Draws are nested: the images for K shots are among those for K + 1.

    Args:
        images: what to draw from; a class without images stays empty.
        shots: K; None returns everything.
        seed: any integer.
        replacement: what happens to a class with fewer than K images. It keeps all it has; if True, it is
            also filled up to K by drawing some of them again, following the protocol of CoOp.
    """
    if shots is None:
        return images
    if shots < 1:
        raise ConfigError(f"shots is {shots}; it must be at least 1 (or None for all images)")
    members: list[list[int]] = [[] for _ in images.class_names]
    for position, label in enumerate(images.labels):
        members[label].append(position)
    chosen: list[int] = []
    for name, candidates in zip(images.class_names, members, strict=True):
        # Only random() is promised to give the same numbers in every Python, so nothing else is used.
        generator = random.Random(f"{seed}:{name}")
        ranks = [(generator.random(), position) for position in candidates]
        chosen += [position for _, position in sorted(ranks)[:shots]]
        if replacement and candidates:
            missing = shots - len(candidates)
            chosen += [candidates[int(generator.random() * len(candidates))] for _ in range(missing)]
    return images.subset(sorted(chosen))


def _first_difference(expected: list[str], found: list[str]) -> str:
    """Describe where two different lists of class names part."""
    if len(expected) != len(found):
        return f"{len(found)} classes instead of {len(expected)}"
    label = next(i for i, (one, other) in enumerate(zip(expected, found, strict=True)) if one != other)
    return f"class {label} is {found[label]!r} instead of {expected[label]!r}"
