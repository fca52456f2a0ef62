"""The columns of the event log. Needs pyarrow: the broker never imports this.

A row is one event. `(namespace, shard, batch_no, index)` identifies it and orders the events in time. The
`event_date=` and `event_hour=` (UTC) of a folder are those of the first event of a segment.
"""

from __future__ import annotations

import pyarrow as pa

EVENT_VERSION = 2
"""Grows when a column is added or changes its meaning. Version 2 adds `session_key` and `connection_lost`:
null in a segment of version 1."""

_TIME = pa.timestamp("us", tz="UTC")
_NAME = pa.dictionary(pa.int32(), pa.string())

EVENTS = pa.schema(
    [
        ("namespace", _NAME),
        ("shard", pa.int32()),  # 0: a namespace is one file
        ("batch_no", pa.int64()),  # of the commit that made it durable
        ("index", pa.int32()),  # within its batch, from 0
        ("event_version", pa.int32()),
        ("event_time", _TIME),
        ("event_type", _NAME),  # names of broker.events.EventType in lower case
        ("entity", _NAME),  # path of the queue or sub-queue; null if none is concerned
        ("partition_id", pa.int32()),  # of a partitioned entity; else null
        ("sequence_number", pa.int64()),
        ("enqueued_sequence_number", pa.int64()),
        ("message_id", pa.string()),  # only in `enqueued` and `scheduled` of new messages
        ("session_id", pa.string()),
        ("session_key", pa.string()),  # equal for ids of the same session; null where `session_id` is
        ("delivery_count", pa.int32()),  # after the event
        ("lock_token", pa.string()),  # keyless digest in hex: the token itself is a capability
        ("locked_until", _TIME),
        ("state_before", _NAME),  # active, deferred, scheduled
        ("reason", pa.string()),
        ("transaction_id", pa.string()),  # hex
        ("related_entity", pa.string()),
        ("related_sequence_number", pa.int64()),
        ("connection_id", pa.int64()),
        ("connection_lost", pa.bool_()),  # true: a lock ended because its connection broke; else null
        ("link_name", _NAME),
        ("size_bytes", pa.int64()),
        ("enqueued_time", _TIME),
        ("expires_at", _TIME),
        ("scheduled_time", _TIME),
        ("broker_epoch", pa.int64()),  # batch number of the epoch's `epoch_started`
        # Null unless bodies are captured for the entity:
        ("body", pa.binary()),
        ("subject", pa.string()),
        ("correlation_id", pa.string()),
        ("content_type", pa.string()),
        ("application_properties", pa.map_(pa.string(), pa.string())),
    ]
)
"""0 and the empty are null in all columns but counts and sizes."""
