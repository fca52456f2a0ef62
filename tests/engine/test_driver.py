"""The rules of the driver: what leaves when, what is read, what goes back."""

from __future__ import annotations

import itertools
from typing import cast

import pytest

from peeklock.amqp.messaging import Sections
from peeklock.broker.namespace import Namespace
from peeklock.broker.vocabulary.commands import (
    NO_LINK,
    OWN_CONNECTION_ID,
    Address,
    Command,
    CreateEntity,
    LinkId,
    LockToken,
    OpenReceiver,
    OpenSender,
    ReceiveMode,
    ReplyTo,
    Send,
    SetCredit,
)
from peeklock.broker.vocabulary.descriptions import QueueDescription
from peeklock.broker.vocabulary.effects import Deliver, Done, Effect, SenderOpened
from peeklock.broker.vocabulary.message import Message
from peeklock.broker.vocabulary.quotas import STANDARD
from peeklock.engine.bodies import BodyCache
from peeklock.engine.driver import (
    NEVER,
    READ_ROWS_MAX,
    WINDOW,
    Action,
    BodiesRead,
    Commit,
    Driver,
    HandOut,
    ReadRows,
    Reclaim,
    WakeAt,
)
from peeklock.engine.engine import EVENT_ROWS_A_BATCH, Engine
from peeklock.engine.reclaim import SETTLE_MS
from peeklock.store.base import Batch
from peeklock.store.memory import MemoryStore
from tests.engine.rig import at_once
from tests.engine.tiny import Create, Delete, Look, Put, Take, TinyNamespace, Touch


class Driven:
    """A driver over the smallest namespace; a commit lands when the test says so."""

    def __init__(self, cache_bytes: int = 1 << 20) -> None:
        self.store = MemoryStore()
        self.engine = Engine(TinyNamespace(), BodyCache(cache_bytes))
        at_once(self.engine.recover(self.store, 0))
        self.driver = Driver(self.engine)
        self.driver.connect(1)
        self.flying: Commit | None = None
        self.offer(Create())
        assert answers(self.step_and_land()) == [1]

    def offer(self, *commands: object, now_ms: int = 0) -> None:
        self.driver.offer(cast("list[Command]", list(commands)), now_ms)

    def step(self, lease_until_ms: float = NEVER, now_ms: int = 0) -> list[Action]:
        actions = self.driver.step(now_ms, lease_until_ms)
        for action in actions:
            if isinstance(action, Commit):
                assert self.flying is None, "one at a time"
                self.flying = action
            elif isinstance(action, Reclaim):
                self.driver.reclaimed(at_once(action.wanted.read_from(self.store)), now_ms)
        return actions

    def land(self, now_ms: int = 0) -> None:
        assert self.flying is not None
        batch, self.flying = self.flying.batch, None
        self.driver.committed(batch.no, at_once(self.store.commit(batch)), now_ms)

    def step_and_land(self) -> list[Action]:
        """Commit what is open and return all actions until nothing is left."""
        actions = self.step()
        while self.flying is not None or self.driver.more:
            if self.flying is not None:
                self.land()
            actions += self.step()
        return actions

    def read(self, actions: list[Action]) -> None:
        """Read what these actions name."""
        for action in actions:
            if isinstance(action, ReadRows):
                self.driver.rows_read(at_once(self.store.read_body_rows(action.rows)), 0)

    def forget_bodies(self) -> None:
        """Have no body in memory, as after a start."""
        for row in self.engine.ledger.rows():
            self.engine.bodies.drop(row)


@pytest.fixture
def driven() -> Driven:
    return Driven()


def handed_out(actions: list[Action]) -> list[HandOut]:
    return [action for action in actions if isinstance(action, HandOut)]


def answers(actions: list[Action]) -> list[int]:
    """Return the numbers of what is answered, in order."""
    effects = [effect for action in handed_out(actions) for effect in action.effects]
    return [effect.reply_to.number for effect in effects if isinstance(effect, Done)]


def rows_of(actions: list[Action]) -> list[list[int]]:
    return [action.rows for action in actions if isinstance(action, ReadRows)]


# The mark


def test_the_mark_stays_while_nothing_happens(driven: Driven) -> None:
    marks = [driven.driver.mark]

    def note() -> int | None:
        marks.append(driven.driver.mark)
        return marks[-1]

    driven.step()
    assert note() == marks[0] is not None
    driven.offer(Put(b"a"))
    assert note() is None
    driven.step()
    assert note() not in (None, marks[0])
    driven.offer(Put(b"b"))
    assert note() is None  # while the batch before is in flight, too
    driven.step_and_land()
    assert note() not in (None, marks[0], marks[3])


# Effects


