"""What a comparison is made of: contaminated training images, variants of methods, runs, and the plan of all runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from kalmanclip.config import check_seed, check_whole, flatten, merge, to_dict
from kalmanclip.data import LabelledImages
from kalmanclip.data.corruptions import SEVERITIES, contaminate
from kalmanclip.errors import ConfigError
from kalmanclip.experiments.base_to_new import MARK
from kalmanclip.experiments.sources import Source
from kalmanclip.methods import CONTROLS, METHODS, PRESETS, check_method, find_method, preset, with_options


@dataclass(frozen=True)
class Contamination:
    """Which training images are replaced by corrupted ones; see `kalmanclip.data.corruptions.contaminate`.

    Attributes:
        share: of the training images, from 0 to 1. Validation and test images stay as they are.
        severities: strengths to choose from, 1 to 5.
        seed: of the choice; None for the run's.
    """

    share: float = 0.0
    severities: tuple[int, ...] = SEVERITIES
    seed: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ConfigError(f"The share of contamination is {self.share}; it must lie between 0 and 1.")
        if not self.severities or any(severity not in SEVERITIES for severity in self.severities):
            raise ConfigError(f"Severities are numbers from 1 (weak) to 5 (strong), not {self.severities}.")
        object.__setattr__(self, "share", float(self.share))  # 1 and 1.0 are the same run

    def seeded(self, seed: int) -> Contamination:
        """Return the same with a seed; where there is nothing to choose, options that change nothing are forgotten."""
        if not self.share:
            return CLEAN
        return self if self.seed is not None else replace(self, seed=seed)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; nothing at all without contamination."""
        return asdict(self) | {"severities": list(self.severities)} if self.share else {}

    def apply(self, images: LabelledImages) -> LabelledImages:
        """Return the images, some of them corrupted."""
        if not self.share:
            return images
        return contaminate(images, self.share, self.seed or 0, severities=self.severities)


CLEAN = Contamination()
"""All images as they are."""

_UNUSUAL = ("contamination", "shifts", "base_to_new")
"""What only some runs have."""


@dataclass(frozen=True)
class Variant:
    """One row of a table: a method, perhaps with options of its own.

    Attributes:
        label: what tables call it; a method's name, or a name of one's own.
        method: as `kalmanclip.methods.find_method` takes it.
        options: what differs from the method's defaults.
        by_data: what differs from that on a data set, by its name.
        family: what variants that differ in one setting have in common; only for reports.
        setting: the value of that setting.
    """

    label: str
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    by_data: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    family: str = ""
    setting: float | None = None

    def options_on(self, data: str) -> Mapping[str, Any]:
        """Return the options on the data set of that name."""
        found: Mapping[str, Any] = merge(dict(self.options), dict(self.by_data.get(data, {})))
        return found

    @property
    def set_by_data(self) -> tuple[str, ...]:
        """Dotted names of the options that are not the same on all data sets."""
        return tuple(sorted({name for table in self.by_data.values() for name in flatten(table)}))


def find_variants(labels: Iterable[str], options: Mapping[str, Any] | None = None) -> list[Variant]:
    """Return the variants of these labels, in their order.

    Args:
        labels: names of methods, and labels in ``options``.
        options: by label, a table of options. A table with the entry ``method`` describes a variant of that method,
            ``{"kalman one pass": {"method": "kalman", "epochs": 1}}``; one without is for the method of that name. The
            entry ``by_data`` has further tables, by the names of data sets (several with commas between them).
    """
    tables = options or {}
    known = {label: _variant(label, table) for label, table in tables.items()}  # mistakes in all of them count
    return [known.get(label) or _variant(label, {}) for label in labels]


def all_labels(options: Mapping[str, Any] | None = None) -> list[str]:
    """Return all methods but the controls, each with its variants next to it, the paper's first."""
    rows: dict[str, list[str]] = {name: [] if name in CONTROLS else [name] for name in METHODS}
    for label, table in (options or {}).items():
        if (variant := _variant(label, table)).label != variant.method:
            rows.setdefault(variant.method, []).append(label)
    return [label for row in rows.values() for label in row]


