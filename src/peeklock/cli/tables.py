"""Tables on standard output."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[str] = ()) -> Iterator[str]:
    """Yield the lines of a table. Without rows there is a head alone: a script can count lines.

    `numbers`: names of the columns that are aligned to the right.
    """
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    for row in (head, *rows):
        cells = (
            f"{cell:>{width}}" if name in numbers else f"{cell:<{width}}"
            for name, cell, width in zip(head, row, widths, strict=True)
        )
        yield "  ".join(cells).rstrip()
