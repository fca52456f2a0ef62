"""The counts of all entities, read in slices at most once in `FRESH_MS` for all who ask, and only after
something has happened.

Theory of operation. Each reading passes over the entities by `FiguresCount`, a slice with each call of
`advance`; requests that wait for it advance it in turn. A row whose values differ from those of the reading
before is encoded and gets the number of this reading. So an answer to "what has changed since reading N" is
the end of the rows in order of their numbers, and costs what has changed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from peeklock.api.instants import write_instant
from peeklock.broker.handlers.figures import EntityFigures, FiguresCount
from peeklock.broker.queue.counters import Counters
from peeklock.broker.vocabulary.descriptions import EntityKind

FRESH_MS = 2_000
"""How long a reading is shown. Our choice: a page that asks every 2 s shows rates."""

SLICES = 4
"""Slices of `FiguresCount` in one turn: 100 entities, 2 ms when all have changed."""

REMOVED_MAX = 10_000
"""Names of deleted entities that are remembered. Who has an older version gets the whole. Our choice."""

PART_ROWS = 1_000
"""Entities in one part of an answer: 300 KiB."""

_SUMMED = ("entities", "active", "scheduled", "deadLetter", "transferDeadLetter", "sizeBytes")

Values = tuple[Any, ...]
"""Of a row, to compare."""


@dataclass(slots=True)
class _Row:
    number: int
    """Of the reading that has found these values."""
    values: Values
    text: bytes
    """As JSON."""


@dataclass(slots=True)
class _Reading:
    count: FiguresCount
    at_ms: int
    number: int
    mark: int | None
    """At its begin."""
    seen: set[str] = field(default_factory=set)
    totals: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_SUMMED, 0))
    oldest_ms: int | None = None


class CountBoard:
    """The last counts of one namespace."""

    def __init__(
        self,
        read: Callable[[], FiguresCount],
        counters: Callable[[], Counters],
        epoch: str,
        mark: Callable[[], int | None],
    ) -> None:
        """Begin without counts.

        Args:
            read: begins a reading of all entities.
            counters: returns those of the namespace.
            epoch: differs with each start of the broker.
            mark: returns a number that stays the same while nothing happens; None = something just has.
        """
        self._read = read
        self._counters = counters
        self._epoch = epoch
        self._mark = mark
        self._rows: dict[str, _Row] = {}
        """By name; those that changed last are at the end."""
        self._removed: dict[str, int] = {}
        """Name of a deleted entity -> the reading that missed it; the last ones are at the end."""
        self._floor = 0
        """The first reading after which all changes are known."""
        self._reading: _Reading | None = None
        self._done: _Reading | None = None
        self._answers: dict[int, tuple[bytes, ...]] = {}
        """By the reading since which they show changes."""

    def advance(self, now_ms: int) -> bool:
        """Return whether the counts are of about now; else read on a little."""
        done = self._done
        if done is not None and abs(now_ms - done.at_ms) < FRESH_MS:
            return True
        mark = self._mark()
        if done is not None and done.mark is not None and done.mark == mark:
            done.at_ms = now_ms
            self._answers.clear()
            return True
        if self._reading is None:
            self._reading = _Reading(self._read(), now_ms, 1 if done is None else done.number + 1, mark)
        reading = self._reading
        for _ in range(SLICES):
            found = reading.count.advance()
            if found is None:
                self._finish(reading)
                return True
            for figures in found:
                if not figures.is_hidden:
                    self._take(reading, figures)
        return False

    def answer(self, since: str | None) -> tuple[bytes, ...]:
        """Return the parts of the answer: what has changed since a version, or all if that is not known."""
        number = self._number_of(since)
        found = self._answers.get(number)
        if found is None:
            found = self._answers[number] = tuple(self._parts(number))
        return found

    def _number_of(self, since: str | None) -> int:
        """Return the number of the reading that a version names; 0 = not known."""
        assert self._done is not None
        epoch, _, number = (since or "").partition("-")
        if epoch != self._epoch or not (number.isascii() and number.isdigit() and len(number) < 16):
            return 0
        return int(number) if self._floor <= int(number) <= self._done.number else 0

    def _take(self, reading: _Reading, figures: EntityFigures) -> None:
        counters, totals, kind = figures.counters, reading.totals, figures.kind
        is_topic = kind is EntityKind.TOPIC
        # Pending messages of a topic are on their way to its subscriptions.
        active = 0 if is_topic else figures.active + figures.deferred
        oldest_ms = None if is_topic else figures.oldest_enqueued_at_ms
        dead = figures.dead_letters - figures.transfer_dead_letters
        totals["entities"] += 1
        totals["active"] += active
        totals["scheduled"] += figures.scheduled
        totals["deadLetter"] += dead
        totals["transferDeadLetter"] += figures.transfer_dead_letters
        if kind is not EntityKind.SUBSCRIPTION:  # a topic counts its subscriptions
            totals["sizeBytes"] += figures.size_bytes
        if oldest_ms is not None and (reading.oldest_ms is None or oldest_ms < reading.oldest_ms):
            reading.oldest_ms = oldest_ms
        values = (
            figures.entity_id,
            figures.status,
            active,
            figures.scheduled,
            dead,
            figures.transfer_dead_letters,
            figures.size_bytes,
            oldest_ms,
            counters.received,
            counters.delivered,
            counters.completed,
        )
        name = figures.name
        reading.seen.add(name)
        row = self._rows.get(name)
        if row is None or row.values != values:
            self._rows.pop(name, None)
            self._rows[name] = _Row(reading.number, values, _encoded(name, kind, values))
            self._removed.pop(name, None)

    def _finish(self, reading: _Reading) -> None:
        self._reading, self._done = None, reading
        self._answers.clear()
        if len(self._rows) > len(reading.seen):
            for name in self._rows.keys() - reading.seen:
                del self._rows[name]
                self._removed[name] = reading.number
        while len(self._removed) > REMOVED_MAX:
            name = next(iter(self._removed))
            self._floor = self._removed.pop(name)

    def _parts(self, since: int) -> list[bytes]:
        reading = self._done
        assert reading is not None
        rows = []
        for row in reversed(self._rows.values()):
            if row.number <= since:
                break
            rows.append(row.text)
        removed = [name for name, number in self._removed.items() if number > since] if since else []
        counters = self._counters()
        totals: dict[str, Any] = {
            **reading.totals,
            **({} if reading.oldest_ms is None else {"oldestEnqueuedTime": write_instant(reading.oldest_ms)}),
            "received": counters.received,
            "delivered": counters.delivered,
            "completed": counters.completed,
        }
        head = {
            "version": f"{self._epoch}-{reading.number}",
            "at": write_instant(reading.at_ms),
            "isWhole": not since,
            "totals": totals,
            "removed": removed,
        }
        parts = [_json(head)[:-1] + b',"entities":[']
        left = iter(rows)
        while part := b",".join(islice(left, PART_ROWS)):
            parts.append(part if len(parts) == 1 else b"," + part)
        return [*parts, b"]}"]


def _encoded(name: str, kind: EntityKind, values: Values) -> bytes:
    _, status, active, scheduled, dead, transfer_dead, size_bytes, oldest_ms, *counted = values
    received, delivered, completed = counted
    return _json(
        {
            "name": name,
            "kind": kind.value,
            "status": status.value,
            "active": active,
            "scheduled": scheduled,
            "deadLetter": dead,
            "transferDeadLetter": transfer_dead,
            "sizeBytes": size_bytes,
            **({} if oldest_ms is None else {"oldestEnqueuedTime": write_instant(oldest_ms)}),
            "received": received,
            "delivered": delivered,
            "completed": completed,
        }
    )


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
