"""Pictures of the report: what they show, and that the same numbers give the same bytes."""

import io
import re
import warnings
from xml.etree import ElementTree

import pytest
from PIL import Image
from tests.experiments import paper_sheets

from kalmanclip.experiments.paper.draw import COLOURS, draw_bars, draw_heat, draw_lines
from kalmanclip.experiments.paper.sheet import Entry

SVG = "{http://www.w3.org/2000/svg}"
NAMES = {"row_title": "α", "column_title": "share"}


def texts(picture):
    return ["".join(element.itertext()).strip() for element in ElementTree.fromstring(picture.svg).iter(f"{SVG}text")]


def dashed(picture):
    return len(re.findall(r"stroke-dasharray: [\d.]+,", picture.svg))


@pytest.fixture(autouse=True)
def _no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # such as that of a layout that found no room
        yield


@pytest.mark.parametrize("make", [paper_sheets.figure2, paper_sheets.figure3, paper_sheets.table3])
def test_the_same_numbers_give_the_same_bytes_in_both_formats(make):
    (first,), (second,) = make().pictures, make.__wrapped__().pictures
    assert (first.svg, first.png) == (second.svg, second.png)
    assert first.title
    image = Image.open(io.BytesIO(first.png))
    box = [float(number) for number in ElementTree.fromstring(first.svg).get("viewBox").split()]
    assert image.width / image.height == pytest.approx(box[2] / box[3], rel=0.01)


def test_lines_show_every_panel_and_line_and_the_papers_dashed():
    panels = {"Pets": {"Ours": {1: Entry(60.0, 1.0, 3, printed=61.0), 16: Entry(70.0, 1.0, 3, printed=75.0)}}}
    panels["DTD"] = {"CoOp": {1: Entry(50.0), 16: Entry(seeds=2, diverged=2)}}
    picture = draw_lines("title", panels, ours="Ours")
    shown = texts(picture)
    assert {"Pets", "DTD", "Ours", "CoOp", "dashed: the paper's", "diverged", "images per class"} <= set(shown)
    assert "title" not in shown
    assert dashed(picture) == 2  # the line and its key
    without = {"DTD": {"CoOp": {1: Entry(50.0), 16: Entry(51.0)}}}
    plain = draw_lines("title", without)
    assert not {"dashed: the paper's", "diverged", "not measured here"} & set(texts(plain))
    assert dashed(plain) == 0


def test_two_readings_of_one_printed_line_share_it():
    def lines(other):
        entries = {k: Entry(50.0 + k, printed=60.0 + k) for k in (1, 2)}
        return {"Pets": {"Ours (a)": entries, "Ours (b)": {k: Entry(40.0 + k, printed=other + k) for k in (1, 2)}}}

    assert dashed(draw_lines("title", lines(60.0))) == 2
    assert dashed(draw_lines("title", lines(62.0))) == 3


def test_the_paper_s_method_has_the_first_colour_wherever_it_stands():
    lines = {label: {1: Entry(50.0), 2: Entry(60.0)} for label in ("CoOp", "Ours")}
    for ours, first in (("Ours", "Ours"), ("", "CoOp")):
        root = ElementTree.fromstring(draw_lines("title", {"Pets": lines}, ours=ours).svg)
        (legend,) = (g for g in root.iter(f"{SVG}g") if (g.get("id") or "").startswith("legend"))
        keys = [
            (g.find(f"{SVG}path").get("style"), g) for g in legend.iter(f"{SVG}g") if g.find(f"{SVG}path") is not None
        ]
        assert COLOURS[0] in keys[0][0]
        assert next(legend.iter(f"{SVG}text")).text == first


def test_a_panel_without_a_number_of_ours_says_so():
    assert "not measured here" in texts(draw_lines("title", {"Pets": {"Ours": {1: Entry(printed=60.0)}}}))


def test_bars_have_signed_numbers_and_the_paper_s_where_it_has_some():
    entries = {"Pets": Entry(3.04, 0.5, 3, printed=2.5), "DTD": Entry(-1.26), "MNIST": Entry(seeds=1, diverged=1)}
    shown = texts(draw_bars("title", entries))
    assert {"Pets", "DTD", "MNIST", "+3.0", "+2.5", "−1.3", "diverged", "here", "the paper's"} <= set(shown)
    alone = texts(draw_bars("title", {"DTD": Entry(-1.26), "EuroSAT": Entry(missing="gone")}))
    assert "the paper's" not in alone
    assert alone.count("–") == 1


def test_a_heat_map_crosses_what_diverged_and_shows_both_grids():
    (picture,) = paper_sheets.table3().pictures
    shown = texts(picture)
    assert shown.count("×") == 1 + 4  # ours and the paper's
    assert shown.count("–") == 2  # not run, and nothing asked for
    assert {"here", "the paper's", "64.90", "0.01", "50%"} <= set(shown)


def test_a_heat_map_without_printed_numbers_is_one_grid():
    entries = {(0, 0): Entry(50.0), (1, 0): Entry(60.0), (1, 1): Entry(seeds=1, diverged=1)}
    shown = texts(draw_heat("title", ("0", "1"), ("1%", "5%"), entries, **NAMES))
    assert "the paper's" not in shown
    assert {"50.0", "60.0", "×", "–"} <= set(shown)


def test_a_heat_map_s_colours_compare_within_a_column():
    """Adding a number to a whole column changes what is written, and nothing that is painted."""

    def image(more):
        entries = {(r, c): Entry(50.0 + r + more * c) for r in range(2) for c in range(2)}
        svg = draw_heat("title", ("0", "1"), ("1%", "5%"), entries, **NAMES).svg
        return re.findall(r"data:image/png;base64,[^\"]+", svg)

    assert image(0.0) == image(-20.0)


def test_names_are_text_whatever_is_in_them():
    name = "$5 & <b> 50% \\x"
    assert name in texts(draw_bars("title", {name: Entry(1.0)}))
