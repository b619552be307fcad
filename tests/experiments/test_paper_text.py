"""Sheets as Markdown, LaTeX and CSV, and how their numbers are written."""

import csv
import io
import re
import shutil
import subprocess
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.experiments import paper_sheets

from kalmanclip.experiments.paper.sheet import Entry, Picture, Sheet
from kalmanclip.experiments.paper.shown import duration, number, reasons, remark, signed, verdict
from kalmanclip.experiments.paper.text import picture_stems, to_csv, to_latex, to_markdown


@pytest.fixture(scope="module")
def sheet():
    return paper_sheets.table1()


def row_of(text, *heads):
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {' | '.join(heads)} |")]
    return [cell.strip() for cell in line.strip("|").split("|")][len(heads) :]


def one_cell(entry, **more):
    return Sheet("t", "T", (), ("row",), (("r",),), ("c",), {(0, 0): entry}, **more)


def test_numbers_have_real_signs():
    assert [number(v) for v in (63.449, -1.25, -0.01)] == ["63.4", "−1.2", "0.0"]
    assert [signed(v) for v in (1.0, -2.26, 0.04, -0.04)] == ["+1.0", "−2.3", "±0.0", "±0.0"]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "0 s"), (59.6, "1 min 0 s"), (200, "3 min 20 s"), (3599.9, "1 h 0 min"), (18725, "5 h 12 min")],
)
def test_durations(seconds, words):
    assert duration(seconds) == words


def test_a_finding_begins_with_its_verdict_or_has_none():
    assert verdict("Does not hold: a: b") == ("no", "Does not hold", "a: b")
    assert verdict("Holds in part: a") == ("part", "Holds in part", "a")
    assert verdict("It holds: a") == ("", "", "It holds: a")
    assert verdict("Holds") == ("", "", "Holds")


def test_what_a_number_does_not_tell(sheet):
    assert remark(sheet, sheet.entry(0, 1)) == ""
    assert remark(sheet, sheet.entry(2, 3)) == "2 of 3 seeds"
    assert remark(sheet, sheet.entry(5, 4)) == "1 of 3 diverged"
    assert remark(sheet, sheet.entry(6, 5)) == ""  # all of them: the cell says so itself


def test_every_reason_once_with_those_it_concerns(sheet):
    both = replace(sheet, missing={"ImageNet": paper_sheets.NO_IMAGES, "SUN397": paper_sheets.NO_IMAGES})
    names = list(reasons(both).values())
    assert list(reasons(both)) == [paper_sheets.NO_IMAGES, "failed: not enough memory; try a smaller batch"]
    assert names == [["ImageNet", "SUN397"], []]


def test_markdown_cells(sheet):
    text = to_markdown(sheet)
    cells = row_of(text, "Ours", "16")
    assert cells[0] == "– [1] (65.30)"
    assert cells[1] == "**90.2 ± 0.3** (89.23, +1.0)"
    assert cells[4] == "65.3 ± 0.6 (66.56, −1.3)"
    assert row_of(text, "CoOp", "4")[3] == "62.4 ± 0.5, 2 of 3 seeds (63.68, −1.3)"
    assert row_of(text, "CLIP-Adapter", "16")[5] == "diverged (85.47)"
    assert "1. ImageNet: its images are not on this computer\n2. failed: not enough memory" in text
    assert "- Does not hold: our method" in text
    assert "186 of 234 runs done, 3 failed; fitting and predicting took 2 h 6 min." in text
    assert sheet.criterion in text


def test_markdown_names_the_pictures():
    drawn = one_cell(Entry(1.0), pictures=(Picture("one", "", b""), Picture("two", "", b"")))
    assert picture_stems(drawn) == ("t", "t-2")
    assert "![one](t.png)" in to_markdown(drawn)
    assert "![two](t-2.png)" in to_markdown(drawn)


@given(st.text(min_size=1, max_size=30))
def test_no_text_breaks_a_row_of_markdown(name):
    text = to_markdown(replace(one_cell(Entry(missing=name, printed=name)), columns=(name,), rows=((name,),)))
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 3
    assert {len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) for row in rows} == {3}
    assert not re.search(r"(?<!\\)(?:\\\\)*<", text)


def test_csv_has_every_digit_and_one_line_per_cell(sheet):
    rows = list(csv.DictReader(io.StringIO(to_csv(sheet))))
    assert len(rows) == len(sheet.rows) * len(sheet.columns)
    places = ((r, c) for r in range(len(sheet.rows)) for c in range(len(sheet.columns)))
    for place, row in zip(places, rows, strict=True):
        entry = sheet.entry(*place)
        assert (row["method"], row["shots"], row["column"]) == (*sheet.rows[place[0]], sheet.columns[place[1]])
        for name, value in (("mean", entry.mean), ("std", entry.std), ("difference", entry.difference)):
            assert (float(row[name]) if row[name] else None) == value
        assert (int(row["seeds"]), int(row["diverged"])) == (entry.seeds, entry.diverged)
        assert (float(row["paper"]), row["missing"]) == (entry.printed, entry.missing)
    words = [row["paper"] for row in csv.DictReader(io.StringIO(to_csv(paper_sheets.table3())))]
    assert words.count("Diverge") == 4


def test_csv_leaves_out_what_was_not_asked_for():
    assert len(to_csv(one_cell(Entry())).splitlines()) == 1


def test_latex_rows(sheet):
    text = to_latex(sheet)
    assert r"Ours & 1 & -- {\scriptsize (61.10)} & 85.5 $\pm$ 0.3 {\scriptsize (86.77)} & 78.0" in text
    assert "\n     & 4 & -- " in text  # a method is named once
    assert text.count("CoOp") == 1
    assert r"\textbf{90.2 $\pm$ 0.3} {\scriptsize (89.23)}" in text
    assert r"\textit{diverged} {\scriptsize (85.47)}" in text
    awkward = to_latex(replace(one_cell(Entry(-1.0)), rows=((r"α_1 & 50% {x}",),)))
    assert r"$\alpha$\_1 \& 50\% \{x\} & $-$1.0 \\" in awkward


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_compiles(tmp_path):
    tables = "\n".join(to_latex(sheet) for sheet in paper_sheets.all_sheets())
    document = rf"\documentclass{{article}}\usepackage{{booktabs}}\begin{{document}}{tables}\end{{document}}"
    (tmp_path / "all.tex").write_text(document, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
