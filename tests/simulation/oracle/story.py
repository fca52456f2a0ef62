"""Hand-made histories for the tests of the checker: what clients did, and what became durable.

Owns: the vocabulary in which a test writes a history. Must not know: promises, brokers.
"""

from __future__ import annotations

from typing import Any

from peeklock.broker.vocabulary.addresses import SequenceNumber
from peeklock.broker.vocabulary.changes import EntityStored, NumbersIssued, RuleStored
from peeklock.broker.vocabulary.descriptions import (
    Description,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from peeklock.broker.vocabulary.message import MessageState
from tests.simulation.oracle.checker import END_OF_TIME_MS, Checker
from tests.simulation.oracle.history import Hold, Lock, Seen, Sent, Unit
from tests.simulation.oracle.records import Record, Snapshot
from tests.simulation.oracle.rulebook import Always, Ruling

QUEUE = 4
DEAD = 5
STATES = 7
OTHER = 8
TOPIC = 12
ALL = 16
SOME = 20
LOCK_MS = 5_000
WINDOW_MS = 20_000


def record(position: int, *, queue_id: int = QUEUE, slot: int | None = None, **changed: object) -> Record:
    """Return the record of a message whose body is in row `1`, at a slot that is its uid - 1."""
    made = Record(
        queue_id, position, position, position, MessageState.ACTIVE, 0, 1_000, 0, None, 1,
        position - 1 if slot is None else slot, None,
    )  # fmt: skip
    for name, value in changed.items():
        setattr(made, name, value)
    return made


class Story:
    """A checker, and a world that does what a test says. There are two queues: `orders` and `jobs`."""

    def __init__(self, orders: dict[str, Any] | None = None, jobs: dict[str, Any] | None = None) -> None:
        self.now_ms = 1_000
        self.no = 0
        self.checker = Checker(lambda: self.now_ms)
        self.checker.connected(1)
        self.checker.connected(2)
        bodies = {1: [b"uid=%08d;" % uid for uid in range(1, 9)]}
        self.descriptions = [
            QueueDescription(name, lock_duration_ms=LOCK_MS, max_delivery_count=3, **(settings or {}))
            for name, settings in (("orders", orders), ("jobs", jobs))
        ]
        stored = [EntityStored(no, d, 0, 0) for no, d in enumerate(self.descriptions, 1)]
        self.commit(*stored, rows=bodies)

    def add_topic(self, *rulings: Ruling, **settings: Any) -> None:
        """Add the topic `news` with the subscriptions `all`, which gets all messages, and `some`, with rules
        `r0`, `r1`... that have the given meanings; `settings` are of `some`."""
        book = self.checker.rulings.rulebook
        every = Ruling(Always(True), "plain").described("$Default")
        rules = [(ALL, every)] + [(SOME, book.describe(r, f"r{no}")) for no, r in enumerate(rulings)]
        common: dict[str, Any] = {"lock_duration_ms": LOCK_MS, "max_delivery_count": 3}
        descriptions: list[Description] = [
            TopicDescription("news"),
            SubscriptionDescription("news", "all", **common),
            SubscriptionDescription("news", "some", **common, **settings),
        ]
        for queue_id, rule in rules:
            self.checker.rulings.asking(descriptions[queue_id // 4 - 3].name, rule.name, rule)
        self.commit(
            *(EntityStored(no, d, 0, 0) for no, d in enumerate(descriptions, 3)),
            *(RuleStored(queue_id // 4, rule) for queue_id, rule in rules),
        )
        self.now_ms += 1

    def send(self, *uids: int, group: int = 0, unit: Unit | None = None, **fields: Any) -> None:
        queue = fields.pop("queue", "orders")
        message_id = fields.pop("message_id", None)
        self.checker.sending(
            [Sent(uid, queue, message_id, None, None, group, self.now_ms, **fields) for uid in uids], unit
        )

    def commit(
        self,
        *changes: object,
        rows: dict[int, list[bytes]] | None = None,
        issued: dict[int, int] | None = None,
        partitions: dict[int, list[int]] | None = None,
    ) -> None:
        """Make changes durable. `issued`: the next position of queues that issued more than the records
        show."""
        self.no += 1
        stored = [change for change in changes if isinstance(change, Record)]
        nexts: dict[int, int] = {}
        for change in stored:
            before = self.checker.facts.numbers.get(change.queue_id)
            least = nexts.get(change.queue_id, 1 if before is None else before.next_position)
            nexts[change.queue_id] = max(least, change.position + 1)
        nexts.update(issued or {})
        numbers = [
            NumbersIssued(
                queue_id,
                next_position,
                SequenceNumber(99),
                1_000,
                tuple((partitions or {}).get(queue_id, ())),
            )
            for queue_id, next_position in sorted(nexts.items())
        ]
        batch = Snapshot(self.no, [*changes, *numbers], rows or {}, [], self.now_ms, self.now_ms)  # type: ignore[list-item]  # changes of several types
        self.checker.committed(batch, self.now_ms)

    def deliver(
        self,
        uid: int,
        number: int,
        token: bytes,
        *,
        count: int = 0,
        connection: int = 1,
        hold: Hold | None = None,
        first_number: int | None = None,
        state: MessageState = MessageState.ACTIVE,
    ) -> Lock:
        until_ms = END_OF_TIME_MS if hold is not None else self.now_ms + LOCK_MS
        session_id = self.checker.sent[uid].session_id
        seen = Seen(uid, number, first_number or number, count, until_ms, state, session_id, None)
        lock = self.checker.delivered(seen, "orders", token, connection, hold=hold)
        assert lock is not None
        return lock

    def accept(self, session_id: str | None, *, connection: int = 1, given: str | None = None) -> Hold:
        asked = self.checker.holds.asking(connection, "orders", session_id, 0, LOCK_MS)
        return self.checker.holds.granted(asked, given or session_id, self.now_ms + LOCK_MS)