def test_effects_leave_with_their_batch(driven: Driven) -> None:
    """Req: R-01"""
    driven.offer(Put(b"a"), Look())
    assert not handed_out(driven.step())
    driven.offer(Look(), Put(b"b"))
    assert not driven.step()
    no = driven.flying.batch.no  # type: ignore[union-attr]  # the first step set it
    driven.land()
    [first] = handed_out(driven.step())
    assert (answers([first]), first.batch_no, first.connection_id) == ([2, 3], no, 1)
    assert driven.driver.more
    assert answers(driven.step_and_land()) == [4, 5]


def test_effects_without_a_batch_leave_at_once(driven: Driven) -> None:
    driven.offer(Look(), Look())
    [found] = handed_out(driven.step())
    assert (answers([found]), found.batch_no) == ([2, 3], None)


def test_effects_leave_a_window_at_a_time_and_the_next_batch_waits(driven: Driven) -> None:
    """Its rows may be needed by what has not left. Req: R-01"""
    driven.offer(Put(b"a"), *[Look()] * WINDOW)
    driven.step()
    driven.offer(Put(b"b"))
    driven.land()
    first = driven.step()
    assert answers(first) == list(range(2, WINDOW + 2))
    assert driven.flying is None
    assert answers(driven.step()) == [WINDOW + 2]
    assert driven.flying is None
    driven.step()
    assert driven.flying is not None


def test_an_effect_without_a_batch_waits_for_one_when_the_lease_is_over(driven: Driven) -> None:
    """Req: R-01"""
    driven.offer(Look())
    assert not handed_out(driven.step(lease_until_ms=5, now_ms=5))
    assert not driven.driver.idle
    driven.offer(Put(b"a"))
    driven.step(lease_until_ms=5, now_ms=6)
    driven.land()
    [found] = handed_out(driven.step(lease_until_ms=20, now_ms=7))  # a commit renews the lease
    assert answers([found]) == [2, 3]
    assert found.batch_no is not None


def test_what_has_not_left_by_the_end_of_the_lease_leaves_with_the_next_batch(driven: Driven) -> None:
    """Req: R-01"""
    driven.offer(*[Look()] * (WINDOW + 2))
    assert len(answers(driven.step(lease_until_ms=5))) == WINDOW
    assert not handed_out(driven.step(lease_until_ms=5, now_ms=5))
    driven.offer(Put(b"a"), Look())
    assert not handed_out(driven.step(lease_until_ms=5, now_ms=6))
    driven.land()
    [found] = handed_out(driven.step(lease_until_ms=20, now_ms=7))  # a commit renews the lease
    assert answers([found]) == list(range(WINDOW + 2, WINDOW + 6))
    assert found.batch_no is not None


def test_what_a_batch_made_durable_waits_too_when_the_lease_is_over(driven: Driven) -> None:
    """A delivery among it would lock a message that another process gives away. Req: R-01"""
    driven.offer(Put(b"a"), *[Look()] * (WINDOW + 2))
    driven.step(lease_until_ms=5)
    driven.land(now_ms=5)
    driven.offer(Put(b"b"))
    assert not handed_out(driven.step(lease_until_ms=5, now_ms=5))
    assert not driven.driver.more
    assert driven.flying is None, "the next batch may drop a row that one of these needs"
    assert len(answers(driven.step(lease_until_ms=10, now_ms=6))) == WINDOW
    assert not handed_out(driven.step(lease_until_ms=10, now_ms=10))
    assert len(answers(driven.step(lease_until_ms=20, now_ms=11))) == 3
    assert driven.driver.more


def test_a_delivery_that_waited_for_its_body_waits_for_the_lease(driven: Driven) -> None:
    """Req: R-01"""
    driven.offer(Put(b"a"))
    driven.step_and_land()
    driven.forget_bodies()
    driven.driver.want(1, {2})
    driven.read(driven.step(lease_until_ms=5))
    assert BodiesRead(1) not in driven.step(lease_until_ms=5, now_ms=5)
    assert not driven.driver.more
    assert BodiesRead(1) in driven.step(lease_until_ms=10, now_ms=6)


def test_a_lease_that_is_renewed_lets_the_rest_leave(driven: Driven) -> None:
    driven.offer(Look())
    assert not handed_out(driven.step(lease_until_ms=5, now_ms=5))
    assert answers(driven.step(lease_until_ms=10, now_ms=6)) == [2]


def test_nothing_leaves_after_a_failure(driven: Driven) -> None:
    """Req: R-06"""
    driven.offer(Put(b"a"))
    driven.step()
    driven.driver.failed()
    assert driven.step() == []
    assert not driven.driver.more


def test_a_connection_that_is_gone_is_handed_nothing(driven: Driven) -> None:
    driven.driver.disconnect(1)
    driven.offer(Look())
    assert not handed_out(driven.step())
    assert driven.driver.idle


