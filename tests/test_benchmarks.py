"""That every benchmark runs and measures something; what it measures is for `make bench` to say."""

import json
import math
import os
import subprocess
import sys

import pytest
import torch
from benchmarks import measure
from benchmarks.__main__ import PARTS, main, rows
from benchmarks.measure import Options, Row, absent, peak_memory, row, seconds, show
from tests.processes import PATIENCE

QUICK = Options(device="cpu", rounds=1, quick=True)


SLOW = ("classes", "predict")


@pytest.mark.filterwarnings("ignore::FutureWarning")  # posteriors, while it is imported
@pytest.mark.parametrize("part", [pytest.param(p, marks=pytest.mark.slow) if p in SLOW else p for p in PARTS])
def test_every_part_measures_something(part):
    lines = rows(QUICK, (part,))
    assert lines
    for line in lines:
        assert line.part == part
        if line.figure is None:
            assert "not installed" in line.note
        else:
            assert math.isfinite(line.figure)
            assert line.figure > 0


def test_peers_say_which_package_is_missing(monkeypatch):
    from benchmarks import peers

    monkeypatch.setattr(peers, "missing", lambda package: True)
    monkeypatch.setattr(peers, "seconds", lambda steps, options: {name: torch.ones(1) for name in steps})
    monkeypatch.setattr(peers, "peak_memory", lambda step, device, warm: 1)
    (line,) = [line for line in peers.rows(QUICK) if line.figure is None]
    assert "posteriors" in line.what
    assert "pip install" in line.note


def test_a_part_without_its_package_does_not_stop_the_others(monkeypatch):
    def lacks_it(options):
        raise ModuleNotFoundError("No module named 'nowhere'", name="nowhere.inside")

    monkeypatch.setattr("benchmarks.step.rows", lacks_it)
    monkeypatch.setattr("benchmarks.fit.rows", lambda options: [Row("fit", "a", 1.0)])
    lacking, other = rows(QUICK, ("step", "fit"))
    assert lacking.figure is None
    assert "nowhere" in lacking.note
    assert other.figure == 1.0


