"""One run of a comparison, its address, and which runs a comparison is made of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from kalmanclip.config import to_dict
from kalmanclip.errors import ConfigError
from kalmanclip.experiments.contamination import CLEAN, Contamination
from kalmanclip.experiments.sources import Source
from kalmanclip.experiments.variants import find_variants
from kalmanclip.methods import METHODS, PRESETS, preset, with_options


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
        label: what tables call the method with these options. No result depends on it, so it is not part of the run:
            with another label a finished run stays finished.
        by_data: names of the options that its row sets differently on other data sets; like the label only for tables.
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
    label: str = field(default="", compare=False)
    by_data: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", self.label or self.method)

    def to_dict(self) -> dict[str, Any]:
        """The run as plain JSON values.

        What is as usual is left out, so that the address of an ordinary run does not depend on what else there is.
        """
        plain = asdict(self) | {"templates": list(self.templates), "contamination": self.contamination.to_dict()}
        del plain["label"], plain["by_data"]
        return {name: value for name, value in plain.items() if value or name not in ("contamination", "shifts")}

    @property
    def address(self) -> str:
        """The SHA-256 of the run's canonical JSON: 64 hexadecimal digits, the same on every computer."""
        return address_of(self.to_dict())

    def __str__(self) -> str:
        return f"{self.label} on {self.data}, {self.shots} shots, seed {self.seed}"


def address_of(plain: Mapping[str, Any]) -> str:
    """The address of a run that is given as plain JSON values (`Run.to_dict`)."""
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
) -> list[Run]:
    """The runs of a comparison: every method on every draw of every data set, each once.

    Args:
        sources: the data sets.
        methods: names of methods, or labels in ``options``; see `variants.find_variants`.
        shots: numbers of training images per class.
        seeds: one draw each. The draw depends on data set, shots and seed alone, so all methods see the same images.
        model: the backbone's name.
        options: by label, what differs from the method's defaults, also by data set.
        contaminations: of the training images; one without a seed takes each run's.

    Raises:
        ConfigError: an unknown method, options that it refuses, or nothing to run.
    """
    methods, shots, seeds = _unique("method", methods), _unique("number of shots", shots), _unique("seed", seeds)
    levels = _unique("share of contamination", contaminations)
    variants = find_variants(methods, options)
    for k in shots:
        if k < 1:
            raise ConfigError(f"The number of shots is {k}; it must be at least 1.")
    for variant in variants:  # mistakes about data sets that are not here are mistakes, too
        for name in variant.by_data:
            method_options(variant.method, variant.options_on(name), seeds[0])
    places = [source.name for source in sources] or [""]  # without any, the options are still checked
    configs = {
        (v.label, name, seed): method_options(v.method, v.options_on(name), seed)
        for v in variants
        for name in places
        for seed in seeds
    }
    return [
        Run(
            data=source.name,
            fingerprint=source.fingerprint,
            templates=source.templates,
            method=variant.method,
            config=configs[variant.label, source.name, seed],
            shots=k,
            seed=seed,
            model=model,
            contamination=level.seeded(seed),
            shifts={shift.name: shift.fingerprint for shift in source.shifts},
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
    """All options of a method as plain JSON values: its defaults, then ``changed``, table by table.

    For a method that has presets, ``changed`` may name a ``preset`` to start from.

    A method that has a seed among its options gets the run's, unless ``changed`` sets it: otherwise its seeds would
    differ in the draw alone while those of the other methods differ in everything.

    Raises:
        ConfigError: unknown options, or values that the method refuses.
    """
    wanted, rest = METHODS[method].Config, dict(changed)
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
