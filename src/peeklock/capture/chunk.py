"""Turns event rows into a table with the columns of the event log.

The store keeps a batch's events by column, and Arrow wants columns, so integers are copied as bytes: the
pieces of all batches are joined and become an Arrow array without a loop in Python. Texts are in one table
for each batch; the tables are joined, the places in them moved accordingly, and Arrow looks them up. Only
message ids, contents and digests of lock tokens are decoded one by one, where there are any.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable, Iterable
from hashlib import blake2b
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from peeklock.broker.queue.session_ids import folded
from peeklock.broker.vocabulary.events import EventType
from peeklock.broker.vocabulary.message import MessageState
from peeklock.capture.message_fields import content, message_id
from peeklock.capture.schema import EVENT_VERSION, EVENTS
from peeklock.store.base import StoreDamaged
from peeklock.store.encoding import event_rows
from peeklock.store.encoding.event_rows import BINARIES, BLANK, INTEGERS, TEXTS, Columns

TIME_MS_MIN, TIME_MS_MAX = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999: few programs can show later times, such as the ends of the longest time-to-lives."""

PARTITION_SHIFT = 48
"""The partition's id is above these bits of a sequence number. Source: semantics S-02."""

_DIGEST_BYTES = 8

BATCH_MEMORY_BYTES = 11_000
EVENT_MEMORY_BYTES = 210
"""What a batch, and an event in it, take in memory. Measured with CPython 3.11: a batch is 60 objects."""

_WIDTHS = {"B": pa.uint8(), "I": pa.uint32(), "q": pa.int64()}

_TYPES = pa.array(["", *(EventType(number).name.lower() for number in range(1, max(EventType) + 1))])
_STATES = pa.array([state.name.lower() for state in MessageState])

_OF_NO_MESSAGE = frozenset(
    {
        EventType.SESSION_LOCKED,
        EventType.SESSION_RENEWED,
        EventType.SESSION_RELEASED,
        EventType.SESSION_STATE_SET,
        EventType.ENTITY_PRESENT,
        EventType.ENTITY_CREATED,
        EventType.ENTITY_UPDATED,
        EventType.ENTITY_DELETED,
        EventType.EPOCH_STARTED,
        EventType.GAP,
        EventType.RESTORED,
    }
)
_BEGINNINGS = frozenset(
    {EventType.ENQUEUED, EventType.SCHEDULED, EventType.DUPLICATE_DROPPED, EventType.NUMBER_ISSUED}
)


def _by_type(true: Callable[[int], bool]) -> pa.Array:
    return pa.array([true(number) for number in range(max(EventType) + 1)])


_IS_OF_MESSAGE = _by_type(lambda number: number not in _OF_NO_MESSAGE)
_HAS_STATE = _by_type(lambda number: number not in _OF_NO_MESSAGE | _BEGINNINGS)

_ROOT = re.compile(r"/subscriptions/|/\$", re.IGNORECASE)
"""The start of the part of a path that names a subscription or a sub-queue."""


def gap_row(first: int, last: int, reason: str, at_ms: int) -> bytes:
    """Return the event row of a gap: batches `first` to `last` are not in the log."""
    gap = BLANK._replace(
        type=EventType.GAP, at_ms=at_ms, sequence_number=first, related_number=last, reason=reason
    )
    return event_rows.seal(first, event_rows.pack([gap]))


