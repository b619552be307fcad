"""A sheet as text: Markdown for people, LaTeX for papers, CSV for programs."""

from __future__ import annotations

import csv
import io
import re

from kalmanclip.experiments.latex import escape
from kalmanclip.experiments.paper.sheet import Entry, Sheet
from kalmanclip.experiments.paper.shown import mean_of, number, printed, progress, reasons, remark, signed

_SYMBOLS = str.maketrans(
    {"α": r"$\alpha$", "β": r"$\beta$", "λ": r"$\lambda$", "−": "$-$", "–": "--", "×": r"$\times$"}
)


def picture_stems(sheet: Sheet) -> tuple[str, ...]:
    """The names, without suffix, under which `to_markdown` expects pictures beside it: "figure2", "figure2-2", ..."""
    return tuple(sheet.name if n == 1 else f"{sheet.name}-{n}" for n in range(1, len(sheet.pictures) + 1))


def to_markdown(sheet: Sheet) -> str:
    """A section: title, findings, caption, the table (the best of a column in bold), pictures, and what is missing."""
    notes = {reason: n for n, reason in enumerate(reasons(sheet), 1)}
    heads = [*sheet.row_heads, *sheet.columns]
    lines = [f"## {_escape(sheet.title)}", "", *(f"- {_escape(finding)}" for finding in sheet.findings)]
    lines += [line for paragraph in sheet.caption for line in ("", _escape(paragraph))]
    lines += [
        "",
        "Here: mean ± standard deviation, the best of a column bold. In brackets: the paper's, and the difference.",
        "",
        f"| {' | '.join(map(_escape, heads))} |",
        f"|{' --- |' * len(sheet.row_heads)}{' ---: |' * len(sheet.columns)}",
    ]
    for row, titles in enumerate(sheet.rows):
        cells = [_markdown_cell(sheet, row, column, notes) for column in range(len(sheet.columns))]
        lines.append(f"| {' | '.join([*map(_escape, titles), *cells])} |")
    for stem, picture in zip(picture_stems(sheet), sheet.pictures, strict=True):
        lines += ["", f"![{_escape(picture.title)}]({stem}.png)"]
    if notes:
        lines += ["", "What is missing:", ""]
        lines += [f"{notes[reason]}. {_escape(_reason(reason, names))}" for reason, names in reasons(sheet).items()]
    lines += ["", f"Diverged: {_escape(sheet.criterion)}"] if sheet.criterion else []
    lines += ["", f"{progress(sheet)}."]
    return "\n".join(lines) + "\n"


def _markdown_cell(sheet: Sheet, row: int, column: int, notes: dict[str, int]) -> str:
    entry = sheet.entry(row, column)
    own = _with_std(entry)
    text = f"**{own}**" if row in sheet.best(column) else own
    text += f" [{notes[entry.missing]}]" if entry.missing else ""
    said = remark(sheet, entry)
    text += f", {said}" if said else ""
    theirs = printed(entry.printed)
    apart = "" if entry.difference is None else f", {signed(entry.difference)}"
    return f"{text} ({_escape(theirs)}{apart})" if theirs else text


def to_latex(sheet: Sheet) -> str:
    """A ``table`` environment for the booktabs package: ours with the paper's number, small, in brackets."""
    heads = " & ".join(rf"\textbf{{{_latex(head)}}}" for head in (*sheet.row_heads, *sheet.columns))
    lines = [
        "% needs \\usepackage{booktabs}",
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{_latex(sheet.title)}. Measured here, with the paper's number in brackets.}}",
        rf"  \label{{tab:{re.sub(r'[^A-Za-z0-9-]+', '-', sheet.name)}}}",
        rf"  \begin{{tabular}}{{{'l' * len(sheet.row_heads)}{'r' * len(sheet.columns)}}}",
        r"    \toprule",
        rf"    {heads} \\",
        r"    \midrule",
    ]
    before: tuple[str, ...] = ()
    for row, titles in enumerate(sheet.rows):
        shown = ["" if titles[: n + 1] == before[: n + 1] else _latex(title) for n, title in enumerate(titles)]
        cells = [_latex_cell(sheet, row, column) for column in range(len(sheet.columns))]
        lines.append(rf"    {' & '.join([*shown, *cells])} \\")
        before = titles
    return "\n".join([*lines, r"    \bottomrule", r"  \end{tabular}", r"\end{table}"]) + "\n"


def _latex_cell(sheet: Sheet, row: int, column: int) -> str:
    entry = sheet.entry(row, column)
    own = _latex(_with_std(entry))
    own = rf"\textit{{{own}}}" if entry.mean is None and own != "--" else own
    text = rf"\textbf{{{own}}}" if row in sheet.best(column) else own
    theirs = printed(entry.printed)
    return rf"{text} {{\scriptsize ({_latex(theirs)})}}" if theirs else text


def to_csv(sheet: Sheet) -> str:
    """One line per cell: its place, our mean, deviation and seeds, the paper's, the difference, what is missing."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*sheet.row_heads, "column", "mean", "std", "seeds", "diverged", "paper", "difference", "missing"])
    for row, titles in enumerate(sheet.rows):
        for column, title in enumerate(sheet.columns):
            entry = sheet.entry(row, column)
            if entry == Entry():
                continue
            theirs = entry.printed if isinstance(entry.printed, str) else _digits(entry.printed)
            numbers = [_digits(entry.mean), _digits(entry.std), entry.seeds, entry.diverged]
            writer.writerow([*titles, title, *numbers, theirs, _digits(entry.difference), _one_line(entry.missing)])
    return text.getvalue()


def _with_std(entry: Entry) -> str:
    shown = mean_of(entry)
    return shown if entry.mean is None or entry.std is None else f"{shown} ± {number(entry.std)}"


def _reason(reason: str, names: list[str]) -> str:
    return f"{', '.join(names)}: {reason}" if names else reason


def _digits(value: float | None) -> str:
    return "" if value is None else repr(value)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _escape(text: str) -> str:
    """Text in one line, of which Markdown makes no HTML, emphasis, links or columns; `words` stay set apart."""
    return re.sub(r"([\\*_\[\]<>|])", r"\\\1", _one_line(text))


def _latex(text: str) -> str:
    return escape(text).translate(_SYMBOLS)
