"""The Dockerfile as far as it can be checked without building it: what it copies, installs and starts is there."""

import json
import re

import pytest
import typer.main
from benchmarks.table import ROOT

from kalmanclip.cli import app

DOCKERFILE = ROOT / "Dockerfile"
pytestmark = pytest.mark.skipif(not DOCKERFILE.is_file(), reason="there is no Dockerfile")


@pytest.fixture(scope="module")
def instructions():
    """Pairs of an instruction and its arguments."""
    lines = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(encoding="utf-8"), flags=re.MULTILINE).replace("\\\n", " ")
    return [tuple(line.split(maxsplit=1)) for line in lines.splitlines() if line.strip()]


def arguments(instructions, name):
    return [rest for instruction, rest in instructions if instruction == name]


def test_what_is_copied_is_there_and_sent_to_the_builder(instructions):
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for line in arguments(instructions, "COPY"):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists()
            assert f"!{source}" in ignored


def test_what_is_installed_is_an_extra_that_serves(instructions):
    (install,) = (line for line in arguments(instructions, "RUN") if line.startswith("pip install"))
    (extra,) = re.findall(r"\.\[(\w+)\]", install)
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (needs,) = re.findall(rf"^{extra} = \[(.*?)\]", project, flags=re.MULTILINE)
    assert {"fastapi", "uvicorn", "python-multipart"} <= set(re.findall(r'"([\w-]+)', needs))
    (version,) = re.findall(r"python:3\.(\d+)", arguments(instructions, "FROM")[0])
    assert int(version) >= 10


def test_the_command_parses_and_its_health_is_asked_for(instructions):
    (program,), (command,) = (arguments(instructions, name) for name in ("ENTRYPOINT", "CMD"))
    name, *words = json.loads(command)
    context = typer.main.get_command(app).commands[name].make_context(name, words)
    assert json.loads(program) == ["kalmanclip"]
    assert context.params["host"] == "0.0.0.0"  # what comes from outside the container
    assert not context.params["learn"]
    port = context.params["port"]
    assert arguments(instructions, "EXPOSE") == [str(port)]
    assert f"http://127.0.0.1:{port}/health" in arguments(instructions, "HEALTHCHECK")[0]


def test_it_does_not_run_as_root(instructions):
    names = [name for name, _ in instructions]
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert arguments(instructions, "USER") == ["kalmanclip"]