class Chunk:
    """Collects event rows until `take` makes a table of them.

    It keeps the facts of earlier rows that later ones need: the broker's epoch, and the entities with
    partitions.
    """

    def __init__(self, namespace: str, epoch: int | None, partitioned: Iterable[str] = ()) -> None:
        """Begin after the last batch of the log.

        Args:
            namespace: the column of this name.
            epoch: the last one in the log, None = unknown.
            partitioned: names of queues and topics that have partitions now.
        """
        self._namespace = namespace
        self.epoch = epoch
        self._partitioned = {name.lower() for name in partitioned}
        self._clear()

    def _clear(self) -> None:
        self.count = 0
        self.size_bytes = 0
        self._batches: list[tuple[int, int, int | None, int]] = []  # number, events, epoch, first text
        self._integers: dict[str, list[memoryview]] = {name: [] for name in INTEGERS}
        self._places: dict[str, list[memoryview]] = {name: [] for name in TEXTS}
        self._lengths: dict[str, list[memoryview]] = {name: [] for name in BINARIES}
        self._binaries: dict[str, list[memoryview]] = {name: [] for name in BINARIES}
        self._texts: list[str | None] = []
        self._has_partitions: list[bool] = []  # of the same text in `_texts`, if it is an entity
        self._last_texts: list[str | None] = []
        self._last_texts_at = 0

    def check(self, no: int, columns: Columns) -> None:
        """Check that `add` can take a row. Raises: StoreDamaged."""
        if columns.count:
            kinds, states = columns.integers["type"], columns.integers["state"]
            if min(kinds) < 1 or max(kinds) > max(EventType) or max(states) > max(MessageState):
                raise StoreDamaged(f"event row {no} has events that this release does not know")

    def add(self, no: int, columns: Columns) -> None:
        """Add the events of a batch, at least one."""
        count = columns.count
        kinds = bytes(columns.integers["type"])
        if EventType.EPOCH_STARTED in kinds:
            self.epoch = no
        elif EventType.GAP in kinds:
            self.epoch = None  # one may have begun in the gap
        if EventType.ENTITY_CREATED in kinds or EventType.ENTITY_PRESENT in kinds:
            self._learn_partitions(kinds, columns)
        if columns.texts != self._last_texts:
            self._last_texts = columns.texts
            self._last_texts_at = len(self._texts)
            self._texts += columns.texts
            self._has_partitions += [self._is_partitioned(text) for text in columns.texts]
        self._batches.append((no, count, self.epoch, self._last_texts_at))
        for name, view in columns.integers.items():
            self._integers[name].append(view)
        for name, view in columns.places.items():
            self._places[name].append(view)
        for name, view in columns.lengths.items():
            self._lengths[name].append(view)
        for name, view in columns.binaries.items():
            self._binaries[name].append(view)
        self.count += count
        self.size_bytes += columns.binaries["head"].nbytes

    @property
    def memory_bytes(self) -> int:
        """About the memory of the added rows."""
        return len(self._batches) * BATCH_MEMORY_BYTES + self.count * EVENT_MEMORY_BYTES + self.size_bytes

    def _learn_partitions(self, kinds: bytes, columns: Columns) -> None:
        texts, names, reasons = columns.texts, columns.places["queue_name"], columns.places["reason"]
        for kind, name_at, reason_at in zip(kinds, names, reasons, strict=True):
            name, settings = texts[name_at], texts[reason_at]
            if kind not in (EventType.ENTITY_CREATED, EventType.ENTITY_PRESENT) or name is None:
                continue
            if settings is not None and json.loads(settings).get("enable_partitioning"):
                self._partitioned.add(name.lower())
            else:
                self._partitioned.discard(name.lower())
        self._last_texts = []  # their partitions may have changed

    def _is_partitioned(self, text: str | None) -> bool:
        return (
            bool(self._partitioned) and text is not None and _ROOT.split(text)[0].lower() in self._partitioned
        )

    def take(self) -> pa.Table:
        """Return the added rows as a table with the columns of the log, and start an empty chunk."""
        table = pa.table(self._columns(), schema=EVENTS)
        self._clear()
        return table

    def _columns(self) -> dict[str, pa.Array]:
        count = self.count
        integers = {
            name: _array(_WIDTHS[code], count, b"".join(self._integers[name]))
            for name, code in INTEGERS.items()
        }
        texts = self._looked_up()
        heads = self._present("head")
        kinds = integers["type"]
        numbers = integers["sequence_number"]
        is_of_message = _IS_OF_MESSAGE.take(kinds)
        columns: dict[str, Any] = {
            "namespace": _dictionary(_zeros(count), pa.array([self._namespace])),
            "shard": _zeros(count),
            "batch_no": self._by_batch("q", (no for no, _, _, _ in self._batches)),
            "index": pa.array(
                array("i", chain.from_iterable(range(events) for _, events, _, _ in self._batches)),
                pa.int32(),
            ),
            "event_version": pa.repeat(pa.scalar(EVENT_VERSION, pa.int32()), count),
            "event_time": _times(integers["at_ms"]),
            "event_type": _dictionary(kinds, _TYPES),
            "entity": texts["queue_name"].dictionary_encode(),
            "partition_id": self._partition_ids(numbers, is_of_message),
            "sequence_number": _only_where(pc.or_(is_of_message, pc.not_equal(numbers, 0)), numbers),
            "enqueued_sequence_number": _nulls_for_zero(integers["enqueued_sequence_number"]),
            "message_id": self._expanded("head", [message_id(head) for head in heads], pa.string()),
            "session_id": texts["session_id"],
            "session_key": _session_keys(texts["session_id"]),
            "delivery_count": integers["delivery_count"].cast(pa.int32()),
            "lock_token": self._expanded(
                "lock_token", map(_digest, self._present("lock_token")), pa.string()
            ),
            "locked_until": _times(integers["locked_until_ms"]),
            "state_before": _dictionary(_only_where(_HAS_STATE.take(kinds), integers["state"]), _STATES),
            "reason": texts["reason"],
            "transaction_id": self._expanded(
                "transaction_id", [value.hex() for value in self._present("transaction_id")], pa.string()
            ),
            "related_entity": texts["related_entity"],
            "related_sequence_number": _nulls_for_zero(integers["related_number"]),
            "connection_id": _nulls_for_zero(integers["connection_id"]),
            "connection_lost": _nulls_for_zero(integers["connection_lost"]).cast(pa.bool_()),
            "link_name": texts["link_name"].dictionary_encode(),
            "size_bytes": integers["size_bytes"],
            "enqueued_time": _times(integers["enqueued_at_ms"]),
            "expires_at": _times(integers["expires_at_ms"]),
            "scheduled_time": _times(integers["scheduled_at_ms"]),
            "broker_epoch": _nulls_for_zero(self._by_batch("q", (of or 0 for _, _, of, _ in self._batches))),
        }
        contents = [content(head) for head in heads]
        for name in ("body", "subject", "correlation_id", "content_type", "application_properties"):
            values = [None if one is None else getattr(one, name) for one in contents]
            if name == "application_properties":
                values = [None if value is None else list(value.items()) for value in values]
            columns[name] = self._expanded("head", values, EVENTS.field(name).type)
        return columns

    def _by_batch(self, code: str, values: Iterable[int]) -> pa.Array:
        """Return a column that repeats the value of a batch for each of its events."""
        pieces = [
            array(code, (value,)) * events
            for value, (_, events, _, _) in zip(values, self._batches, strict=True)
        ]
        return _array({"q": pa.int64(), "i": pa.int32()}[code], self.count, b"".join(pieces))

    def _looked_up(self) -> dict[str, pa.Array]:
        """Return the columns of texts."""
        texts = pa.array([None if text is None else _shown(text) for text in self._texts], pa.string())
        firsts = self._by_batch("q", (first for _, _, _, first in self._batches))
        return {name: texts.take(pc.add(self._place(name).cast(pa.int64()), firsts)) for name in TEXTS}

    def _place(self, name: str) -> pa.Array:
        return _array(pa.uint32(), self.count, b"".join(self._places[name]))

    def _present(self, name: str) -> list[bytes]:
        """Return the values of a column of bytes, without the absent ones."""
        joined = b"".join(self._binaries[name])
        values = []
        start = 0
        for length in filter(None, chain.from_iterable(self._lengths[name])):
            values.append(joined[start : start + length])
            start += length
        return values

    def _expanded(self, name: str, values: Iterable[object], kind: pa.DataType) -> pa.Array:
        """Return a column with values where a column of bytes has some, null elsewhere."""
        found = pa.array(list(values), kind)
        if not len(found):
            return pa.nulls(self.count, kind)
        is_there = pc.greater(_array(pa.uint32(), self.count, b"".join(self._lengths[name])), 0)
        places = pc.subtract(pc.cumulative_sum(is_there.cast(pa.int32())), 1)
        return found.take(_only_where(is_there, places))

    def _partition_ids(self, numbers: pa.Array, is_of_message: pa.Array) -> pa.Array:
        if not any(self._has_partitions):
            return pa.nulls(self.count, pa.int32())
        firsts = self._by_batch("q", (first for _, _, _, first in self._batches))
        entities = pc.add(self._place("queue_name").cast(pa.int64()), firsts)
        has_partitions = pc.and_(pa.array(self._has_partitions).take(entities), is_of_message)
        return _only_where(has_partitions, pc.shift_right(numbers, PARTITION_SHIFT).cast(pa.int32()))


