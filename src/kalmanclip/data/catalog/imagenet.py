"""ImageNet and its relatives: classes by WordNet id, which is what the class folders are called."""

from functools import cache
from importlib.resources import files
from pathlib import Path

from kalmanclip.data.catalog.base import DataSet, class_folders, first_existing, folder_items, whole
from kalmanclip.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, SEVERITIES
from kalmanclip.data.splits import PUBLISHED, Item, Splits, make_splits
from kalmanclip.errors import ConfigError, DataError


@cache
def wordnet_ids() -> dict[str, int]:
    """Return the labels of the 1000 classes by WordNet id, in their order."""
    ids = (files(__package__) / "imagenet_wordnet_ids.txt").read_text(encoding="ascii").split()
    return {wordnet_id: label for label, wordnet_id in enumerate(ids)}


def imagenet_class_names() -> list[str]:
    """Return the names of the 1000 classes: those that CLIP's authors chose, as open_clip has them."""
    from open_clip.zero_shot_metadata import IMAGENET_CLASSNAMES

    return list(IMAGENET_CLASSNAMES)


def imagenet_label(wordnet_id: str) -> int:
    """Return the label, in 0..999, of a WordNet id."""
    try:
        return wordnet_ids()[wordnet_id]
    except KeyError:
        raise DataError(
            f"the folder {wordnet_id!r} is not the WordNet id of an ImageNet class (such as 'n01440764'); "
            "remove it, or unpack the data set again"
        ) from None


def read_imagenet(folder: Path, variant: str | None) -> Splits:
    """Read train and val; val, which is what everybody measures on, becomes test. Either may be absent."""
    found: dict[str, list[Item]] = {}
    for split in ("train", "val"):
        for place in (folder / "images" / split, folder / split):
            if place.is_dir() and split not in found:
                found[split] = _by_wordnet_id(place)
    if not found:
        raise DataError(f"{folder} has neither train nor val (nor images/train, images/val); see how to obtain it")
    return _of_all_classes(found.get("val"), found.get("train"))


def read_sketch(folder: Path, variant: str | None) -> Splits:
    """Read ImageNet-Sketch: 1000 class folders."""
    return _of_all_classes(_by_wordnet_id(first_existing(folder, ("images", "sketch"))))


def read_v2(folder: Path, variant: str | None) -> Splits:
    """Read ImageNetV2: class folders named by the label, 0..999, in one folder per way of choosing the images."""
    base = f"imagenetv2-{variant}-format-val"
    place = first_existing(folder, (base, base.removesuffix("-format-val")))

    def label(name: str) -> int:
        value = whole(name, place)
        if not 0 <= value < len(wordnet_ids()):
            raise DataError(f"the folder {place / name} is outside 0..999; unpack the data set again")
        return value

    return _of_all_classes(folder_items(class_folders(place), label))


def read_subset(folder: Path, variant: str | None) -> Splits:
    """Read ImageNet-A or -R: some of ImageNet's classes; `imagenet_labels` says which."""
    inner = [folder / name for name in ("imagenet-a", "imagenet-r") if (folder / name).is_dir()]
    folders = class_folders(inner[0] if inner else folder)
    labels = sorted(imagenet_label(path.name) for path in folders)
    items = folder_items(folders, lambda name: labels.index(imagenet_label(name)))
    names = imagenet_class_names()
    return make_splits([names[label] for label in labels], test=items, imagenet_labels=labels)


def read_corrupted(folder: Path, variant: str | None) -> Splits:
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


def _of_all_classes(test: list[Item] | None, train: list[Item] | None = None) -> Splits:
    return make_splits(imagenet_class_names(), train, test=test, imagenet_labels=range(len(wordnet_ids())))


DATA_SETS = (
    DataSet(
        name="imagenet",
        title="ImageNet (ILSVRC 2012)",
        classes=1000,
        folders=("imagenet", "ImageNet", "ILSVRC2012"),
        read=read_imagenet,
        counts={PUBLISHED: {"train": 1_281_167, "test": 50_000}},
        licence="research, non-commercial; by registration",
        instructions="Register at image-net.org, download ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar, and "
        "unpack them to imagenet/train/<WordNet id>/ and imagenet/val/<WordNet id>/.",
    ),
    DataSet(
        name="imagenet_v2",
        title="ImageNetV2",
        classes=1000,
        folders=("imagenetv2", "imagenet_v2", "imagenet-v2"),
        read=read_v2,
        counts={PUBLISHED: {"test": 10_000}},
        licence="MIT (the list); the images belong to their owners",
        instructions="Download imagenetv2-matched-frequency.tar.gz from huggingface.co/datasets/vaishaal/ImageNetV2 "
        "and unpack it in imagenetv2/.",
        variants=("matched-frequency", "threshold0.7", "top-images"),
        variant="matched-frequency",
    ),
    DataSet(
        name="imagenet_sketch",
        title="ImageNet-Sketch",
        classes=1000,
        folders=("imagenet-sketch", "imagenet_sketch"),
        read=read_sketch,
        counts={PUBLISHED: {"test": 50_889}},
        licence="MIT (the list); the images belong to their owners",
        instructions="Download ImageNet-Sketch as github.com/HaohanWang/ImageNet-Sketch says and unpack it to "
        "imagenet-sketch/images/<WordNet id>/.",
    ),
    DataSet(
        name="imagenet_a",
        title="ImageNet-A",
        classes=200,
        folders=("imagenet-adversarial", "imagenet-a", "imagenet_a"),
        read=read_subset,
        counts={PUBLISHED: {"test": 7500}},
        licence="MIT (the list); the images belong to their owners",
        instructions="Download imagenet-a.tar as github.com/hendrycks/natural-adv-examples says; unpack it under "
        "the root.",
    ),
    DataSet(
        name="imagenet_r",
        title="ImageNet-R",
        classes=200,
        folders=("imagenet-rendition", "imagenet-r", "imagenet_r"),
        read=read_subset,
        counts={PUBLISHED: {"test": 30_000}},
        licence="MIT (the list); the images belong to their owners",
        instructions="Download imagenet-r.tar as github.com/hendrycks/imagenet-r says; unpack it under the root.",
    ),
    DataSet(
        name="imagenet_c",
        title="ImageNet-C",
        classes=1000,
        folders=("imagenet-c", "imagenet_c", "ImageNet-C"),
        read=read_corrupted,
        counts={PUBLISHED: {"test": 50_000}},
        licence="CC BY 4.0",
        instructions="Download noise.tar, blur.tar, weather.tar, digital.tar (and extra.tar) from "
        "zenodo.org/records/2235448 and unpack them to imagenet-c/<corruption>/<severity>/. "
        "In Python, `corruptions.corrupted` makes the like.",
        variants=tuple(f"{name}/{level}" for name in (*CORRUPTIONS, *EXTRA_CORRUPTIONS) for level in SEVERITIES),
    ),
)
