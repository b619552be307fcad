"""How sheets are laid out: which rows and columns, and what each of them is about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kalmanclip.experiments.paper.study import Form, Line, Study

ZERO_SHOT = "Zero-Shot CLIP"
"""The row that learns nothing: one number whatever the shots."""

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

Sets = Mapping[str, Sequence[str]]
"""The names of the data sets, each with the names of its shifts."""


def title_of(name: str) -> str:
    """What the paper calls a data set; others keep their name."""
    return _TITLES.get(name, name)


def by_shots(study: Study, sets: Sets) -> Form:
    """A row for every method and number of shots, a column for every data set (Table 1)."""
    rows = [
        Line((v.label, "" if v.label == ZERO_SHOT else str(k)), {"label": v.label, "shots": k})
        for v in study.variants
        for k in (study.shots[-1:] if v.label == ZERO_SHOT else study.shots)
    ]
    return Form(("method", "shots"), rows, _columns(sets))


def by_set(study: Study, sets: Sets) -> Form:
    """A row for every method, a column for every data set (Table 4)."""
    rows = [Line((v.label,), {"label": v.label, "shots": study.shots[0]}) for v in study.variants]
    return Form(("method",), rows, _columns(sets))


def by_gain(study: Study, sets: Sets) -> Form:
    """A row for every data set, a column for every method: the gain over zero-shot (Figure 3)."""
    rows = [Line((title_of(name),), {"data": name, "shots": study.shots[0], "gain": True}) for name in sets]
    columns = [Line((v.label,), {"label": v.label}) for v in study.variants if v.label != ZERO_SHOT]
    return Form(("data set",), rows, columns)


def by_shift(study: Study, sets: Sets) -> Form:
    """A row for every method; columns for the data set's own test images, its shifts, and their average (Table 2)."""
    rows = [Line((v.label,), {"label": v.label, "shots": study.shots[0]}) for v in study.variants]
    columns = []
    for name, shifts in sets.items():
        columns += [Line((title_of(shift or name),), {"data": name, "shifts": (shift,)}) for shift in ("", *shifts)]
        columns.append(Line((f"average of {title_of(name)}",), {"data": name, "shifts": ("", *shifts)}))
    return Form(("method",), rows, columns)


def by_share(study: Study, sets: Sets) -> Form:
    """A row for every data set and setting, a column for every share of corrupted training images (Table 3)."""
    rows = [
        Line((title_of(name), v.label), {"data": name, "label": v.label, "shots": study.shots[0]})
        for name in sets
        for v in study.variants
        if v.label != ZERO_SHOT
    ]
    columns = [Line((f"{100 * share:g} %",), {"share": share}) for share in study.shares]
    return Form(("data set", "method"), rows, columns)


def _columns(sets: Sets) -> list[Line]:
    return [Line((title_of(name),), {"data": name}) for name in sets]
