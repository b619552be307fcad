"""The report in HTML: well formed, self-contained, honest about what is missing, and readable in a real browser."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.experiments import paper_sheets

from kalmanclip.errors import DataError
from kalmanclip.experiments.paper.draw import COLOURS, THEIRS
from kalmanclip.experiments.paper.inline import inline_svg
from kalmanclip.experiments.paper.page import to_html, write_page
from kalmanclip.experiments.paper.sheet import Entry, Sheet

VOID = {"meta", "link", "br", "img", "hr", "input"}


class Reader(HTMLParser):
    """Checks that tags are balanced, and remembers elements with their attributes and text."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.elements = [], []
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        names = [name for name, _ in attributes]
        assert len(names) == len(set(names))
        self.elements.append([tag, dict(attributes), ""])
        if tag not in VOID:
            self.open.append(self.elements[-1])

    def handle_startendtag(self, tag, attributes):
        self.elements.append([tag, dict(attributes), ""])

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, text):
        for element in self.open:
            element[2] += text

    def all(self, tag, **attributes):
        return [e for e in self.elements if e[0] == tag and attributes.items() <= e[1].items()]


@pytest.fixture(scope="module")
def sheets():
    return paper_sheets.all_sheets()


@pytest.fixture(scope="module")
def html(sheets):
    return to_html(sheets, paper_sheets.FACTS)


def one_cell(entry, name="t", **more):
    return replace(Sheet(name, "T", (), ("row",), (("r",),), ("c",), {(0, 0): entry}), **more)


def cell(sheet):
    """The text of the first cell of a sheet alone on a page."""
    reader = Reader(to_html([sheet], {}))
    at = next(n for n, e in enumerate(reader.elements) if e[0] == "section" and e[1]["id"] == f"sheet-{sheet.name}")
    return next(e[2] for e in reader.elements[at:] if e[0] == "td")


def test_it_is_well_formed_with_unique_ids_and_links_that_lead_somewhere(html):
    reader = Reader(html)
    ids = [e[1]["id"] for e in reader.elements if "id" in e[1]]
    assert len(ids) == len(set(ids))
    values = [(name, value) for e in reader.elements for name, value in e[1].items() if value]
    wanted = {value[1:] for name, value in values if name == "href" and value.startswith("#")}
    wanted |= {match for _, value in values for match in re.findall(r"url\(#([^)]+)\)", value)}
    wanted |= {value for name, value in values if name == "aria-labelledby"}
    assert wanted <= set(ids)
    assert sum("url(#" in value for _, value in values) > 10  # the pictures do clip


def test_it_needs_nothing_else_and_says_nothing_of_this_computer(html):
    reader = Reader(html)
    assert not [e for e in reader.elements if e[0] in ("script", "img", "iframe", "object")]
    addresses = [v for e in reader.elements for n, v in e[1].items() if n in ("href", "src", "xlink:href", "action")]
    assert all(address.startswith(("#", "data:")) for address in addresses)
    assert "@import" not in html
    assert str(Path.cwd()) not in html
    assert str(Path.home()) + "/" not in html
    (policy,) = reader.all("meta", **{"http-equiv": "Content-Security-Policy"})
    assert policy[1]["content"].startswith("default-src 'none'")


def test_headers_have_a_scope_and_figures_a_text(html, sheets):
    reader = Reader(html)
    assert all(e[1].get("scope") in ("col", "row", "rowgroup") for e in reader.all("th"))
    assert len(reader.all("table")) == len(reader.all("caption")) == len(sheets) + 1
    pictures = [picture for sheet in sheets for picture in sheet.pictures]
    assert [e[2] for e in reader.all("figcaption")] == [picture.title for picture in pictures]
    labels = {e[1]["id"] for e in reader.all("figcaption")}
    assert {e[1]["aria-labelledby"] for e in reader.all("svg", role="img")} == labels
    assert [e[2] for e in reader.all("th", scope="rowgroup", rowspan="3")][:2] == ["CoOp", "CLIP-Adapter"]


def test_rows_add_up(html, sheets):
    """With the spans of first columns, every row is as long as its head."""
    for table, sheet in zip(re.findall(r"<table.*?</table>", html, re.S)[1:], sheets, strict=True):
        rows = re.findall(r"<tr>.*?</tr>", table, re.S)
        width, left = len(sheet.row_heads) + len(sheet.columns), 0
        assert len(rows) == 1 + len(sheet.rows)
        for row in rows:
            spans = [int(span) for span in re.findall(r'rowspan="(\d+)"', row)]
            assert len(re.findall(r"<t[hd][ >]", row)) + (left > 0) == width
            left = spans[0] - 1 if spans else max(0, left - 1)


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (Entry(63.14, 0.42, 3, printed=65.3), "63.1 ± 0.4paper: 65.30 ▼−2.2"),
        (Entry(66.0, None, 1, printed=65.3), "66.0paper: 65.30 ▲+0.7"),
        (Entry(65.32, None, 1, printed=65.3), "65.3paper: 65.30 ±0.0"),
        (Entry(63.14, 0.42, 3), "63.1 ± 0.4"),
        (Entry(60.0, 1.0, 3, 1, "Diverge"), "60.0 ± 1.01 of 3 divergedpaper: Diverge"),
        (Entry(seeds=3, diverged=3, printed=65.3), "divergedpaper: 65.30"),
        (Entry(printed=65.3, missing="no images"), "–[1]paper: 65.30"),
        (Entry(), "–"),
    ],
)
def test_what_a_cell_shows(entry, text):
    assert cell(one_cell(entry)) == text


