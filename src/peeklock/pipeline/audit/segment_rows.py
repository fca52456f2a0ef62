"""The rows that each check needs of a segment, as narrow arrays, and to which task each row goes.

Owns: what is read of an event for which check. The rows of one life go to one task, as do those of a session,
a batch, a transaction and a message id. Texts are exchanged as digests.

Must not know: Spark, and what is right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from peeklock.pipeline.audit.life_table import (
    ARRIVES,
    ARRIVES_OR_IS_KNOWN,
    COLUMNS,
    COUNT_AT,
    FLAGS,
    FLAGS_AT,
    KIND,
    LAST,
    LEFT,
    STATE_AT,
    STATES,
    UNTOLD,
)
from peeklock.pipeline.audit.log import INDEX_BITS, NUMBERED_AHEAD, SUB_QUEUE, Log
from peeklock.pipeline.audit.numbers import RUN_BITS
from peeklock.pipeline.audit.packing import NONE, Numbers, Truths
from peeklock.pipeline.audit.segments import Segment, digest, mixed
from peeklock.pipeline.audit.sessions import ACTIVE, BY_LINK, BY_REQUEST, HOLDS, LOCKED, SESSION_KIND

LIVES, SESSIONS, BATCHES, IDS, TRANSACTIONS, COPIES = (
    "lives", "sessions", "batches", "ids", "transactions", "copies",
)  # fmt: skip
"""Tables of rows."""

READ = (
    "namespace", "shard", "batch_no", "index", "event_time", "event_type", "entity", "partition_id",
    "sequence_number", "enqueued_sequence_number", "message_id", "session_id", "session_key",
    "delivery_count", "lock_token", "locked_until", "state_before", "reason", "transaction_id",
    "related_entity", "related_sequence_number", "connection_id", "link_name", "size_bytes", "enqueued_time",
    "expires_at", "scheduled_time", "broker_epoch",
)  # fmt: skip
"""Columns of the log."""

Columns = dict[str, Numbers]

EXHAUSTED = "MaxDeliveryCountExceeded"
_MOVES = ("forwarded", "dead_lettered", "expired", "activated")
_BEGINS = ("enqueued", "scheduled")


@dataclass(slots=True)
class Places:
    """What tasks must know of the log, by namespace; places are numbered."""

    keys: list[int]
    """Keys of the places, by number."""
    numbers: dict[str, dict[str, int]]
    """Numbers of the places, by namespace and entity."""
    namespaces: list[str]
    topics: dict[int, int] = field(default_factory=dict)
    """The number of a subscription's topic."""
    topic_names: list[tuple[str, str]] = field(default_factory=list)
    """By number: those of the places, then topics without events."""
    detecting: frozenset[int] = frozenset()
    """Places that ever detect duplicates."""
    graces: dict[str, dict[int, int | None]] = field(default_factory=dict)
    lost_ms: dict[tuple[str, int], tuple[Numbers, Numbers]] = field(default_factory=dict)
    """By namespace and batch of a start: connections, sorted, and when they broke."""

    def keys_of(self, numbers: Numbers) -> Numbers:
        """Return the keys of places."""
        return np.array(self.keys, np.int64)[numbers]


def gather_places(log: Log) -> Places:
    """Return the places of a log."""
    places = sorted(log.places.values(), key=lambda place: place.key)
    known = Places([place.key for place in places], {}, sorted(log.last_ms))
    for number, place in enumerate(places):
        known.numbers.setdefault(place.namespace, {})[place.entity] = number
        known.topic_names.append((place.namespace, place.entity))
    for number, place in enumerate(places):
        if place.topic is None:
            continue
        name = place.namespace, place.topic
        topic = known.numbers[place.namespace].get(place.topic)
        if topic is None and name in known.topic_names[len(places) :]:
            topic = known.topic_names.index(name, len(places))
        if topic is None:
            topic = len(known.topic_names)
            known.topic_names.append(name)
        known.topics[number] = topic
    known.detecting = frozenset(
        number
        for number, place in enumerate(places)
        if any(entry.detects_duplicates for entry in place.settings)
    )
    known.graces = log.graces
    for (namespace, epoch), lost in log.lost_ms.items():
        if epoch is not None:
            each = sorted((connection, ms) for connection, ms in lost.items() if connection is not None)
            pairs = np.array(each, np.int64).reshape(-1, 2)
            known.lost_ms[namespace, epoch] = pairs[:, 0], pairs[:, 1]
    return known


