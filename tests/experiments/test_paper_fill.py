"""From records to a filled sheet, and what is found in it."""

import pytest

from kalmanclip.experiments.paper.fill import CRITERION, NOT_RUN, fill, sheet_markdown
from kalmanclip.experiments.paper.plan import study_runs
from kalmanclip.experiments.paper.studies import STUDIES
from kalmanclip.experiments.paper.study import ZERO_SHOT
from kalmanclip.experiments.sources import ShiftSource, Source

DTD = Source("dtd", "dtd", None, ("a {}.",), "d" * 64)
PACS = Source("pacs", "pacs", None, ("a {}.",), "p" * 64, (ShiftSource("sketch", "sketch", "0" * 64),))


def record(run, accuracy, nll=1.0, shifts=None, **changes):
    metrics = {"accuracy": accuracy, "nll": nll}
    moved = {name: {"accuracy": value, "nll": 1.0} for name, value in (shifts or {}).items()}
    plain = {"label": run.label, "run": run.to_dict(), "status": "done", "metrics": metrics, "shifts": moved}
    return plain | {"seconds": {"fit": 1.0, "predict": 0.5}} | changes


def failed(run, error):
    return {"label": run.label, "run": run.to_dict(), "status": "failed", "reason": "why", "error": error}


def sheet_of(name, sources, value, seeds=(1, 2), missing=None, sets=None):
    """The sheet of a study where ``value(run)`` is the record of a run, or None."""
    study = STUDIES[name]
    runs = study_runs(study, sources, seeds, "tiny")
    records = [r for r in map(value, runs) if r is not None]
    chosen = sets or [s.name for s in sources]
    shifts = {s.name: [shift.name for shift in s.shifts] for s in sources}
    return fill(study, {name: shifts.get(name, []) for name in chosen}, records, missing or {}, runs)


def cell(sheet, titles, column):
    return sheet.table.cell(sheet.table.rows.index(titles), sheet.table.columns.index((column,)))


def test_means_deviations_and_the_printed_number():
    sheet = sheet_of("table1", [DTD], lambda run: record(run, 0.5 + 0.01 * run.seed))
    found = cell(sheet, ("CoOp", "4"), "DTD")
    assert (found.mean, found.std, found.seeds) == (pytest.approx(51.5), pytest.approx(0.7071, abs=1e-4), 2)
    assert found.printed == 53.45
    assert found.difference == pytest.approx(51.5 - 53.45)
    assert (sheet.runs, sheet.done, sheet.failed) == (62, 62, 0)


def test_what_is_missing_says_why():
    def value(run):
        if run.label == "CoOp":
            return None
        return failed(run, "ModelError") if run.label == "CLIP-Adapter" else record(run, 0.5)

    sets = ["imagenet", "dtd"]
    sheet = sheet_of("table1", [DTD], value, missing={"imagenet": "not on this machine"}, sets=sets)
    assert cell(sheet, ("CoOp", "4"), "DTD").missing == NOT_RUN
    assert cell(sheet, ("CLIP-Adapter", "4"), "DTD").missing == "why"
    assert cell(sheet, ("CoOp", "4"), "ImageNet").missing == "not on this machine"
    assert cell(sheet, ("CoOp", "4"), "ImageNet").printed == 60.07
    assert sheet.missing == {"ImageNet": "not on this machine"}
    assert (sheet.runs, sheet.done, sheet.failed) == (62, 42, 10)


def test_what_could_stand_in_but_was_not_run_fills_no_rows():
    other = Source("mine", "mine", None, ("a {}.",), "m" * 64)
    sets = ["imagenet", "dtd", "mine"]

    def value(run):  # zero-shot of another study is no sign of this one
        return record(run, 0.5) if run.data == "dtd" or run.label == ZERO_SHOT else None

    sheet = sheet_of("table3", [DTD, other], value, missing={"imagenet": "away"}, sets=sets)
    assert (sheet.runs, sheet.done) == (102, 102)
    assert {titles[0] for titles in sheet.table.rows} == {"ImageNet", "DTD"}
    assert sheet.missing == {"ImageNet": "away", "mine": "could stand in; not run"}


def test_a_gain_is_over_zero_shot_of_the_same_seed():
    sheet = sheet_of("figure3", [DTD], lambda run: record(run, 0.3 if run.label == ZERO_SHOT else 0.3 + 0.1 * run.seed))
    found = sheet.table.cell(0, sheet.table.columns.index(("Ours (paper)",)))
    assert found.mean == pytest.approx(15)
    assert found.printed == pytest.approx(66.56 - 42.15)
    assert any("by +15.0 ± 7.1 (DTD) to +15.0 ± 7.1 points (DTD)" in finding for finding in sheet.findings)