def test_the_best_of_a_column_is_strong(html):
    best = [e[2] for e in Reader(html).all("strong", **{"class": "mean"})]
    assert best[:7] == ["71.4", "84.5", "67.2", "90.2", "80.3", "72.4", "84.5"]  # the first is the legend's; a tie


def test_missing_cells_lead_to_their_reason_without_a_mouse():
    sheet = one_cell(Entry(missing="no <images>"), missing={"c": "no <images>", "d": "no text"})
    reader = Reader(to_html([sheet], {}))
    notes = {e[1]["id"]: e[2] for e in reader.all("li") if "id" in e[1]}
    assert list(notes.values()) == ["c: no <images>", "d: no text"]
    marks = [e[1] for e in reader.all("a") if e[2] == "[1]"]
    assert len(marks) == 2  # the column's and the cell's
    assert all(notes[mark["href"][1:]] == "c: no <images>" and mark["title"] == "no <images>" for mark in marks)


def test_findings_show_their_verdict_and_are_counted(html):
    reader = Reader(html)
    verdicts = [(e[1]["class"], e[2]) for e in reader.all("span") if "verdict" in e[1].get("class", "")]
    assert verdicts[:3] == [
        ("verdict yes", "holds: 1"),
        ("verdict no", "does not hold: 1"),
        ("verdict open", "not known: 1"),
    ]
    assert ("verdict no", "Does not hold") in verdicts
    assert ("verdict part", "Holds in part") in verdicts
    assert any(e[2] == "The largest gain is on EuroSAT." for e in reader.all("li", **{"class": "plain"}))


def test_totals_facts_criterion_and_time_are_there(html, sheets):
    reader = Reader(html)
    values = {dt[2]: dd[2] for dt, dd in zip(reader.all("dt"), reader.all("dd"), strict=True)}
    assert values["runs done"] == f"{sum(s.done for s in sheets)} of {sum(s.runs for s in sheets)}"
    assert values["failed"] == "6"
    assert paper_sheets.FACTS.items() <= values.items()
    paragraphs = [e[2] for e in reader.all("p")]
    assert f"Diverged: {sheets[0].criterion}" in paragraphs
    assert "72 of 75 runs done; fitting and predicting took 1 h 2 min." in paragraphs


AWKWARD = "<script>alert('x')</script> & \"quoted\" `a<b`"


def test_no_text_becomes_markup():
    sheet = Sheet(
        "t", AWKWARD, (AWKWARD,), (AWKWARD, "n"), ((AWKWARD, AWKWARD),), (AWKWARD,),
        {(0, 0): Entry(printed=AWKWARD, missing=AWKWARD)}, (f"Holds: {AWKWARD}", AWKWARD), {AWKWARD: AWKWARD}, AWKWARD,
    )  # fmt: skip
    html = to_html([sheet], {AWKWARD: AWKWARD})
    reader = Reader(html)
    assert not reader.all("script")
    assert html.count("&lt;script&gt;") >= 14
    assert reader.all("h2")[1][2] == AWKWARD
    assert "a<b" in [e[2] for e in reader.all("code")]


@given(st.text(max_size=40))
def test_any_text_comes_out_as_it_went_in(text):
    text = re.sub(r"[\r\x00-\x08\x0b-\x1f\x7f-\x9f]", "", text)  # not characters of HTML
    sheet = one_cell(Entry(missing=text + "!"), caption=(text.replace("`", ""),), columns=(text,), rows=((text,),))
    reader = Reader(to_html([sheet], {"fact": text}))
    assert reader.all("dd")[-1][2] == text
    assert [e[2] for e in reader.all("th")][-2:] == [text, text]
    assert [e[2] for e in reader.all("li") if "id" in e[1]] == [text + "!"]


def test_two_copies_of_a_picture_share_no_id_and_take_the_page_s_colours():
    (picture,) = paper_sheets.table3().pictures
    one, two = (inline_svg(picture.svg, prefix, "label") for prefix in ("a-", "b-"))
    ids = [set(re.findall(r'\bid="([^"]+)"', text)) for text in (one, two)]
    assert ids[0]
    assert not ids[0] & ids[1]
    assert set(re.findall(r"url\(#([^)]+)\)", one)) <= ids[0]
    assert set(re.findall(r'href="#([^"]+)"', one)) <= ids[0]
    assert "currentColor" in one
    assert not re.search("<[?]xml|<metadata|<style|ns0:", one)


