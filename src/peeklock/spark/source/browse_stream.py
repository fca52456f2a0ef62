"""Mode browse as a stream: every message once, in the order of sequence numbers; nothing is changed.

Theory of operation. The offset is, for each entity and broker partition, the next sequence number and the
enqueued time of the messages below it. Numbers of a queue rise as messages arrive, so messages below the
offset are old. In a dead-letter queue they are not: messages keep their numbers and come in the order in
which they failed, so it is refused here. A message that others receive before its micro-batch is not seen. An
entity that was deleted and created again begins at number 1 with messages newer than the offset's time; this
distinguishes it from the previous one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from peeklock.client.browsing import sequence_number
from peeklock.client.errors import OptionError
from peeklock.spark.options import Options, SubQueue
from peeklock.spark.source.browse import (
    PARTITION_SHIFT,
    BrowsePartition,
    Browser,
    Probe,
    by_key,
    cut,
    read_ranges,
    starts,
)
from peeklock.spark.source.offsets import CheckpointMismatch, check_version
from peeklock.spark.source.schema import chosen_schema
from peeklock.spark.source.tasks import apportioned, tasks_for
from peeklock.spark.versions import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

Offset = dict[str, Any]
"""{"namespace": host, "entities": {path: {partition: [next number, enqueued until, UTC ms]}}}."""

Mark = tuple[int, int]
"""The next number of a partition, and the latest enqueued time of those below it."""

_BEGINNING: Final = 0


class BrowseStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream over what comes into some entities."""

    def __init__(self, options: Options, schema: StructType) -> None:
        """Check options and columns. Raises: OptionError."""
        self._options = options
        self._schema = chosen_schema(schema)
        self._target: dict[str, dict[int, int]] | None = None
        """Where AvailableNow ends: the number past the last of each partition."""
        for path in options.entities:
            if path.lower().endswith(SubQueue.DEAD_LETTER.value.lower()):
                raise OptionError(
                    f"entity {path!r} cannot be read as a stream with mode=browse: messages of a dead-letter "
                    f"queue keep their sequence numbers and come in another order, so a stream would miss "
                    f"some. Read it with mode=cursor or mode=peekLock, or as a batch."
                )

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """Return the limit that the options set."""
        if self._options.messages_max is not None:
            return ReadMaxRows(self._options.messages_max)
        if self._options.bytes_max is not None:
            return ReadMaxBytes(self._options.bytes_max)
        return ReadAllAvailable()

    def initialOffset(self) -> Offset:  # noqa: N802  # Spark's name
        """Return where a new query begins. Raises: ServiceBusError, OptionError."""
        marks: dict[str, dict[int, Mark]] = {}
        for path in self._options.entities:
            browser = Browser(self._options, path)
            found = starts(browser, self._options, browser.firsts())
            marks[path] = {partition: (number, _BEGINNING) for partition, number in found.items()}
        return self._offset(marks)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802  # Spark's name
        """Return the end of the next micro-batch. Raises: ServiceBusError, OptionError."""
        marks = self._marks(start)
        rows, size = self._limits(limit)
        pending: list[tuple[Browser, int, Probe]] = []
        for path, by_partition in marks.items():
            browser = Browser(self._options, path)
            pending += [(browser, partition, first) for partition, first in self._new(browser, by_partition)]
        for at, (browser, partition, first) in enumerate(pending):
            left = len(pending) - at
            rows_share = None if rows is None else max(1, rows // left)
            size_share = None if size is None else max(1, size // left)
            end, used_bytes = self._end(browser, partition, first, rows_share, size_share)
            if end <= first.number:
                continue
            marks[browser.path][partition] = end, self._enqueued_until(browser, end)
            if rows is not None:
                rows = max(0, rows - (end - first.number))
                if not rows:
                    break
            if size is not None:
                size = max(0, size - used_bytes)
                if not size:
                    break
        return self._offset(marks)

    def resumed_offset(self) -> Offset:
        """Return the end of what is there: where the checkpoint is, is not known. Raises: ServiceBusError."""
        nothing = self._offset({path: {} for path in self._options.entities})
        return self.latestOffset(nothing, ReadAllAvailable())

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Record the last messages of now. Raises: ServiceBusError."""
        target: dict[str, dict[int, int]] = {}
        for path in self._options.entities:
            browser = Browser(self._options, path)
            target[path] = {
                partition: browser.last(first).number + 1 for partition, first in browser.firsts().items()
            }
        self._target = target

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Divide a micro-batch into tasks, each of one partition of one entity."""
        before, after = self._marks(start), self._marks(end)
        spans = [
            (path, (_next(before.get(path, {}), partition), number))
            for path, by_partition in after.items()
            for partition, (number, _) in by_partition.items()
        ]
        spans = [(path, span) for path, span in spans if span[0] < span[1]]
        if self._options.partition_by is not None:
            return by_key(self._options, spans)
        sizes = [end_ - begin for _, (begin, end_) in spans]
        tasks = tasks_for(self._options, sum(sizes))
        return [
            BrowsePartition(path, ranges)
            for (path, span), count in zip(spans, apportioned(tasks, sizes), strict=True)
            for ranges in cut([span], count)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task. Raises: ServiceBusError."""
        return read_ranges(self._options, self._schema, partition)

    def _limits(self, limit: ReadLimit) -> tuple[int | None, int | None]:
        """Return the maximum rows and bytes of a micro-batch."""
        if isinstance(limit, ReadAllAvailable):
            return None, None
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.bytes_max
        return rows, size

    def _new(self, browser: Browser, marks: Mapping[int, Mark]) -> Iterator[tuple[int, Probe]]:
        """Yield the first message of each partition that is not below its mark."""
        firsts = browser.firsts()
        for partition, first in firsts.items():
            number = _next(marks, partition)
            until_ms = marks[partition][1] if partition in marks else _BEGINNING
            if first.number < number and until_ms and first.enqueued_ms > until_ms:
                raise CheckpointMismatch(
                    f"entity {browser.path!r} is not the one of the checkpoint: its message {first.number} "
                    f"is newer than all below offset {number} were. It was deleted and created again: begin "
                    f"with a new checkpointLocation."
                )
            target = None if self._target is None else self._target[browser.path].get(partition, 0)
            probe: Probe | None = first
            if first.number < number:
                probe = browser.probe([number])[0]
            if probe is not None and probe.number >> PARTITION_SHIFT == partition:
                if target is None or probe.number < target:
                    yield partition, probe

    def _end(
        self, browser: Browser, partition: int, first: Probe, rows: int | None, size: int | None
    ) -> tuple[int, int]:
        """Return the number past the last message to read, and the bytes up to there if they are limited."""
        target = None if self._target is None else self._target[browser.path].get(partition, 0)
        below = target
        if rows is not None:
            # There are at most as many messages as numbers.
            below = first.number + rows if below is None else min(below, first.number + rows)
        if size is None:
            if below is not None and below == target:
                return below, 0
            return browser.last(first, below).number + 1, 0
        used = 0
        number = first.number
        last = ((partition + 1) << PARTITION_SHIFT) if below is None else below
        for messages in browser.read((first.number, last), self._options.fetch_size):
            for message in messages:
                used += len(message)
                if used > size and number > first.number:
                    return number, used - len(message)
                number = sequence_number(message) + 1
        return number, used

    def _enqueued_until(self, browser: Browser, end: int) -> int:
        """Return a time that is not before the enqueued times of messages below a number."""
        following = browser.probe([end])[0]
        if following is not None and following.number >> PARTITION_SHIFT == end >> PARTITION_SHIFT:
            return following.enqueued_ms
        found = browser.probe([end - 1])[0]
        return _BEGINNING if found is None else found.enqueued_ms

    def _offset(self, marks: Mapping[str, Mapping[int, Mark]]) -> Offset:
        return {
            "namespace": self._options.settings.host,
            "entities": {
                path: {str(partition): [*mark] for partition, mark in sorted(by_partition.items())}
                for path, by_partition in marks.items()
            },
        }

    def _marks(self, offset: Offset) -> dict[str, dict[int, Mark]]:
        """Read an offset. Raises: CheckpointMismatch."""
        options = self._options
        check_version(offset, options.entities)
        shown = f"(entities {', '.join(options.entities)}, at offset {offset})"
        entities = offset.get("entities")
        if not isinstance(entities, dict):
            raise CheckpointMismatch(
                f"The checkpoint is of a stream with option mode={offset.get('mode')}; this one has "
                f"mode=browse {shown}. Set the old mode, or option checkpointLocation to a new folder."
            )
        if offset.get("namespace") != options.settings.host:
            raise CheckpointMismatch(
                f"the checkpoint is of namespace {offset.get('namespace')!r}, and option connectionString "
                f"names {options.settings.host!r} {shown}: give each query its own checkpointLocation."
            )
        foreign = sorted({*entities} ^ {*options.entities})
        if foreign:
            raise CheckpointMismatch(
                f"the checkpoint is of other entities ({', '.join(entities)}) than option entity names "
                f"({', '.join(options.entities)}): {foreign[0]!r} is only in one of them "
                f"(at offset {offset}). Give each query its own checkpointLocation."
            )
        try:
            return {
                path: {
                    int(partition): (int(no), int(until_ms)) for partition, (no, until_ms) in marks.items()
                }
                for path, marks in entities.items()
            }
        except (TypeError, ValueError, AttributeError):
            raise CheckpointMismatch(
                f"The checkpoint holds an offset that cannot be read {shown}. It was changed or damaged: "
                f"restore it, or set option checkpointLocation to a new folder."
            ) from None


def _next(marks: Mapping[int, Mark], partition: int) -> int:
    return marks[partition][0] if partition in marks else partition << PARTITION_SHIFT
