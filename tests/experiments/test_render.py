"""Tables as Markdown and LaTeX: the same numbers, escaped, bold where they are best, never wider than a page."""

import re
import shutil
import subprocess
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kalmanclip.experiments.aggregate import Cell, to_frame
from kalmanclip.experiments.render import WIDTH, Table, number, signed, to_latex, to_markdown
from kalmanclip.experiments.render import escape_latex as escape
from kalmanclip.experiments.report import make_tables, report_latex, report_markdown
from kalmanclip.experiments.spec import Contamination

COMMANDS = re.compile(r"\\[&%$#_{}]|\\text[a-z]+\{\}|\$\\(pm|rightarrow)\$")


def floats(text):
    return re.findall(r"\\begin\{table\}.*?\\end\{table\}", text, flags=re.DOTALL)


@given(st.text())
def test_escaped_text_is_one_line_without_anything_special(text):
    shown = escape(text)
    assert not set(COMMANDS.sub("", shown)) & set("\\&%$#_{}~^<>|\n\r±→")


@given(st.text("ab&%$#_{}~^\\<>| ", min_size=1))
def test_different_texts_stay_different(text):
    back = {r"\textbackslash{}": "\\", r"\textasciitilde{}": "~", r"\textasciicircum{}": "^", r"\textbar{}": "|"}
    back |= {r"\textless{}": "<", r"\textgreater{}": ">"}
    read = COMMANDS.sub(lambda found: back.get(found[0], found[0][-1]), escape(text))
    assert read == " ".join(text.split())


def test_numbers_and_bold_are_those_of_the_markdown(make_record):
    records = [make_record(0.1 * s, method=m, seed=s, data=d) for s in (1, 2) for d in "ab" for m in ("gda", "coop")]
    records += [make_record(0.9, method="kalman", seed=s, data="a") for s in (1, 2)]
    frame = to_frame(records)
    tables = [line for line in report_markdown(frame).splitlines() if re.match(r"\| (gda|coop|kalman) ", line)]
    wanted = [
        " & ".join(re.sub(r"\*\*(.*?)\*\*", r"\\textbf{\1}", cell) for cell in line.strip("| ").split(" | "))
        for line in tables
    ]
    lines = report_latex(frame).splitlines()
    found = [line.strip().removesuffix(r" \\") for line in lines if re.match(r" *(gda|coop|kalman) &", line)]
    assert found == [line.replace("±", r"$\pm$") for line in wanted]
    assert any("textbf{90.0" in line for line in found)
    assert len(floats(report_latex(frame))) == len(make_tables(frame))


def test_what_columns_share_stands_once_above_them(make_record):
    records = [
        make_record(0.5, data=d, shots=k, contamination=Contamination(c, seed=1) if c else Contamination())
        for d in ("pets_37", "dtd")
        for k in (1, 4)
        for c in (0, 0.5)
    ]
    text = floats(report_latex(to_frame(records)))
    clean = [line.strip() for line in text[0].splitlines()]
    assert r"& \multicolumn{2}{c}{pets\_37} & \multicolumn{2}{c}{dtd} & \multicolumn{2}{c}{average} \\" in clean
    assert r"\cmidrule(lr){2-3} \cmidrule(lr){4-5} \cmidrule(lr){6-7}" in clean
    assert r"method & 1-shot & 4-shot & 1-shot & 4-shot & 1-shot & 4-shot \\" in clean
    spoilt = [line.strip() for line in text[-3].splitlines()]  # one of three pages
    first = spoilt.index(r"& \multicolumn{4}{c}{pets\_37} \\")
    assert spoilt[first + 1 : first + 5] == [
        r"\cmidrule(lr){2-5}",
        r"& \multicolumn{2}{c}{1-shot} & \multicolumn{2}{c}{4-shot} \\",
        r"\cmidrule(lr){2-3} \cmidrule(lr){4-5}",
        r"method & 0 \% corrupted & 50 \% corrupted & 0 \% corrupted & 50 \% corrupted \\",
    ]


def test_a_wide_table_goes_on_and_data_sets_stay_whole(make_record):
    records = [make_record(0.5, data=d, shots=k) for d in "abcde" for k in (1, 2, 4)]
    pieces = [piece for piece in floats(report_latex(to_frame(records))) if "Accuracy" in piece]
    assert len(pieces) == 3  # five data sets and their average, two to a page
    for part, piece in enumerate(pieces, start=1):
        assert f"(part {part} of 3)" in piece
        assert re.search(r"\\begin\{tabular\}\{lr{6}\}", piece)
    assert WIDTH < 9
    alone = [make_record(0.5, shots=k) for k in range(1, WIDTH + 2)]
    assert len([p for p in floats(report_latex(to_frame(alone))) if "Accuracy" in p]) == 1