def test_the_same_sheets_give_the_same_page_and_it_is_written_whole(tmp_path, sheets, html):
    write_page(tmp_path / "report.html", sheets, paper_sheets.FACTS)
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == html
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    with pytest.raises(DataError, match="no-folder"):
        write_page(tmp_path / "no-folder" / "report.html", sheets, {})


def test_a_page_of_nothing_is_a_page():
    assert Reader(to_html([], {})).all("h1")


def light_of(colour):
    """Relative luminance of #rrggbb, as the guidelines for accessible web pages define it."""
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    high, low = sorted((light_of(one), light_of(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_can_be_told_apart(scheme):
    style = resources.files("kalmanclip.experiments.paper").joinpath("page.css").read_text(encoding="utf-8")
    blocks = re.findall(r":root \{(.*?)\}", style, re.S)
    colours = dict(re.findall(r"--([\w-]+): (#\w{6})", blocks[scheme]))
    pairs = [(text, ground) for text in ("ink", "soft", "link") for ground in ("ground", "card", "head")]
    pairs += [(text, ground) for text in ("up", "down", "part") for ground in ("card", "head", f"{text}-ground")]
    pairs += [("ink", f"{name}-ground") for name in ("up", "down", "part", "open")] + [("soft", "open-ground")]
    low = {pair: contrast(colours[pair[0]], colours[pair[1]]) for pair in pairs}
    assert min(low.values()) >= 4.5, min(low, key=low.get)
    assert min(contrast(colour, colours["card"]) for colour in (*COLOURS, THEIRS)) >= 2.98  # graphics: 3


# In a browser.


@pytest.fixture(scope="module")
def address(tmp_path_factory, sheets):
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_page(path, sheets, paper_sheets.FACTS)
    return path.as_uri()


@pytest.fixture(params=[(1280, "light"), (1280, "dark"), (380, "light"), (380, "dark")], ids=str)
def page(request, browser, address):
    """The page, opened; at the end it has caused no error and fetched nothing but itself."""
    width, scheme = request.param
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    opened = context.new_page()
    problems, fetched = [], []
    opened.on("console", lambda message: problems.append(message.text))
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("request", lambda request: fetched.append(request.url))
    opened.goto(address)
    yield opened
    context.close()
    assert problems == []
    assert {url.partition("#")[0] for url in fetched if not url.startswith("data:")} == {address}


def test_nothing_is_wider_than_the_window(page):
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    wide = page.evaluate("""[...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll, .unseen')
        && e.getBoundingClientRect().right > window.innerWidth + 1).map(e => e.tagName)""")
    assert wide == []


def test_contents_lead_to_their_sections(page, sheets):
    links = page.locator("nav a")
    assert links.count() == len(sheets) + 2
    page.emulate_media(reduced_motion="reduce")  # no smooth scrolling to wait for
    for n in range(links.count()):
        links.nth(n).click()
        target = page.locator(links.nth(n).get_attribute("href"))
        box = target.bounding_box()
        assert 0 <= box["y"] < 800 or target.evaluate(
            "e => e.getBoundingClientRect().bottom <= window.innerHeight + 80"
        )
        page.evaluate("window.scrollTo(0, 0)")


def test_pictures_are_there_and_large_enough_to_read(page, sheets):
    pictures = page.locator("figure svg")
    assert pictures.count() == sum(len(sheet.pictures) for sheet in sheets)
    for n in range(pictures.count()):
        assert pictures.nth(n).is_visible()
        assert pictures.nth(n).bounding_box()["width"] > 400
        sizes = pictures.nth(n).locator("text").evaluate_all("all => all.map(e => e.getBoundingClientRect().height)")
        assert min(sizes) > 6


def test_the_colour_scheme_is_the_reader_s(page):
    dark = page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    ground, ink, axis = page.evaluate("""[getComputedStyle(document.body).backgroundColor,
        getComputedStyle(document.body).color, getComputedStyle(document.querySelector('figure svg text')).fill]""")
    assert axis == ink
    bright = [sum(map(int, re.findall(r"\d+", colour)[:3])) > 384 for colour in (ground, ink)]
    assert bright == ([False, True] if dark else [True, False])


def test_a_wide_table_scrolls_in_its_box_and_keeps_its_first_columns(page):
    box = page.locator("#sheet-table1 .scroll").first
    heads = page.locator("#sheet-table1 tbody tr").nth(1).locator("th")
    before = [heads.nth(n).bounding_box()["x"] for n in range(2)]
    box.evaluate("e => { e.scrollLeft = 200 }")
    moved = box.evaluate("e => e.scrollLeft")
    assert moved > 0 or page.viewport_size["width"] > 1000
    assert [heads.nth(n).bounding_box()["x"] for n in range(2)] == pytest.approx(before, abs=1.5)
    assert before[0] + heads.nth(0).bounding_box()["width"] <= before[1] + 1


def test_a_note_can_be_reached_with_the_keyboard(page):
    mark = page.locator("#sheet-table1 td sup a").first
    mark.focus()
    page.keyboard.press("Enter")
    note = page.evaluate("document.querySelector(':target').textContent")
    assert note == f"ImageNet: {paper_sheets.NO_IMAGES}"
