"""Prompts: templates that are filled with class names."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from kalmanclip.errors import ConfigError
from kalmanclip.files import explain, read_json

DEFAULT_TEMPLATES = ("a photo of a {}.",)


def validate_templates(templates: str | Iterable[str]) -> tuple[str, ...]:
    """Return the templates (one string or several) as a tuple, checked.

    Raises:
        ConfigError: there is none, or one does not contain `{}` exactly once, or has other braces.
    """
    if not isinstance(templates, Iterable):
        raise ConfigError(f"prompt templates are a text or a list of texts, not {templates!r}")
    checked = (templates,) if isinstance(templates, str) else tuple(templates)
    if not checked:
        raise ConfigError(f"there are no prompt templates; give at least one, for example {DEFAULT_TEMPLATES[0]!r}")
    for template in checked:
        if not isinstance(template, str) or "{}" not in template or set("{}") & set(template.replace("{}", "", 1)):
            raise ConfigError(
                f"the prompt template {template!r} must contain {{}} exactly once, where the class name "
                f"goes, and no other braces; for example {DEFAULT_TEMPLATES[0]!r}"
            )
    return checked


def fill(templates: str | Iterable[str], class_name: str) -> list[str]:
    """Return one prompt per template, with `class_name` (taken as it is, braces too) in the place of `{}`."""
    return [template.replace("{}", class_name) for template in validate_templates(templates)]


def class_prompts(templates: str | Iterable[str], class_names: Sequence[str]) -> list[list[str]]:
    """Return the prompts of every class: C lists of T prompts, for C class names and T templates."""
    checked = validate_templates(templates)
    return [fill(checked, name) for name in class_names]


def read_descriptions(path: str | os.PathLike[str]) -> dict[str, tuple[str, ...]]:
    """Return what a file says about how classes look: their names, with any number of prompts each.

    A .json file holds ``{"name": ["prompt", ...]}``. Any other is text with a line ``name: prompt`` for each prompt;
    empty lines and those that begin with ``#`` are skipped. A class may occur in several lines.
    """
    if Path(path).suffix == ".json":
        return check_descriptions(read_json(path, ConfigError))
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        message = explain("read", path, problem) if isinstance(problem, OSError) else f"{path} is not UTF-8 text"
        raise ConfigError(message) from problem
    found: dict[str, list[str]] = {}
    for number, line in enumerate(lines, start=1):
        name, colon, prompt = (part.strip() for part in line.partition(":"))
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not (name and colon and prompt):
            raise ConfigError(f"{path}, line {number}: write a class name, a colon and a description, not {line!r}.")
        found.setdefault(name, []).append(prompt)
    return check_descriptions(found)


def check_descriptions(descriptions: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Return descriptions of classes, checked: by name, at least one string each."""

    def is_list(prompts: object) -> bool:
        return isinstance(prompts, list | tuple) and bool(prompts) and all(isinstance(p, str) and p for p in prompts)

    if not isinstance(descriptions, Mapping) or not descriptions or not all(map(is_list, descriptions.values())):
        raise ConfigError("Descriptions are lists of texts by class name, such as {'cat': ['whiskers and soft fur']}.")
    return {str(name): tuple(prompts) for name, prompts in descriptions.items()}
