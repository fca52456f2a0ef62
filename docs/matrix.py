"""`python -m docs.matrix [--check]`: write the table of docs/reference/matrix.md.

docs/matrix.json is the source, which `./run soak spark` writes. The text before the mark on the page is
written by hand. Nothing is run, and nothing imported from the tests.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docs.generated import GeneratedPage

RESULTS = Path(__file__).with_name("matrix.json")

COLUMNS = {
    "cursor": "`cursor`",
    "merged": "merge",
    "peekLock": "`peekLock`",
    "browse": "`browse`",
    "written": "into a queue",
}


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the table of rows, and a footnote for each way to fail."""
    notes: dict[str, int] = {}
    yield f"| Spark | table | jars | {' | '.join(COLUMNS.values())} |"
    yield "|---" * (3 + len(COLUMNS)) + "|"
    for row in rows:
        jars = "<br>".join(f"`{jar.partition(':')[2]}`" for jar in row["jars"])
        cells = [_cell(row["cells"].get(column), notes) for column in COLUMNS]
        if not row["cells"]:
            cells[0] = "not run"
        yield f"| {row['spark']} | {row['format']} | {jars} | {' | '.join(cells)} |"
    yield ""
    for text, number in notes.items():
        yield f"[^{number}]: `{text}`"


def _cell(result: str | None, notes: dict[str, int]) -> str:
    if result is None or result == "works":
        return result or ""
    return f"fails[^{notes.setdefault(result, len(notes) + 1)}]"


PAGE = GeneratedPage("matrix", lambda: table(json.loads(RESULTS.read_text(encoding="utf-8"))))

if __name__ == "__main__":
    raise SystemExit(PAGE.main(sys.argv[1:]))
