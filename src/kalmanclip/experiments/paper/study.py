"""What a table or figure of the paper is made of, as data: no run, no number of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kalmanclip.experiments.paper.sheet import Sheet
from kalmanclip.experiments.variants import Variant


@dataclass(frozen=True)
class At:
    """What one number is about. A row says some of it, a column the rest.

    Attributes:
        label: of the variant.
        data: the data set's name.
        shots: K.
        share: of the training images that are corrupted.
        shifts: which test images: "" is the data set's own; several are averaged.
        gain: whether the number is the gain over zero-shot rather than the accuracy.
    """

    label: str = ""
    data: str = ""
    shots: int = 0
    share: float = 0.0
    shifts: tuple[str, ...] = ("",)
    gain: bool = False


class Line(NamedTuple):
    """A row, or a column: what stands beside (above) it, and what it fixes, by the names of `At`."""

    titles: tuple[str, ...]
    fixes: Mapping[str, Any]


class Form(NamedTuple):
    """The form of a sheet before it is filled in."""

    row_heads: tuple[str, ...]
    rows: Sequence[Line]
    columns: Sequence[Line]


@dataclass(frozen=True)
class Study:
    """One table or figure: what to run for it, how it is laid out, and what the paper says about it.

    Attributes:
        name: the command's word for it.
        title: one line.
        caption: paragraphs.
        variants: the methods, with their options.
        sets: the paper's data sets for it, by the names of the registry.
        form: lays it out, given the study and for every data set the names of its shifts.
        printed: the paper's number at a place; None where it printed none.
        findings: what is found, in sentences, given the filled sheet.
        shots: K.
        shares: of the training images to corrupt.
        shifts: the paper's extra test sets.
        others: "beside": data sets that the paper does not have come after its own; "instead": others, the paper's
            included, stand in where its own are not there; "shifted": likewise, those that have shifts.
        draw: makes the pictures, given the filled sheet; None: there are none.
        criterion: whether runs are looked at for divergence.
    """

    name: str
    title: str
    caption: tuple[str, ...]
    variants: tuple[Variant, ...]
    sets: tuple[str, ...]
    form: Callable[[Study, Mapping[str, Sequence[str]]], Form]
    printed: Callable[[At], float | str | None]
    findings: Callable[[Sheet], list[str]]
    shots: tuple[int, ...] = (16,)
    shares: tuple[float, ...] = (0.0,)
    shifts: tuple[str, ...] = ()
    others: str = "beside"
    draw: Callable[[Sheet], list[Any]] | None = None
    criterion: bool = False