def test_one_table_and_one_file(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("benchmarks.step.rows", lambda options: [Row("step", "a", 1.0, 0.9, 1.1, bound=1.05)])
    monkeypatch.setattr("benchmarks.fit.rows", lambda options: [absent("fit", "b", "no disk")])
    file = tmp_path / "bench.json"
    main(["--device", "cpu", "--quick", "--only", "step", "fit", "--json", str(file)])
    shown = capsys.readouterr().out
    assert shown.count("says nothing about speed") == 1
    assert "no disk" in shown
    kept = json.loads(file.read_text())
    assert [line["holds"] for line in kept["rows"]] == [None, None]  # one round is no measurement
    assert "yes" not in shown
    show([Row("step", "a", 1.0, bound=1.05)], Options())
    assert "yes" in capsys.readouterr().out
    assert kept["options"]["quick"] is True


def test_medians_quartiles_and_bounds():
    line = row("step", "a", [3.0, 1.0, 2.0, 5.0, 4.0], bound=3.0)
    assert (line.low, line.figure, line.high) == (2.0, 3.0, 4.0)
    assert line.holds is True
    assert row("step", "a", [3.0], bound=2.9).holds is False
    assert row("step", "a", [3.0], bound=3.1, at_least=True).holds is False
    assert row("step", "a", [3.0]).holds is None


def test_contestants_take_turns_in_both_orders():
    calls = []
    taken = seconds({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, Options(rounds=2))
    assert "".join(calls) == "aabb" + "ab" + "ba"
    assert all(len(values) == 2 for values in taken.values())


def test_a_quick_look_is_warm():
    calls = []
    taken = seconds({"a": lambda: calls.append(1)}, QUICK, least=10.0)
    assert len(calls) == 2
    assert len(taken["a"]) == 1


def test_short_calls_are_repeated():
    calls = []
    seconds({"a": lambda: calls.append(1)}, Options(rounds=1), least=0.2)  # longer than a call waits for a processor
    assert len(calls) > measure.WARM_UP + 1


def test_peak_memory_is_exact_on_the_cpu():
    held = torch.ones(1000, 1000)

    def call():
        a = held + 1  # 4 MB
        b = a * a  # 8 MB together
        del a
        return (b + 1).sum()  # still 8 MB

    assert peak_memory(call, "cpu") == pytest.approx(8e6, rel=1e-3)


def test_nothing_needed_but_what_the_package_needs(tmp_path):
    """The parts can be loaded where neither the command line's packages nor the peers are installed."""
    code = (
        "import sys\n"
        "for name in ('typer', 'pydantic', 'posteriors'): sys.modules[name] = None\n"
        f"for part in {PARTS}:\n"
        "    __import__('benchmarks.' + part)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE)


def test_attacks_are_counted(monkeypatch, capsys):
    from benchmarks import robustness

    monkeypatch.setattr("os.environ", os.environ | {})  # it turns caches off
    assert robustness.main(["--only", "adapters", "--count", "4"]) == 0
    monkeypatch.setitem(robustness.PARTS, "kills", lambda place: iter([("kill 0", "a mixture"), ("kill 1", "")]))
    monkeypatch.setattr(robustness, "prepare", lambda *_: None)
    assert robustness.main(["--only", "kills"]) == 1
    assert "kills: 'kill 0': 'a mixture'" in capsys.readouterr().out


def test_a_large_fit_stage_by_stage(tmp_path, capsys):
    from benchmarks import large

    file = tmp_path / "large.jsonl"
    words = ["--device", "cpu", "--images", "24", "--classes", "3", "--pictures", "9", "--size", "60"]
    large.main([*words, "--json", str(file)])
    learning, alone, fit = map(json.loads, file.read_text().splitlines())
    assert [line["stage"] for line in (learning, alone, fit)] == ["learning", "alone", "fit"]
    assert 0 < learning["peak_by_formula"] < 1
    assert alone["bounded_by"] == ("decoding" if alone["decode_per_s"] < alone["encode_per_s"] else "encoding")
    assert isinstance(alone["torchvision_cpu_per_s"], float)
    assert {"reading images", "learning the classes"} < set(fit["stages_s"])
    assert sum(fit["stages_s"].values()) == pytest.approx(fit["fit_s"], rel=0.05)
    assert fit["process_peak_bytes"] > 2**20


@pytest.mark.parametrize(("images", "classes"), [(3000, 8), (5000, 40)])
def test_the_formula_for_the_memory_of_a_large_fit_holds(images, classes, monkeypatch):
    """Where the terms that grow with the number of images count; most tensors are small here."""
    from benchmarks import large

    from kalmanclip.filtering import softmax
    from kalmanclip.methods import residuals, statistics
    from kalmanclip.prediction import predictive

    for module in (softmax, residuals, statistics):
        monkeypatch.setattr(module, "_NUMBERS", 2**14)
    monkeypatch.setattr(predictive, "_NUMBERS", 2**16)
    monkeypatch.setattr(large, "BATCH", 2**14)
    monkeypatch.setattr(large, "DRAWS", 2**16)
    assert 0.8 < large.learn(images, classes, 32, 20.0, "cpu")["peak_by_formula"] < 1


def test_a_decoder_that_is_not_there_is_said_to_be_so(tmp_path, monkeypatch):
    from benchmarks import large
    from benchmarks.pictures import make_pictures

    def refuses(*given, **named):
        raise RuntimeError("no nvjpeg here\nand a page about it")

    files = make_pictures(tmp_path, 2, 1, (20, 20))
    monkeypatch.setattr("torchvision.io.decode_jpeg", refuses)
    assert large._torchvision(files, "cpu") == "not there: no nvjpeg here"