def _variant(label: str, table: Any) -> Variant:
    if not label.strip() or label != label.strip() or "," in label:
        raise ConfigError(f"The label {label!r} cannot be used: it must not be empty, nor have commas or outer spaces.")
    method = table.get("method", label) if isinstance(table, dict) else label
    if not isinstance(method, str):
        raise ConfigError(f"The method of {label!r} must be a name, not {method!r}.")
    check_method(method)
    if not isinstance(table, dict):
        raise ConfigError(f"The options of {label} must be a table of names and values, not {table!r}.")
    if label in METHODS and label != method:
        raise ConfigError(f"The label {label!r} is the name of another method than {method!r}. Choose another label.")
    options = {name: value for name, value in table.items() if name not in ("method", "by_data")}
    return Variant(label, method, options, _by_data(label, table.get("by_data", {})))


def _by_data(label: str, tables: Any) -> dict[str, Mapping[str, Any]]:
    """Return options by the name of one data set each."""
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise ConfigError(f"by_data of {label!r} must hold tables of options by the names of data sets.")
    found: dict[str, Mapping[str, Any]] = {}
    for names, table in tables.items():
        for name in (part.strip() for part in names.split(",")):
            if not name or name in found:
                raise ConfigError(f"by_data of {label!r} names the data set {name!r} twice, or has an empty name.")
            found[name] = table
    return found


@dataclass(frozen=True)
class Run:
    """Everything a result depends on besides the code: two equal runs need not both be run.

    Attributes:
        data: what tables call the data set. No result depends on it, so it is not part of the run's address.
        fingerprint: a hash of the names, labels and classes of all its images (`sources.Source.fingerprint`). Where
            the data set lies is not part of a run, so results stay valid when it is moved.
        templates: the prompt templates.
        method: a key of `kalmanclip.methods.METHODS`.
        config: all options of the method, defaults included, as plain JSON values.
        shots: K, training images per class.
        seed: of the draw and of whatever is random in the method.
        model: the backbone's name.
        contamination: which of the training images are corrupted.
        shifts: the extra test sets: fingerprints by name.
        base_to_new: whether the first half of the classes is learned, and either half measured (`base_to_new`).
        label: what tables call the method with these options. No result depends on it, so it is not part of the run:
            with another label a finished run stays finished.
        by_data: names of the options that its variant sets differently on other data sets; like the label for tables.
        study: the study of the paper that the run was planned for; like the label only for tables.
    """

    data: str = field(compare=False)
    fingerprint: str
    templates: tuple[str, ...]
    method: str
    config: Mapping[str, Any]
    shots: int
    seed: int
    model: str
    contamination: Contamination = CLEAN
    shifts: Mapping[str, str] = field(default_factory=dict)
    base_to_new: bool = False
    label: str = field(default="", compare=False)
    by_data: tuple[str, ...] = field(default=(), compare=False)
    study: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", self.label or self.method)

    def to_dict(self) -> dict[str, Any]:
        """Return the run as plain JSON values.

        What is as usual is left out, so that the address of an ordinary run does not depend on what else there is.
        """
        plain = asdict(self) | {"templates": list(self.templates), "contamination": self.contamination.to_dict()}
        del plain["label"], plain["by_data"], plain["study"]
        return {name: value for name, value in plain.items() if value or name not in _UNUSUAL}

    @property
    def names(self) -> dict[str, Any]:
        """What its record is called in tables: fields of the record that are not part of the address."""
        found = {"label": self.label, "by_data": list(self.by_data), "study": self.study}
        return {name: value for name, value in found.items() if value}

    @property
    def source(self) -> str:
        """The name of the data set's source."""
        return self.data.removesuffix(MARK) if self.base_to_new else self.data

    @property
    def address(self) -> str:
        """The SHA-256 of the run's canonical JSON: 64 hexadecimal digits, the same on every computer."""
        return address_of(self.to_dict())

    def __str__(self) -> str:
        return f"{self.label} on {self.data}, {self.shots} shots, seed {self.seed}"


