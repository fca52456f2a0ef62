"""Browsing: a batch read of what is in a queue, which changes nothing.

Owns: finding the ends of an entity by peeks alone, dividing it into tasks, reading a task. Must not know:
streams, what a row looks like. Any Service Bus can be browsed: nothing but peek is used.

Theory of operation. A peek answers with messages from a sequence number on, in ascending order, whatever
their state. There is no request for the highest number, so it is looked for: many probes of one message at a
time, each narrowing the space between the highest number seen and the lowest that nothing follows. A
partitioned entity numbers each of its partitions apart, with the partition in the top 16 bits.
A range is divided by numbers. Where messages are gone there are holes in it, so it is probed at many places
first, and the holes are left out: tasks become about equal although most of the numbers may be gone.
A task holds one answer while it asks for the next, and a few MiB of rows: its memory does not depend on how
much there is. Reading twice gives what is there then; nothing is counted or locked.
Source: wire contract 5.2 (peek-message), 3.2.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from peeklock.amqp.types import Int, Long
from peeklock.client.connection import connection
from peeklock.client.errors import OptionError
from peeklock.client.management import Management, Ticket
from peeklock.spark.options import EARLIEST_NUMBER, LATEST_NUMBER, Edge, Offsets, Options
from peeklock.spark.source.rows import enqueued, record_batch, sequence_number
from peeklock.spark.source.schema import chosen_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_LOG = logging.getLogger(__name__)

PEEK: Final = "com.microsoft:peek-message"

PARTITION_SHIFT: Final = 48
"""Bits of a sequence number below its partition. Source: wire contract 3.2 (PartitionId)."""

PLAN_S_MAX: Final = 20.0
"""How long planning tries to reach a broker, at most: who mistyped a host waits for it."""

_PROBES: Final = 16
"""Peeks under way while the end of a range is looked for. Our choice: a million numbers take 7 rounds."""

_CELLS_MAX: Final = 64
"""Places at which a range is probed for holes, at most; 8 for each task."""
_CELLS_A_TASK: Final = 8

_TASK_NUMBERS_MIN: Final = 2000
"""A range is divided no finer by itself: a task costs 10 ms and more, reading so many messages 50."""

_BATCH_ROWS: Final = 4096
_BATCH_BYTES: Final = 4 << 20
"""Size of an Arrow batch: large enough that its overhead is little, small beside a worker's memory."""

Range = tuple[int, int]
"""The first sequence number and the one behind the last."""


@dataclass(frozen=True, slots=True)
class Probe:
    """The first message from a number on."""

    number: int
    enqueued_ms: int


