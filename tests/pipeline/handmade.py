"""Logs of a few events, written one by one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from peeklock.capture.schema import EVENT_VERSION, EVENTS
from tests.pipeline.synthetic import write_segments

START = datetime(2026, 8, 29, 12, tzinfo=UTC)


class Hand:
    """Each event is a batch, and a second after the one before."""

    def __init__(self) -> None:
        self.batch = 1
        self.epoch = 1
        self.rows: list[dict[str, Any]] = []
        self.kept: dict[tuple[str | None, int | None], dict[str, Any]] = {}  # what a life keeps

    def add(self, kind: str, entity: str | None = None, number: int | None = None, **given: Any) -> None:
        at = START + timedelta(seconds=self.batch)
        if kind in ("enqueued", "scheduled"):
            names = ("expires_at", "session_id", "session_key")
            kept = {name: given[name] for name in names if name in given}
            if kind == "enqueued":
                kept["enqueued_time"] = given.get("enqueued_time", given.get("event_time", at))
            self.kept[entity, number] = kept
        self.rows.append(
            {
                "namespace": "test",
                "shard": 0,
                "batch_no": self.batch,
                "index": 0,
                "event_version": EVENT_VERSION,
                "event_time": at,
                "event_type": kind,
                "entity": entity,
                "sequence_number": number,
                "delivery_count": 0,
                "size_bytes": 100,
                "state_before": None if number is None else "active",
                "broker_epoch": self.epoch,
                **self.kept.get((entity, number), {}),
                **given,
            }
        )
        self.batch += 1

    def table(self) -> pa.Table:
        rows = [{column.name: row.get(column.name) for column in EVENTS} for row in self.rows]
        plain = [
            pa.field(column.name, getattr(column.type, "value_type", column.type))
            if pa.types.is_dictionary(column.type)
            else column
            for column in EVENTS
        ]
        return pa.Table.from_pylist(rows, schema=pa.schema(plain)).cast(EVENTS)

    def write(self, folder: Path) -> None:
        write_segments(folder, self.table())
