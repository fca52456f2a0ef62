"""The life of one message, from the event log. Needs pyarrow, which only this work loads.

Segments are read oldest first. Their statistics say which row groups may have the message, so most of a log
is not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from peeklock.client.connection import BlockingConnection
from peeklock.worker.orders import Work
from peeklock.worker.output import Output, WorkFailed

EVENTS_MAX: Final = 1000
"""Events of an answer. Our choice: a page for a person; a message that always fails has more."""

_SEGMENTS: Final = "event_date=*/event_hour=*/events-*.parquet"

_MEMBERS: Final = {
    "event_time": "time",
    "event_type": "type",
    "batch_no": "batch",
    "index": "index",
    "reason": "reason",
    "delivery_count": "deliveryCount",
    "locked_until": "lockedUntil",
    "state_before": "stateBefore",
    "message_id": "messageId",
    "session_id": "sessionId",
    "enqueued_sequence_number": "enqueuedSequenceNumber",
    "related_entity": "relatedEntity",
    "related_sequence_number": "relatedSequenceNumber",
    "transaction_id": "transactionId",
    "connection_id": "connectionId",
    "connection_lost": "connectionLost",
    "link_name": "linkName",
    "size_bytes": "sizeBytes",
    "scheduled_time": "scheduledEnqueueTime",
    "expires_at": "expiresAt",
}
"""Column -> member of an event."""


def show_life(work: Work, connection: BlockingConnection, output: Output) -> None:
    """Write the events of a message. Raises: WorkFailed."""
    try:
        segments = sorted(Path(work["eventLog"]).glob(_SEGMENTS), key=lambda path: path.name)
        events = []
        for event in _events(segments, work["entity"].lower(), work["number"]):
            events.append(event)
            if len(events) >= EVENTS_MAX:
                break
        as_of = _last_time(segments)
    except ImportError as failure:
        text = f"The event log cannot be read: {failure.name} is not installed."
        raise WorkFailed("invalid operation", f"{text} pip install 'peeklock[capture]'") from failure
    except OSError as failure:
        raise WorkFailed("invalid operation", f"The event log cannot be read: {failure}") from failure
    found: dict[str, Any] = {"events": events, "isCut": len(events) >= EVENTS_MAX}
    output.line(found if as_of is None else {**found, "asOf": as_of})


def _events(segments: list[Path], entity: str, number: int) -> Iterator[dict[str, Any]]:
    import pyarrow.dataset as ds

    # The files themselves, without the names of their folders: the columns have all that is shown.
    for path in segments:
        try:
            part = ds.dataset(str(path), format="parquet")
        except FileNotFoundError:  # retention has removed it
            continue
        columns = [name for name in (*_MEMBERS, "entity") if name in part.schema.names]
        table = part.to_table(columns=columns, filter=ds.field("sequence_number") == number)
        for row in table.to_pylist():
            if (row["entity"] or "").lower() == entity:
                yield _event(row)


def _event(row: dict[str, Any]) -> dict[str, Any]:
    shown = {member: row.get(column) for column, member in _MEMBERS.items()}
    return {
        member: _instant(value) if isinstance(value, datetime) else value
        for member, value in shown.items()
        if value is not None
    }


def _last_time(segments: list[Path]) -> str | None:
    """Return the time of the last event in the log; None = it has none."""
    import pyarrow.parquet as pq

    for path in reversed(segments):
        times = pq.read_table(path, columns=["event_time"], partitioning=None).column("event_time")
        if len(times):
            return _instant(times[-1].as_py())
    return None


def _instant(at: datetime) -> str:
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
