"""That the docs say what was measured."""

import json
import re

import pytest
from benchmarks import comparison, figures, paper, table

from kalmanclip.errors import DataError
from kalmanclip.experiments.paper.study import title_of
from kalmanclip.experiments.spec import find_variants, method_options
from kalmanclip.experiments.store import read_jsonl, to_jsonl

# a distribution has the tests without the measurements
pytestmark = pytest.mark.skipif(not table.RESULTS.is_dir(), reason="there is no folder results/")

PAGES = {path.relative_to(table.ROOT).as_posix(): path for path in figures.pages()}
COMPARED = sorted(path.stem for path in table.RESULTS.glob("*.jsonl") if not path.stem.startswith("large"))
"""Files of `kalmanclip compare` and `kalmanclip paper`."""
WHOLE = ("docs/results.md", "docs/results-tiny.md", "docs/small-model.md")
"""Pages of measurements."""
MEASURED = (*WHOLE, "README.md", "docs/uncertainty.md", "docs/check.md", "docs/online.md", "docs/faq.md")
"""Pages that show figures of results/."""

CODE = re.compile(r"^```.*?^```|`[^`\n]*`|^\$\$.*?^\$\$|\$[^$\n]*\$", re.DOTALL | re.MULTILINE)
NUMBER = re.compile(r"\d\.\d")


def text_of(name):
    return PAGES[name].read_text(encoding="utf-8")


def by_nobody(text):
    """What is neither drawn nor marked as kept by hand, nor code, nor a formula."""
    return CODE.sub("", figures.KEPT.sub("", figures.FIGURE.sub("", text)))


def measured_part(name):
    """The sections that show measurements: all of some pages, elsewhere those whose titles say so."""
    text = CODE.sub(lambda found: "" if found[0].startswith("```") else found[0], text_of(name))
    sections = re.split(r"^(?=#+ )", text, flags=re.MULTILINE)
    wanted = ("### Measured", "## What was measured")
    return "".join(s for s in sections if name in WHOLE or s.startswith(wanted))


@pytest.mark.parametrize("name", PAGES)
def test_figures_are_those_of_the_results(name):
    assert figures.difference(PAGES[name]) == "", "draw them again: python -m benchmarks.figures"


def test_a_changed_figure_is_noticed():
    """Whatever digit of whatever figure is wrong."""
    seen = 0
    for text in map(text_of, MEASURED):
        for match in figures.FIGURE.finditer(text):
            digit = re.search(r"\d", match["text"])
            if digit is None or is_not_yet(match["call"]):
                continue
            place = digit.start() + match.start("text") - match.start()
            right = match[0]
            wrong = right[:place] + str((int(right[place]) + 1) % 10) + right[place + 1 :]
            assert figures.redrawn(wrong) == right
            seen += 1
    assert seen > 10


def is_not_yet(call):
    try:
        figures.draw(call)
    except table.NotYet:
        return True
    return False


@pytest.mark.parametrize("name", table.NOT_YET)
def test_studies_that_are_to_be_run_have_no_file(name):
    assert not (table.RESULTS / f"{name}.json").exists(), "it has been run: take it from NOT_YET"


def test_changed_results_are_noticed(monkeypatch, tmp_path):
    kept = json.loads((table.RESULTS / "observations.json").read_text())
    call = "observations.table"
    before = figures.draw(call)
    assert before in text_of("docs/results-tiny.md")
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    with pytest.raises(DataError, match=r"observations\.json"):
        figures.draw(call)
    kept["rows"][0]["nll"] += 1
    (tmp_path / "observations.json").write_text(json.dumps(kept))
    assert figures.draw(call) != before


@pytest.mark.parametrize("name", PAGES)
def test_comments_are_well_formed(name):
    """A misspelled comment would keep its figures from being drawn; one at the beginning of a line ends a paragraph."""
    text = re.sub(r"^```.*?^```", "", text_of(name), flags=re.DOTALL | re.MULTILINE)
    matches = [*figures.FIGURE.finditer(text), *figures.KEPT.finditer(text)]
    assert len(re.findall(r"<!--", text)) == 2 * len(matches)
    for match in figures.FIGURE.finditer(text):
        alone = match["text"].startswith("\n\n") and match["text"].endswith("\n\n")
        inside = "\n" not in match["text"] and text[match.start() - 1] != "\n"
        assert alone or inside, match["call"]


