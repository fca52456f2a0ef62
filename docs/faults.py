"""`python -m docs.faults [--check]`: write the table of docs/reference/faults.md.

docs/faults.jsonl is the source, to which `./run soak cluster` adds a line for each round. The text before the
mark on the page is written by hand. Nothing is run, and nothing imported from the tests.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from docs.generated import GeneratedPage

RESULTS = Path(__file__).with_name("faults.jsonl")

TITLES = {
    "kill-owner": "`kill -9` of the owner",
    "freeze-owner": "the owner is frozen until another node owns, then goes on",
    "cut-owner": "the owner cannot reach the database until another node owns",
    "slow-store": "each piece between the owner and the database takes 200 ms each way, for 8 s",
    "kill-primary": "`kill -9` of the primary; the standby is promoted at once",
    "kill-standby": "`kill -9` of the standby; a new one is made within 10 s",
    "freeze-standby": "the standby is frozen for 8 s",
    "end-backends": "the database ends all connections of the nodes",
    "clock": "the clock of the owner is an hour fast or slow for some seconds",
    "stop-owner": "`SIGTERM` to the owner",
    "move": "`peeklock cluster move`",
    "join": "a node joins, and the namespace moves to it",
}
"""By fault, in the order of the table."""


def table(rounds: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yield the table: a row for each fault."""
    by_fault: dict[str, list[dict[str, Any]]] = {}
    for one in rounds:
        by_fault.setdefault(one["fault"], []).append(one)
    if not by_fault:
        yield "No rounds are recorded."
        return
    total = sum(len(rows) for rows in by_fault.values())
    failed = sum("failed" in row for rows in by_fault.values() for row in rows)
    yield f"{total} rounds; {'none failed' if not failed else f'{failed} failed'}."
    yield ""
    yield "| fault | rounds | failed | sends: median gap | worst | completions: median gap | worst | load |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    for fault, title in TITLES.items():
        if rows := by_fault.get(fault):
            yield _row(title, rows)


def _row(title: str, rows: list[dict[str, Any]]) -> str:
    whole = [row for row in rows if "failed" not in row]
    cells = [title, str(len(rows)), str(len(rows) - len(whole))]
    for name in ("sends_gap_s", "completions_gap_s"):
        gaps = [row[name] for row in whole]
        cells += [f"{median(gaps):.1f} s", f"{max(gaps):.1f} s"] if gaps else ["", ""]
    cells.append(f"{median(row['load_average'] for row in whole):.0f}" if whole else "")
    return f"| {' | '.join(cells)} |"


def read() -> list[dict[str, Any]]:
    """Return all rounds."""
    return [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]


PAGE = GeneratedPage("faults", lambda: table(read()))

if __name__ == "__main__":
    raise SystemExit(PAGE.main(sys.argv[1:]))
