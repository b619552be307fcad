"""What is installed: the noted versions fit pyproject.toml, and the audit says no more than it knows."""

import importlib.util
import json
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def audit():
    spec = importlib.util.spec_from_file_location("audit", ROOT / ".ci" / "audit.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_noted_versions_fit_and_leave_torch_to_the_machine():
    requirements = pytest.importorskip("packaging.requirements")
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    extras = project["optional-dependencies"]
    wanted = [requirements.Requirement(r) for r in (*project["dependencies"], *extras["dev"], *extras["app"])]
    direct = {r.name.replace("_", "-"): r.specifier for r in wanted}
    assert not {"torch", "torchvision", "kalmanclip"} & pins.keys()
    assert direct.keys() - pins.keys() == {"torch", "torchvision"}
    assert [name for name, specifier in direct.items() if name in pins and pins[name] not in specifier] == []


KNOWN = {"id": "CVE-1", "aliases": ["GHSA-1", "CVE-1"], "fix_versions": ["2.0"]}
SAFE = {"name": "numpy", "version": "2.0", "vulns": []}
SKIPPED = {"name": "torch", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("packages", "said", "code"),
    [
        ([SAFE, SKIPPED], ["1 of 2 packages were audited.", "No known vulnerabilities."], 0),
        (
            [SAFE, {"name": "pillow", "version": "1.0", "vulns": [KNOWN]}],
            ["pillow 1.0: CVE-1, GHSA-1; fixed in 2.0"],
            1,
        ),
        ([SKIPPED, SKIPPED], ["Nothing was audited"], 0),
        ([], ["Nothing was audited"], 0),
    ],
)
def test_what_an_audit_says(audit, packages, said, code):
    text, found = audit.summary(packages, "no network")
    assert found == code
    assert all(line in text for line in said)
    assert ("No known" in text) == (code == 0 and SAFE in packages)


@pytest.mark.parametrize("how", ["finds", "fails", "hangs"])
def test_an_audit_that_goes_wrong_is_no_finding(audit, monkeypatch, capsys, how):
    def run(words, **options):
        if how == "hangs":
            raise subprocess.TimeoutExpired(words, 1)
        if how == "finds":
            Path(words[-1]).write_text(json.dumps({"dependencies": [SAFE | {"vulns": [KNOWN]}]}))
        return subprocess.CompletedProcess(words, 1, "", "Traceback\nConnectionError: nobody there")

    monkeypatch.setattr(subprocess, "run", run)
    assert audit.main() == (how == "finds")
    wanted = {"finds": "1 known vulnerabilities", "fails": "nobody there", "hangs": "no answer within"}
    assert wanted[how] in capsys.readouterr().out