def address_of(plain: Mapping[str, Any]) -> str:
    """Return the address of a run that is given as plain JSON values (`Run.to_dict`)."""
    counted = {name: value for name, value in plain.items() if name != "data"}
    text = json.dumps(counted, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def plan(
    sources: Sequence[Source],
    methods: Iterable[str],
    shots: Iterable[int],
    seeds: Iterable[int],
    model: str,
    options: Mapping[str, Any] | None = None,
    contaminations: Iterable[Contamination] = (CLEAN,),
    base_to_new: bool = False,
) -> list[Run]:
    """Return the runs of a comparison: every method on every draw of every data set, each once.

    Args:
        sources: the data sets.
        methods: names of methods, or labels in ``options``; see `find_variants`.
        shots: numbers of training images per class.
        seeds: one draw each. The draw depends on data set, shots and seed alone, so all methods see the same images.
        model: the backbone's name.
        options: by label, what differs from the method's defaults, also by data set.
        contaminations: of the training images; one without a seed takes each run's.
        base_to_new: whether to learn the first half of the classes and measure either half.
    """
    methods, shots, seeds = _unique("method", methods), _unique("number of shots", shots), _unique("seed", seeds)
    levels = _unique("share of contamination", contaminations)
    variants = find_variants(methods, options)
    if base_to_new and any(source.shifts for source in sources):
        raise ConfigError("Base to new measures on new classes, and not on shifts: leave one of them out.")
    for k in shots:
        check_whole(1, **{"The number of shots": k})
    for seed in seeds:
        check_seed(seed)
    for variant in variants:  # mistakes about data sets that are not here are mistakes, too
        for name in variant.by_data:
            method_options(variant.method, variant.options_on(name), seeds[0])
    configs = {
        (v.label, name, seed): method_options(v.method, v.options_on(name), seed)
        for v in variants
        for name in [source.name for source in sources] or [""]  # without any, the options are still checked
        for seed in seeds
    }
    return [
        Run(
            data=source.name + MARK * base_to_new,
            fingerprint=source.fingerprint,
            templates=source.templates,
            method=variant.method,
            config=configs[variant.label, source.name, seed],
            shots=k,
            seed=seed,
            model=model,
            contamination=level.seeded(seed),
            shifts={shift.name: shift.fingerprint for shift in source.shifts},
            base_to_new=base_to_new,
            label=variant.label,
            by_data=variant.set_by_data,
        )
        for source in sources
        for level in levels
        for k in shots
        for seed in seeds
        for variant in variants
    ]


def method_options(method: str, changed: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return all options of a method as plain JSON values: its defaults, then ``changed``, table by table.

    For a method that has presets, ``changed`` may name a ``preset`` to start from.

    A method that has a seed among its options gets the run's, unless ``changed`` sets it: otherwise its seeds would
    differ in the draw alone while those of the other methods differ in everything.
    """
    wanted, rest = find_method(method).Config, dict(changed)
    start: Any = wanted()
    if type(start) in map(type, PRESETS.values()) and "preset" in rest:
        start = preset(rest.pop("preset"))
        if type(start) is not wanted:
            names = [name for name, config in PRESETS.items() if type(config) is wanted]
            raise ConfigError(f"That preset is another method's. Those of {method!r} are: {', '.join(names)}.")
    if hasattr(start, "seed"):
        rest = {"seed": seed} | rest
    config = with_options(start, rest)
    try:
        # through JSON and back, so that a run read from a file equals the run that was planned
        plain: dict[str, Any] = json.loads(json.dumps(to_dict(config), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"The options of {method} cannot be stored: {error}. Use finite numbers.") from error
    return plain


def _unique(what: str, values: Iterable[Any]) -> list[Any]:
    found = list(dict.fromkeys(values))
    if not found:
        raise ConfigError(f"There is nothing to compare: give at least one {what}.")
    return found
