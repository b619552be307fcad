"""What is known about a data set before any of its files is opened."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from kalmanclip.data.prompts import DEFAULT_TEMPLATES, validate_templates
from kalmanclip.data.sets.views import Views

Reader: TypeAlias = Callable[[Path, str | None], Views]
"""From the data set's folder, and a variant where there are several, to its parts."""


@dataclass(frozen=True)
class Download:
    """How torchvision fetches a data set.

    Attributes:
        loader: the name of a class in `torchvision.datasets`.
        calls: the arguments of each call that is needed to get everything.
        inside: the folder under the root that torchvision is given as its own root ("" for the root itself).
    """

    loader: str
    calls: tuple[Mapping[str, Any], ...] = ({},)
    inside: str = ""


@dataclass(frozen=True, eq=False)
class DataSet:
    """One data set.

    Attributes:
        name: what users type.
        title: what people call it.
        classes: the number of classes.
        folders: where it may lie under the root; the first that exists is taken.
        read: reads the data set's own layout.
        counts: the number of images by where the split came from (`views.SPLIT_FILE`, ...), then by part. Parts
            that we cut out of each other are counted together: "train+val".
        licence: in a few words.
        obtain: how to get it, in full sentences.
        names_from: where the class names come from.
        templates: prompt templates.
        split_file: the name of CoOp's split file, used when it is there.
        images: where the paths in the split file start, under the folder; the first that exists is taken.
        rename: class names in plain English instead of those in the split file.
        download: how torchvision gets it, if it can.
        variants: the versions there are; `variant` is the one to read unless another is asked for.
        variant: see `variants`.
    """

    name: str
    title: str
    classes: int
    folders: tuple[str, ...]
    read: Reader
    counts: Mapping[str, Mapping[str, int]]
    licence: str
    obtain: str
    names_from: str
    templates: tuple[str, ...] = DEFAULT_TEMPLATES
    split_file: str | None = None
    images: tuple[str, ...] = ("",)
    rename: Mapping[str, str] = field(default_factory=dict)
    download: Download | None = None
    variants: tuple[str, ...] = ()
    variant: str | None = None

    def __post_init__(self) -> None:
        validate_templates(self.templates)

    def find(self, root: Path) -> Path | None:
        """Return the data set's folder under `root`, if it is there."""
        return next((root / folder for folder in self.folders if (root / folder).is_dir()), None)
