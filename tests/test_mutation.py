"""The list of mutants fits the sources, and the runner tells killed from survived; `benchmarks.mutation` runs it."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest
from benchmarks import mutation
from benchmarks.mutants import MUTANTS, Mutant

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_fits_the_sources_and_names_tests_that_exist(mutant):
    assert mutation.stale(mutant) is None
    text = (mutation.PACKAGE / mutant.file).read_text()
    wrong = text.replace(mutant.old, mutant.new)
    assert ast.dump(ast.parse(wrong)) != ast.dump(ast.parse(text))  # another program, and a program
    assert mutant.tests
    for test in mutant.tests:
        path, _, function = test.partition("::")
        file = ROOT / path
        assert file.is_file()
        assert not function or re.search(rf"^def {function}\(", file.read_text(), re.MULTILINE)


def test_every_room_of_the_mathematics_has_mutants():
    """At least one in each file with formulas, and no name twice."""
    assert max(Counter(mutant.name for mutant in MUTANTS).values()) == 1
    wanted = {
        path.relative_to(mutation.PACKAGE).as_posix()
        for room in ("observation", "prediction")
        for path in (mutation.PACKAGE / room).glob("*.py")
        if path.name != "__init__.py"
    }
    filtering = "kalman filter noise fusion softmax linalg accelerated/fused_diagonal"
    filtering += " beliefs/diagonal beliefs/block_diagonal beliefs/low_rank beliefs/dense beliefs/kronecker"
    wanted |= {f"filtering/{name}.py" for name in filtering.split()}
    assert wanted <= {mutant.file for mutant in MUTANTS}


MINE = Mutant("a mistake", "errors.py", "class KalmanClipError", "class Other", ("tests/test_a.py",))


@pytest.fixture
def alone(monkeypatch):
    """One mutant, and tests that end as they are told to."""
    monkeypatch.setattr(mutation, "MUTANTS", [MINE])
    seen = []

    def ends_with(*codes):
        left = list(codes)

        def run_tests(tests, source, limit=None):
            seen.append((tests, (source / "kalmanclip" / MINE.file).read_text()))
            return left.pop(0), "what pytest said"

        monkeypatch.setattr(mutation, "run_tests", run_tests)
        return seen

    return ends_with


@pytest.mark.parametrize(
    ("code", "verdict", "ends"),
    [(1, "killed", 0), (None, "killed", 0), (0, "SURVIVED", 1), (2, "ERROR", 1), (4, "ERROR", 1), (5, "ERROR", 1)],
)
def test_verdicts(alone, capsys, code, verdict, ends):
    """Tests that fail or never end kill; tests that pass do not; tests that cannot be run say nothing."""
    before = (mutation.PACKAGE / MINE.file).read_text()
    seen = alone(0, code)
    assert mutation.main([]) == ends
    assert capsys.readouterr().out.startswith(verdict)
    (_, unchanged), (tests, wrong) = seen
    assert tests == MINE.tests
    assert unchanged == before
    assert wrong == before.replace("class KalmanClipError", "class Other") != before
    assert (mutation.PACKAGE / MINE.file).read_text() == before  # only the copy was changed


def test_tests_that_fail_anyway_kill_nothing(alone, capsys):
    alone(1)
    assert mutation.main([]) == 1
    shown = capsys.readouterr().out
    assert "unchanged sources" in shown
    assert "killed" not in shown


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"old": "no such text"}, "0 times"),
        ({"old": "class "}, "times in errors.py, not once"),
        ({"file": "gone.py"}, "no file"),
    ],
)
def test_a_stale_mutant_is_an_error(alone, monkeypatch, capsys, change, why):
    alone(0)
    monkeypatch.setattr(mutation, "MUTANTS", [MINE._replace(**change)])
    assert mutation.main([]) == 1
    shown = capsys.readouterr().out
    assert "STALE" in shown
    assert why in shown


def test_mutants_are_chosen_by_name(capsys):
    assert mutation.main(["--list", "--only", "the metric's", "printed"]) == 0
    named = [line for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")]
    assert named
    assert all("the metric's" in name or "printed" in name for name in named)
    with pytest.raises(SystemExit):
        mutation.main(["--only", "no such name"])


@pytest.mark.slow
def test_a_copy_is_what_the_tests_import(tmp_path):
    """For once with pytest itself: a mistake in the copy is noticed by the test it concerns, and by no other."""
    source = mutation.copy_sources(tmp_path)
    mutant = next(m for m in MUTANTS if m.name == "filtering/linalg: the squared distance")
    for test, verdict in (("distance_and_density_by_hand", "killed"), ("density_against_torch", "SURVIVED")):
        tests = (f"tests/filtering/test_linalg.py::test_{test}",)
        assert mutation.judge(mutant._replace(tests=tests), source) == verdict
