"""What a table or figure of the paper is made of, as data: no run, no number of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from kalmanclip.experiments.spec import Variant

if TYPE_CHECKING:
    from kalmanclip.experiments.figure import Picture
    from kalmanclip.experiments.paper.fill import Sheet

ZERO_SHOT = "Zero-Shot CLIP"
"""The variant that learns nothing: one number whatever the shots."""

_TITLES = {
    "imagenet": "ImageNet",
    "oxford_pets": "OxfordPets",
    "food101": "Food101",
    "sun397": "SUN397",
    "dtd": "DTD",
    "eurosat": "EuroSAT",
    "mnist": "MNIST",
    "fashion_mnist": "FashionMNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "places365": "Places365",
    "imagenet_v2": "ImageNetV2",
    "imagenet_sketch": "ImageNet-Sketch",
    "imagenet_a": "ImageNet-A",
    "imagenet_r": "ImageNet-R",
}

SIX = ("imagenet", "oxford_pets", "food101", "sun397", "dtd", "eurosat")
"""The data sets of Table 1, in its order."""

Sets = Mapping[str, Sequence[str]]
"""The names of data sets, each with the names of its shifts."""


@dataclass(frozen=True)
class At:
    """What one number is about: the variant, the data set, K, the share of corrupted training images, and which test
    images: "" is the data set's own; several are averaged. A row says some of it, a column the rest.
    """

    label: str = ""
    family: str = ""
    setting: float | None = None
    data: str = ""
    shots: int = 0
    share: float = 0.0
    shifts: tuple[str, ...] = ("",)


class Line(NamedTuple):
    """A row, or a column: what stands beside (above) it, and what it fixes, by the names of `At`."""

    titles: tuple[str, ...]
    fixes: Mapping[str, Any]


class Form(NamedTuple):
    """The form of a table before it is filled in."""

    row_heads: tuple[str, ...]
    rows: Sequence[Line]
    columns: Sequence[Line]

    def at(self, row: int, column: int) -> At:
        """Return what a cell is about."""
        return At(**{**self.rows[row].fixes, **self.columns[column].fixes})


def by_set(study: Study, sets: Sets) -> Form:
    """Lay out a row for every method (and number of shots), a column for every data set (Tables 1 and 4)."""
    heads = ("method", "shots") if len(study.shots) > 1 else ("method",)
    return Form(heads, _rows(study), [Line((title_of(name),), {"data": name}) for name in sets])


def by_gain(study: Study, sets: Sets) -> Form:
    """Lay out a row for every data set, a column for every method that learns (Figure 3)."""
    rows = [Line((title_of(name),), {"data": name, "shots": study.shots[0]}) for name in sets]
    return Form(("data set",), rows, [Line((v.label,), _about(v)) for v in study.variants if v.label != ZERO_SHOT])


def by_shift(study: Study, sets: Sets) -> Form:
    """Lay out a row for every method; columns for the own test images, the shifts, and their average (Table 2)."""
    columns = []
    for name, shifts in sets.items():
        columns += [Line((title_of(shift or name),), {"data": name, "shifts": (shift,)}) for shift in ("", *shifts)]
        columns.append(Line((f"average of {title_of(name)}",), {"data": name, "shifts": ("", *shifts)}))
    return Form(("method",), _rows(study), columns)


def by_share(study: Study, sets: Sets) -> Form:
    """Lay out a row for every data set and setting, a column for every share of corrupted images (Table 3)."""
    learned = [row for row in _rows(study) if row.fixes["label"] != ZERO_SHOT]
    rows = [Line((title_of(name), *row.titles), {"data": name, **row.fixes}) for name in sets for row in learned]
    columns = [Line((f"{100 * share:g} %",), {"share": share}) for share in study.shares]
    return Form(("data set", "method"), rows, columns)


def _rows(study: Study) -> list[Line]:
    """Return a row for every method and number of shots, which is a title only where there are several."""

    def titles(label: str, shots: int) -> tuple[str, ...]:
        return (label,) if len(study.shots) == 1 else (label, "" if label == ZERO_SHOT else str(shots))

    return [
        Line(titles(v.label, k), {**_about(v), "shots": k})
        for v in study.variants
        for k in (study.shots[-1:] if v.label == ZERO_SHOT else study.shots)
    ]


def _about(variant: Variant) -> dict[str, Any]:
    return {"label": variant.label, "family": variant.family, "setting": variant.setting}


@dataclass(frozen=True)
class Study:
    """One table or figure: what to run for it, how it is laid out, and what the paper says about it.

    Attributes:
        name: the command's word for it.
        title: one line.
        caption: paragraphs.
        variants: the methods, with their options.
        findings: what is found, in sentences, given the filled sheet.
        sets: the paper's data sets for it, by the names of the registry.
        form: lays it out, given the study and for every data set the names of its shifts.
        printed: the paper's number at a place; None where it printed none.
        shots: K.
        shares: of the training images to corrupt.
        shifts: the paper's extra test sets.
        others: "beside": data sets that the paper does not have come after its own; "instead": others, the paper's
            included, stand in where its own are not there; "shifted": likewise, those that have shifts.
        draw: makes the pictures, given the filled sheet; None: there are none.
        criterion: whether runs are looked at for divergence.
        gain: whether numbers are gains over zero-shot rather than accuracies.
    """

    name: str
    title: str
    caption: tuple[str, ...]
    variants: tuple[Variant, ...]
    findings: Callable[[Sheet], list[str]]
    sets: tuple[str, ...] = SIX
    form: Callable[[Study, Sets], Form] = by_set
    printed: Callable[[At], float | str | None] = lambda at: None
    shots: tuple[int, ...] = (16,)
    shares: tuple[float, ...] = (0.0,)
    shifts: tuple[str, ...] = ()
    others: str = "beside"
    draw: Callable[[Sheet], list[Picture]] | None = None
    criterion: bool = False
    gain: bool = False


def title_of(name: str) -> str:
    """Return what the paper calls a data set; others keep their name."""
    return _TITLES.get(name, name)