class Browser:
    """Peeks at one entity."""

    def __init__(self, options: Options, path: str) -> None:
        self.path = path
        self._management: Management = connection(options.settings).management(path)
        self._further: dict[str, Any] = {}
        if options.session_id is not None:
            self._further["session-id"] = options.session_id
        if not options.include_body and not options.include_encoded:
            self._further["omit-message-body"] = True
        self._timeout_s: float | None = None

    def soon(self, seconds: float) -> Browser:
        """Give up after so many seconds."""
        self._timeout_s = seconds
        return self

    def ask(self, number: int, count: int) -> Ticket:
        """Ask for messages from a number on."""
        body = {"from-sequence-number": Long(number), "message-count": Int(count), **self._further}
        return self._management.start(PEEK, body)

    def answer(self, ticket: Ticket) -> list[bytes]:
        """Give the messages that were asked for. Raises: ServiceBusError."""
        found = self._management.wait(ticket, self._timeout_s).body.get("messages", ())
        return [one["message"] for one in found]

    def probe(self, numbers: Sequence[int]) -> list[Probe | None]:
        """Give the first message from each of some numbers on."""
        tickets = [self.ask(number, 1) for number in numbers]
        probes: list[Probe | None] = []
        for ticket in tickets:
            messages = self.answer(ticket)
            if messages:
                number, enqueued_ms = enqueued(messages[0])
                probes.append(Probe(number or 0, enqueued_ms or 0))
            else:
                probes.append(None)
        return probes

    def firsts(self) -> dict[int, Probe]:
        """Give the first message of each broker partition that has any; without partitions it is number 0."""
        found: dict[int, Probe] = {}
        number = 0
        while number < 1 << 63:
            probe = self.probe([number])[0]
            if probe is None:
                break
            partition = probe.number >> PARTITION_SHIFT
            found[partition] = probe
            number = (partition + 1) << PARTITION_SHIFT
        return found

    def last(self, first: Probe, below: int | None = None) -> Probe:
        """Give the last message from `first` on, in its partition and below a number."""
        low = first
        high = ((first.number >> PARTITION_SHIFT) + 1) << PARTITION_SHIFT
        if below is not None:
            high = min(high, below)
        step = 3  # bits: distances of 1, 8, 64... reach any end in the first round
        places = [low.number + (1 << step * power) for power in range(_PROBES)]
        while low.number + 1 < high:
            places = [place for place in places if place < high] or [high - 1]
            for place, probe in zip(places, self.probe(places), strict=True):
                if probe is not None and probe.number < high:
                    low = max(low, probe, key=lambda one: one.number)
                elif low.number < place:
                    high = min(high, place)
            places = _spread(low.number + 1, high, _PROBES)
        return low

    def from_time(self, first: Probe, last: Probe, time_ms: int) -> int:
        """Give the lowest number from which on messages were enqueued at a time or later.

        Numbers and enqueued times rise together. Past the last message if all are older.
        """
        if first.enqueued_ms >= time_ms:
            return first.number
        low, high = first.number + 1, last.number + 1
        while low < high:
            places = _spread(low, high, _PROBES)
            for place, probe in zip(places, self.probe(places), strict=True):
                if probe is None or probe.enqueued_ms >= time_ms:
                    high = min(high, place)
                else:
                    low = max(low, probe.number + 1)
        return low

    def read(self, wanted: Range, fetch_size: int) -> Iterator[list[bytes]]:
        """Give the messages of a range, answer by answer; the next is asked for before one is given."""
        start, end = wanted
        ticket: Ticket | None = self.ask(start, min(fetch_size, end - start))
        while ticket is not None:
            messages = self.answer(ticket)
            ticket = None
            if messages:
                following = sequence_number(messages[-1]) + 1
                if following < end:
                    ticket = self.ask(following, min(fetch_size, end - following))
                elif following > end:
                    messages = [one for one in messages if sequence_number(one) < end]
                if messages:
                    yield messages


class BrowsePartition(InputPartition):
    """One task: ranges of one entity."""

    def __init__(self, path: str, ranges: tuple[Range, ...]) -> None:
        super().__init__(path)
        self.path = path
        self.ranges = ranges


class BrowseReader(DataSourceReader):
    """A batch read of all messages of some entities."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = chosen_schema(schema)

    def partitions(self) -> list[InputPartition]:
        """Find out what is there, and divide it. Raises: ServiceBusError, OptionError."""
        options = self._options
        spans: list[tuple[Browser, Range]] = []
        for path in options.entities:
            browser = Browser(options, path).soon(min(PLAN_S_MAX, options.settings.timeout_s))
            spans += [(browser, span) for span in _spans(browser, options)]
        numbers = sum(end - start for _, (start, end) in spans)
        tasks = tasks_for(options, numbers)
        partitions: list[InputPartition] = []
        for browser, span in spans:
            count = max(1, round(tasks * (span[1] - span[0]) / numbers))
            partitions += [BrowsePartition(browser.path, ranges) for ranges in _divide(browser, span, count)]
        # Without any, Spark would make one that says nothing.
        return partitions or [BrowsePartition(options.entities[0], ())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Give the rows of a task. Raises: ServiceBusError."""
        assert isinstance(partition, BrowsePartition)
        return read_ranges(self._options, self._schema, partition)


def read_ranges(options: Options, schema: pa.Schema, partition: BrowsePartition) -> Iterator[pa.RecordBatch]:
    """Give the rows of ranges, in batches of bounded size."""
    browser = Browser(options, partition.path)
    since_ms = options.starting_time_ms
    waiting: list[bytes] = []
    size = 0
    for wanted in partition.ranges:
        for messages in browser.read(wanted, options.fetch_size):
            if since_ms is not None:
                messages = [one for one in messages if (enqueued(one)[1] or 0) >= since_ms]
            waiting += messages
            size += sum(map(len, messages))
            if len(waiting) >= _BATCH_ROWS or size >= _BATCH_BYTES:
                yield record_batch(waiting, partition.path, schema, include_body=options.include_body)
                waiting, size = [], 0
    if waiting:
        yield record_batch(waiting, partition.path, schema, include_body=options.include_body)


