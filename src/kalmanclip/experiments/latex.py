r"""The tables of a comparison for LaTeX documents, to be read in with ``\input``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from kalmanclip.experiments.cells import Grid
from kalmanclip.experiments.table import Column, Table, make_tables

WIDTH = 7
"""Columns that fit on a page beside each other."""

_ESCAPED = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        "±": r"$\pm$",
        "→": r"$\rightarrow$",
        **{character: rf"\{character}" for character in "&%$#_{}"},
    }
)


def escape(text: str) -> str:
    """Any text on one line, so that LaTeX prints it as it is."""
    return " ".join(text.split()).translate(_ESCAPED)


def to_latex(grids: Mapping[str, Grid]) -> str:
    r"""The tables of `table.to_markdown` as floats with captions; they need ``\usepackage{booktabs}``.

    A table that is too wide for a page goes on in further ones, data sets staying whole.

    Args:
        grids: by backbone.
    """
    lines = [r"% Needs \usepackage{booktabs}."]
    for model, grid in grids.items():
        for table in make_tables(grid):
            pieces = _pieces(table.columns)
            for number, columns in enumerate(pieces, start=1):
                part = f" (part {number} of {len(pieces)})" if len(pieces) > 1 else ""
                title = escape(f"{table.title}, {model}{part}: mean ± standard deviation over seeds.")
                lines += ["", *_float(table, columns, f"{title} The best of a column is bold.")]
            lines += ["", escape(table.remark())] if table.remark() else []
    return "\n".join([*lines, ""])


def _pieces(columns: Sequence[Column]) -> list[list[Column]]:
    """Columns page by page; those of one data set stay together."""
    pieces: list[list[Column]] = []
    for _, group in groupby(columns, key=lambda column: column.heads[0]):
        together = list(group)
        if pieces and len(pieces[-1]) + len(together) <= WIDTH:
            pieces[-1] += together
        else:
            pieces.append(together)
    return pieces


def _float(table: Table, columns: Sequence[Column], caption: str) -> Iterator[str]:
    yield r"\begin{table}"
    yield r"  \centering"
    yield r"  \small"
    yield rf"  \caption{{{caption}}}"
    yield rf"  \begin{{tabular}}{{l{'r' * len(columns)}}}"
    yield r"    \toprule"
    yield from (f"    {line}" for line in _heads(columns))
    yield r"    \midrule"
    best = {column: table.best(column) for column in columns}
    for row in table.rows:
        texts = {column: escape(table.text(row, column)) for column in columns}
        cells = [rf"\textbf{{{text}}}" if row in best[column] else text for column, text in texts.items()]
        yield rf"    {' & '.join([escape(row), *cells])} \\"
    yield r"    \bottomrule"
    yield r"  \end{tabular}"
    yield r"\end{table}"


def _heads(columns: Sequence[Column]) -> Iterator[str]:
    """The lines above the rule: what several columns share stands once above them."""
    levels = len(columns[0].heads)
    for level in range(levels - 1):
        cells, rules, first = [""], [], 2
        for shared, group in groupby(columns, key=lambda column: column.heads[: level + 1]):
            count = len(list(group))
            cells.append(rf"\multicolumn{{{count}}}{{c}}{{{escape(shared[-1])}}}")
            rules.append(rf"\cmidrule(lr){{{first}-{first + count - 1}}}")
            first += count
        yield rf"{' & '.join(cells)} \\"
        yield " ".join(rules)
    yield rf"{' & '.join(['method', *(escape(column.heads[-1]) for column in columns)])} \\"
