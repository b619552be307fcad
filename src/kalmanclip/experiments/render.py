"""Tables of numbers as text: what a cell shows, what is best, and Markdown and LaTeX."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from kalmanclip.experiments.aggregate import Cell

WIDTH = 7
"""Columns of a LaTeX table that fit on a page beside each other."""


@dataclass(frozen=True)
class Measure:
    """How a number is shown.

    Attributes:
        metric: one of `aggregate.METRICS`.
        title: in words.
        unit: after differences.
        scale: numbers are multiplied by this,
        digits: and rounded to so many after the point.
        sign: 1 where more is better, -1 where less is.
    """

    metric: str = "accuracy"
    title: str = ""
    unit: str = ""
    scale: float = 1.0
    digits: int = 1
    sign: int = 1

    def round(self, value: float) -> float:
        """Return the number as it is shown."""
        return round(self.scale * value, self.digits)

    def show(self, value: float) -> str:
        """Return the number as text, with a real minus sign; never "−0.0"."""
        return f"{self.round(value) + 0.0:.{self.digits}f}".replace("-", "−")


POINTS = Measure()
"""Numbers that are percent already."""


number = POINTS.show


def signed(value: float) -> str:
    """Return a difference with its sign; "±0.0" where nothing is left to one digit."""
    shown = number(value)
    return f"±{shown}" if POINTS.round(value) == 0 else shown if shown[0] == "−" else f"+{shown}"


@dataclass(frozen=True)
class Table:
    """Cells with titles.

    Attributes:
        title: what it shows.
        row_heads: what the columns of row titles are called, such as ("method", "shots").
        rows: the titles of every row, as many as ``row_heads``.
        columns: what stands above every column of numbers, line by line.
        cells: by row and column number; empty ones may be left out.
        measure: how their numbers are shown.
        grouped: whether only rows with the same first title compete for the best of a column.
    """

    title: str
    row_heads: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    columns: Sequence[tuple[str, ...]]
    cells: Mapping[tuple[int, int], Cell]
    measure: Measure = POINTS
    grouped: bool = False

    def cell(self, row: int, column: int) -> Cell:
        """Return a cell, be it empty."""
        return self.cells.get((row, column), Cell())

    def text(self, row: int, column: int) -> str:
        """Return a cell as it is shown: mean ± standard deviation, what is missing, the paper's number."""
        cell = self.cell(row, column)
        if cell.mean is None:
            shown = "diverged" if cell.diverged else "failed" if cell.reasons else "-"
        else:
            shown = self.measure.show(cell.mean) + ("" if cell.std is None else f" ± {self.measure.show(cell.std)}")
            lost = [f"{len(cell.reasons)} failed"] if cell.reasons else []
            lost += [f"{cell.diverged} diverged"] if cell.diverged else []
            if not lost and cell.seeds < self._most_seeds(column):
                lost = [f"{cell.seeds} of {self._most_seeds(column)} seeds"]
            shown += f" ({', '.join(lost)})" if lost else ""
        return shown + (f" [{self.printed(row, column)}]" if cell.printed is not None else "")

    def printed(self, row: int, column: int) -> str:
        """Return the paper's number with its two digits, or its word, and the difference of ours to it."""
        cell = self.cell(row, column)
        if not isinstance(cell.printed, (int, float)):
            return cell.printed or ""
        apart = "" if cell.difference is None else f", {signed(cell.difference)}"
        return f"{cell.printed:.2f}".replace("-", "−") + apart

    def numbers(self, column: int) -> dict[int, float]:
        """Return the means of a column as they are shown, by row; a mean over fewer seeds does not compete."""
        most = self._most_seeds(column)
        cells = {row: self.cell(row, column) for row in range(len(self.rows))}
        whole = {row: cell.mean for row, cell in cells.items() if cell.seeds == most and not cell.reasons}
        return {row: self.measure.round(mean) for row, mean in whole.items() if mean is not None}

    def best(self, column: int) -> set[int]:
        """Return the rows whose number, as it is shown, no other exceeds; a row without rivals is none of them."""
        groups = [titles[0] if self.grouped else "" for titles in self.rows]
        values = {row: self.measure.sign * value for row, value in self.numbers(column).items()}
        rivals = {row: [value for i, value in values.items() if groups[i] == groups[row]] for row in values}
        return {row for row in values if groups.count(groups[row]) > 1 and values[row] == max(rivals[row])}

    def _most_seeds(self, column: int) -> int:
        return max((self.cell(row, column).seeds for row in range(len(self.rows))), default=0)


