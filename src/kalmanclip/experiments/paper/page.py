"""The report as one HTML page that needs nothing else: no scripts, and nothing from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from itertools import groupby
from pathlib import Path

from kalmanclip.errors import DataError
from kalmanclip.experiments.paper.inline import inline_svg
from kalmanclip.experiments.paper.sheet import Entry, Sheet
from kalmanclip.experiments.paper.shown import (
    NONE,
    VERDICTS,
    duration,
    mean_of,
    number,
    printed,
    progress,
    reasons,
    remark,
    signed,
    verdict,
)
from kalmanclip.files import write_atomic

TITLE = "The paper, reproduced"
# The page shows what is in it and fetches nothing, whatever the text of a label may be.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def write_page(path: Path, sheets: Sequence[Sheet], facts: Mapping[str, str]) -> None:
    """Writes the page, completely or not at all.

    Args:
        path: of the HTML file; its folder must exist.
        sheets: in the order of the page; their names must differ.
        facts: what all numbers have in common, such as model, versions and the command, by what it is called.
    """
    write_atomic(path, to_html(sheets, facts), DataError)


def to_html(sheets: Sequence[Sheet], facts: Mapping[str, str]) -> str:
    """The page as text; arguments as in `write_page`."""
    style = resources.files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    links = "".join(f'<li><a href="#{_id(sheet)}">{escape(_short(sheet))}</a></li>' for sheet in sheets)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="kalmanclip">
<title>{TITLE}</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body>
<a class="skip" href="#summary">Skip to the summary</a>
<nav aria-label="Contents">
<p class="brand">{TITLE}</p>
<ul><li><a href="#summary">Summary</a></li>{links}<li><a href="#facts">How it was made</a></li></ul>
</nav>
<main>
{_summary(sheets)}
{"".join(_section(number, sheet) for number, sheet in enumerate(sheets))}
{_facts(facts)}
</main>
</body>
</html>
"""


def _summary(sheets: Sequence[Sheet]) -> str:
    """What the page is, how to read it, and how far every sheet is."""
    done, runs, failed = (sum(getattr(sheet, what) for sheet in sheets) for what in ("done", "runs", "failed"))
    seconds = sum(sheet.seconds for sheet in sheets)
    numbers = [
        ("runs done", f"{done} of {runs}"),
        ("failed", str(failed)),
        ("fitting and predicting", duration(seconds)),
    ]
    tiles = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in numbers)
    rows = "".join(
        f'<tr><th scope="row" class="head-0"><a href="#{_id(sheet)}">{escape(_short(sheet))}</a></th>'
        f"<td>{_tally(sheet)}</td><td>{_filled(sheet)}</td><td>{sheet.done} of {sheet.runs}</td>"
        f"<td>{sheet.failed}</td><td>{duration(sheet.seconds)}</td></tr>\n"
        for sheet in sheets
    )
    heads = "".join(f'<th scope="col">{head}</th>' for head in ("claims", "cells filled", "runs", "failed", "time"))
    table = f"""<table class="plain">
<caption><span>How far every table and figure is. Runs that several of them share count in each.</span></caption>
<thead><tr><th scope="col" class="head-0">what</th>{heads}</tr></thead>
<tbody>
{rows}</tbody>
</table>"""
    return f"""<section id="summary">
<h1>{TITLE}</h1>
<p class="lead">Every table and figure of the paper with numbers measured here, the printed ones beside them, and what
is missing.</p>
<dl class="tiles">{tiles}</dl>
{_scrolling(table, "Overview")}
<h2 class="small">How to read a cell</h2>
<div class="legend"><div class="sample">{_numbers(Entry(71.4, 0.3, 3, printed=72.0), "", True)}</div>
<p>Above: the mean ± standard deviation over seeds, measured here; the best of a column is bold. Below: what the
paper printed, and the difference to it, with an arrow for the direction. A dash with a number in brackets is a missing
cell; the number leads to the reason under the table.</p></div>
</section>"""