@pytest.mark.parametrize("name", PAGES)
def test_tables_of_numbers_are_drawn_or_said_to_be_kept_by_hand(name):
    lines = [line for line in by_nobody(text_of(name)).splitlines() if line.startswith("|") and NUMBER.search(line)]
    if name in figures.BY_HAND:
        assert lines, "it has no such table any more: take it from BY_HAND"
    else:
        assert lines == []


@pytest.mark.parametrize("name", MEASURED)
def test_no_measured_number_is_written_into_a_sentence(name):
    assert [line for line in by_nobody(measured_part(name)).splitlines() if NUMBER.search(line)] == []


@pytest.mark.parametrize("name", COMPARED)
def test_committed_results_are_whole_slim_and_sorted(name):
    records, damaged = read_jsonl(table.RESULTS / f"{name}.jsonl")
    assert not damaged
    assert len({record["address"] for record in records}) == len(records)
    assert (table.RESULTS / f"{name}.jsonl").read_text(encoding="utf-8") == to_jsonl(records)


def test_losses_are_all_there_are():
    """Counted again from the lines of the runs, without the classes that draw the table."""
    found = {}
    for line in (table.RESULTS / "comparison.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if record["status"] == "done" and record["run"]["model"] == "tiny":
            run = record["run"]
            found.setdefault((run["data"], run["shots"]), {})[record["label"], run["seed"]] = record["metrics"]
    better = set()
    for (data, shots), runs in found.items():
        for label in {label for label, _ in runs}:
            seeds = [s for own, s in runs if own == label and (comparison.RESIDUALS, s) in runs]
            gains = [runs[label, s]["accuracy"] - runs[comparison.RESIDUALS, s]["accuracy"] for s in seeds]
            if gains and round(100 * sum(gains) / len(gains), 1) > 0:
                place = f"{table.SETS[data]}, {table.shots_head(shots)}"
                better.add((place, comparison.called(label), f"{100 * sum(gains) / len(gains):.1f}"))
    said = set()
    for line in comparison.losses("accuracy").splitlines()[2:]:
        place, _, methods = line.strip("| ").split(" | ")
        said |= {(place, *found) for found in re.findall(r"(?:^|; )(\S.*?) by ([\d.]+)", methods)}
    assert said == better


def test_the_papers_tables_are_those_of_the_records():
    """Of rows that did not diverge, counted again from the lines of the runs."""
    records, seen = read_jsonl(table.RESULTS / "paper.jsonl")[0], 0
    for name in ("belief", "noise", "observation", "regulation", "table4"):
        sheet = paper.sheet(name)
        for (row, column), cell in sheet.table.cells.items():
            if cell.mean is not None and not cell.diverged:
                place = sheet.table.rows[row][0], sheet.table.columns[column][0]
                own = [r for r in records if (r["studies"].get(name), title_of(r["run"]["data"])) == place]
                accuracies = [record["metrics"]["accuracy"] for record in own]
                assert cell.mean == pytest.approx(100 * sum(accuracies) / len(accuracies), abs=1e-9)
                seen += 1
    assert seen > 15


def test_the_papers_tables_are_drawn_from_other_files(monkeypatch, tmp_path):
    """Of a part of the studies, rows and seeds, too; as pictures under the name of the file."""
    records = read_jsonl(table.RESULTS / "paper.jsonl")[0]
    kept = [r for r in records if "table1" in r["studies"] and r["run"]["seed"] == 1 and r["run"]["data"] == "eurosat"]
    assert kept
    (tmp_path / "paper-other.jsonl").write_text(to_jsonl(kept), encoding="utf-8")
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    heads, _, first, *_ = paper.table("table1", "paper-other").splitlines()
    assert heads == "| method | shots | EuroSAT |"
    accuracy = next(r["metrics"]["accuracy"] for r in kept if r["run"]["method"] == "zero_shot")
    assert f" {100 * accuracy:.1f} " in first
    assert "Ours (paper)" in paper.findings("table1", "paper-other")
    assert paper.findings("belief", "paper-other") == ""
    assert all(name.startswith("paper-other-") for name in paper.pictures())


def test_what_few_seeds_have_is_compared_on_those(monkeypatch, tmp_path):
    """GDA has one seed of three, with 4 shots only; LP++ has one of the two data sets, with one seed."""
    accuracy = {"class_residuals": (60, 70, 80), "zero_shot": (30, 30, 30), "gda": (66,), "lp_plus_plus": (99,)}
    records = []
    for record in read_jsonl(table.RESULTS / "comparison.jsonl")[0]:
        run, known = record["run"], dict(enumerate(accuracy.get(record["label"], ()), 1))
        rare = record["label"] in ("gda", "lp_plus_plus") and run["shots"] != 4
        rare |= record["label"] == "lp_plus_plus" and run["data"] != "pets"
        if run["seed"] in known and run["data"] != "dtd37" and run["shots"] != 1 and not rare:
            records.append(record | {"metrics": record["metrics"] | {"accuracy": known[run["seed"]] / 100}})
    (tmp_path / "few.jsonl").write_text(to_jsonl(records), encoding="utf-8")
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    lines = comparison.means("accuracy", "few").splitlines()
    assert "| GDA | 66.0 (1 of 3 seeds) | - |" in lines
    assert "| **class residuals (default)** | **70.0 ± 10.0** | **70.0 ± 10.0** |" in lines  # one seed competes not
    assert not any("LP++" in line for line in lines)  # a part of the data sets is no mean
    assert comparison.gain("accuracy", "class_residuals", "gda", "few") == "−6.0"
    assert comparison.gain("accuracy", "class_residuals", "zero_shot", "few", "4") == "40.0"
    (pets,) = [line for line in comparison.losses("accuracy", "few").splitlines() if "OxfordPets" in line]
    assert "LP++ by 39.0 (1 of 3 seeds); GDA by 6.0 (1 of 3 seeds)" in pets
    assert "fewer seeds" in comparison.summary("few")
    (gda,) = [line for line in comparison.overview("few").splitlines() if "GDA" in line]
    assert gda.startswith("| GDA | 66.0 / ")
    assert gda.endswith(" (1 of 3 seeds) | not run |")
    assert any(
        line.startswith("| GDA | ") and line.endswith(" | - |") for line in comparison.seconds("few").splitlines()
    )


def test_a_file_of_several_models_is_refused(monkeypatch, tmp_path):
    records = [read_jsonl(table.RESULTS / f"{name}.jsonl")[0][0] for name in ("comparison", "comparison-vitb16")]
    (tmp_path / "mixed.jsonl").write_text(to_jsonl(records), encoding="utf-8")
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    with pytest.raises(DataError, match="several models"):
        comparison.means("accuracy", "mixed")


def test_unknown_figures_say_where_to_look():
    with pytest.raises(DataError, match="benchmarks/"):
        figures.draw("comparison.nothing")


def test_check_changes_nothing_and_fails(monkeypatch, tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("It has <!-- figures: comparison.corruptions -->19<!-- end --> corruptions.\n")
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    monkeypatch.setattr(figures, "pages", lambda: [page])
    with pytest.raises(SystemExit, match=r"benchmarks\.figures"):
        figures.main(["--check"])
    assert "-It has" in capsys.readouterr().out
    assert "19" in page.read_text()
    (tmp_path / "docs" / "assets").mkdir(parents=True)
    figures.main([])
    assert ">15<" in page.read_text()
    assert (tmp_path / "docs" / "assets" / "paper-figure2.png").is_file()
    figures.main(["--check"])


@pytest.mark.parametrize("store", [name for name in COMPARED if name.startswith(("comparison", "shift"))])
def test_records_have_the_options_of_their_rows(store):
    """A preset or a default that changes leaves records behind that are no longer what their label says."""
    options = json.loads((table.ROOT / "benchmarks/comparison.json").read_text())
    for record in read_jsonl(table.RESULTS / f"{store}.jsonl")[0]:
        run = record["run"]
        (row,) = find_variants([record["label"]], options)
        assert method_options(row.method, row.options_on(run["data"]), run["seed"]) == run["config"], record["label"]
