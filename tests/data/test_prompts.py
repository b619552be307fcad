"""Prompt templates."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kalmanclip.data.prompts import DEFAULT_TEMPLATES, class_prompts, fill, validate_templates
from kalmanclip.errors import ConfigError


def test_default_is_the_papers():
    assert DEFAULT_TEMPLATES == ("a photo of a {}.",)
    assert fill(DEFAULT_TEMPLATES, "golden retriever") == ["a photo of a golden retriever."]


def test_one_string_is_one_template():
    assert validate_templates("{} texture.") == ("{} texture.",)
    assert validate_templates(["{}", "a {}"]) == ("{}", "a {}")


def test_prompts_per_class():
    assert class_prompts(["a {}.", "the {}."], ["cat", "dog"]) == [
        ["a cat.", "the cat."],
        ["a dog.", "the dog."],
    ]


@pytest.mark.parametrize(
    "template",
    ["a photo", "{} and {}", "a {name}", "a {0}", "{{}}", "{} {", "} {}", "{", "", 7, None, "{}{}"],
)
def test_bad_template_is_shown_with_an_example(template):
    with pytest.raises(ConfigError) as caught:
        validate_templates([DEFAULT_TEMPLATES[0], template])
    assert repr(template) in str(caught.value)
    assert "a photo of a {}." in str(caught.value)


def test_no_templates():
    with pytest.raises(ConfigError, match="no prompt templates"):
        validate_templates([])


@settings(deadline=None)
@given(st.text())
def test_any_name_goes_in_unchanged(name):
    assert fill("a photo of a {}.", name) == ["a photo of a " + name + "."]