def tasks_for(options: Options, numbers: int) -> int:
    """Give how many tasks a read of so many numbers is divided into."""
    if options.partitions_min is not None:
        return options.partitions_min
    return max(1, min(os.cpu_count() or 1, numbers // _TASK_NUMBERS_MIN))


def starts(browser: Browser, options: Options, firsts: dict[int, Probe]) -> dict[int, int]:
    """Give the first number to read of each partition that has messages, or that an option names.

    Raises:
        OptionError: an option asks for a number that is not kept any more.
    """
    asked = _asked(options.starting, browser.path)
    found: dict[int, int] = {}
    for partition in {*firsts, *asked}:
        first = firsts.get(partition)
        number = asked.get(partition, LATEST_NUMBER if options.starting is Edge.LATEST else EARLIEST_NUMBER)
        if number == LATEST_NUMBER:
            found[partition] = (
                partition << PARTITION_SHIFT if first is None else browser.last(first).number + 1
            )
        elif number == EARLIEST_NUMBER:
            found[partition] = partition << PARTITION_SHIFT
            if first is not None and options.starting_time_ms is not None:
                found[partition] = browser.from_time(first, browser.last(first), options.starting_time_ms)
        else:
            if first is not None and number < first.number:
                _lost(options, browser.path, number, first.number)
            found[partition] = number
    return found


def _spans(browser: Browser, options: Options) -> list[Range]:
    """Give the range to read of each partition of an entity."""
    firsts = browser.firsts()
    beginnings = starts(browser, options, firsts)
    ends = _asked(options.ending, browser.path)
    spans: list[Range] = []
    for partition, first in firsts.items():
        start = max(beginnings[partition], first.number)
        end = ends.get(partition, LATEST_NUMBER)
        if end == EARLIEST_NUMBER:
            raise OptionError(f"option endingOffsets has -2 (earliest) for entity {browser.path!r}.")
        # The end is looked for all the same: beyond it there are no numbers to divide.
        last = browser.last(first).number + 1
        end = last if end == LATEST_NUMBER else min(end, last)
        if start < end:
            spans.append((start, end))
    return spans


def _asked(offsets: Offsets, path: str) -> dict[int, int]:
    return offsets.get(path, {}) if isinstance(offsets, dict) else {}


def _lost(options: Options, path: str, number: int, first: int) -> None:
    text = (
        f"option startingOffsets asks for sequence number {number} of entity {path!r}, and the first that is "
        f"kept is {first}"
    )
    if options.fail_on_data_loss:
        raise OptionError(
            f"{text}: what came before has been received, removed or has expired. Begin at {first}, at "
            f"earliest, or set failOnDataLoss=false to go on without it."
        )
    _LOG.warning("%s: %d numbers are skipped (failOnDataLoss=false)", text, first - number)


def _divide(browser: Browser, span: Range, tasks: int) -> list[tuple[Range, ...]]:
    """Divide a range into tasks of about as many numbers, holes left out."""
    if tasks == 1:
        return [(span,)]
    start, end = span
    edges = _spread(start, end, min(_CELLS_MAX, tasks * _CELLS_A_TASK))
    edges = [start, *(edge for edge in edges if edge > start)]
    cells: list[Range] = []
    for edge, following, probe in zip(edges, [*edges[1:], end], browser.probe(edges), strict=True):
        if probe is not None and probe.number < following:
            cells.append((max(edge, probe.number), following))
    return [ranges for ranges in cut(cells, tasks) if ranges]


def cut(cells: Sequence[Range], tasks: int) -> list[tuple[Range, ...]]:
    """Cut ranges, laid end to end, into equal parts; neighbours within a part become one."""
    total = sum(end - start for start, end in cells)
    parts: list[list[Range]] = [[] for _ in range(tasks)]
    done = 0
    for start, end in cells:
        while start < end:
            part = min(tasks - 1, done * tasks // total)
            room = -(-(part + 1) * total // tasks) - done
            stop = min(end, start + max(1, room))
            if parts[part] and parts[part][-1][1] == start:
                parts[part][-1] = (parts[part][-1][0], stop)
            else:
                parts[part].append((start, stop))
            done += stop - start
            start = stop
    return [tuple(part) for part in parts if part]


def _spread(start: int, end: int, count: int) -> list[int]:
    """Give up to `count` different numbers from `start` to below `end`, evenly."""
    width = end - start
    if width <= count:
        return [*range(start, end)]
    return [start + width * place // count for place in range(count)]