def title_of(heads: Sequence[str]) -> str:
    """Return what stands above a column in one line."""
    return ", ".join(heads)


def to_markdown(table: Table) -> str:
    """Return a table with the best of a column in bold."""
    heads = [*table.row_heads, *map(title_of, table.columns)]
    rule = ["---"] * len(table.row_heads) + ["---:"] * len(table.columns)
    lines = [[escape(head) for head in heads], rule]
    best = [table.best(column) for column in range(len(table.columns))]
    for row, titles in enumerate(table.rows):
        texts = [escape(table.text(row, column)) for column in range(len(table.columns))]
        cells = [f"**{text}**" if row in best[column] else text for column, text in enumerate(texts)]
        lines.append([*map(escape, titles), *cells])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def escape(text: str) -> str:
    """Return text in one line, of which Markdown makes no HTML, emphasis, links or columns; `code` stays code."""
    # an underscore inside a word is none of them
    return re.sub(r"([\\*\[\]<>|]|(?<![^\W_])_|_(?![^\W_]))", r"\\\1", " ".join(text.split()))


_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        "±": r"$\pm$",
        "→": r"$\rightarrow$",
        "−": "$-$",
        "α": r"$\alpha$",
        "β": r"$\beta$",
        "λ": r"$\lambda$",
        **{character: rf"\{character}" for character in "&%$#_{}"},
    }
)


def escape_latex(text: str) -> str:
    """Return any text in one line, so that LaTeX prints it as it is."""
    return " ".join(text.split()).translate(_LATEX)


def to_latex(table: Table, caption: str = "") -> str:
    r"""Return floats for ``\usepackage{booktabs}``; a table too wide goes on in further ones, data sets stay whole."""
    pieces: list[list[int]] = []
    for _, group in groupby(range(len(table.columns)), key=lambda column: table.columns[column][0]):
        together = list(group)
        if pieces and len(pieces[-1]) + len(together) <= WIDTH:
            pieces[-1] += together
        else:
            pieces.append(together)
    floats = []
    for n, columns in enumerate(pieces, start=1):
        part = f" (part {n} of {len(pieces)})" if len(pieces) > 1 else ""
        floats.append("\n".join(_float(table, columns, escape_latex(f"{table.title}{part}: {caption}"))))
    return "\n\n".join(floats) + "\n"


def _float(table: Table, columns: Sequence[int], caption: str) -> Iterator[str]:
    yield from (r"\begin{table}", r"  \centering", r"  \small", rf"  \caption{{{caption}}}")
    yield rf"  \begin{{tabular}}{{{'l' * len(table.row_heads)}{'r' * len(columns)}}}"
    yield r"    \toprule"
    yield from (f"    {line}" for line in _heads(table, columns))
    yield r"    \midrule"
    best = {column: table.best(column) for column in columns}
    before: tuple[str, ...] = ()
    for row, titles in enumerate(table.rows):
        # with several columns of titles, one that is the same again is left out
        again = len(titles) > 1 and titles[0] == (before or ("",))[0]
        named = ["" if again and n == 0 else escape_latex(title) for n, title in enumerate(titles)]
        texts = {column: escape_latex(table.text(row, column)) for column in columns}
        cells = [rf"\textbf{{{text}}}" if row in best[column] else text for column, text in texts.items()]
        yield rf"    {' & '.join([*named, *cells])} \\"
        before = titles
    yield from (r"    \bottomrule", r"  \end{tabular}", r"\end{table}")


def _heads(table: Table, columns: Sequence[int]) -> Iterator[str]:
    """Yield the lines above the rule: what several columns share stands once above them."""
    left = len(table.row_heads)
    for level in range(len(table.columns[columns[0]]) - 1):
        cells, rules, first = [""] * left, [], left + 1
        for shared, group in groupby(columns, key=lambda column: table.columns[column][: level + 1]):
            count = len(list(group))
            cells.append(rf"\multicolumn{{{count}}}{{c}}{{{escape_latex(shared[-1])}}}")
            rules.append(rf"\cmidrule(lr){{{first}-{first + count - 1}}}")
            first += count
        yield rf"{' & '.join(cells)} \\"
        yield " ".join(rules)
    heads = [*table.row_heads, *(table.columns[column][-1] for column in columns)]
    yield rf"{' & '.join(map(escape_latex, heads))} \\"