def rows_of(segment: Segment, known: Places) -> Iterator[tuple[str, Columns, Numbers]]:
    """Return tables of rows, and for each row a number: equal ones must come together."""
    if not segment.count:
        return
    events = _Events(segment, known)
    yield LIVES, *_with_lives(events.lives())
    yield LIVES, *_with_lives(events.expectations())
    sessions = events.sessions()
    yield SESSIONS, sessions, mixed(sessions["place"], sessions["session"])
    batches = events.batches()
    yield BATCHES, batches, batches["batch"]
    ids = events.ids()
    yield IDS, ids, ids["id"]
    transactions = events.transactions()
    yield TRANSACTIONS, transactions, transactions["transaction"]
    copies = events.copies()
    yield COPIES, copies, copies["batch"]


def left_rows(known: Places, keys: Numbers, numbers: Numbers) -> tuple[str, Columns, Numbers]:
    """Return a row for each message left at the end; keys are those of places."""
    columns = {
        "place": np.searchsorted(np.array(known.keys), keys),
        "number": numbers,
        "order": np.full(len(keys), LAST),
        "bits": np.full(len(keys), LEFT),
    }
    return LIVES, *_with_lives(columns)


def _with_lives(columns: Mapping[str, Numbers]) -> tuple[Columns, Numbers]:
    """Add the columns that are missing, and where lives of neighbouring numbers go."""
    nothing = np.full(len(columns["place"]), NONE)
    to = mixed(columns["place"], columns["number"] >> RUN_BITS)
    return {name: columns.get(name, nothing) for name in COLUMNS}, to


