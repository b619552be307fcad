"""Prompts: templates that are filled with class names."""

from collections.abc import Iterable, Sequence

from kalmanclip.errors import ConfigError

DEFAULT_TEMPLATES = ("a photo of a {}.",)


def validate_templates(templates: str | Iterable[str]) -> tuple[str, ...]:
    """Return the templates (one string or several) as a tuple, checked.

    Raises:
        ConfigError: there is none, or one does not contain `{}` exactly once, or has other braces.
    """
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