def test_every_row_has_as_many_cells_as_columns_and_braces_close(make_record):
    records = [
        make_record(0.5, label="50 % {a} & b", data="a_b|c", model="m^1"),
        make_record(None, method="class_residuals", data="a_b|c", model="m^1"),
    ]
    text = report_latex(to_frame(records))
    assert r"50 \% \{a\} \& b & \textbf{50.0} \\" in text
    assert r"class\_residuals & failed \\" in text
    assert r"m\textasciicircum{}1" in text
    bare = re.sub(r"\\[{}]", "", text)
    assert bare.count("{") == bare.count("}")
    assert "It has no complete result on" in text


def one_cell(cell, **changes):
    return replace(Table("T", ("row",), [("r",)], [("c",)], {(0, 0): cell}), **changes)


def seeds(*values, **more):
    return Cell(dict(enumerate(values)), **more)


def test_numbers_have_real_signs():
    assert [number(v) for v in (63.449, -1.25, -0.01)] == ["63.4", "−1.2", "0.0"]
    assert [signed(v) for v in (1.0, -2.26, 0.04, -0.04)] == ["+1.0", "−2.3", "±0.0", "±0.0"]


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (seeds(90.0, 90.4, printed=89.23), "90.2 ± 0.3 [89.23, +1.0]"),
        (seeds(60.0, diverged=1, printed="Diverge"), "60.0 (1 diverged) [Diverge]"),
        (seeds(60.0, reasons={1: "why"}), "60.0 (1 failed)"),
        (Cell(diverged=3, printed=85.47), "diverged [85.47]"),
        (Cell(reasons={1: "why"}), "failed"),
        (Cell(printed=79.41, missing="not run yet"), "- [79.41]"),
        (Cell(), "-"),
        (seeds(float("nan"), 1.0), "-"),
    ],
    ids=str,
)
def test_what_a_cell_shows(cell, text):
    assert one_cell(cell).text(0, 0) == text


def test_fewer_seeds_are_told_and_do_not_compete():
    table = one_cell(seeds(50.0, 52.0), rows=[("r",), ("s",)])
    table = replace(table, cells={**table.cells, (1, 0): seeds(99.0)})
    assert (table.text(1, 0), table.best(0)) == ("99.0 (1 of 2 seeds)", {0})


def test_rows_of_different_data_sets_do_not_compete():
    rows = [("pets", "a"), ("pets", "b"), ("dtd", "a")]
    table = Table("", ("data set", "method"), rows, [("c",)], {(i, 0): seeds(50.0 - i) for i in range(3)})
    assert table.best(0) == {0}
    assert replace(table, grouped=True).best(0) == {0}  # dtd has one row, which has no rivals
    assert replace(table, grouped=True, rows=[*rows[:2], ("dtd", "a")] * 2).best(0) == {0, 2}


@given(st.text(min_size=1, max_size=30))
def test_no_text_breaks_a_row_of_markdown(name):
    text = to_markdown(one_cell(Cell(printed=name), columns=[(name,)], rows=[(name,)]))
    rows = text.split("\n")
    assert len(rows) == 3
    assert {len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) for row in rows} == {3}
    assert not re.search(r"(?<!\\)(?:\\\\)*<", text)


def test_latex_names_a_method_once_and_escapes_symbols():
    rows = [("CoOp", "1"), ("CoOp", "4"), (r"α_1 & 50% {x}", "1")]
    table = Table("T", ("method", "shots"), rows, [("c",)], {(i, 0): seeds(-1.0 - i) for i in range(3)})
    text = to_latex(table)
    assert text.count("CoOp") == 1
    assert r"     & 4 & $-$2.0 \\" in text
    assert r"$\alpha$\_1 \& 50\% \{x\} & 1 & $-$3.0 \\" in text


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_compiles(tmp_path, make_record):
    frame = to_frame([make_record(0.5, data=d, shots=k) for d in ("a_b", "c") for k in (1, 2)])
    document = (
        rf"\documentclass{{article}}\usepackage{{booktabs}}\begin{{document}}{report_latex(frame)}\end{{document}}"
    )
    (tmp_path / "all.tex").write_text(document, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
