"""``kalmanclip paper``: plans, runs, resumes, draws; and mistakes."""

import json
import re
import shutil
from functools import partial

import pytest
from tests.cli import invoke

call = partial(invoke.call, "paper")


@pytest.fixture(scope="module")
def data(split_shapes, tmp_path_factory):
    """The shapes, said to be EuroSAT, which needs no more than class folders."""
    empty = tmp_path_factory.mktemp("root")
    return ["--model", "tiny", "--data", f"eurosat={split_shapes}", "--seeds", "1", "--root", empty]


@pytest.fixture(scope="module")
def done(data, tmp_path_factory):
    """Figure 3 on the shapes: its folder and what was printed."""
    folder = tmp_path_factory.mktemp("paper")
    return folder, call("figure3", *data, "-o", folder)


def records(folder):
    return {p.name: p.read_text() for p in folder.glob("*.json") if re.fullmatch(r"[0-9a-f]{64}", p.stem)}


def test_a_figure_is_run_drawn_and_told(done):
    folder, result = done
    assert len(records(folder)) == 4
    names = {path.name for path in folder.iterdir() if path.suffix != ".json"}
    pictures = {f"figure3{n}.{kind}" for n in ("", "-2", "-3") for kind in ("png", "svg")}
    assert names == {"results.jsonl", "figure3.md", "figure3.tex"} | pictures
    assert "[46.34" in result.output  # the paper's number of EuroSAT, beside ours
    assert "not on this machine" in result.output
    page = (folder / "figure3.md").read_text()
    assert "46.34" in page
    assert "not on this machine" in page
    assert str(folder) not in page
    lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    assert [line["studies"] for line in lines] == [{"figure3": line["label"]} for line in lines]
    assert len(lines) == 4


def test_the_same_command_does_nothing_again(done, data):
    folder, _ = done
    before = records(folder)
    result = call("figure3", *data, "-o", folder)
    assert "4 of 4 runs are finished already" in result.output
    assert records(folder) == before


def test_results_of_elsewhere_count(done, data, tmp_path):
    folder, _ = done
    result = call("figure3", *data, "-o", tmp_path / "new", "--also", folder)
    assert "4 of 4 runs are finished already" in result.output
    assert not records(tmp_path / "new")
    assert (tmp_path / "new" / "figure3.md").read_text() == (folder / "figure3.md").read_text()
    result = call("figure3", *data, "-o", tmp_path / "newer", "--also", folder / "results.jsonl")
    assert "4 of 4 runs are finished already" in result.output


def test_a_plan_runs_nothing(done, data, tmp_path):
    folder, _ = done
    result = call("figure3", "table1", *data, "-o", folder, "--plan")
    assert re.search(r"figure3 +eurosat +.*mnist.* 4 +4", result.output)
    assert re.search(r"table1 +eurosat +imagenet, .* 31 +4", result.output)
    assert "31 different runs, 27 of them to do" in result.output
    assert "imagenet: not on this machine" in result.output
    call("all", *data, "-o", tmp_path / "nowhere", "--plan")
    assert not (tmp_path / "nowhere").exists()


def test_a_report_shows_what_is_there_and_what_is_not(done, data, tmp_path):
    folder, _ = done
    copy = shutil.copytree(folder, tmp_path / "copy")
    result = call("table1", *data, "-o", copy, "--report-only")
    assert "not run yet" in result.output
    assert "Table 1" in (copy / "table1.md").read_text()
    assert (copy / "figure3.md").read_text() == (folder / "figure3.md").read_text()  # left by the earlier command
    assert records(copy) == records(folder)


def test_a_damaged_or_lost_result_is_made_again_and_comes_out_the_same(done, data, tmp_path):
    folder, _ = done
    copy = shutil.copytree(folder, tmp_path / "copy")
    lost, damaged, *_ = sorted(copy / name for name in records(copy))
    lost.unlink()
    damaged.write_text("{")
    call("figure3", *data, "-o", copy)
    for name, text in records(folder).items():
        old, new = json.loads(text), json.loads((copy / name).read_text())
        assert old["metrics"] == new["metrics"]


@pytest.mark.parametrize(
    ("words", "message", "code"),
    [
        (["table9"], "no 'table9'. There are: table1, figure2", 2),
        (["figure3", "--also", "nowhere"], "no folder nowhere", 3),
        (["figure3", "--report-only", "-o", "nowhere"], "There is no folder nowhere", 3),
        (["figure3", "--config", "copo.json"], "no method or row 'copo'", 2),
        (["figure3", "--ray", "local", "--device", "cpu"], "With --ray", 2),
    ],
    ids=["which", "also", "report-only", "config", "ray"],
)
def test_mistakes_are_told_before_anything_runs(data, tmp_path, monkeypatch, words, message, code):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "copo.json").write_text('{"copo": {"crops": 1}}')
    result = call(*words, *data, code=code)
    assert message in result.output
    assert not (tmp_path / "paper").exists()


def test_without_any_data_set_it_says_what_to_give(tmp_path):
    result = call("table1", "--model", "tiny", "--root", tmp_path, code=3)
    assert "None of the paper's data sets is here" in result.output
    assert "--data NAME=FOLDER" in result.output