def _tally(sheet: Sheet) -> str:
    """How many findings of which kind."""
    kinds = [verdict(finding)[0] for finding in sheet.findings]
    found = [
        f'<span class="verdict {word}">{escape(name)}: {kinds.count(word)}</span>'
        for name, word in sorted(VERDICTS.items(), key=lambda item: ("yes", "part", "no", "open").index(item[1]))
        if word in kinds
    ]
    return " ".join(found) or NONE


def _filled(sheet: Sheet) -> str:
    entries = sheet.entries.values()
    wanted = [entry for entry in entries if entry != Entry()]
    return f"{sum(entry.mean is not None or entry.diverged > 0 for entry in wanted)} of {len(wanted)}"


def _section(at: int, sheet: Sheet) -> str:
    """One sheet."""
    found = "".join(_finding(finding) for finding in sheet.findings)
    findings = f'<ul class="findings" aria-label="Findings">{found}</ul>' if found else ""
    figures = "".join(_figure(f"p{at}-{n}-", picture.svg, picture.title) for n, picture in enumerate(sheet.pictures))
    criterion = f"<p><strong>Diverged:</strong> {escape(sheet.criterion)}</p>" if sheet.criterion else ""
    return f"""<section id="{_id(sheet)}" class="sheet">
<p class="name">{escape(sheet.name)}</p>
<h2>{escape(sheet.title)}</h2>
{findings}
<div class="caption">{"".join(f"<p>{_prose(paragraph)}</p>" for paragraph in sheet.caption)}</div>
{figures}
{_scrolling(_table(sheet), f"{sheet.title}, table")}
<div class="under">{_notes(sheet)}{criterion}<p class="progress">{escape(progress(sheet))}.</p></div>
</section>
"""


def _finding(finding: str) -> str:
    word, said, rest = verdict(finding)
    badge = f'<span class="verdict {word}">{escape(said)}</span> ' if word else ""
    return f'<li class="{word or "plain"}">{badge}<span>{_prose(rest)}</span></li>'


def _figure(prefix: str, svg: str, title: str) -> str:
    label = f"{prefix}title"
    return (
        f'<figure><div class="scroll picture" tabindex="0" role="group" aria-labelledby="{label}">'
        f"{inline_svg(svg, prefix, label)}</div>"
        f'<figcaption id="{label}">{escape(title)}</figcaption></figure>\n'
    )


def _scrolling(table: str, label: str) -> str:
    """A box that scrolls by itself, also with the keyboard."""
    return f'<div class="scroll" tabindex="0" role="group" aria-label="{escape(label)}">\n{table}\n</div>'


def _table(sheet: Sheet) -> str:
    marks = _marks(sheet)
    heads = "".join(f'<th scope="col" class="head-{n}">{escape(head)}</th>' for n, head in enumerate(sheet.row_heads))
    heads += "".join(f'<th scope="col">{escape(name)}{_named(sheet, name, marks)}</th>' for name in sheet.columns)
    bodies = "".join(
        f"<tbody>\n{_rows(sheet, list(rows), marks)}</tbody>\n"
        for _, rows in groupby(range(len(sheet.rows)), key=lambda row: sheet.rows[row][0])
    )
    kind = "grouped" if len(sheet.row_heads) > 1 else "single"
    return f"""<table class="{kind}">
<caption><span>Measured here: mean ± standard deviation, the best of a column bold. Beneath: the paper's, and the
difference.</span></caption>
<thead><tr>{heads}</tr></thead>
{bodies}</table>"""


