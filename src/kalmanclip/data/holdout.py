"""Setting images aside before anything is learned from the others."""

from kalmanclip.data.labelled import LabelledImages
from kalmanclip.data.names import shown
from kalmanclip.data.task import sample_indices
from kalmanclip.errors import ConfigError, DataError


def hold_out(images: LabelledImages, count: int, seed: int) -> tuple[LabelledImages, LabelledImages]:
    """Split off ``count`` random images of each class: (kept, held), the same for the same seed.

    Raises:
        ConfigError: the count is not positive.
        DataError: a class would have no image left to learn from.
    """
    if count < 1:
        raise ConfigError(f"{count} images cannot be held out; give at least 1")
    pairs = zip(images.class_names, images.counts(), strict=True)
    short = [name for name, own in pairs if 0 < own <= count]
    if short:
        raise DataError(
            f"with {count} images of each class held out, {len(short)} classes have none left to learn from "
            f"({shown(short)}); hold out fewer, or give more images"
        )
    held = set(sample_indices(images, count, seed))
    return images.subset(i for i in range(len(images)) if i not in held), images.subset(sorted(held))
