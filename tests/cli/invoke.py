"""A command in this process, for tests."""

from typer.testing import CliRunner

from kalmanclip.cli import app


def call(*words, code=0):
    """Run ``kalmanclip WORDS...`` and check its exit code; what it printed is in the result."""
    result = CliRunner().invoke(app, [*map(str, words)])
    assert result.exit_code == code, (result.output, result.exception)
    return result