def _rows(sheet: Sheet, rows: Sequence[int], marks: Mapping[str, str]) -> str:
    """Rows with the same first title, which is written once."""
    best = [sheet.best(column) for column in range(len(sheet.columns))]
    lines = []
    for row in rows:
        titles = sheet.rows[row]
        span = f' rowspan="{len(rows)}" scope="rowgroup"' if len(titles) > 1 else ' scope="row"'
        name = f"{escape(titles[0])}{_named(sheet, titles[0], marks)}"
        first = f'<th{span} class="head-0">{name}</th>' if row == rows[0] or len(titles) == 1 else ""
        rest = "".join(f'<th scope="row" class="head-{n}">{escape(t)}</th>' for n, t in enumerate(titles[1:], 1))
        cells = "".join(_cell(sheet, row, column, row in best[column], marks) for column in range(len(sheet.columns)))
        lines.append(f"<tr>{first}{rest}{cells}</tr>\n")
    return "".join(lines)


def _cell(sheet: Sheet, row: int, column: int, best: bool, marks: Mapping[str, str]) -> str:
    entry = sheet.entry(row, column)
    mark = _mark(entry.missing, marks) if entry.missing else ""
    said = remark(sheet, entry)
    more = mark + (f'<span class="remark">{escape(said)}</span>' if said else "")
    return f"<td>{_numbers(entry, more, best)}</td>"


def _numbers(entry: Entry, more: str, best: bool) -> str:
    """What stands in a cell: ours, ``more`` of HTML, the paper's and the difference."""
    kind = "diverged" if entry.mean is None and entry.diverged else "none" if entry.mean is None else "mean"
    tag = "strong" if best else "span"
    own = f'<{tag} class="{kind}">{mean_of(entry)}</{tag}>'
    if entry.mean is not None and entry.std is not None:
        own += f' <span class="std">± {number(entry.std)}</span>'
    theirs = printed(entry.printed)
    if not theirs:
        return f'<span class="ours">{own}{more}</span>'
    apart = ""
    if entry.difference is not None:
        way, arrow = (
            ("up", "▲") if entry.difference >= 0.05 else ("down", "▼") if entry.difference <= -0.05 else ("", "")
        )
        arrow = f'<span aria-hidden="true">{arrow}</span>' if arrow else ""
        apart = f' <span class="apart {way}">{arrow}{signed(entry.difference)}</span>'
    # beside a number the place is enough for those who see it; a word would be taken for ours
    label = '<span class="unseen">paper: </span>' if isinstance(entry.printed, (int, float)) else "paper: "
    return f'<span class="ours">{own}{more}</span><span class="paper">{label}{escape(theirs)}{apart}</span>'


def _marks(sheet: Sheet) -> dict[str, str]:
    """For every reason the id of its note; the note's number is what follows the last hyphen."""
    return {reason: f"{_id(sheet)}-note-{n}" for n, reason in enumerate(reasons(sheet), 1)}


def _named(sheet: Sheet, name: str, marks: Mapping[str, str]) -> str:
    """The mark of a row or column that is missing as a whole."""
    return _mark(sheet.missing[name], marks) if name in sheet.missing else ""


def _mark(reason: str, marks: Mapping[str, str]) -> str:
    note = marks[reason]
    return f'<sup><a href="#{note}" title="{escape(reason)}">[{note.rpartition("-")[2]}]</a></sup>'


def _notes(sheet: Sheet) -> str:
    """The reasons under the table, where no mouse is needed."""
    marks = _marks(sheet)
    if not marks:
        return ""
    items = "".join(f'<li id="{marks[why]}">{_who(names)}{escape(why)}</li>' for why, names in reasons(sheet).items())
    return f'<div class="notes"><p><strong>What is missing</strong></p><ol>{items}</ol></div>'


def _who(names: Iterable[str]) -> str:
    joined = ", ".join(names)
    return f"<strong>{escape(joined)}:</strong> " if joined else ""


def _facts(facts: Mapping[str, str]) -> str:
    items = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items())
    return f'<section id="facts" class="sheet">\n<h2>How it was made</h2>\n<dl class="facts">{items}</dl>\n</section>'


def _prose(text: str) -> str:
    """Sentences, with `words` of the command line set apart."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _id(sheet: Sheet) -> str:
    return f"sheet-{escape(sheet.name)}"


def _short(sheet: Sheet) -> str:
    """A title for narrow places."""
    return re.split("[:,]", sheet.title)[0]
