from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from kalmanclip.cli.spread import Spread


def parsed(*arguments):
    found = {}
    app = typer.Typer()

    @app.command(cls=Spread)
    def command(
        shots: Annotated[list[str] | None, typer.Option()] = None,
        seeds: Annotated[list[str] | None, typer.Option("--seeds", "-s")] = None,
        model: Annotated[str, typer.Option()] = "tiny",
        force: Annotated[bool, typer.Option("--force")] = False,
    ):
        found.update(shots=shots, seeds=seeds, model=model, force=force)

    result = CliRunner().invoke(app, arguments)
    return found if result.exit_code == 0 else result


@pytest.mark.parametrize(
    "arguments",
    [
        ("--shots", "1", "2", "4", "--seeds", "3"),
        ("--shots", "1", "--shots", "2", "4", "-s", "3"),
        ("--shots=1", "2", "4", "--seeds=3"),
        ("--seeds", "3", "--shots", "1", "2", "4"),
    ],
)
def test_values_one_after_the_other(arguments):
    assert parsed(*arguments) == {"shots": ["1", "2", "4"], "seeds": ["3"], "model": "tiny", "force": False}


def test_other_options_take_what_they_did():
    assert parsed("--force", "--model", "RN50", "--shots", "1,2") == {
        "shots": ["1,2"],
        "seeds": None,
        "model": "RN50",
        "force": True,
    }


@pytest.mark.parametrize("arguments", [("--model", "a", "b"), ("1", "2"), ("--force", "1")])
def test_a_word_that_belongs_to_nothing_is_refused(arguments):
    assert parsed(*arguments).exit_code == 2
