"""The sink `servicebus`: the writers that Spark calls, for a table or a stream.

A task encodes its rows in slices and sends them in batches of the Service Bus format, many under way at a
time. A batch is stored whole or not at all. The task is done when the broker has accepted all batches; what a
failed task sent stays in the entities. A second attempt makes the same message ids, so an entity with
duplicate detection drops the copies; without it they arrive again. Source: wire contract 3.7.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    WriterCommitMessage,
)

from peeklock.client.connection import BlockingConnection, connection, wall_ms
from peeklock.client.errors import OptionError
from peeklock.client.sender import Sender
from peeklock.spark.options import Options
from peeklock.spark.sink.columns import Columns, find_columns
from peeklock.spark.sink.outgoing import EncodedRows, RowEncoder, RowRefused, named_row
from peeklock.spark.versions import DataSourceStreamArrowWriter, arrow_batches

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_LOG = logging.getLogger(__name__)

_SLICE_ROWS: Final = 1000
"""Rows encoded at a time. Our choice: enough to fill batches, small against an Arrow batch."""

_BATCH_MESSAGES_MAX: Final = 250
"""Messages in one transfer. Our choice: more is no faster, and other clients wait longer."""

_SENDERS_MAX: Final = 64
"""Open links of a task whose rows name their entities. Our choice: a quarter of a connection's sessions."""

_MEMBER_BYTES: Final = 8
"""Overhead of a message in a batch: the head of its data section. Source: wire contract 3.7."""

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
"""Spark's names of the properties of a stream's task."""


@dataclass
class Sent(WriterCommitMessage):
    """Messages of a task that the broker accepted, counted by entity."""

    counts: dict[str, int] = field(default_factory=dict)