class _Events:
    """The events of a segment, and what several tables need of them."""

    def __init__(self, segment: Segment, known: Places) -> None:
        codes, names = segment.names("namespace")
        self.segment, self.known = segment, known
        self.namespace = names[int(codes[0])]  # a log has one
        self.places = known.numbers.get(self.namespace, {})
        self.place = segment.look_up("entity", lambda name: self.places.get(name, -1), -1)
        self.has_place: Truths = self.place >= 0
        self.batch_no, self.index = segment.numbers("batch_no"), segment.numbers("index")
        self.order = self.batch_no << INDEX_BITS | self.index
        self.at_ms = segment.milliseconds("event_time")
        self.epoch = segment.numbers("broker_epoch")
        self.number = segment.numbers("sequence_number")
        self.count = segment.numbers("delivery_count")
        self.in_session = segment.has("session_id")

    def lives(self) -> Columns:
        """Return the events of messages."""
        segment = self.segment
        kind = segment.look_up("event_type", lambda name: KIND.get(name, 0), 0)
        where = (kind > 0) & (self.number != NONE) & self.has_place
        has_token = segment.has("lock_token")
        reasons = segment.names("reason")[0] >= 0
        flags = {
            "has_token": has_token,
            "in_session": self.in_session,
            "by_cursor": segment.is_any("reason", "cursor"),
            "has_reason": reasons,
            "is_ahead": segment.is_any("reason", NUMBERED_AHEAD),
            "is_exhausted": segment.is_any("reason", EXHAUSTED),
            "has_partition": segment.has("partition_id"),
            "has_related": segment.has("related_entity"),
        }
        states = {name: at for at, name in enumerate(STATES)}
        state = segment.look_up("state_before", lambda name: states.get(name, len(STATES)), len(STATES))
        bits = kind | state << STATE_AT | np.maximum(self.count, 0) << COUNT_AT
        for at, flag in enumerate(FLAGS):
            bits |= flags[flag].astype(np.int64) << FLAGS_AT + at
        # A sub-queue has no sessions.
        with_session = where & self.in_session & ~self._in_sub_queue()
        same = mixed(
            segment.digests("session_id", at=with_session),
            segment.numbers("size_bytes"),
            segment.numbers("enqueued_sequence_number"),
        )
        columns = {
            "place": self.place,
            "number": self.number,
            "order": self.order,
            "bits": bits,
            "token": segment.digests("lock_token", at=where),
            "at_ms": self.at_ms,
            "until_ms": segment.milliseconds("locked_until"),
            "expires_ms": segment.milliseconds("expires_at"),
            "due_ms": segment.milliseconds("scheduled_time"),
            "enqueued_ms": segment.milliseconds("enqueued_time"),
            "epoch": self.epoch,
            "grace_ms": self._grace_ends(),
            "same": same,
        }
        return _picked(columns, where)

    def expectations(self) -> Columns:
        """Return a row for each move to another entity or number: of the message that must begin."""
        segment = self.segment
        place = segment.look_up("related_entity", lambda name: self.places.get(name, -1), -1)
        where = segment.is_any("event_type", *_MOVES) & (place >= 0)
        kind = np.where(segment.is_any("event_type", "forwarded"), ARRIVES_OR_IS_KNOWN, ARRIVES)
        columns = {
            "place": place,
            "number": segment.numbers("related_sequence_number"),
            "order": self.order,
            "bits": kind | np.maximum(self.count, 0) << COUNT_AT,
        }
        return _picked(columns, where)

    def sessions(self) -> Columns:
        """Return the events of sessions and of their messages. A sub-queue has no sessions."""
        segment = self.segment
        kind = segment.look_up("event_type", lambda name: SESSION_KIND.get(name, 0), 0)
        where = (kind > 0) & self.in_session & self.has_place & ~self._in_sub_queue()
        # Rows of older releases have no key.
        keyed = segment.digests("session_key", at=where)
        session = np.where(
            segment.has("session_key"),
            keyed,
            segment.digests("session_id", at=where & ~segment.has("session_key")),
        )
        holds = segment.is_any("event_type", *HOLDS)
        by_link = segment.names("link_name")[0] >= 0
        links = segment.look_up("link_name", _text_digest, 0)
        flags = by_link * BY_LINK + segment.is_any("state_before", "active") * ACTIVE
        flags += segment.has("lock_token") * LOCKED
        flags += segment.is_any("reason", "by request") * BY_REQUEST
        columns = {
            "place": self.place,
            "session": session,
            "number": self.number,
            "order": self.order,
            "kind": kind,
            "flags": flags,
            "epoch": self.epoch,
            "holder": mixed(segment.numbers("connection_id"), links),
            "at_ms": self.at_ms,
            "until_ms": np.where(holds, segment.milliseconds("locked_until"), NONE),
        }
        return _picked(columns, where)

    def batches(self) -> Columns:
        """Return count, first and last number of the events of each batch."""
        shard = self.segment.numbers("shard")
        keys, starts = groups(shard, self.batch_no)
        index = self.index[keys]
        return {
            "namespace": np.full(len(starts), self.known.namespaces.index(self.namespace)),
            "shard": shard[keys][starts],
            "batch": self.batch_no[keys][starts],
            "events": np.diff(np.append(starts, len(keys))),
            "first": np.minimum.reduceat(index, starts),
            "last": np.maximum.reduceat(index, starts),
        }

    def ids(self) -> Columns:
        """Return the message ids that entities took that detect duplicates.

        A message sent via a queue only passes it: duplicate detection of that queue does not see it. In a
        partitioned entity an id counts together with the partition key, which is not logged; in a session the
        key is the session id.
        """
        segment = self.segment
        partitioned = segment.has("partition_id")
        where = segment.is_any("event_type", *_BEGINS) & segment.has("message_id")
        where &= ~segment.is_any("reason", "sent via") & np.isin(self.place, list(self.known.detecting))
        where &= ~partitioned | self.in_session
        key = segment.digests("session_id", at=where & partitioned)
        columns = {
            "place": self.place,
            "id": mixed(segment.digests("message_id", at=where), key),
            "order": self.order,
            "at_ms": self.at_ms,
        }
        return _picked(columns, where)

    def transactions(self) -> Columns:
        """Return the first and the last batch of each transaction, without numbers issued before."""
        segment = self.segment
        where = segment.has("transaction_id") & ~segment.is_any("event_type", "number_issued")
        where &= segment.has("event_type")
        whole = np.full(int(np.count_nonzero(where)), self.known.namespaces.index(self.namespace))
        digests = mixed(segment.digests("transaction_id", at=where)[where], whole)
        batch = self.batch_no[where]
        rows, starts = groups(digests)
        if not len(starts):
            return {"transaction": digests, "first": batch, "last": batch}
        return {
            "transaction": digests[rows][starts],
            "first": np.minimum.reduceat(batch[rows], starts),
            "last": np.maximum.reduceat(batch[rows], starts),
        }

    def copies(self) -> Columns:
        """Return of each topic's message the copies made less those that arrived, where this is not 0."""
        segment = self.segment
        topics = self.known.topics
        arrived = segment.is_any("event_type", "enqueued") & np.isin(self.place, list(topics))
        copies = segment.numbers("related_sequence_number")
        made = segment.is_any("event_type", "forwarded") & ~segment.has("related_entity") & (copies != NONE)
        made &= self.has_place & bool(topics)
        where = made | arrived
        of = np.arange(len(self.known.keys) + 1)
        for subscription, topic in topics.items():
            of[subscription] = topic
        topic = np.where(made, self.place, of[self.place])[where]
        batch, copies = self.batch_no[where], np.where(made, copies, -1)[where]
        origin = segment.numbers("enqueued_sequence_number")[where]
        return summed_copies({"topic": topic, "batch": batch, "origin": origin, "copies": copies})

    def _in_sub_queue(self) -> Truths:
        is_in: Truths = self.segment.look_up("entity", lambda name: SUB_QUEUE in name, 0) == 1
        return is_in

    def _grace_ends(self) -> Numbers:
        """Return the end of the grace of the connection that owns a lock, UTC ms.

        It is NONE if the connection did not break or its locks are kept until they lapse; or UNTOLD.
        """
        graces = self.known.graces.get(self.namespace, {})
        owner = np.where(
            self.segment.is_any("event_type", "delivered", "renewed"),
            self.segment.numbers("connection_id"),
            NONE,
        )
        ends = np.full(self.segment.count, UNTOLD)
        for epoch in np.unique(self.epoch).tolist():
            if epoch not in graces:
                continue
            here = self.epoch == epoch
            ends[here] = NONE
            lasts_ms = graces[epoch]
            lost = self.known.lost_ms.get((self.namespace, epoch))
            if lasts_ms is None or lost is None or not len(lost[0]):
                continue
            connections, lost_ms = lost
            at = np.minimum(np.searchsorted(connections, owner), len(connections) - 1)
            broke = here & (connections[at] == owner)
            ends[broke] = lost_ms[at[broke]] + lasts_ms
        return ends


