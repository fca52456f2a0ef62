"""Clean event logs with realistic lives, made quickly: millions of events in seconds.

Owns: what a fault-free log looks like, for the tests of the jobs and of the audit, and for measurements.
`make_log` gives the table in log order, so that a test can spoil it; `write_segments` writes it as the
exporter does. The same arguments give the same log.

Whoever wants a fault changes rows of the table, then calls `write_segments`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from peeklock.broker.vocabulary.descriptions import (
    KINDS,
    Description,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from peeklock.broker.vocabulary.events import NUMBERED_AHEAD, EventType
from peeklock.capture.schema import EVENT_VERSION, EVENTS

Array = np.ndarray

START_MS = 1_788_000_000_000 - 1_788_000_000_000 % 86_400_000 + 12 * 3_600_000
"""A noon UTC, so that short logs stay within a day and long ones cross hours."""
LOCK_MS = 30_000
BATCH_MS = 10
"""What happens within so long is one batch; what is one frame in the broker has one time here."""
PROMISES = 24
"""Messages that are scheduled in transactions."""
STATES = ("active", "deferred", "scheduled")

STORIES = {
    "completed": 0.80,
    "abandoned": 0.04,
    "lapsed": 0.02,
    "renewed": 0.02,
    "released": 0.01,
    "deferred": 0.01,
    "dead_lettered": 0.015,
    "exhausted": 0.005,
    "expired": 0.01,
    "scheduled": 0.02,
    "cancelled": 0.002,
    "forwarded": 0.015,
    "answered": 0.01,
    "received_and_deleted": 0.01,
    "claimed": 0.01,
    "purged": 0.003,
}
"""Share of the messages of a plain entity to which it happens."""
REASONS = ("BadAddress", "NoSuchCustomer", "AmountMismatch")


def write_log(folder: Path, *, rows_per_segment: int = 500_000, **wanted: object) -> pa.Table:
    """Write a clean log to `folder` (see `make_log` for the arguments) and return its table."""
    table = make_log(**wanted)  # type: ignore[arg-type]  # handed through as they are
    write_segments(folder, table, rows=rows_per_segment)
    return table


def make_log(
    *,
    messages: int,
    seed: int = 1,
    entities: Sequence[str] = ("orders", "invoices", "mails"),
    session_entities: Sequence[str] = ("carts",),
    partitioned_entities: Sequence[str] = ("clicks",),
    topics: Sequence[str] = ("news",),
    seconds: int | None = None,
    drained: bool = False,
    bodies: bool = False,
    namespace: str = "test",
) -> pa.Table:
    """Return the events of some `messages` sent messages over `seconds`, in log order, with schema EVENTS.

    Messages of `entities` have all the stories; forwarded ones go on in `archive`, answers in `answers`.
    Without `drained` the log stops in the midst of things: some lives are open, some locks held.
    `seconds` is 600 or what makes a thousand messages a second.
    """
    log = _Log(np.random.default_rng(seed), START_MS, 1000 * (seconds or max(600, messages // 1000)))
    groups = [
        *((name, _plain) for name in entities),
        *((name, _plain) for name in partitioned_entities),
        *((name, _sessions) for name in session_entities),
        *((name, _topic) for name in topics),
    ]
    log.partitioned = frozenset(partitioned_entities)
    log.with_sessions = frozenset(session_entities)
    log.topics = frozenset(topics)
    log.detecting = frozenset([*entities, *partitioned_entities])
    log.dead_lettering = frozenset(entities[:1])
    for place, (name, story) in enumerate(groups):
        count = messages * (place + 1) // len(groups) - messages * place // len(groups)
        if count:
            story(log, name, count)
    _promises(log, "plans")
    return log.table(namespace, drained=drained, bodies=bodies)


def write_segments(folder: Path, table: pa.Table, *, rows: int = 500_000) -> list[Path]:
    """Write the table, which is in log order, as segments of about so many rows, whole batches each."""
    batch = table["batch_no"].to_numpy()
    hour = table["event_time"].cast(pa.int64()).to_numpy() // 3_600_000_000
    new_batch = np.flatnonzero(np.diff(batch, prepend=batch[0] - 1))
    cuts, last = [0], 0
    for begin in new_batch[1:]:
        if begin - last >= rows or hour[begin] != hour[last]:
            cuts.append(int(begin))
            last = begin
    paths = []
    for begin, end in zip(cuts, [*cuts[1:], len(table)], strict=True):
        at = datetime.fromtimestamp(int(hour[begin]) * 3600, UTC)
        place = folder / f"event_date={at:%Y-%m-%d}" / f"event_hour={at:%H}"
        place.mkdir(parents=True, exist_ok=True)
        path = place / f"events-{batch[begin]:020}-{batch[end - 1]:020}.parquet"
        pq.write_table(table.slice(begin, end - begin), path, compression="zstd", write_page_checksum=True)
        paths.append(path)
    return paths


def _plain(log: _Log, entity: str, count: int) -> None:
    rng = log.rng
    begin = log.arrivals(count)
    story = rng.choice(len(STORIES), size=count, p=np.array([*STORIES.values()]) / sum(STORIES.values()))
    of = {name: np.flatnonzero(story == number) for number, name in enumerate(STORIES)}
    ttl = np.where(rng.random(count) < 0.1, 3_600_000, 0)
    ttl[of["expired"]] = rng.integers(5_000, 60_000, len(of["expired"]))
    due = np.zeros(count, np.int64)
    for name in ("scheduled", "cancelled"):
        due[of[name]] = begin[of[name]] + rng.integers(10_000, 120_000, len(of[name]))
        ttl[of[name]] = 0
    lives = log.lives(entity, begin, ttl=ttl, due=due, sent=True)
    waiting = due > 0
    log.add(EventType.SCHEDULED, lives[waiting], begin[waiting])
    log.add(EventType.ENQUEUED, lives[~waiting], begin[~waiting])
    first = begin + log.wait(begin)
    dead_letters = f"{entity}/$deadletterqueue"

    def told(name: str) -> tuple[Array, Array]:
        return lives[of[name]], first[of[name]]

    log.process(*told("completed"))
    live, at = told("abandoned")
    at = log.give_back(EventType.ABANDONED, live, at, count=1)
    log.process(live, at, count=1)
    live, at = told("lapsed")
    log.deliver(live, at, until=at + LOCK_MS)
    log.add(EventType.LOCK_LAPSED, live, at + LOCK_MS, count=1)
    log.process(live, at + LOCK_MS + 5, count=1)
    live, at = told("renewed")
    token = log.deliver(live, at, until=at + LOCK_MS)
    log.add(EventType.RENEWED, live, at + 20_000, token=token, until=at + 50_000)
    log.add(EventType.COMPLETED, live, at + 40_000, token=token)
    live, at = told("released")
    at = log.give_back(EventType.RELEASED, live, at, count=0)
    log.process(live, at)
    live, at = told("deferred")
    at = log.give_back(EventType.DEFERRED, live, at, count=1)
    log.process(live, at + 60_000, count=1, state=1)
    live, at = told("dead_lettered")
    token = log.deliver(live, at, until=at + LOCK_MS)
    at = at + log.work(len(live))
    log.move(
        EventType.DEAD_LETTERED, live, at, dead_letters, token=token, reason=rng.choice(REASONS, len(at))
    )
    live, at = told("exhausted")
    for attempt in range(1, 11):
        at = log.give_back(EventType.ABANDONED, live, at, count=attempt)
    why = np.full(len(live), "MaxDeliveryCountExceeded")
    log.move(EventType.DEAD_LETTERED, live, at, dead_letters, count=10, reason=why)
    live, at = lives[of["expired"]], begin[of["expired"]] + ttl[of["expired"]] + 3
    if entity in log.dead_lettering:
        log.move(EventType.EXPIRED, live, at, dead_letters, reason=np.full(len(live), "TTLExpiredException"))
    else:
        log.add(EventType.EXPIRED, live, at)
    live, at = lives[of["scheduled"]], due[of["scheduled"]]
    moved = log.move(EventType.ACTIVATED, live, at, entity, state=2)
    log.process(moved, at + log.wait(at))
    live, at = lives[of["cancelled"]], begin[of["cancelled"]] + 5_000
    log.add(EventType.CANCELLED, live, at, state=2)
    live, at = lives[of["forwarded"]], begin[of["forwarded"]]
    moved = log.move(EventType.FORWARDED, live, at, "archive")
    log.process(moved, at + log.wait(at))
    live, at = told("answered")
    token = log.deliver(live, at, until=at + LOCK_MS)
    at = at + log.work(len(live))
    transaction = np.arange(len(live)) + log.transactions(len(live))
    log.add(EventType.COMPLETED, live, at, token=token, transaction=transaction)
    answers = log.lives("answers", at, sent=True)
    log.add(EventType.ENQUEUED, answers, at, transaction=transaction)
    log.process(answers, at + log.wait(at))
    live, at = told("received_and_deleted")
    log.add(EventType.DELIVERED, live, at)
    log.add(EventType.COMPLETED, live, at, reason=np.full(len(live), "receive-and-delete"))
    live, at = told("claimed")
    claim = at // 1000 - log.start_ms // 1000 + 1
    why = np.full(len(live), "lake")
    log.add(EventType.CLAIMED, live, at, reason=why, related_number=claim)
    log.add(EventType.COMPLETED, live, at + 1_500, reason=np.full(len(live), "cursor"), related_number=claim)
    log.add(EventType.PURGED, *told("purged"))
    again = of["completed"][::400]
    log.add(EventType.DUPLICATE_DROPPED, lives[again], begin[again] + 1)


def _sessions(log: _Log, entity: str, count: int) -> None:
    """Each session is eight messages, processed one after another under one holder."""
    each = 8
    number = np.arange(count) // each
    begin = np.sort(log.arrivals(number[-1] + 1))[number] + log.rng.integers(0, 4_000, count)
    begin = begin[np.lexsort((begin, number))]
    lives = log.lives(entity, begin, session=number, sent=True)
    log.add(EventType.ENQUEUED, lives, begin)
    first = np.flatnonzero(np.diff(number, prepend=-1))
    last = np.append(first[1:], count) - 1
    locked = begin[last] + log.wait(begin[last])
    step = 40
    delivered = locked[number] + 1 + step * (np.arange(count) - first[number])
    sessions = log.lives(entity, np.zeros(len(first), np.int64), session=number[first])
    until = locked + LOCK_MS
    log.add(EventType.SESSION_LOCKED, sessions, locked, until=until)
    token = log.deliver(lives, delivered, until=until[number])
    log.add(EventType.COMPLETED, lives, delivered + step - 5, token=token)
    log.add(EventType.SESSION_RELEASED, sessions, delivered[last] + step)


def _topic(log: _Log, topic: str, count: int) -> None:
    """All is copied to the first subscription, half to the second; what is in neither is unmatched."""
    begin = log.arrivals(count)
    lives = log.lives(topic, begin, sent=True)
    log.add(EventType.ENQUEUED, lives, begin)
    chance = log.rng.random(count)
    copies = (chance < 0.9).astype(np.int64) + (chance < 0.45)
    gone = copies == 0
    log.add(EventType.UNMATCHED, lives[gone], begin[gone])
    log.add(EventType.FORWARDED, lives[~gone], begin[~gone], related_number=copies[~gone])
    for name, chosen in (("all", copies > 0), ("half", copies > 1)):
        at = begin[chosen]
        copied = log.lives(f"{topic}/Subscriptions/{name}", at, source=lives[chosen])
        log.add(EventType.ENQUEUED, copied, at)
        log.process(copied, at + log.wait(at))


def _promises(log: _Log, entity: str) -> None:
    """Messages are scheduled in transactions: half of these are committed, of the others there are only
    numbers."""
    begin = log.arrivals(PROMISES)
    due = begin + 60_000
    lives = log.lives(entity, begin, due=due, sent=True)
    transaction = np.arange(PROMISES) + log.transactions(PROMISES)
    log.add(EventType.NUMBER_ISSUED, lives, begin, transaction=transaction)
    kept = np.arange(0, PROMISES, 2)
    live, why = lives[kept], np.full(len(kept), NUMBERED_AHEAD)
    log.add(EventType.SCHEDULED, live, begin[kept] + 1_500, reason=why, transaction=transaction[kept])
    moved = log.move(EventType.ACTIVATED, live, due[kept], entity, state=2)
    log.process(moved, due[kept] + 90)


@dataclass
class _Log:
    """Events as columns, in the order in which what belongs together happened; sorted by time at the end."""

    rng: np.random.Generator
    start_ms: int
    span_ms: int
    partitioned: frozenset[str] = frozenset()
    with_sessions: frozenset[str] = frozenset()
    topics: frozenset[str] = frozenset()
    detecting: frozenset[str] = frozenset()
    dead_lettering: frozenset[str] = frozenset()
    names: dict[str, int] = field(default_factory=dict)
    life_count: int = 0
    transaction_count: int = 0
    life_parts: list[dict[str, Array]] = field(default_factory=list)
    parts: list[dict[str, Array]] = field(default_factory=list)

    def name(self, text: str) -> int:
        """Return the number of an entity's name."""
        return self.names.setdefault(text, len(self.names))

    def transactions(self, count: int) -> int:
        self.transaction_count += count
        return self.transaction_count - count + 1

    def arrivals(self, count: int) -> Array:
        """Return sorted times of sends: more in the middle than at the ends, leaving time to process them."""
        place = self.rng.beta(1.6, 1.6, count)
        return np.sort(self.start_ms + 1_000 + (place * (self.span_ms - 2_000)).astype(np.int64))

    def wait(self, begin: Array) -> Array:
        """Return how long messages that come at `begin` wait in their queue: most a little, some long."""
        busy = np.exp(2.5 * np.sin(np.pi * (begin - self.start_ms) / self.span_ms))
        return 1 + (busy * self.rng.lognormal(3.5, 0.8, len(begin))).astype(np.int64)

    def work(self, count: int) -> Array:
        """Return times under lock, well below LOCK_MS."""
        return 2 + np.minimum(self.rng.lognormal(4.0, 0.7, count), 20_000).astype(np.int64)

    def lives(
        self,
        entity: str,
        begin: Array,
        *,
        session: Array | None = None,
        source: Array | None = None,
        ttl: Array | None = None,
        due: Array | None = None,
        keeps_number: bool = False,
        sent: bool = False,
    ) -> Array:
        """Begin a life for each of `begin` in `entity` and return their numbers in this log."""
        count = len(begin)
        lives = np.arange(self.life_count, self.life_count + count)
        nothing = np.full(count, -1, np.int64)
        zero = np.zeros(count, np.int64)
        size = (200 + self.rng.lognormal(6.3, 0.6, count)).astype(np.int64)
        partition = self.rng.integers(0, 16, count) if entity in self.partitioned else nothing
        origin = nothing if source is None else source
        if keeps_number:
            partition = np.concatenate([part["partition"] for part in self.life_parts])[source]
        self.life_parts.append(
            {
                "entity": np.full(count, self.name(entity), np.int64),
                "begin": begin,
                "session": nothing if session is None else session,
                "source": origin,
                "numbered": origin if keeps_number else nothing,
                "expires": zero if ttl is None else np.where(ttl > 0, begin + ttl, 0),
                "due": zero if due is None else due,
                "sent": np.full(count, int(sent)),
                "size": size,
                "partition": partition,
            }
        )
        self.life_count += count
        return lives

    def add(
        self,
        event_type: EventType,
        lives: Array,
        at: Array,
        *,
        count: int = 0,
        state: int = 0,
        token: Array | None = None,
        until: Array | None = None,
        reason: Array | None = None,
        transaction: Array | None = None,
        related_life: Array | None = None,
        related_number: Array | None = None,
    ) -> None:
        """Add one event to each of `lives`."""
        size = len(lives)
        zero, nothing = np.zeros(size, np.int64), np.full(size, -1, np.int64)
        self.parts.append(
            {
                "type": np.full(size, int(event_type)),
                "life": lives,
                "at": at,
                "count": np.full(size, count),
                "state": np.full(size, state),
                "token": np.zeros(size, np.uint64) if token is None else token,
                "until": zero if until is None else until,
                "reason": np.full(size, "", "<U24") if reason is None else reason.astype("<U24"),
                "transaction": zero if transaction is None else transaction,
                "related_life": nothing if related_life is None else related_life,
                "related_number": zero if related_number is None else related_number,
            }
        )

    def deliver(self, lives: Array, at: Array, *, until: Array, count: int = 0, state: int = 0) -> Array:
        """Deliver under a lock and return the tokens."""
        token = self.rng.integers(1, 2**63, len(lives)).astype(np.uint64)
        self.add(EventType.DELIVERED, lives, at, token=token, until=until, count=count, state=state)
        return token

    def process(self, lives: Array, at: Array, *, count: int = 0, state: int = 0) -> None:
        """Deliver and complete."""
        token = self.deliver(lives, at, until=at + LOCK_MS, count=count, state=state)
        done = at + self.work(len(lives))
        self.add(EventType.COMPLETED, lives, done, token=token, count=count, state=state)

    def give_back(self, event_type: EventType, lives: Array, at: Array, *, count: int) -> Array:
        """Deliver and give back; return when each can be delivered again. `count` is that after it."""
        before = count if event_type is EventType.RELEASED else count - 1
        token = self.deliver(lives, at, until=at + LOCK_MS, count=before)
        back = at + self.work(len(lives))
        self.add(event_type, lives, back, token=token, count=count)
        again: Array = back + 1 + self.rng.integers(0, 200, len(lives))
        return again

    def move(
        self,
        event_type: EventType,
        lives: Array,
        at: Array,
        target: str,
        *,
        count: int = 0,
        state: int = 0,
        token: Array | None = None,
        reason: Array | None = None,
    ) -> Array:
        """End `lives` here and begin as many in `target`, in the same instant."""
        dead = target.endswith("$deadletterqueue")
        moved = self.lives(target, at, source=lives, keeps_number=dead)
        self.add(
            event_type, lives, at, count=count, state=state, token=token, reason=reason, related_life=moved
        )
        self.add(EventType.ENQUEUED, moved, at, count=count if dead else 0)
        return moved

    def table(self, namespace: str, *, drained: bool, bodies: bool) -> pa.Table:
        """Number the lives, sort the events, cut them into batches, name all columns."""
        life = {key: np.concatenate([part[key] for part in self.life_parts]) for key in self.life_parts[0]}
        event = {key: np.concatenate([part[key] for part in self.parts]) for key in self.parts[0]}
        if not drained:
            kept = event["at"] < self.start_ms + self.span_ms
            event = {key: column[kept] for key, column in event.items()}
        order = np.argsort(event["at"], kind="stable")
        event = {key: column[order] for key, column in event.items()}
        number = self._numbers(life, event)
        of = event["life"]
        source = life["source"][of]
        root = np.where(source >= 0, source, of)

        presents = self._presents(namespace)
        head = len(presents["batch_no"])
        batch = np.unique(event["at"] // BATCH_MS, return_inverse=True)[1] + 2
        session_event = np.isin(event["type"], [EventType.SESSION_LOCKED, EventType.SESSION_RELEASED])
        related_life = event["related_life"]
        elsewhere = np.where(related_life >= 0, related_life, 0)
        started = np.isin(event["type"], [EventType.ENQUEUED, EventType.SCHEDULED])
        told_id = started & (life["sent"][of] > 0)
        columns: dict[str, pa.Array] = {
            "namespace": _constant(namespace, len(of)),
            "shard": pa.array(np.zeros(len(of), np.int32)),
            "batch_no": pa.array(batch),
            "index": pa.array(_rank(batch).astype(np.int32)),
            "event_version": pa.array(np.full(len(of), EVENT_VERSION, np.int32)),
            "event_time": _times(event["at"]),
            "event_type": _named(event["type"], {kind.name.lower(): int(kind) for kind in EventType}),
            "entity": _named(life["entity"][of], self.names),
            "partition_id": _some(life["partition"][of], life["partition"][of] >= 0, pa.int32()),
            "sequence_number": _some(number[of], ~session_event),
            "enqueued_sequence_number": _some(number[root], ~session_event),
            "message_id": _some(_text("m-", of), told_id),
            "session_id": _some(_text("s-", life["session"][of]), life["session"][of] >= 0),
            "session_key": _some(_text("s-", life["session"][of]), life["session"][of] >= 0),
            "delivery_count": pa.array(event["count"].astype(np.int32)),
            "lock_token": _some(_hex(event["token"]), event["token"] > 0),
            "locked_until": _times(event["until"]),
            "state_before": pa.DictionaryArray.from_arrays(event["state"].astype(np.int32), list(STATES)),
            "reason": _some(pa.array(event["reason"], pa.string()), event["reason"] != ""),
            "transaction_id": _some(_hex(event["transaction"].astype(np.uint64)), event["transaction"] > 0),
            "related_entity": _some(_named(life["entity"][elsewhere], self.names), related_life >= 0),
            "related_sequence_number": _some(
                np.where(related_life >= 0, number[elsewhere], event["related_number"]),
                (related_life >= 0) | (event["related_number"] > 0),
            ),
            # A session has one holder.
            "connection_id": pa.array(np.where(life["session"][of] >= 0, life["session"][of], of) % 8 + 1),
            "link_name": _constant("link", len(of)),
            "size_bytes": pa.array(np.where(session_event, 0, life["size"][root])),
            "enqueued_time": _times(np.where(session_event, 0, life["begin"][of])),
            "expires_at": _times(life["expires"][of]),
            "scheduled_time": _times(life["due"][of]),
            "broker_epoch": pa.array(np.ones(len(of), np.int64)),
        }
        if bodies:
            columns["body"] = _some(_text("body of m-", of), started).cast(pa.binary())
            columns["subject"] = _some(_text("subject-", of % 5), started)
        rows = {
            entry.name: columns[entry.name].cast(entry.type)
            if entry.name in columns
            else pa.nulls(len(of), entry.type)
            for entry in EVENTS
        }
        first = {
            entry.name: presents.get(entry.name, pa.nulls(head, entry.type)).cast(entry.type)
            for entry in EVENTS
        }
        events = pa.Table.from_pydict(rows, schema=EVENTS)
        return pa.concat_tables([pa.Table.from_pydict(first, schema=EVENTS), events]).unify_dictionaries()

    def _numbers(self, life: dict[str, Array], event: dict[str, Array]) -> Array:
        """Number the lives of each entity, or partition, in the order in which they begin in the log."""
        begins = np.isin(event["type"], [EventType.ENQUEUED, EventType.SCHEDULED, EventType.NUMBER_ISSUED])
        begins &= event["reason"] != NUMBERED_AHEAD
        born = event["life"][begins]
        born = born[life["numbered"][born] < 0]
        number = np.zeros(self.life_count, np.int64)
        partition = life["partition"][born]
        number[born] = _rank(life["entity"][born] * 17 + partition + 1) + 1
        number[born] += np.where(partition > 0, partition << 48, 0)
        kept = life["numbered"] >= 0
        number[kept] = number[life["numbered"][kept]]
        return number

    def _presents(self, namespace: str) -> dict[str, pa.Array]:
        """Return the first batch: the epoch, then each entity with its settings."""
        entities = [name for name in self.names if not name.endswith("$deadletterqueue")]
        settings = [self._settings(name) for name in entities]
        count = 1 + len(entities)
        return {
            "namespace": pa.array([namespace] * count),
            "shard": pa.array([0] * count),
            "batch_no": pa.array([1] * count),
            "index": pa.array(range(count)),
            "event_version": pa.array([EVENT_VERSION] * count),
            "event_time": _times(np.full(count, self.start_ms)),
            "event_type": pa.array(["epoch_started"] + ["entity_present"] * len(entities)),
            "entity": pa.array([None, *entities]),
            "delivery_count": pa.array([0] * count),
            "reason": pa.array([None, *settings]),
            "size_bytes": pa.array([0] * count),
            "broker_epoch": pa.array([1] * count),
        }

    def _settings(self, name: str) -> str:
        """Write settings as the broker does, so that readers get the real names."""
        description: Description
        if "/Subscriptions/" in name:
            topic, _, subscription = name.partition("/Subscriptions/")
            description = SubscriptionDescription(topic, subscription, lock_duration_ms=LOCK_MS)
        elif name in self.topics:
            description = TopicDescription(name)
        else:
            description = QueueDescription(
                name,
                lock_duration_ms=LOCK_MS,
                requires_duplicate_detection=name in self.detecting,
                requires_session=name in self.with_sessions,
                dead_lettering_on_expiration=name in self.dead_lettering,
                enable_partitioning=name in self.partitioned,
            )
        texts = {"kind": KINDS[type(description)].value, **asdict(description)}
        return json.dumps({**texts, "status": description.status.value}, separators=(",", ":"))


def _rank(group: Array) -> Array:
    """Return for each row how many before it are of its group."""
    order = np.argsort(group, kind="stable")
    ordered = group[order]
    begins = np.flatnonzero(np.diff(ordered, prepend=ordered[0] - 1)) if len(ordered) else np.array([], int)
    lengths = np.diff(np.append(begins, len(ordered)))
    rank = np.empty(len(group), np.int64)
    rank[order] = np.arange(len(group)) - np.repeat(begins, lengths)
    return rank


def _some(values: Array | pa.Array, chosen: Array, wanted: pa.DataType | None = None) -> pa.Array:
    """Return the values where `chosen`, null elsewhere."""
    given = values if isinstance(values, pa.Array) else pa.array(values, wanted)
    return pc.if_else(pa.array(chosen), given, pa.scalar(None, given.type))


def _times(ms: Array) -> pa.Array:
    return _some(pa.array(ms * 1000).cast(pa.timestamp("us", tz="UTC")), ms > 0)


def _text(prefix: str, numbers: Array) -> pa.Array:
    return pc.binary_join_element_wise(prefix, pa.array(numbers).cast(pa.string()), "")


def _named(numbers: Array, names: dict[str, int]) -> pa.Array:
    """Return the names of the numbers."""
    places = np.zeros(max(names.values()) + 1, np.int32)
    for place, number in enumerate(names.values()):
        places[number] = place
    return pa.DictionaryArray.from_arrays(places[numbers], list(names))


def _constant(text: str, count: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), [text])


def _hex(numbers: Array) -> pa.Array:
    """Return 16 hex digits of each number."""
    digits = numbers.astype(">u8").tobytes().hex().encode()
    offsets = np.arange(0, 16 * len(numbers) + 1, 16, dtype=np.int32)
    return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(offsets), pa.py_buffer(digits))
