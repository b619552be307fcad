"""A run is done by one living process; what a dead one claimed is free again."""

import json
import os
import subprocess
import sys
import time

import pytest

from kalmanclip.errors import DataError
from kalmanclip.experiments import claims as module
from kalmanclip.experiments.claims import Claims

A = "a" * 64


@pytest.fixture
def claims(tmp_path):
    with Claims(tmp_path) as made:
        yield made


def test_only_one_gets_a_run_until_it_is_given_back(claims, tmp_path):
    with Claims(tmp_path) as other:
        assert claims.take(A)
        assert not other.take(A)
        claims.give_back(A)
        assert other.take(A)
        assert not claims.take(A)
    assert claims.take(A)  # what the other had is given back at its end


def test_nothing_is_left(tmp_path):
    with Claims(tmp_path) as claims:
        claims.take(A)
    assert list(tmp_path.iterdir()) == []


def test_the_claim_of_a_dead_process_is_taken_over_at_once(claims):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    claims.path(A).write_text(json.dumps({"computer": module._computer(), "process": dead.pid}))
    assert claims.take(A)
    assert json.loads(claims.path(A).read_text())["process"] == os.getpid()


@pytest.mark.parametrize("content", ['{"computer": "elsewhere", "process": 1}', "", "{"])
def test_elsewhere_a_claim_is_stale_when_nobody_touches_it(claims, monkeypatch, content):
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    path = claims.path(A)
    path.write_text(content)
    for moment in range(3):
        clock[0] += 0.9 * module.STALE
        os.utime(path, (moment, moment))  # alive, whatever its clock says
        assert not claims.take(A)
    clock[0] += 0.9 * module.STALE
    assert not claims.take(A)
    clock[0] += 0.2 * module.STALE
    assert claims.take(A)


def test_the_owner_touches_its_claims(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BEAT", 0.01)
    with Claims(tmp_path) as claims:
        claims.take(A)
        os.utime(claims.path(A), (0, 0))
        deadline = time.monotonic() + 30
        while claims.path(A).stat().st_mtime == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert claims.path(A).stat().st_mtime > 0


def test_a_folder_that_is_gone_is_named(tmp_path):
    with pytest.raises(DataError, match="Cannot write to"):
        Claims(tmp_path / "gone").take(A)