@pytest.mark.parametrize("zero_shot", [None, "failed"])
def test_a_gain_without_zero_shot_is_missing(zero_shot):
    def value(run):
        if run.label != ZERO_SHOT:
            return record(run, 0.5)
        return failed(run, "DataError") if zero_shot else None

    found = sheet_of("figure3", [DTD], value).table.cell(0, 0)
    assert found.mean is None
    assert "is missing" in found.missing


def test_an_average_is_over_the_test_images_and_all_shifts():
    sheet = sheet_of("table2", [PACS], lambda run: record(run, 0.6, shifts={"sketch": 0.2}))
    assert sheet.table.columns == [("pacs",), ("sketch",), ("average of pacs",)]
    assert [sheet.table.cell(0, column).mean for column in range(3)] == pytest.approx([60, 20, 40])


@pytest.mark.parametrize(("accuracy", "nll", "diverged"), [(0.2, 3.0, 2), (0.2, 0.5, 0), (0.39, 3.0, 0), (0.6, 9.0, 0)])
def test_a_run_that_knows_less_than_before_has_diverged(accuracy, nll, diverged):
    def value(run):
        return record(run, 0.4, 2.0) if run.label == ZERO_SHOT else record(run, accuracy, nll)

    found = cell(sheet_of("table4", [DTD], value), ("Ours (paper) beta 0.98",), "DTD")
    assert found.diverged == diverged
    assert (found.mean is None) == bool(diverged)
    assert found.missing == ""


def test_numbers_that_broke_down_are_divergence_and_other_failures_are_not():
    def value(run):
        if run.label == ZERO_SHOT:
            return record(run, 0.4)
        return failed(run, "NumericalError" if run.seed == 1 else "ModelError")

    sheet = sheet_of("table4", [DTD], value)
    found = cell(sheet, ("Ours (paper) beta 0.98",), "DTD")
    assert (found.diverged, found.mean) == (1, None)
    assert (sheet.done, sheet.failed) == (8, 6)


def test_findings_follow_the_numbers():
    def helps(run):
        alpha = run.config.get("filter", {}).get("alpha", 0)
        return record(run, 0.4 + 0.2 * alpha * run.contamination.share)

    def hurts(run):
        alpha = run.config.get("filter", {}).get("alpha", 0)
        return record(run, 0.4 - 0.2 * alpha * run.contamination.share)

    def first(value):
        return sheet_of("table3", [DTD], value).findings[0]

    assert first(helps).startswith("Holds: with 50 % corrupted images a large alpha helps")
    assert "by +10.0 ± 0.0 points" in first(helps)
    assert first(hurts).startswith("Does not hold")

    def diag(better):
        return lambda run: record(run, 0.5 if ("diag" in run.label) == better else 0.3)

    assert sheet_of("observation", [DTD], diag(True)).findings[0].startswith("Holds: diag is better than flatten")
    assert sheet_of("observation", [DTD], diag(False)).findings[0].startswith("Does not hold")
    same = sheet_of("observation", [DTD], lambda run: record(run, 0.5 + 0.001 * ("diag" in run.label)))
    assert same.findings[0].startswith("Not known")


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_can_be_filled_with_nothing_something_and_everything(name):
    sources = [PACS if name == "table2" else DTD]
    nothing = sheet_of(name, sources, lambda run: None)
    assert not nothing.findings
    assert not nothing.pictures
    partly = sheet_of(name, sources, lambda run: record(run, 0.5, shifts={"sketch": 0.1}) if run.seed == 1 else None)
    whole = sheet_of(name, sources, lambda run: record(run, 0.5, shifts={"sketch": 0.1}))
    assert whole.findings
    assert bool(whole.pictures) == (name in ("figure2", "figure3"))
    assert all(found.seeds == 1 for found in partly.table.cells.values())
    assert all(found.seeds == 2 for found in whole.table.cells.values())


def test_a_sheet_as_markdown():
    def value(run):
        if run.label == "CLIP-Adapter":
            return failed(run, "ModelError")
        return None if run.label == "CoOp" else record(run, 0.5 + 0.01 * run.seed)

    sheet = sheet_of("table1", [DTD], value, missing={"imagenet": "not on this machine"}, sets=["imagenet", "dtd"])
    text = sheet_markdown(sheet)
    assert text.startswith("## Table 1: test accuracy")
    assert "| Ours (paper) | 4 | - \\[62.85\\] | **51.5 ± 0.7 \\[57.95, −6.5\\]** |" in text
    assert "- ImageNet: not on this machine\n- not run yet\n- why\n" in text
    assert "- Holds: Ours (paper) is superior" in text
    assert "42 of 62 runs done, 10 failed." in text
    assert CRITERION not in text
    drawn = sheet_of("figure3", [DTD], lambda run: record(run, 0.5))
    assert drawn.stems() == ["figure3", "figure3-2", "figure3-3"]
    assert "](figure3-2.png)" in sheet_markdown(drawn)
    assert CRITERION in sheet_markdown(sheet_of("table4", [DTD], lambda run: record(run, 0.5)))