def _array(kind: pa.DataType, count: int, data: bytes) -> pa.Array:
    """Return an array over the bytes of its values."""
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(data)])


def _zeros(count: int) -> pa.Array:
    return _array(pa.int32(), count, bytes(4 * count))


def _only_where(is_there: pa.Array, values: pa.Array) -> pa.Array:
    """Return the values, null where `is_there` is false; neither has nulls."""
    return pa.Array.from_buffers(values.type, len(values), [is_there.buffers()[1], values.buffers()[1]])


def _nulls_for_zero(values: pa.Array) -> pa.Array:
    return _only_where(pc.not_equal(values, 0), values)


def _times(ms: pa.Array) -> pa.Array:
    """Return times of UTC ms, null for 0."""
    capped = pc.min_element_wise(ms, pa.scalar(TIME_MS_MAX, pa.int64()))
    capped = pc.max_element_wise(capped, pa.scalar(TIME_MS_MIN, pa.int64()))
    return _nulls_for_zero(capped).view(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))


def _dictionary(places: pa.Array, names: pa.Array) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(places.cast(pa.int32()), names)


def _session_keys(session_ids: pa.Array) -> pa.Array:
    """Return the keys of session ids; each id is folded once."""
    spelt = session_ids.dictionary_encode()
    return pa.array(map(folded, spelt.dictionary.to_pylist()), pa.string()).take(spelt.indices)


def _digest(token: bytes) -> str:
    return blake2b(token, digest_size=_DIGEST_BYTES).hexdigest()


def _shown(text: str) -> str:
    """Return a text with surrogates replaced: some clients send them, and UTF-8 has none."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