class SinkWriter(DataSourceArrowWriter):
    """Writes a table."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        """Check the columns, and that the entity exists and accepts messages.

        Raises: OptionError, SchemaMismatch, ServiceBusError.
        """
        self._options = options
        self._columns = _checked(options, schema, overwrite)
        for entity in options.entities:
            probe = connection(options.settings).sender(entity)
            connection(options.settings).retrying(probe.open)
            probe.close()
        # All tasks and attempts of this job share it.
        self._job = str(uuid.uuid4())  # noqa: TID251  # it is made in Spark's process, where no clock is moved

    def write(self, iterator: Iterator[Any]) -> Sent:
        """Send the rows of a task; see the module."""
        return _write(self._options, self._columns, self._job, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log what was written."""
        _log_written("job", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log that the job failed."""
        _log_failed("job", messages)


class SinkStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a stream."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        """Check the columns. Raises: OptionError, SchemaMismatch."""
        self._options = options
        self._schema = schema
        self._columns = _checked(options, schema, overwrite)

    def write(self, iterator: Iterator[Any]) -> Sent:
        """Send the rows of a task; see the module."""
        context = TaskContext.get()
        assert context is not None, "Spark calls this in a task"
        query, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        batches = arrow_batches(iterator, self._schema)
        return _write(self._options, self._columns, f"{query}/{batch}", batches)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's
        """Log what was written."""
        _log_written(f"batch {batchId}", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's
        """Log that the batch failed."""
        _log_failed(f"batch {batchId}", messages)


def _checked(options: Options, schema: StructType, overwrite: bool) -> Columns:
    if overwrite:
        raise OptionError(
            "A queue or topic cannot be overwritten: use .mode('append'), or for a stream "
            ".outputMode('append')."
        )
    fields = [(column.name, column.dataType.simpleString()) for column in schema.fields]
    columns = find_columns(fields, options.message_id_column)
    if len(options.entities) > 1:
        raise OptionError(
            f"option entity names {len(options.entities)} entities, and a write goes to one; use a column "
            "'entity' to send rows to several."
        )
    if not options.entities and "entity" not in columns.places:
        raise OptionError("option entity is missing, and the table has no column 'entity': set one of them.")
    return columns


def _write(options: Options, columns: Columns, job: str, batches: Iterator[Any]) -> Sent:
    context = TaskContext.get()
    assert context is not None, "Spark calls this in a task"
    partition = context.partitionId()
    encoder = RowEncoder(columns, f"{job}/{partition}/", partition)
    entity = options.entities[0] if options.entities else None
    sender = RowSender(connection(options.settings), entity, partition)
    try:
        for batch in batches:
            for start in range(0, batch.num_rows, _SLICE_ROWS):
                sender.send(encoder.encode(batch.slice(start, _SLICE_ROWS), wall_ms()))
        return sender.finish()
    finally:
        sender.close()


class RowSender:
    """Sends encoded rows, each to its entity."""

    def __init__(self, connection: BlockingConnection, entity: str | None, partition: int) -> None:
        """`entity` takes the rows that name none."""
        self._connection = connection
        self._entity = entity
        self._partition = partition
        self._senders: OrderedDict[str, Sender] = OrderedDict()
        self._counts: Counter[str] = Counter()

    def send(self, rows: EncodedRows) -> None:
        """Send rows; those of one entity and key stay in order, whatever the case of the key (C27).

        Raises:
            RowRefused: a row without an entity, or too large for it.
            ServiceBusError: the broker refused some that were sent.
        """
        groups: dict[tuple[str, str], list[int]] = {}
        for at, (named, key) in enumerate(zip(rows.entities, rows.keys, strict=True)):
            entity = named or self._entity
            if not entity:
                raise RowRefused(
                    f"{named_row(rows.rows[at], self._partition)}: column 'entity' is null and option entity "
                    "is not set; set one of them."
                )
            groups.setdefault((entity, key.decode(errors="replace").upper()), []).append(at)
        for (entity, _), places in groups.items():
            self._send_group(entity, rows, places)

    def finish(self) -> Sent:
        """Wait until the broker has accepted all messages. Raises: ServiceBusError."""
        for sender in self._senders.values():
            sender.flush()
        self.close()
        return Sent(dict(self._counts))

    def close(self) -> None:
        """Close the links without waiting for outcomes."""
        while self._senders:
            self._senders.popitem()[1].close()

    def _send_group(self, entity: str, rows: EncodedRows, places: list[int]) -> None:
        sender = self._sender(entity)
        size_max, batch_max = sender.message_bytes_max, sender.batch_bytes_max
        payloads: list[bytes] = []
        first = last = used = 0
        key = b""
        for at in places:
            payload = rows.payloads[at]
            size = len(payload)
            if size_max and size > size_max:
                raise RowRefused(
                    f"{named_row(rows.rows[at], self._partition)}: a message of {size} bytes; the limit of "
                    f"entity '{entity}' is {size_max} bytes. No row of this task counts as written."
                )
            is_full = used + size + _MEMBER_BYTES > batch_max or len(payloads) == _BATCH_MESSAGES_MAX
            if payloads and (is_full or rows.keys[at] != key):
                self._send_batch(sender, payloads, first, last)
                payloads = []
            key = rows.keys[at]
            if not payloads:
                first = rows.rows[at]
                used = size  # a batch repeats the sections before the body of its first message
            payloads.append(payload)
            used += size + _MEMBER_BYTES
            last = rows.rows[at]
        self._send_batch(sender, payloads, first, last)
        self._counts[entity] += len(places)

    def _send_batch(self, sender: Sender, payloads: list[bytes], first: int, last: int) -> None:
        tag = named_row(first, self._partition)
        if last != first:
            tag += f" and following, up to {last}"
        sender.send_batch(payloads, tag)

    def _sender(self, entity: str) -> Sender:
        sender = self._senders.get(entity)
        if sender is None:
            if len(self._senders) == _SENDERS_MAX:
                _, oldest = self._senders.popitem(last=False)
                oldest.flush()
                oldest.close()
            sender = self._senders[entity] = self._connection.sender(entity)
        else:
            self._senders.move_to_end(entity)
        return sender


def _log_written(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    total = sum(
        (Counter(message.counts) for message in messages if isinstance(message, Sent)), Counter[str]()
    )
    counts = ", ".join(f"{count} messages to {entity}" for entity, count in sorted(total.items()))
    _LOG.info(
        "%s: the broker stored %s. If Spark repeats it, an entity with duplicate detection drops the copies; "
        "without it they arrive again (at least once).",
        what,
        counts or "no message",
    )


def _log_failed(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    done = sum(message is not None for message in messages)
    _LOG.warning(
        "%s failed: %s of %s tasks were done. Messages already sent stay in the entities; a retry makes the "
        "same ids, which duplicate detection drops.",
        what,
        done,
        len(messages),
    )
