"""Tables as Markdown and as LaTeX (booktabs)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final

from platform.experiment.caveats import escaped
from platform.sweeping.tables import (
    Column,
    Number,
    Row,
    Table,
    shown_epsilon,
    shown_number,
)

PRIVACY_COLUMNS: Final = ("epsilon (server / peers / observer)", "delta")
_LATEX: Final = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"±": r"$\pm$", "∞": r"$\infty$", "<": r"$<$", ">": r"$>$"},
    **{"†": r"$\dagger$", "‡": r"$\ddagger$"},
}


def markdown(tables: Sequence[Table]) -> str:
    """Return all tables, each under its caption."""
    return "\n".join(line for table in tables for line in (*_markdown_lines(table), ""))


def _markdown_lines(table: Table) -> Iterator[str]:
    yield escaped(table.caption)
    yield ""
    names = _flat_names(table.columns)
    private = PRIVACY_COLUMNS if table.is_private else ()
    titles = ("method", *map(escaped, (*table.axes, *names)), *private)
    yield _markdown_row(titles)
    yield "|" + "---|" * (1 + len(table.axes)) + "---:|" * (len(names) + len(private))
    for row in table.rows:
        numbers = (_bold(number) for number in row.numbers)
        axes = (escaped(value) for _, value in row.label.axes)
        method = f"`{row.label.method}`{row.marks}"
        yield _markdown_row((method, *axes, *numbers, *_privacy(table, row)))
    if table.training:
        yield from ("", "Local training:", "")
        yield from (f"- {escaped(line)}" for line in table.training)
    if table.warnings:
        yield from ("", "Warnings of the runs:", "")
        yield from (f"- {escaped(warning)}" for warning in table.warnings)


def plain_rows(table: Table) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the names of a table's columns and its rows, the best number of each marked by *."""
    private = PRIVACY_COLUMNS if table.is_private else ()
    rows = [
        (
            f"{row.label.method}{row.marks}",
            *(value for _, value in row.label.axes),
            *(f"{shown_number(one)}{' *' * one.is_best}" for one in row.numbers),
            *_privacy(table, row),
        )
        for row in table.rows
    ]
    return ("method", *table.axes, *_flat_names(table.columns), *private), rows


def _bold(number: Number) -> str:
    return f"**{shown_number(number)}**" if number.is_best else shown_number(number)


def _markdown_row(cells: Sequence[str]) -> str:
    # A pipe within a cell would end it.
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _flat_names(columns: Sequence[Column]) -> list[str]:
    """Return group and name in one, the group only where there are several.

    The name where it tells.
    """
    groups = {column.group for column in columns}
    names = {column.name for column in columns}
    if len(groups) == 1:
        return [column.name for column in columns]
    return [c.group if len(names) == 1 else f"{c.group} {c.name}" for c in columns]


def _privacy(table: Table, row: Row) -> tuple[str, ...]:
    if not table.is_private:
        return ()
    if row.epsilon is None:
        return ("-", "-")
    delta = "-" if row.delta is None else f"{row.delta:g}"
    return " / ".join(map(shown_epsilon, row.epsilon)), delta


def latex(tables: Sequence[Table]) -> str:
    """Return all tables, each a floating `table`; they need the package booktabs."""
    return "\n".join(("% Needs \\usepackage{booktabs}.", *map(_latex_table, tables)))


def _latex_table(table: Table) -> str:
    private = PRIVACY_COLUMNS if table.is_private else ()
    left = 1 + len(table.axes)
    numbers = len(table.columns) + len(private)
    lines = [
        r"\begin{table}",
        r"  \centering",
        f"  \\caption{{{escape(table.caption)}}}",
        f"  \\begin{{tabular}}{{{'l' * left}{'r' * numbers}}}",
        r"    \toprule",
        *_latex_head(table, left, private),
        r"    \midrule",
        *(_latex_row(table, row) for row in table.rows),
        r"    \bottomrule",
        r"  \end{tabular}",
        *(f"  % Local training: {line}" for line in table.training),
        r"\end{table}",
        "",
    ]
    return "\n".join(lines)


def _latex_head(table: Table, left: int, private: Sequence[str]) -> Iterator[str]:
    """Yield one line, or two where each of several groups has several columns."""
    groups = [
        (name, len(list(of))) for name, of in itertools.groupby(c.group for c in table.columns)
    ]
    first = ("method", *table.axes)
    if len(groups) == 1 or len({column.name for column in table.columns}) == 1:
        yield _latex_cells((*first, *_flat_names(table.columns), *private))
        return
    spans = [f"\\multicolumn{{{width}}}{{c}}{{{escape(name)}}}" for name, width in groups]
    yield f"    {' & '.join([''] * left + spans + [''] * len(private))} \\\\"
    ends = list(itertools.accumulate((width for _, width in groups), initial=left))
    rules = [f"\\cmidrule(lr){{{a + 1}-{b}}}" for a, b in itertools.pairwise(ends)]
    yield f"    {' '.join(rules)}"
    yield _latex_cells((*first, *(column.name for column in table.columns), *private))


def _latex_row(table: Table, row: Row) -> str:
    method = f"{row.label.method}{row.marks}"
    cells = [escape(text) for text in (method, *(value for _, value in row.label.axes))]
    for number in row.numbers:
        text = escape(shown_number(number))
        cells.append(f"\\textbf{{{text}}}" if number.is_best else text)
    cells += [escape(text) for text in _privacy(table, row)]
    return f"    {' & '.join(cells)} \\\\"


def _latex_cells(cells: Sequence[str]) -> str:
    return f"    {' & '.join(map(escape, cells))} \\\\"


def escape(text: str) -> str:
    """Return text as LaTeX prints it."""
    return "".join(_LATEX.get(character, character) for character in text)
