"""Several processes that fit together end with the classifier of one."""

import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.methods import fitting
from tests.processes import PATIENCE
from tests.together import DEAD, together
from typer.testing import CliRunner

from kalmanclip.cli import app
from kalmanclip.encoders import features
from kalmanclip.files import read_json

TOLERANCE = {"paper": 1e-5, "default": 1e-7}  # the default ends when its steps are small enough


@pytest.fixture(scope="module")
def broken(shapes, tmp_path_factory):
    """The shapes, the last of which cannot be read: it is in the share of the last rank."""
    root = tmp_path_factory.mktemp("broken") / "shapes"
    shutil.copytree(shapes, root)
    sorted(root.glob("*/*.png"))[-1].write_bytes(b"not a picture")
    return root


@pytest.fixture(scope="module")
def answers(shapes, broken, tmp_path_factory):
    found = together(tmp_path_factory.mktemp("ranks"), 2, fitting.all_fits, shapes, broken)
    assert all(isinstance(answer, dict) for answer in found), found
    return found


def agree(got, wanted, tolerance):
    (found, told), (expected, expected_told) = got, wanted
    assert told == expected_told
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        scale = max(1.0, float(np.abs(value).max())) if np.size(value) else 1.0
        np.testing.assert_allclose(found[name], value, rtol=0, atol=tolerance * scale, err_msg=name)


@pytest.mark.parametrize("name", fitting.CASES)
def test_two_processes_end_where_one_does(answers, shapes, name, monkeypatch):
    monkeypatch.setattr(features, "ENCODE_BATCH", 4)
    wanted = fitting.fitted(shapes, fitting.CASES[name])
    for answer in answers:
        agree(answer[name], wanted, TOLERANCE.get(name, 1e-9))


def test_all_ranks_have_the_same_classifier(answers):
    for name in fitting.CASES:
        agree(answers[1][name], answers[0][name], tolerance=0)


def test_activations_that_cannot_be_kept_are_computed_share_by_share(answers):
    for answer in answers:
        agree(answer["anew"], answer["literal"], 1e-9)


@pytest.mark.parametrize("name", ["unreadable", "unreadable, one by one", "unreadable views"])
def test_an_image_that_one_rank_cannot_read_is_an_error_of_all(answers, name):
    for answer in answers:
        assert answer[name][0] == "ImageError"
        assert "4.png" in answer[name][1]


def test_ranks_that_are_told_different_things_say_so(answers):
    for answer in answers:
        assert answer["another seed"][0] == "ConfigError"
        assert "same" in answer["another seed"][1]


def test_only_a_diagonal_belief_is_shared(answers):
    for answer in answers:
        assert answer["another belief"][0] == "ConfigError"
        assert "'low_rank'" in answer["another belief"][1]


def test_an_observation_of_the_whole_batch_is_not_shared(answers):
    for answer in answers:
        assert answer["another observation"][0] == "ConfigError"
        assert "'symmetric'" in answer["another observation"][1]
        assert "single process" in answer["another observation"][1]


def tensors(folder):
    return load_file(Path(folder) / read_json(Path(folder) / "adapter.json")["tensors"]["file"])


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run(place, size, arguments, dies_after=None):
    return together(place, size, fitting.command, size, free_port(), arguments, dies_after, connect=False)


def alone(*arguments):
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, (result.output, result.exception)


def test_a_fit_that_lost_a_rank_goes_on_with_any_number(shapes, tmp_path):
    fit = ["fit", str(shapes), "--preset", "paper", "--placement", "head", "--batch-size", "6", "--epochs", "3"]
    fit += ["--rank", "2", "-o"]
    alone(*fit, str(tmp_path / "whole"))
    lost = tmp_path / "lost"
    survivor, victim = run(tmp_path, 2, [*fit, str(lost)], dies_after=1)
    assert victim == DEAD
    assert survivor[0] == 7
    assert "Rank 0 of 2 lost another one" in survivor[2]
    assert "--resume" in survivor[2]
    notes = read_json(lost / "adapter.json")["notes"]
    assert (notes["epochs_done"], notes["epochs"]) == (1, 3)
    copy = shutil.copytree(lost, tmp_path / "copy")
    first, second = run(tmp_path, 2, ["fit", str(shapes), "-o", str(lost), "--resume"])
    assert (first[0], second[0]) == (0, 0), (first, second)
    assert "saved in" in first[1]
    assert second[1:] == ("", "")  # one speaks
    alone("fit", str(shapes), "-o", str(copy), "--resume")
    wanted = tensors(tmp_path / "whole")
    for place in (lost, copy):
        for name, value in tensors(place).items():
            scale = max(1.0, float(np.abs(value).max()))
            np.testing.assert_allclose(value, wanted[name], rtol=0, atol=1e-5 * scale, err_msg=name)


@pytest.mark.slow
def test_four_processes_end_where_one_does(shapes, tmp_path):
    wanted = fitting.fitted(shapes, fitting.PAPER)
    for answer in together(tmp_path, 4, fitting.paper_fit, shapes):
        agree(answer, wanted, 1e-5)


DYING = """
import os, sys
import kalmanclip.cli.fit as fit
save = fit._save
def dying(clf, output, notes):
    save(clf, output, notes)
    if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), 9)
fit._save = dying
from kalmanclip.cli import app
app()
"""


@pytest.mark.slow
@pytest.mark.parametrize("restarts", [0, 1])
def test_torchrun_loses_a_rank(shapes, tmp_path, restarts):
    script, output = tmp_path / "dying.py", tmp_path / "out"
    script.write_text(DYING)
    start = ["torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", str(restarts)]
    start += ["--master-port", str(free_port()), str(script)]
    fit = ["fit", str(shapes), "-o", str(output), "--preset", "head", "--rank", "2", "--epochs", "2"]
    done = subprocess.run([sys.executable, "-m", *start, *fit], capture_output=True, text=True, timeout=PATIENCE)
    notes = read_json(output / "adapter.json")["notes"]
    if restarts:
        assert done.returncode == 0, done.stderr
        assert "Going on after pass 1 of 2" in done.stderr
        assert notes["epochs_done"] == 2
    else:
        assert done.returncode != 0
        assert "Error: Rank 0" in done.stderr
        assert notes["epochs_done"] == 1
