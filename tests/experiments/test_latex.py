"""Tables for LaTeX: the numbers of the others, escaped, bold where they are best, never wider than a page."""

import re

from hypothesis import given
from hypothesis import strategies as st

from kalmanclip.experiments.cells import Grid
from kalmanclip.experiments.spec import Contamination
from kalmanclip.experiments.latex import WIDTH, escape, to_latex
from kalmanclip.experiments.table import make_tables, to_markdown

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
    grids = {"tiny": Grid(records)}
    tables = [line for line in to_markdown(grids).splitlines() if re.match(r"\| (gda|coop|kalman) ", line)]
    wanted = [
        " & ".join(re.sub(r"\*\*(.*?)\*\*", r"\\textbf{\1}", cell) for cell in line.strip("| ").split(" | "))
        for line in tables
    ]
    lines = to_latex(grids).splitlines()
    found = [line.strip().removesuffix(r" \\") for line in lines if re.match(r" *(gda|coop|kalman) &", line)]
    assert found == [line.replace("±", r"$\pm$") for line in wanted]
    assert any("textbf{90.0" in line for line in found)
    assert len(floats(to_latex(grids))) == len(make_tables(grids["tiny"]))


def test_what_columns_share_stands_once_above_them(make_record):
    records = [
        make_record(0.5, data=d, shots=k, contamination=Contamination(c, seed=1) if c else Contamination())
        for d in ("pets_37", "dtd")
        for k in (1, 4)
        for c in (0, 0.5)
    ]
    text = floats(to_latex({"tiny": Grid(records)}))
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
    pieces = [piece for piece in floats(to_latex({"tiny": Grid(records)})) if "Accuracy" in piece]
    assert len(pieces) == 3  # five data sets and their average, two to a page
    for number, piece in enumerate(pieces, start=1):
        assert f"(part {number} of 3)" in piece
        assert re.search(r"\\begin\{tabular\}\{lr{6}\}", piece)
    assert WIDTH < 9
    alone = [make_record(0.5, shots=k) for k in range(1, WIDTH + 2)]
    assert len([p for p in floats(to_latex({"tiny": Grid(alone)})) if "Accuracy" in p]) == 1


def test_every_row_has_as_many_cells_as_columns_and_braces_close(make_record):
    records = [make_record(0.5, label="50 % {a} & b", data="a_b|c"), make_record(None, method="kalman", data="a_b|c")]
    text = to_latex({"m^1": Grid(records)})
    assert r"50 \% \{a\} \& b & \textbf{50.0} \\" in text
    assert r"kalman & failed \\" in text
    assert r"m\textasciicircum{}1" in text
    bare = re.sub(r"\\[{}]", "", text)
    assert bare.count("{") == bare.count("}")
    assert "It has no complete result on" in text
