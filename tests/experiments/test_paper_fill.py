"""From records to a filled sheet, and what is found in it."""

import pytest

from kalmanclip.experiments.paper.fill import NOT_RUN, fill
from kalmanclip.experiments.paper.forms import ZERO_SHOT
from kalmanclip.experiments.paper.gather import study_runs
from kalmanclip.experiments.paper.studies import STUDIES
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
    chosen = sets or {s.name: s for s in sources}
    return fill(study, chosen, records, missing or {}, runs)


def cell(sheet, titles, column):
    return sheet.entry(sheet.rows.index(titles), sheet.columns.index(column))


def test_means_deviations_and_the_printed_number():
    sheet = sheet_of("table1", [DTD], lambda run: record(run, 0.5 + 0.01 * run.seed))
    entry = cell(sheet, ("CoOp", "4"), "DTD")
    assert (entry.mean, entry.std, entry.seeds) == (pytest.approx(51.5), pytest.approx(0.7071, abs=1e-4), 2)
    assert entry.printed == 53.45
    assert entry.difference == pytest.approx(51.5 - 53.45)
    assert (sheet.runs, sheet.done, sheet.failed) == (62, 62, 0)
    assert sheet.seconds == pytest.approx(1.5 * 62)


def test_what_is_missing_says_why():
    def value(run):
        if run.label == "CoOp":
            return None
        return failed(run, "ModelError") if run.label == "CLIP-Adapter" else record(run, 0.5)

    sets = {"imagenet": None, "dtd": DTD}
    sheet = sheet_of("table1", [DTD], value, missing={"imagenet": "not on this machine"}, sets=sets)
    assert cell(sheet, ("CoOp", "4"), "DTD").missing == NOT_RUN
    assert cell(sheet, ("CLIP-Adapter", "4"), "DTD").missing == "why"
    assert cell(sheet, ("CoOp", "4"), "ImageNet").missing == "not on this machine"
    assert cell(sheet, ("CoOp", "4"), "ImageNet").printed == 60.07
    assert sheet.missing == {"ImageNet": "not on this machine"}
    assert (sheet.runs, sheet.done, sheet.failed) == (62, 42, 10)


def test_what_could_stand_in_but_was_not_run_fills_no_rows():
    other = Source("mine", "mine", None, ("a {}.",), "m" * 64)
    sets = {"imagenet": None, "dtd": DTD, "mine": other}

    def value(run):  # zero-shot of another study is no sign of this one
        return record(run, 0.5) if run.data == "dtd" or run.label == ZERO_SHOT else None

    sheet = sheet_of("table3", [DTD, other], value, missing={"imagenet": "away"}, sets=sets)
    assert (sheet.runs, sheet.done) == (102, 102)
    assert {titles[0] for titles in sheet.rows} == {"ImageNet", "DTD"}
    assert sheet.missing == {"ImageNet": "away", "mine": "could stand in; not run"}


def test_a_gain_is_over_zero_shot_of_the_same_seed():
    sheet = sheet_of("figure3", [DTD], lambda run: record(run, 0.3 if run.label == ZERO_SHOT else 0.3 + 0.1 * run.seed))
    entry = sheet.entry(0, sheet.columns.index("Ours (paper)"))
    assert entry.mean == pytest.approx(15)
    assert entry.printed == pytest.approx(66.56 - 42.15)
    assert any("by +15.0 ± 7.1 (DTD) to +15.0 ± 7.1 points (DTD)" in finding for finding in sheet.findings)


@pytest.mark.parametrize("zero_shot", [None, "failed"])
def test_a_gain_without_zero_shot_is_missing(zero_shot):
    def value(run):
        if run.label != ZERO_SHOT:
            return record(run, 0.5)
        return failed(run, "DataError") if zero_shot else None

    entry = sheet_of("figure3", [DTD], value).entry(0, 0)
    assert entry.mean is None
    assert "is missing" in entry.missing


def test_an_average_is_over_the_test_images_and_all_shifts():
    sheet = sheet_of("table2", [PACS], lambda run: record(run, 0.6, shifts={"sketch": 0.2}))
    assert sheet.columns == ("pacs", "sketch", "average of pacs")
    assert [sheet.entry(0, column).mean for column in range(3)] == pytest.approx([60, 20, 40])


@pytest.mark.parametrize(("accuracy", "nll", "diverged"), [(0.2, 3.0, 2), (0.2, 0.5, 0), (0.39, 3.0, 0), (0.6, 9.0, 0)])
def test_a_run_that_knows_less_than_before_has_diverged(accuracy, nll, diverged):
    def value(run):
        return record(run, 0.4, 2.0) if run.label == ZERO_SHOT else record(run, accuracy, nll)

    entry = cell(sheet_of("table4", [DTD], value), ("Ours (paper) beta 0.98",), "DTD")
    assert entry.diverged == diverged
    assert (entry.mean is None) == bool(diverged)
    assert entry.missing == ""


def test_numbers_that_broke_down_are_divergence_and_other_failures_are_not():
    def value(run):
        if run.label == ZERO_SHOT:
            return record(run, 0.4)
        return failed(run, "NumericalError" if run.seed == 1 else "ModelError")

    sheet = sheet_of("table4", [DTD], value)
    entry = cell(sheet, ("Ours (paper) beta 0.98",), "DTD")
    assert (entry.diverged, entry.mean) == (1, None)
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
    assert bool(whole.pictures) == (name in ("figure2", "figure3", "table3"))
    assert all(entry.seeds == 1 for entry in partly.entries.values())
    assert all(entry.seeds == 2 for entry in whole.entries.values())
