"""Mode browse as a batch: reads the messages of a queue and changes nothing.

Only peeks are used, so any Service Bus can be browsed.

Theory of operation. A peek returns messages from a sequence number on, in ascending order, in any state. No
request returns the highest number, so a search finds it: rounds of probes of one message each narrow the
space between the highest number seen and the lowest that nothing follows. A partitioned entity numbers each
partition separately, with the partition in the top 16 bits. A range is divided by numbers. Removed messages
leave holes, so a range is probed at many places first and the holes are left out: tasks have about equal size
although most numbers may be gone. A task holds one answer while it asks for the next, and a few MiB of rows,
so its memory does not depend on the size of the queue. A second read returns what is there then; nothing is
counted or locked. Source: wire contract 5.2 (peek-message), 3.2.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from peeklock.amqp.types import Int, Long
from peeklock.client.browsing import PEEK, sequence_number
from peeklock.client.connection import connection
from peeklock.client.errors import OptionError
from peeklock.client.management import Management, Ticket
from peeklock.spark.options import EARLIEST_NUMBER, LATEST_NUMBER, Edge, Offsets, Options
from peeklock.spark.source.rows import enqueued, record_batches
from peeklock.spark.source.schema import chosen_schema
from peeklock.spark.source.tasks import TASK_MESSAGES, Share, apportioned, shares, tasks_for

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_LOG = logging.getLogger(__name__)

PARTITION_SHIFT: Final = 48
"""Bits of a sequence number below its partition. Source: wire contract 3.2 (PartitionId)."""

PLAN_S_MAX: Final = 20.0
"""Maximum time that planning tries to reach a broker: a mistyped host takes this long."""

_PROBES: Final = 16
"""Concurrent peeks of the search for the end of a range. Our choice: a million numbers take 7 rounds."""

_CELLS: Final = 64
"""Places at which a range is probed for holes."""

Range = tuple[int, int]
"""The first sequence number and the one past the last."""


@dataclass(frozen=True, slots=True)
class Probe:
    """The first message at or after a number."""

    number: int
    enqueued_ms: int


class Browser:
    """Peeks at one entity."""

    def __init__(self, options: Options, path: str, timeout_s: float | None = None) -> None:
        self.path = path
        self._management: Management = connection(options.settings).management(path)
        self._further: dict[str, Any] = {}
        if options.session_id is not None:
            self._further["session-id"] = options.session_id
        if not options.include_body and not options.include_encoded:
            self._further["omit-message-body"] = True
        self._timeout_s = timeout_s

    def ask(self, number: int, count: int) -> Ticket:
        """Request messages from a number on."""
        body = {"from-sequence-number": Long(number), "message-count": Int(count), **self._further}
        return self._management.start(PEEK, body)

    def answer(self, ticket: Ticket) -> list[bytes]:
        """Return the requested messages. Raises: ServiceBusError."""
        return self._management.wait(ticket, self._timeout_s).messages

    def probe(self, numbers: Sequence[int]) -> list[Probe | None]:
        """Return the first message at or after each number."""
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
        """Return the first message of each broker partition that has any; partition 0 without partitions."""
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
        """Return the last message of the partition of `first`, below a number."""
        low = first
        high = ((first.number >> PARTITION_SHIFT) + 1) << PARTITION_SHIFT
        if below is not None:
            high = min(high, below)
        # Distances of 1, 8, 64... reach any end in the first round.
        places = [low.number + (1 << 3 * power) for power in range(_PROBES)]
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
        """Return the lowest number of a message enqueued at a time or later; past the last if all are older.

        Numbers and enqueued times rise together.
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
        """Yield the messages of a range, answer by answer; the next is requested before one is yielded."""
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
    """One task: ranges of one entity, and which of their messages; None = all."""

    def __init__(self, path: str, ranges: tuple[Range, ...], share: Share | None = None) -> None:
        super().__init__(path)
        self.path = path
        self.ranges = ranges
        self.share = share


class BrowseReader(DataSourceReader):
    """A batch read of all messages of some entities."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = chosen_schema(schema)

    def partitions(self) -> list[InputPartition]:
        """Find the messages and divide them into tasks. Raises: ServiceBusError, OptionError."""
        options = self._options
        spans: list[tuple[Browser, Range]] = []
        for path in options.entities:
            browser = Browser(options, path, min(PLAN_S_MAX, options.settings.timeout_s))
            spans += [(browser, span) for span in _spans(browser, options)]
        if options.partition_by is not None:
            partitions = by_key(options, [(browser.path, span) for browser, span in spans])
        else:
            found = [_live(browser, span, options) for browser, span in spans]
            tasks = tasks_for(options, sum(count for _, count in found))
            counts = apportioned(tasks, [count for _, count in found])
            partitions = [
                BrowsePartition(browser.path, ranges)
                for (browser, _), (cells, _), count in zip(spans, found, counts, strict=True)
                for ranges in cut(cells, count)
            ]
        # Without partitions, Spark makes an empty one of its own class.
        return partitions or [BrowsePartition(options.entities[0], ())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task. Raises: ServiceBusError."""
        return read_ranges(self._options, self._schema, partition)


