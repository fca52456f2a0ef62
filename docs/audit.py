"""`python -m docs.audit [--check]`: write the tables of docs/reference/audit.md.

The checks in `peeklock.pipeline.audit.checks` and the promises in `peeklock.pipeline.audit.promises` are the
source. The text before the mark on the page is written by hand.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from docs.generated import GeneratedPage
from peeklock.pipeline.audit.checks import Check
from peeklock.pipeline.audit.promises import PROMISES

REQUIREMENTS: dict[str, str] = tomllib.loads(Path(__file__).with_name("requirements.toml").read_text())[
    "requirements"
]

_HEADINGS = {
    Check.SEGMENT_GAP: "The files",
    Check.BATCH_DAMAGED: "The log itself",
    Check.LOCK_OVERDUE: "One message",
    Check.DEAD_LETTER_LOST: "Several messages",
    Check.LOST: "With `--left` or `--drained`",
    Check.SENT_LOST: "With `--ledger`",
}


def _tables() -> Iterator[str]:
    yield "## All checks"
    yield ""
    yield "| check | what must hold | requirements |"
    yield "|---|---|---|"
    for check in Check:
        if check in _HEADINGS:
            yield f"| **{_HEADINGS[check]}** | | |"
        ids = ", ".join(promise.requirement for promise in PROMISES if check in promise.checks)
        yield f"| {check.title} | {check.promise} | {ids} |"
    yield ""
    yield "## Promises and their checks"
    yield ""
    yield "Each [requirement](compatibility.md) that concerns what happens to messages:"
    yield ""
    yield "| requirement | | checks | not checked, or how far |"
    yield "|---|---|---|---|"
    for promise in PROMISES:
        titles = ", ".join(check.title for check in promise.checks)
        yield f"| {promise.requirement} | {REQUIREMENTS[promise.requirement]} | {titles} | {promise.reason} |"


PAGE = GeneratedPage("audit", _tables)

if __name__ == "__main__":
    raise SystemExit(PAGE.main(sys.argv[1:]))
