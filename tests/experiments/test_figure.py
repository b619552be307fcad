"""Pictures of the report: what they show, and that the same numbers give the same bytes."""

import io
import re
import warnings
from xml.etree import ElementTree

import pytest
from PIL import Image

from kalmanclip.experiments.aggregate import Cell
from kalmanclip.experiments.figure import COLOURS, draw_bars, draw_lines

SVG = "{http://www.w3.org/2000/svg}"


def cell(mean=None, std=0.0, **more):
    """A cell with this mean and deviation over two seeds, or with one seed."""
    if mean is None:
        return Cell(**more)
    apart = std / 2**0.5
    return Cell({1: mean - apart, 2: mean + apart} if std else {1: mean}, **more)


def lines(label="Ours", printed=(61.0, 75.0)):
    return {label: {k: cell(60.0 + k, 1.0, printed=p) for k, p in zip((1, 16), printed, strict=True)}}


def texts(picture):
    return ["".join(element.itertext()).strip() for element in ElementTree.fromstring(picture.svg).iter(f"{SVG}text")]


def dashed(picture):
    return len(re.findall(r"stroke-dasharray: [\d.]+,", picture.svg))


@pytest.fixture(autouse=True)
def _no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # such as that of a layout that found no room
        yield


@pytest.mark.parametrize(
    "make",
    [
        lambda: draw_lines("title", {name: lines() for name in "abcd"}, ours=("Ours",)),
        lambda: draw_bars("title", lines()["Ours"] | {"none": Cell()}),
    ],
    ids=["lines", "bars"],
)
def test_the_same_numbers_give_the_same_bytes_in_both_formats(make):
    first, second = make(), make()
    assert (first.svg, first.png) == (second.svg, second.png)
    assert first.title
    image = Image.open(io.BytesIO(first.png))
    box = [float(number) for number in ElementTree.fromstring(first.svg).get("viewBox").split()]
    assert image.width / image.height == pytest.approx(box[2] / box[3], rel=0.01)


def test_lines_show_every_panel_and_line_and_the_papers_dashed():
    panels = {"Pets": {"Ours": {1: cell(60.0, 1.0, printed=61.0), 16: cell(70.0, 1.0, printed=75.0)}}}
    panels["DTD"] = {"CoOp": {1: cell(50.0), 16: cell(diverged=2)}}
    picture = draw_lines("title", panels, ours=("Ours",))
    shown = texts(picture)
    assert {"Pets", "DTD", "Ours", "CoOp", "dashed: the paper's", "diverged", "images per class"} <= set(shown)
    assert "title" not in shown
    assert dashed(picture) == 2  # the line and its key
    without = {"DTD": {"CoOp": {1: cell(50.0), 16: cell(51.0)}}}
    plain = draw_lines("title", without)
    assert not {"dashed: the paper's", "diverged", "not measured here"} & set(texts(plain))
    assert dashed(plain) == 0


def test_two_readings_of_one_printed_line_share_it():
    def lines(other):
        entries = {k: cell(50.0 + k, printed=60.0 + k) for k in (1, 2)}
        return {"Pets": {"Ours (a)": entries, "Ours (b)": {k: cell(40.0 + k, printed=other + k) for k in (1, 2)}}}

    assert dashed(draw_lines("title", lines(60.0))) == 2
    assert dashed(draw_lines("title", lines(62.0))) == 3


def test_the_paper_s_method_has_the_first_colour_wherever_it_stands():
    lines = {label: {1: cell(50.0), 2: cell(60.0)} for label in ("CoOp", "Ours")}
    for ours, first in ((("Ours",), "Ours"), ((), "CoOp")):
        root = ElementTree.fromstring(draw_lines("title", {"Pets": lines}, ours=ours).svg)
        (legend,) = (g for g in root.iter(f"{SVG}g") if (g.get("id") or "").startswith("legend"))
        keys = [
            (g.find(f"{SVG}path").get("style"), g) for g in legend.iter(f"{SVG}g") if g.find(f"{SVG}path") is not None
        ]
        assert COLOURS[0] in keys[0][0]
        assert next(legend.iter(f"{SVG}text")).text == first


def test_a_legend_of_many_long_names_stays_inside():
    names = [f"a method with rather a long name, as published ({n})" for n in range(21)]
    root = ElementTree.fromstring(draw_lines("title", {p: {name: {1: cell(50.0)} for name in names} for p in "ab"}).svg)
    (legend,) = (g for g in root.iter(f"{SVG}g") if (g.get("id") or "").startswith("legend"))
    starts = {text.text: float(text.get("x")) for text in legend.iter(f"{SVG}text")}
    assert set(starts) == set(names)
    assert min(starts.values()) > 0  # it is centred: what is cut off on one side is on the other


def test_a_panel_without_a_number_of_ours_says_so():
    assert "not measured here" in texts(draw_lines("title", {"Pets": {"Ours": {1: cell(printed=60.0)}}}))


def test_bars_have_signed_numbers_and_the_paper_s_where_it_has_some():
    entries = {"Pets": cell(3.04, 0.5, printed=2.5), "DTD": cell(-1.26), "MNIST": cell(diverged=1)}
    shown = texts(draw_bars("title", entries))
    assert {"Pets", "DTD", "MNIST", "+3.0", "+2.5", "−1.3", "diverged", "here", "the paper's"} <= set(shown)
    alone = texts(draw_bars("title", {"DTD": cell(-1.26), "EuroSAT": cell(missing="gone")}))
    assert "the paper's" not in alone
    assert alone.count("–") == 1


def test_names_are_text_whatever_is_in_them():
    name = "$5 & <b> 50% \\x"
    assert name in texts(draw_bars("title", {name: cell(1.0)}))