def read_ranges(options: Options, schema: pa.Schema, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Return the rows of a task."""
    assert isinstance(partition, BrowsePartition)
    browser = Browser(options, partition.path)
    share = partition.share
    since_ms = options.starting_time_ms

    def answers() -> Iterator[tuple[str, list[bytes]]]:
        for wanted in partition.ranges:
            for messages in browser.read(wanted, options.fetch_size):
                if share is not None:
                    messages = [one for one in messages if share.has(one)]
                if since_ms is not None:
                    messages = [one for one in messages if (enqueued(one)[1] or 0) >= since_ms]
                yield browser.path, messages

    return record_batches(answers(), schema, include_body=options.include_body)


def by_key(options: Options, spans: Sequence[tuple[str, Range]]) -> list[InputPartition]:
    """Divide ranges into tasks by the keys of their messages: each task of an entity reads all its ranges."""
    by_path: dict[str, list[Range]] = {}
    for path, span in sorted(spans):
        by_path.setdefault(path, []).append(span)
    sizes = [sum(end - start for start, end in ranges) for ranges in by_path.values()]
    counts = apportioned(tasks_for(options, sum(sizes)), sizes)
    return [
        BrowsePartition(path, tuple(ranges), share)
        for (path, ranges), count in zip(by_path.items(), counts, strict=True)
        for share in shares(options, count)
    ]


def starts(browser: Browser, options: Options, firsts: dict[int, Probe]) -> dict[int, int]:
    """Return the first number to read of each partition that has messages or that an option names.

    Raises:
        OptionError: an option names a number whose message is gone.
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
    """Return the range to read of each partition of an entity."""
    firsts = browser.firsts()
    beginnings = starts(browser, options, firsts)
    ends = _asked(options.ending, browser.path)
    spans: list[Range] = []
    for partition, first in firsts.items():
        start = max(beginnings[partition], first.number)
        end = ends.get(partition, LATEST_NUMBER)
        if end == EARLIEST_NUMBER:
            raise OptionError(f"option endingOffsets has -2 (earliest) for entity {browser.path!r}.")
        # Search the end also where the option names one: past it there is nothing to divide.
        last = browser.last(first).number + 1
        end = last if end == LATEST_NUMBER else min(end, last)
        if start < end:
            spans.append((start, end))
    return spans


def _asked(offsets: Offsets, path: str) -> dict[int, int]:
    return offsets.get(path, {}) if isinstance(offsets, dict) else {}


def _lost(options: Options, path: str, number: int, first: int) -> None:
    text = (
        f"option startingOffsets asks for sequence number {number} of entity {path!r}, and its first message "
        f"is {first}"
    )
    if options.fail_on_data_loss:
        raise OptionError(
            f"{text}: earlier messages were received, were removed or have expired. Begin at {first} or "
            f"earliest, or set failOnDataLoss=false to skip them."
        )
    _LOG.warning("%s: %d numbers are skipped (failOnDataLoss=false)", text, first - number)


def _live(browser: Browser, span: Range, options: Options) -> tuple[list[Range], int]:
    """Return the parts of a range without the large holes, and about how many messages they have."""
    start, end = span
    if options.partitions_min is None and end - start <= TASK_MESSAGES[options.mode]:
        return [span], end - start
    edges = _spread(start, end, _CELLS)
    cells: list[Range] = []
    count = 0
    for edge, following, probe in zip(edges, [*edges[1:], end], browser.probe(edges), strict=True):
        if probe is not None and probe.number < following:
            cells.append((probe.number, following))
            # The distance to the next message shows how many numbers are gone.
            count += -(-(following - probe.number) // (1 + probe.number - edge))
    return cells, count


def cut(cells: Sequence[Range], tasks: int) -> list[tuple[Range, ...]]:
    """Cut ranges, laid end to end, into equal parts; join neighbours within a part."""
    total = sum(end - start for start, end in cells)
    parts: list[list[Range]] = [[] for _ in range(tasks)]
    done = 0
    for start, end in cells:
        while start < end:
            part = min(tasks - 1, done * tasks // total)
            left = -(-(part + 1) * total // tasks) - done
            stop = min(end, start + max(1, left))
            if parts[part] and parts[part][-1][1] == start:
                parts[part][-1] = (parts[part][-1][0], stop)
            else:
                parts[part].append((start, stop))
            done += stop - start
            start = stop
    return [tuple(part) for part in parts if part]


def _spread(start: int, end: int, count: int) -> list[int]:
    """Return up to `count` evenly spread numbers from `start` to below `end`."""
    width = end - start
    if width <= count:
        return [*range(start, end)]
    return [start + width * place // count for place in range(count)]
