"""Which of the paper's data sets there are here, and the runs that a study is made of."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kalmanclip.config import merge
from kalmanclip.data import data_root
from kalmanclip.data.catalog import DATA_SETS
from kalmanclip.data.resolve import data_name, split_name
from kalmanclip.errors import ConfigError, DataError
from kalmanclip.experiments.paper.study import ZERO_SHOT, Study
from kalmanclip.experiments.provenance import shorten_paths
from kalmanclip.experiments.sources import Source, find_sources, split_template
from kalmanclip.experiments.spec import Contamination, Run, Variant, plan
from kalmanclip.methods import METHODS

LARGE = ("imagenet", "sun397", "places365")
"""Data sets on which the paper's filter makes five passes instead of two ("larger datasets such as ...")."""


@dataclass(frozen=True)
class Found:
    """The data sets that are here, with the shifts that are, by name; and why others, or other shifts, are not."""

    sources: Mapping[str, Source]
    missing: Mapping[str, str] = field(default_factory=dict)


def find_sets(
    studies: Iterable[Study],
    given: Sequence[str] = (),
    root: str | os.PathLike[str] | None = None,
    templates: Sequence[str] = (),
    shifts: Sequence[str] = (),
    draws: Sequence[tuple[int, int]] = (),
) -> Found:
    """Look for data sets; no image is opened, and one that is not there is no error.

    Args:
        studies: what asks for them.
        given: further data sets, or, as ``oxford_pets=folder``, where one of the paper's lies. Such a folder takes
            the prompts of the data set that it is.
        root: where the others of the paper's lie.
        templates: as in `find_sources`.
        shifts: further test sets, spelled likewise.
        draws: pairs of shots and seed that will be asked for.
    """
    studies = list(studies)
    places = {data_name(spelling): spelling for spelling in given}
    if len(places) < len(given):
        raise ConfigError("Two of the data sets have the same name. Name one of them: --data OTHER=FOLDER")
    wanted = dict.fromkeys([name for study in studies for name in study.sets] + list(places))
    extra = {data_name(spelling): spelling for spelling in shifts}
    prompts = [*templates, *_registered_prompts(places, templates)]
    missing: dict[str, str] = {}

    def look(name: str, spelling: str, asked_for: bool, **more: Any) -> list[Source]:
        try:
            return find_sources([spelling], root, _about(prompts, name), **more)
        except (ConfigError, DataError) as problem:
            if asked_for:
                raise
            absent = name in DATA_SETS and DATA_SETS[name].find(data_root(root)) is None
            missing[name] = "not on this machine" if absent else shorten_paths(str(problem))
            return []

    found = {name: s for name in wanted for s in look(name, places.get(name, name), name in places, draws=draws)}
    if not found:
        raise DataError(
            "None of the paper's data sets is here. Say where they lie with --root FOLDER or --data NAME=FOLDER: "
            + ", ".join(wanted)
        )
    for name in dict.fromkeys(shift for study in studies for shift in study.shifts if shift not in extra):
        if "imagenet" not in found:
            missing[name] = "there is no ImageNet to learn from"
        elif look(name, places.get("imagenet", "imagenet"), False, shifts=[name]):
            extra[name] = name
    if extra:
        spelled = [places.get(name, name) for name in found]
        for_all = [t for name in found for t in _about(prompts, name)]
        found = {s.name: s for s in find_sources(spelled, root, list(dict.fromkeys(for_all)), list(extra.values()))}
    return Found(found, missing)


def chosen_sets(study: Study, found: Found) -> dict[str, Source | None]:
    """Return the data sets of one study by name; None for those of the paper that are not here."""
    own: dict[str, Source | None] = {name: found.sources.get(name) for name in study.sets}
    others = {name: source for name, source in found.sources.items() if name not in own}
    if study.others == "beside":
        others = {name: source for name, source in others.items() if name not in DATA_SETS}
    elif all(source is not None for source in own.values()):
        others = {}
    # what came with shifts is there for the table of shifts
    shifted = study.others == "shifted"
    return own | {name: source for name, source in others.items() if bool(source.shifts) == shifted}


def check_options(studies: Iterable[Study], options: Mapping[str, Any]) -> list[str]:
    """Refuse options for what is neither a method nor a row of any study.

    Return the names of tables that describe rows of their own, which only `kalmanclip compare` has.
    """
    labels = list(dict.fromkeys(variant.label for study in studies for variant in study.variants))
    foreign = []
    for name, table in options.items():
        if not isinstance(table, dict):
            raise ConfigError(f"The options of {name} must be a table of names and values, not {table!r}.")
        if name in METHODS or name in labels:
            continue
        if not isinstance(table.get("method"), str):
            raise ConfigError(f"There is no method or row {name!r}. Rows: {', '.join(labels)}.")
        foreign.append(name)
    return foreign


def study_runs(
    study: Study,
    sources: Iterable[Source],
    seeds: Sequence[int],
    model: str,
    options: Mapping[str, Any] | None = None,
) -> list[Run]:
    """Return the runs of one study on these data sets; ``options`` change what it says, by method or label."""
    changes = options or {}
    runs: list[Run] = []
    for source in sources:
        # shifts belong to the table that shows them; elsewhere the same run would be another one with them
        source = source if study.others == "shifted" else replace(source, shifts=())
        for zero_shot in (True, False):  # which learns nothing: one number of shots is enough, and clean images
            variants = [v for v in study.variants if (v.label == ZERO_SHOT) == zero_shot]
            if not variants:
                continue
            table = {v.label: _options(v, source.name, changes) for v in variants}
            shots, shares = (study.shots[-1:], (0.0,)) if zero_shot else (study.shots, study.shares)
            runs += plan([source], list(table), shots, seeds, model, table, map(Contamination, shares))
    return [replace(run, study=study.name) for run in runs]


def _options(variant: Variant, data: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    options = dict(variant.options)
    # the first-order rivals of the paper's filter make as many passes
    if data in LARGE and (str(options.get("preset", "")).startswith("paper") or variant.method == "first_order"):
        options.setdefault("epochs", 5)
    for name in (variant.method, variant.label):
        options = dict(merge(options, changes.get(name, {})))
    return options | {"method": variant.method}


def _registered_prompts(places: Mapping[str, str], templates: Sequence[str]) -> list[str]:
    """Return prompts of the paper's data sets for folders that are said to be them, unless the user has prompts."""
    chosen = {split_template(template)[0] for template in templates}
    named = [name for name, place in places.items() if name in DATA_SETS and split_name(place)[0] == name]
    free = [name for name in named if not chosen & {None, name}]
    return [f"{name}={template}" for name in free for template in DATA_SETS[name].templates]


def _about(templates: Sequence[str], name: str) -> list[str]:
    """Return those for one data set, and those for all."""
    return [template for template in templates if split_template(template)[0] in (None, name)]
