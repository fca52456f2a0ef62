"""Rows of a table as encoded messages.

A batch is encoded column by column: each column becomes a list of encoded fields, and the rows are joined
from these lists. Fields that no row has cost nothing. A row with a value in the column `encoded` is that
message with the other columns' values put over it (`overrides`). Source: wire contract 3.1 to 3.3.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, pairwise, repeat
from typing import Any, Final

import pyarrow as pa

from peeklock.amqp.codec import DecodeError
from peeklock.amqp.encoding import encode
from peeklock.amqp.messaging import APPLICATION_PROPERTIES, HEADER, MESSAGE_ANNOTATIONS
from peeklock.amqp.types import Described, Symbol, UInt
from peeklock.client.overrides import (
    NO_SESSION,
    NULL,
    TTL_MS_MAX,
    Overrides,
    made_id,
    map_section,
    override,
    text_field,
)
from peeklock.spark.sink.columns import Columns

ID_LENGTH_MAX: Final = 128
"""Characters of a message id, session id or partition key. Source: Learn "Service Bus quotas"."""


_MESSAGE_ID, _TO, _SUBJECT, _REPLY_TO, _CORRELATION_ID, _CONTENT_TYPE = 0, 2, 3, 4, 5, 6
_EXPIRES, _CREATED, _GROUP_ID = 8, 9, 10
"""Places in the properties section. Source: AMQP 3.2.4."""


class RowRefused(ValueError):
    """A row cannot be a message. The text names the row."""


@dataclass(slots=True)
class EncodedRows:
    """The messages of some rows; the lists have one element a row."""

    rows: list[int]
    payloads: list[bytes]
    entities: list[str | None]
    """Target of each, None = as the options say."""
    keys: list[bytes]
    """Encoded session id, else partition key. Messages with different keys do not share a transfer:
    partitioned entities refuse that."""


class RowEncoder:
    """Encodes and counts the rows of one task."""

    def __init__(self, columns: Columns, id_prefix: str, partition: int) -> None:
        """Take the ASCII prefix of generated message ids; see `made_id`."""
        self._columns = columns
        self._id_prefix = id_prefix.encode("ascii")
        self._partition = partition
        self._row_count = 0

    def encode(self, batch: Any, now_ms: int) -> EncodedRows:
        """Encode an Arrow record batch.

        Raises:
            RowRefused: a value that no message can have. No row of the batch is encoded.
        """
        rows = list(range(self._row_count, self._row_count + batch.num_rows))
        if not rows:
            return EncodedRows([], [], [], [])
        self._row_count += batch.num_rows
        place = self._columns.places.get("encoded")
        if place is None:
            return self._encode_rows(self._table(batch, rows), now_ms)
        whole = batch.column(place).is_valid()
        flags = whole.to_pylist()
        if all(flags):
            return self._encode_over(self._table(batch, rows), now_ms)
        plain_rows = [row for row, flag in zip(rows, flags, strict=True) if not flag]
        plain = self._table(batch.filter(batch.column(place).is_null()), plain_rows)
        over_rows = [row for row, flag in zip(rows, flags, strict=True) if flag]
        over = self._table(batch.filter(whole), over_rows)
        return _merged(self._encode_rows(plain, now_ms), self._encode_over(over, now_ms))

    def _table(self, batch: Any, rows: list[int]) -> _Table:
        table = _Table(batch, rows, self._columns, self._partition)
        for place in self._columns.nulls:
            table.check_nulls(place)
        return table

    def _encode_rows(self, table: _Table, now_ms: int) -> EncodedRows:
        """Encode rows without a value in `encoded`."""
        rows = table.rows
        bodies = table.bodies()
        ttls = table.times_to_live()
        fields = table.fields(ttls, now_ms)
        keys, annotations = table.annotations(fields.get(_GROUP_ID))
        before: list[Sequence[bytes]] = []
        if ttls is not None:
            before.append([_header(ttl_ms) for ttl_ms in ttls])
        if annotations is not None:
            before.append([map_section(MESSAGE_ANNOTATIONS, pairs) for pairs in annotations])
        behind: list[Sequence[bytes]] = []
        properties = table.application_properties()
        if properties is not None:
            behind.append([_application_properties(pairs) for pairs in properties])
        behind.append(
            [_NULL_BODY if body is None else _DATA_HEAD(_DATA_SECTION, len(body)) for body in bodies]
        )
        behind.append([body or b"" for body in bodies])
        ids = fields.get(_MESSAGE_ID) or [NULL] * len(rows)
        if NULL in ids:
            # The two times are of this attempt, so they stay out of the digest; the header has the span.
            lasting = [column for place, column in fields.items() if place not in (_EXPIRES, _CREATED)]
            contents = zip(*before, *lasting, *behind, strict=True)
            fields[_MESSAGE_ID] = [
                made_id(self._place(row), b"".join(content)) if id_ is NULL else id_
                for row, id_, content in zip(rows, ids, contents, strict=True)
            ]
        columns = zip(*before, _property_sections(fields), *behind, strict=True)
        return EncodedRows(rows, [b"".join(parts) for parts in columns], table.entities(), keys)

    def _encode_over(self, table: _Table, now_ms: int) -> EncodedRows:
        """Encode rows with a value in `encoded`, with the values of their other columns put over it."""
        rows = table.rows
        count = len(rows)
        messages = table.values("encoded") or []
        bodies = table.bodies()
        ttls = table.times_to_live()
        fields = table.fields(ttls, now_ms)
        _, annotations = table.annotations(fields.get(_GROUP_ID))
        properties = table.application_properties() or repeat(None, count)
        payloads: list[bytes] = []
        keys: list[bytes] = []
        columns = zip(
            messages,
            ttls or repeat(None, count),
            annotations or repeat((), count),
            properties,
            bodies,
            strict=True,
        )
        for at, (message, ttl_ms, pairs, updates, body) in enumerate(columns):
            overrides = Overrides(
                ttl_ms=ttl_ms,
                annotations=pairs,
                fields={place: column[at] for place, column in fields.items() if column[at] is not NULL},
                application_properties=dict(updates or ()),
                body=body,
                place=self._place(rows[at]),
            )
            try:
                payload, key = override(message, overrides)
            except DecodeError as error:
                raise table.refused(at, f"column 'encoded' is not an AMQP message: {error}.") from None
            payloads.append(payload)
            keys.append(key)
        return EncodedRows(rows, payloads, table.entities(), keys)

    def _place(self, row: int) -> bytes:
        return self._id_prefix + b"%d" % row


class _Table:
    """The columns of a batch as lists; None for a column that is absent or holds only nulls."""

    def __init__(self, batch: Any, rows: list[int], columns: Columns, partition: int) -> None:
        self.rows = rows
        self._batch = batch
        self._columns = columns
        self._partition = partition

    def refused(self, at: int, problem: str) -> RowRefused:
        """Return an error that names a row."""
        return RowRefused(f"{named_row(self.rows[at], self._partition)}: {problem}")

    def check_nulls(self, place: int) -> None:
        """Refuse values in a column that the broker sets."""
        column = self._batch.column(place)
        if column.null_count != len(column):
            raise self.refused(
                column.is_valid().index(True).as_py(),
                f"column '{self._batch.schema.names[place]}' is set by the broker and cannot be sent; do not "
                "select it.",
            )

    def values(self, name: str) -> list[Any] | None:
        """Return a column as it is."""
        place = self._columns.places.get(name)
        return None if place is None else self._list(place)

    def bodies(self) -> list[bytes | None]:
        """Return the bodies. The bytes of a string are sent as they are: Spark does not check them."""
        place = self._columns.places.get("body")
        if place is None:
            return [None] * len(self.rows)
        bodies: list[bytes | None] = self._batch.column(place).cast(pa.binary()).to_pylist()
        return bodies

    def entities(self) -> list[str | None]:
        """Return the target of each row."""
        return self.values("entity") or [None] * len(self.rows)

    def fields(self, ttls: list[int | None] | None, now_ms: int) -> dict[int, list[bytes]]:
        """Return the encoded fields of the properties section by their places."""
        found: dict[int, list[bytes]] = {}
        place = self._columns.message_id
        ids = None if place is None else self._list(place)
        if ids is not None and place is not None:
            if any(isinstance(id_, int) for id_ in ids):
                ids = [None if id_ is None else str(id_) for id_ in ids]
            self._check_length(self._batch.schema.names[place], ids)
            found[_MESSAGE_ID] = [NULL if id_ is None else text_field(id_.encode()) for id_ in ids]
        sessions = self.values("sessionId")
        if sessions is not None:
            self._check_length("sessionId", sessions)
        for at, name in _TEXT_FIELDS:
            texts = self.values(name)
            if texts is not None:
                found[at] = [_text(text) for text in texts]
        types = self.values("contentType")
        if types is not None:
            for at, kind in enumerate(types):
                if kind is not None and not kind.isascii():
                    raise self.refused(at, f"column 'contentType' is {kind!r}; it must be ASCII.")
            found[_CONTENT_TYPE] = [_symbol(kind) for kind in types]
        if ttls is not None and max(ttl_ms or 0 for ttl_ms in ttls) > TTL_MS_MAX:
            spans = [ttl_ms if ttl_ms is not None and ttl_ms > TTL_MS_MAX else None for ttl_ms in ttls]
            found[_EXPIRES] = [NULL if span is None else _time(now_ms + span) for span in spans]
            found[_CREATED] = [NULL if span is None else _time(now_ms) for span in spans]
        return found

    def times_to_live(self) -> list[int | None] | None:
        """Return the times to live in ms."""
        place = self._columns.places.get("timeToLive")
        if place is None:
            return None
        spans = self._list(place)
        if spans is None:
            return None
        if pa.types.is_duration(self._batch.schema.types[place]):
            micros = self._batch.column(place).cast(pa.int64()).to_pylist()
            spans = [None if span is None else span // 1000 for span in micros]
        for at, span in enumerate(spans):
            if span is not None and span <= 0:
                raise self.refused(at, f"column 'timeToLive' is {span} ms; it must be greater than zero.")
        return spans

    def annotations(self, sessions: list[bytes] | None) -> tuple[list[bytes], list[tuple[bytes, ...]] | None]:
        """Return the key of each row (see `EncodedRows`) and the encoded pairs of its annotations."""
        count = len(self.rows)
        keys = sessions or [NULL] * count
        pairs: list[tuple[bytes, ...]] | None = None
        texts = self.values("partitionKey")
        if texts is not None:
            self._check_length("partitionKey", texts)
            partition_keys = [_text(text) for text in texts]
            for at, (session, key) in enumerate(zip(keys, partition_keys, strict=True)):
                if session not in NO_SESSION and key is not NULL and session != key:
                    raise self.refused(at, "columns 'sessionId' and 'partitionKey' differ; set one of them.")
            keys = [
                key if session in NO_SESSION and key is not NULL else session
                for session, key in zip(keys, partition_keys, strict=True)
            ]
            pairs = [() if key is NULL else (_PARTITION_KEY + key,) for key in partition_keys]
        place = self._columns.places.get("scheduledEnqueueTime")
        if place is not None and (times := self._list(place)) is not None:
            times = self._batch.column(place).cast(pa.int64()).to_pylist()
            scheduled: list[tuple[bytes, ...]] = [
                () if us is None else (_SCHEDULED + _time(us // 1000),) for us in times
            ]
            before = pairs or repeat((), count)
            pairs = [one + other for one, other in zip(before, scheduled, strict=True)]
        return keys, pairs

    def application_properties(self) -> list[Sequence[tuple[str, str | None]] | None] | None:
        """Return the application properties of each row."""
        place = self._columns.places.get("applicationProperties")
        if place is None:
            return None
        column = self._batch.column(place)
        if column.null_count == len(self.rows):
            return None
        ends = column.offsets.to_pylist()
        pairs = list(zip(column.keys.to_pylist(), column.items.to_pylist(), strict=True))
        # Offsets, keys and items of a slice are those of the whole column.
        return [pairs[start:end] for start, end in pairwise(ends)]

    def _list(self, place: int) -> list[Any] | None:
        column = self._batch.column(place)
        return None if column.null_count == len(column) else column.to_pylist()

    def _check_length(self, name: str, texts: list[str | None]) -> None:
        for at, text in enumerate(texts):
            if text is not None and len(text) > ID_LENGTH_MAX:
                raise self.refused(
                    at, f"column '{name}' has {len(text)} characters; the limit is {ID_LENGTH_MAX}."
                )


def named_row(row: int, partition: int) -> str:
    """Name a row for an error text; both numbers count from 0."""
    return f"Row {row} of partition {partition}"


def _merged(one: EncodedRows, other: EncodedRows) -> EncodedRows:
    """Return the rows of two parts in order."""
    parts = [zip(part.rows, part.payloads, part.entities, part.keys, strict=True) for part in (one, other)]
    rows = sorted(chain(*parts), key=lambda row: row[0])
    numbers, payloads, entities, keys = (list(column) for column in zip(*rows, strict=True))
    return EncodedRows(numbers, payloads, entities, keys)


_TEXT_FIELDS: Final = (
    (_TO, "to"),
    (_SUBJECT, "subject"),
    (_REPLY_TO, "replyTo"),
    (_CORRELATION_ID, "correlationId"),
    (_GROUP_ID, "sessionId"),
)

_PARTITION_KEY: Final = encode(Symbol("x-opt-partition-key"))
_SCHEDULED: Final = encode(Symbol("x-opt-scheduled-enqueue-time"))

_DATA_SECTION: Final = 0x005375B0
_DATA_HEAD: Final = struct.Struct(">II").pack
"""Descriptor, constructor and length of a data section."""
_NULL_BODY: Final = b"\x00\x53\x77\x40"
"""An AMQP value that is null: the source shows it as null."""

_BYTE: Final = [bytes([number]) for number in range(256)]
_U32: Final = struct.Struct(">I").pack
_TIME: Final = struct.Struct(">Bq").pack


@lru_cache(maxsize=4096)
def _text(text: str | None) -> bytes:
    # Most texts repeat: sessions, subjects, names of properties.
    return NULL if text is None else text_field(text.encode())


@lru_cache(maxsize=256)
def _symbol(text: str | None) -> bytes:
    return NULL if text is None else encode(Symbol(text))


def _time(ms: int) -> bytes:
    return _TIME(0x83, ms)


@lru_cache(maxsize=1024)
def _header(ttl_ms: int | None) -> bytes:
    if ttl_ms is None:
        return b""
    return encode(Described(HEADER, [None, None, UInt(min(ttl_ms, TTL_MS_MAX))]))


def _property_sections(fields: dict[int, list[bytes]]) -> list[bytes]:
    """Encode the properties of each row; they always include message ids, so the list is never empty."""
    count = max(fields) + 1
    columns = [fields.get(place) or repeat(NULL) for place in range(count)]
    head8 = b"\x00\x53\x73\xc0"
    ends = [head8 + size + _BYTE[count] for size in _BYTE]
    sections = []
    for parts in zip(*columns, strict=False):
        inner = b"".join(parts)
        size = len(inner) + 1
        if size < 256:
            sections.append(ends[size] + inner)
        else:
            sections.append(b"\x00\x53\x73\xd0" + _U32(size + 3) + _U32(count) + inner)
    return sections


def _application_properties(pairs: Sequence[tuple[str, str | None]] | None) -> bytes:
    kept = [_text(key) + _text(value) for key, value in pairs or () if value is not None]
    return map_section(APPLICATION_PROPERTIES, kept)
