"""What the jobs shall find in a log, worked out row by row in plain Python."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa

from peeklock.broker.vocabulary.events import ENDS

Key = tuple[str, int]
END_NAMES = {kind.name.lower() for kind in ENDS}
GIVEN_BACK = {"abandoned", "released", "lock_lapsed", "deferred"}


@dataclass
class Life:
    """One message in one queue."""

    begun: datetime | None = None
    first: datetime | None = None
    ended: datetime | None = None
    end: str | None = None
    message_id: str | None = None
    origin: Key | None = None
    deliveries: int = 0
    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    under_lock_ms: int = 0
    held_since: datetime | None = None


NO_LIFE = {"duplicate_dropped", "number_issued"}
"""Events with a number that is no message's, or not yet."""


def fold_lives(log: pa.Table) -> dict[Key, Life]:
    """Follow every message of the log."""
    lives: dict[Key, Life] = defaultdict(Life)
    copied: dict[Key, Key] = {}
    for row in log.to_pylist():
        kind, at = row["event_type"], row["event_time"]
        if row["sequence_number"] is None or kind in NO_LIFE:
            continue
        key = (row["entity"], row["sequence_number"])
        life = lives[key]
        life.counts[kind] += 1
        if kind in {"enqueued", "scheduled"}:
            life.begun, life.message_id = at, row["message_id"]
            if "/Subscriptions/" in row["entity"]:
                copied[key] = (row["entity"].split("/Subscriptions/")[0], row["enqueued_sequence_number"])
        if kind == "delivered":
            life.first = life.first or at
            life.deliveries += 1
            life.held_since = at if row["lock_token"] else None
        if kind in GIVEN_BACK | END_NAMES and life.held_since is not None:
            life.under_lock_ms += round((at - life.held_since).total_seconds() * 1000)
            life.held_since = None
        if kind in END_NAMES:
            life.ended, life.end = at, kind
            if row["related_entity"] is not None:
                lives[row["related_entity"], row["related_sequence_number"]].origin = key
    for key, topic in copied.items():
        lives[key].origin = topic
    for life in lives.values():
        origin = life.origin
        while life.message_id is None and origin is not None:
            life.message_id, origin = lives[origin].message_id, lives[origin].origin
    return dict(lives)


def fold_minutes(log: pa.Table) -> dict[tuple[str, datetime], dict[str, Any]]:
    """Count for every entity and minute, and keep its depth at the end."""
    minutes: dict[tuple[str, datetime], dict[str, Any]] = {}
    depth: dict[str, int] = defaultdict(int)
    delivered: set[Key] = set()
    for row in log.to_pylist():
        entity, kind = row["entity"], row["event_type"]
        if entity is None:
            continue
        minute = row["event_time"].replace(second=0, microsecond=0)
        figures = minutes.setdefault((entity, minute), defaultdict(int))
        figures[kind] += 1
        begins = kind in {"enqueued", "scheduled"}
        depth[entity] += begins - (kind in END_NAMES)
        figures["depth"] = depth[entity]
        figures["sent"] += begins - (kind == "activated")
        figures["bytes_sent"] += row["size_bytes"] * (begins - (kind == "activated"))
        if kind == "delivered":
            figures["redelivered"] += (entity, row["sequence_number"]) in delivered
            delivered.add((entity, row["sequence_number"]))
    return minutes