# Passes that are left out


def passes(driven: Driven, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that has the time of each look at the open batch."""
    found: list[int] = []
    take_batch = driven.engine.take_batch

    def looked(now_ms: int) -> Batch | None:
        found.append(now_ms)
        return take_batch(now_ms)

    monkeypatch.setattr(driven.engine, "take_batch", looked)
    return found


def test_no_pass_follows_a_commit_that_leaves_nothing_to_do(
    driven: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = passes(driven, monkeypatch)
    driven.offer(Put(b"a"))
    driven.step(now_ms=1)
    driven.land()
    actions = driven.step(now_ms=2)
    assert answers(actions) == [2]
    assert actions[-1] == WakeAt(None), "an adapter whose timer has come needs another"
    assert not driven.driver.more
    assert found == [1]


def test_a_pass_follows_for_what_was_offered_meanwhile(
    driven: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = passes(driven, monkeypatch)
    driven.offer(Put(b"a"))
    driven.step(now_ms=1)
    driven.offer(Look())
    driven.land()
    assert answers(driven.step(now_ms=2)) == [2]
    assert answers(driven.step(now_ms=3)) == [3]
    assert found == [1, 3]


def test_a_deleted_entity_is_released_a_batch_after_the_other(
    driven: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peeklock.engine.reclaim.RELEASE_MAX", 2)
    driven.offer(*[Put(b"body") for _ in range(7)])
    driven.step_and_land()
    driven.offer(Delete())
    driven.step_and_land()
    assert driven.engine.ledger.journal.live_messages == 0


def test_a_sparse_row_is_copied_forward_although_nothing_else_happens(driven: Driven) -> None:
    driven.offer(*[Put(b"body") for _ in range(4)])
    driven.step_and_land()
    driven.offer(*[Take(position) for position in (1, 2, 3)])
    driven.step_and_land()
    for now_ms, wanted in ((SETTLE_MS - 1, 0), (SETTLE_MS, 1)):
        driven.driver.look_for_space()
        actions = driven.step(now_ms=now_ms)
        assert sum(isinstance(action, Reclaim) for action in actions) == wanted, now_ms


def test_a_row_settles_from_when_it_becomes_sparse_however_long_nothing_happened(driven: Driven) -> None:
    driven.offer(*[Put(b"body") for _ in range(4)])
    driven.step_and_land()
    now_ms = 10 * SETTLE_MS
    driven.offer(*[Take(position) for position in (1, 2, 3)], now_ms=now_ms)
    driven.step(now_ms=now_ms)
    driven.land(now_ms)
    for wait_ms, wanted in ((SETTLE_MS - 1, 0), (SETTLE_MS, 1)):
        driven.driver.look_for_space()
        actions: list[Action] = []
        while driven.driver.more or not actions:
            actions += driven.step(now_ms=now_ms + wait_ms)
        assert sum(isinstance(action, Reclaim) for action in actions) == wanted, wait_ms


def test_event_rows_that_were_exported_go_a_batch_after_the_other(driven: Driven) -> None:
    last_no = EVENT_ROWS_A_BATCH + 10
    for no in range(1, last_no + 1):
        driven.store.event_backlog.add(no, 100)
    driven.driver.forget_events(last_no - 1)
    driven.step_and_land()
    assert driven.store.event_backlog.first_no == last_no


def test_a_long_journal_is_shortened_a_batch_after_the_other(
    driven: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    driven.offer(Put(b"body"))
    driven.step_and_land()
    for _ in range(20):
        driven.offer(*[Touch(1)] * 20)
        driven.step_and_land()
    for name in ("JOURNAL_BYTES_MIN", "TRUNCATE_BYTES_MAX"):
        monkeypatch.setattr(f"peeklock.engine.journal.{name}", 1_000)
    driven.offer(Look())
    driven.step_and_land()
    assert not driven.engine.ledger.journal.is_long


# Body rows


def test_a_row_that_is_waited_for_is_read_with_the_one_behind_it(
    driven: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peeklock.engine.engine.ROW_BYTES_MAX", 1)
    driven.offer(*[Put(b"body") for _ in range(4)])
    driven.step_and_land()
    driven.forget_bodies()
    driven.driver.want(1, {1})
    actions = driven.step()
    assert rows_of(actions) == [[1, 2]]
    driven.driver.want(1, {1})
    assert not rows_of(driven.step()), "it is under way"
    driven.read(actions)
    assert [type(action) for action in driven.step()] == [BodiesRead]
    driven.driver.want(1, set())
    driven.step()
    driven.read([ReadRows([3])])
    assert not [action for action in driven.step() if isinstance(action, BodiesRead)]


def test_many_rows_are_read_in_parts(driven: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peeklock.engine.engine.ROW_BYTES_MAX", 1)
    driven.offer(*[Put(b"body") for _ in range(READ_ROWS_MAX + 3)])
    driven.step_and_land()
    driven.forget_bodies()
    driven.driver.want(1, set(range(1, READ_ROWS_MAX + 3)))
    found = rows_of(driven.step())
    assert [len(rows) for rows in found] == [READ_ROWS_MAX, 3]
    assert [row for rows in found for row in rows] == list(range(1, READ_ROWS_MAX + 4))


def test_a_row_stays_until_who_waits_for_it_has_read_it(
    driven: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Req: R-01"""
    monkeypatch.setattr("peeklock.engine.reclaim.DROP_ALONE_BYTES", 0)
    driven.offer(Put(b"body"))
    driven.step_and_land()
    driven.forget_bodies()
    driven.offer(Take(1))
    driven.step()
    driven.land()
    [found] = handed_out(driven.step())
    [delivery] = found.effects
    assert isinstance(delivery, Deliver)
    row = delivery.message.body_row
    assert driven.driver.body(delivery.message) is None
    driven.driver.want(1, {row})
    actions = driven.step()
    driven.read(actions)
    assert driven.driver.body(delivery.message) == b"body"
    driven.driver.want(1, set())
    driven.step_and_land()
    assert not at_once(driven.store.list_body_rows(0, 10))


# A real namespace


ORDERS = Address("orders")
LINK, PRODUCER = LinkId(1, 1), LinkId(2, 1)


class Served:
    """A driver over a real namespace with a queue, a producer and a consumer."""

    def __init__(self) -> None:
        tokens = itertools.count(1)
        self.store = MemoryStore()
        self.namespace = Namespace(
            limits=STANDARD, tokens=lambda: LockToken(next(tokens).to_bytes(16, "big")), digest_key=b"key"
        )
        engine = Engine(self.namespace, BodyCache())
        at_once(engine.recover(self.store, 0))
        self.driver = Driver(engine)
        self.driver.connect(1)
        self.driver.connect(2)
        self.ask(CreateEntity(QueueDescription("orders"), ReplyTo(OWN_CONNECTION_ID, NO_LINK, 1)))
        [opened] = [one for one in self.ask(OpenSender(PRODUCER, ORDERS)) if isinstance(one, SenderOpened)]
        self.queue_id = opened.queue_id

    def ask(self, *commands: Command, now_ms: int = 0) -> list[Effect]:
        """Do all that follows; return the effects that connections are handed."""
        self.driver.offer(commands, now_ms)
        effects: list[Effect] = []
        while not self.driver.idle:
            for action in self.driver.step(now_ms):
                if isinstance(action, Commit):
                    size_bytes = at_once(self.store.commit(action.batch))
                    self.driver.committed(action.batch.no, size_bytes, now_ms)
                elif isinstance(action, HandOut):
                    effects += action.effects
        return effects

    def send(self) -> Command:
        return Send(self.queue_id, Message(4, bare_offset=0), Sections(b"body"), None)


@pytest.mark.parametrize("who", ["driver", "adapter"])
def test_a_locked_message_that_reaches_nobody_is_released(who: str) -> None:
    """The driver finds that its connection is gone; or the adapter, while effects are handed out.

    Req: L-16
    """
    served = Served()
    served.ask(OpenReceiver(LINK, ORDERS, ReceiveMode.PEEK_LOCK), SetCredit(LINK, 1, 1 << 20))
    if who == "driver":
        served.driver.disconnect(1)
        assert not served.ask(served.send())
    else:
        delivered = served.ask(served.send())
        assert len(delivered) == 1
        assert served.namespace.totals().locks == 1
        served.driver.disconnect(1)
        served.driver.undelivered(delivered, 0)
        served.ask()
    assert served.namespace.totals().locks == 0


def test_the_time_is_set_for_what_falls_due_next() -> None:
    served = Served()
    at_ms = 5000
    scheduled = Message(4, bare_offset=0, scheduled_at_ms=at_ms)
    served.ask(Send(served.queue_id, scheduled, Sections(b"body"), None))
    [wake] = [action for action in served.driver.step(1) if isinstance(action, WakeAt)]
    assert wake.at_ms is not None
    assert wake.at_ms <= at_ms
    served.driver.rest()
    assert served.driver.step(1) == [WakeAt(None)]


def test_what_falls_due_changes_the_mark() -> None:
    served = Served()
    scheduled = Message(4, bare_offset=0, scheduled_at_ms=5000)
    served.ask(Send(served.queue_id, scheduled, Sections(b"body"), None))
    served.driver.step(1)
    before = served.driver.mark
    served.driver.step(2)
    assert served.driver.mark == before
    served.driver.step(6000)
    assert served.driver.mark != before
