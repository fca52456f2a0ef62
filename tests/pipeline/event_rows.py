"""The events of a log as rows that a test changes, and what a fault is.

Owns: how a log is spoiled. The faults are in `life_faults` and `faults`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa

from peeklock.capture.schema import EVENTS
from peeklock.pipeline.audit.checks import Check
from tests.pipeline.synthetic import LOCK_MS

Row = dict[str, Any]
SECOND = timedelta(seconds=1)
LOCK = timedelta(milliseconds=LOCK_MS)
OF_LIFE = (
    "entity", "sequence_number", "enqueued_sequence_number", "enqueued_time", "expires_at", "size_bytes",
    "session_id", "session_key", "partition_id",
)  # fmt: skip
"""Columns that are the same in all rows of a life."""
BEGINS = ("enqueued", "scheduled")


class EventRows:
    """The events of a log as rows, in order."""

    def __init__(self, table: pa.Table) -> None:
        self.rows: list[Row] = table.to_pylist()
        self.indexed = True
        """Whether the table numbers events within their batches again."""

    def table(self, namespace: str) -> pa.Table:
        """Return the log as a table, in order."""
        last, index = -1, 0
        for row in self.rows:
            index = index + 1 if row["batch_no"] == last else 0
            last = row["batch_no"]
            row["namespace"] = namespace
            if self.indexed:
                row["index"] = index
        return pa.Table.from_pylist(self.rows, schema=EVENTS)

    def life(self, *story: str, entity: str | None = None, nth: int = 3, **wanted: Any) -> list[Row]:
        """Return the rows of the nth life with exactly these events; `wanted` are values of its last one."""
        lives: dict[tuple[str, int], list[Row]] = {}
        for row in self.rows:
            if row["sequence_number"] is not None and row["event_type"] != "duplicate_dropped":
                lives.setdefault((row["entity"], row["sequence_number"]), []).append(row)
        found = [
            life
            for (name, _), life in lives.items()
            if tuple(row["event_type"] for row in life) == story
            and entity in (None, name)
            and all(life[-1][key] == value for key, value in wanted.items())
        ]
        return found[min(nth, len(found) - 1)]

    def remove(self, rows: Iterable[Row]) -> None:
        gone = {id(row) for row in rows}
        self.rows = [row for row in self.rows if id(row) not in gone]

    def add(self, row: Row, *, after: Row, **changes: Any) -> Row:
        """Put a copy of `row` with changes behind another, in the same batch."""
        new = {**row, "batch_no": after["batch_no"], "event_time": after["event_time"], **changes}
        at = next(place for place, other in enumerate(self.rows) if other is after)
        self.rows.insert(at + 1, new)
        return new

    def settle(self, entity: str, **changes: Any) -> None:
        """Change settings of an entity as the log has them."""
        for row in self.rows:
            if row["event_type"] == "entity_present" and row["entity"] == entity:
                row["reason"] = json.dumps({**json.loads(row["reason"]), **changes})

    def last_of(self, entity: str) -> list[Row]:
        """Return the rows of the life of an entity with the highest number."""
        number = max(
            row["sequence_number"] for row in self.rows if row["entity"] == entity and row["sequence_number"]
        )
        return [row for row in self.rows if row["entity"] == entity and row["sequence_number"] == number]


COMPLETED = ("enqueued", "delivered", "completed")
ABANDONED = ("enqueued", "delivered", "abandoned", "delivered", "completed")
LAPSED = ("enqueued", "delivered", "lock_lapsed", "delivered", "completed")
RENEWED = ("enqueued", "delivered", "renewed", "completed")
DEAD_LETTERED = ("enqueued", "delivered", "dead_lettered")
EXHAUSTED = ("enqueued", *("delivered", "abandoned") * 10, "dead_lettered")


def of_life(row: Row) -> Row:
    """Return what an event of the same life has."""
    return {key: row[key] for key in OF_LIFE}


def set_all(life: Iterable[Row], **values: Any) -> None:
    for row in life:
        row.update(values)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, and the checks that must find it: no others may find anything."""

    spoil: Callable[[EventRows], None]
    found_by: frozenset[Check]


def fault(spoil: Callable[[EventRows], None], *checks: Check) -> tuple[str, Fault]:
    return spoil.__name__.strip("_").replace("_", "-"), Fault(spoil, frozenset(checks))
