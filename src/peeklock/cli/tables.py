"""Tables on standard output."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Sequence
from typing import Final

UNLIMITED: Final = 1 << 20
"""Columns where there is no terminal: a program reads the lines."""


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    numbers: Collection[str] = (),
    *,
    width: int | None = None,
) -> Iterator[str]:
    """Yield the lines of a table. Without rows there is a head alone: a script can count lines.

    Where it is too wide for the terminal, each row has a line for each of its cells. A table of two columns
    has such lines already.

    Args:
        head: names of the columns.
        rows: the cells.
        numbers: names of the columns that are aligned to the right.
        width: columns of the terminal; None = as it says, or the variable COLUMNS.
    """
    width = shutil.get_terminal_size((UNLIMITED, 24)).columns if width is None else width
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    if rows and len(head) > 2 and sum(widths) + 2 * (len(widths) - 1) > width:
        yield from _records(head, rows)
        return
    for row in (head, *rows):
        cells = (
            f"{cell:>{width}}" if name in numbers else f"{cell:<{width}}"
            for name, cell, width in zip(head, row, widths, strict=True)
        )
        yield "  ".join(cells).rstrip()


def _records(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the rows one below the other, each cell with the name of its column."""
    size = max(map(len, head))
    for number, row in enumerate(rows):
        if number:
            yield ""
        for name, cell in zip(head, row, strict=True):
            yield f"{name:<{size}}  {cell}".rstrip() if name else cell