def summed_copies(columns: Columns) -> Columns:
    """Add up the copies of each topic's message; leave out those that are 0. `made` are those above 0."""
    keys = [columns[name] for name in ("topic", "batch", "origin")]
    rows, starts = groups(*keys)
    copies = columns["copies"][rows]
    made = columns.get("made", np.maximum(columns["copies"], 0))[rows]
    if len(starts):
        copies, made = np.add.reduceat(copies, starts), np.add.reduceat(made, starts)
    kept = copies != 0
    first = [values[rows][starts][kept] for values in keys]
    return {
        **dict(zip(("topic", "batch", "origin"), first, strict=True)),
        "copies": copies[kept],
        "made": made[kept],
    }


def groups(*keys: Numbers) -> tuple[Numbers, Numbers]:
    """Return rows sorted by keys, and where a new group begins among them."""
    rows = np.lexsort(keys[::-1])
    new = np.zeros(len(rows), bool)
    new[:1] = True
    for values in keys:
        ordered = values[rows]
        new[1:] |= ordered[1:] != ordered[:-1]
    return rows, np.flatnonzero(new)


def _picked(columns: Columns, where: Truths) -> Columns:
    rows = np.flatnonzero(where)
    return {name: values[rows] for name, values in columns.items()}


def _text_digest(text: str) -> int:
    return int(digest(np.array([text], object))[0])
