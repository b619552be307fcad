"""One run of a comparison, its address, and which runs a comparison is made of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kalmanclip.config import from_dict, merge, to_dict
from kalmanclip.errors import ConfigError
from kalmanclip.experiments.sources import Source
from kalmanclip.methods import CONFIGS, check_method


@dataclass(frozen=True)
class Run:
    """Everything a result depends on besides the code: two equal runs need not both be run.

    Attributes:
        data: what the data set is called in tables.
        fingerprint: a hash of the names, labels and classes of all its images (`sources.Source.fingerprint`). Where
            the data set lies is not part of a run, so results stay valid when it is moved.
        templates: the prompt templates.
        method: a key of `kalmanclip.methods.METHODS`.
        config: all options of the method, defaults included, as plain JSON values.
        shots: K, training images per class.
        seed: of the draw and of whatever is random in the method.
        model: the backbone's name.
    """

    data: str
    fingerprint: str
    templates: tuple[str, ...]
    method: str
    config: Mapping[str, Any]
    shots: int
    seed: int
    model: str

    def to_dict(self) -> dict[str, Any]:
        """The run as plain JSON values."""
        return asdict(self) | {"templates": list(self.templates)}

    @property
    def address(self) -> str:
        """The SHA-256 of the run's canonical JSON: 64 hexadecimal digits, the same on every computer."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def __str__(self) -> str:
        return f"{self.method} on {self.data}, {self.shots} shots, seed {self.seed}"


def plan(
    sources: Sequence[Source],
    methods: Iterable[str],
    shots: Iterable[int],
    seeds: Iterable[int],
    model: str,
    options: Mapping[str, Any] | None = None,
) -> list[Run]:
    """The runs of a comparison: every method on every draw of every data set, each once.

    Args:
        sources: the data sets.
        methods: names; see `kalmanclip.methods`.
        shots: numbers of training images per class.
        seeds: one draw each. The draw depends on data set, shots and seed alone, so all methods see the same images.
        model: the backbone's name.
        options: by method, what differs from its defaults.

    Raises:
        ConfigError: an unknown method, options that it refuses, or nothing to run.
    """
    methods, shots, seeds = _unique("method", methods), _unique("number of shots", shots), _unique("seed", seeds)
    for method in (*methods, *(options or {})):
        check_method(method)
    for k in shots:
        if k < 1:
            raise ConfigError(f"The number of shots is {k}; it must be at least 1.")
    configs = {(m, seed): method_options(m, (options or {}).get(m, {}), seed) for m in methods for seed in seeds}
    return [
        Run(
            data=source.name,
            fingerprint=source.fingerprint,
            templates=source.templates,
            method=method,
            config=configs[method, seed],
            shots=k,
            seed=seed,
            model=model,
        )
        for source in sources
        for k in shots
        for seed in seeds
        for method in methods
    ]


def method_options(method: str, changed: Any, seed: int) -> dict[str, Any]:
    """All options of a method as plain JSON values: its defaults, then ``changed``, table by table.

    A method that has a seed among its options gets the run's, unless ``changed`` sets it: otherwise its seeds would
    differ in the draw alone while those of the other methods differ in everything.

    Raises:
        ConfigError: unknown options, or values that the method refuses.
    """
    defaults = to_dict(CONFIGS[method]())
    if "seed" in defaults:
        defaults["seed"] = seed
    config: Any = from_dict(CONFIGS[method], merge(defaults, changed))
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
