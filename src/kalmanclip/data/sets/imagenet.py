"""ImageNet and its relatives: classes by WordNet id, which is what the class folders are called."""

from functools import cache
from importlib.resources import files
from pathlib import Path

from kalmanclip.data.labelled import LabelledImages
from kalmanclip.data.sets.files import first_existing, whole
from kalmanclip.data.sets.folders import class_folders, folder_items
from kalmanclip.data.sets.views import Item, Views, make_views
from kalmanclip.errors import ConfigError, DataError


@cache
def wordnet_ids() -> tuple[str, ...]:
    """Return the WordNet ids of the 1000 classes, in the order of the labels."""
    return tuple((files(__package__) / "imagenet_wordnet_ids.txt").read_text(encoding="ascii").split())


def imagenet_class_names() -> list[str]:
    """Return the names of the 1000 classes: those that CLIP's authors chose, as open_clip has them."""
    from open_clip.zero_shot_metadata import IMAGENET_CLASSNAMES

    return list(IMAGENET_CLASSNAMES)


def imagenet_label(wordnet_id: str) -> int:
    """Return the label, in 0..999, of a WordNet id.

    Raises:
        DataError: it is none of the 1000.
    """
    try:
        return _labels()[wordnet_id]
    except KeyError:
        raise DataError(
            f"the folder {wordnet_id!r} is not the WordNet id of an ImageNet class (such as 'n01440764'); "
            "remove it, or unpack the data set again"
        ) from None


def read_imagenet(folder: Path, variant: str | None) -> Views:
    """Read train and val; val, which is what everybody measures on, becomes test. Either may be absent."""
    places = {part: [folder / base / part for base in ("images", ".")] for part in ("train", "val")}
    found = {part: next((path for path in paths if path.is_dir()), None) for part, paths in places.items()}
    if not any(found.values()):
        raise DataError(f"{folder} has neither train nor val (nor images/train, images/val); see how to obtain it")
    items = {part: None if path is None else _by_wordnet_id(path) for part, path in found.items()}
    return _of_all_classes(test=items["val"], train=items["train"])


def read_sketch(folder: Path, variant: str | None) -> Views:
    """Read ImageNet-Sketch: 1000 class folders."""
    return _of_all_classes(_by_wordnet_id(first_existing(folder, ("images", "sketch"))))


def read_v2(folder: Path, variant: str | None) -> Views:
    """Read ImageNetV2: class folders named by the label, 0..999, in one folder per way of choosing the images."""
    base = f"imagenetv2-{variant}-format-val"
    place = first_existing(folder, (base, base.removesuffix("-format-val")))

    def label(name: str) -> int:
        value = whole(name, place)
        if not 0 <= value < len(wordnet_ids()):
            raise DataError(f"the folder {place / name} is outside 0..999; unpack the data set again")
        return value

    return _of_all_classes(folder_items(class_folders(place), label))


def read_subset(folder: Path, variant: str | None) -> Views:
    """Read ImageNet-A or -R: some of ImageNet's classes; `imagenet_labels` says which."""
    inner = [folder / name for name in ("imagenet-a", "imagenet-r") if (folder / name).is_dir()]
    folders = class_folders(inner[0] if inner else folder)
    labels = sorted(imagenet_label(path.name) for path in folders)
    items = folder_items(folders, lambda name: labels.index(imagenet_label(name)))
    names = imagenet_class_names()
    test = make_views([names[label] for label in labels], test=items).test
    return Views(None, None, test, imagenet_labels=tuple(labels))


def read_corrupted(folder: Path, variant: str | None) -> Views:
    """Read ImageNet-C: one set of 1000 class folders per corruption and severity, "fog/3" for example."""
    if variant is None:
        raise ConfigError(
            "ImageNet-C is 95 data sets, one per corruption and severity; say which, for example variant='fog/3'"
        )
    # The archives unpack to corruption/severity; some people keep them in folders named after the archives.
    groups = ("", "noise/", "blur/", "weather/", "digital/", "extra/")
    return _of_all_classes(_by_wordnet_id(first_existing(folder, tuple(group + variant for group in groups))))


def _by_wordnet_id(folder: Path) -> list[Item]:
    return folder_items(class_folders(folder), imagenet_label)


def _of_all_classes(test: list[Item] | None, train: list[Item] | None = None) -> Views:
    views = make_views(imagenet_class_names(), train=train, test=test)
    return Views(views.train, None, views.test, imagenet_labels=tuple(range(len(wordnet_ids()))))


def to_imagenet(images: LabelledImages, imagenet_labels: tuple[int, ...]) -> LabelledImages:
    """Return the images with labels in 0..999 and all 1000 class names."""
    return LabelledImages(images.sources, [imagenet_labels[i] for i in images.labels], imagenet_class_names())


@cache
def _labels() -> dict[str, int]:
    return {wordnet_id: label for label, wordnet_id in enumerate(wordnet_ids())}
