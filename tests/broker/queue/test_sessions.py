"""Sessions: exclusive holders, order, locks, states, who waits for one."""

from __future__ import annotations

from typing import Any

import pytest

from peeklock.broker.queue.message_queue import MessageQueue
from peeklock.broker.vocabulary.commands import (
    Address,
    CloseLink,
    DeleteEntity,
    DeleteMessages,
    Disposition,
    Enlist,
    GetSessionState,
    ListSessions,
    OpenReceiver,
    ReceiveDeferred,
    ReceiveMode,
    RenewLocks,
    RenewSessionLock,
    Send,
    SequenceNumber,
    SetCredit,
    SetSessionState,
    ShowSession,
    SubQueue,
    UpdateDisposition,
)
from peeklock.broker.vocabulary.descriptions import EntityStatus
from peeklock.broker.vocabulary.effects import (
    Deliver,
    DetachLink,
    Done,
    Drained,
    LinkRefused,
    MessagesDeleted,
    MessagesFound,
    ReceiverOpened,
    SessionLockRenewed,
    SessionsFound,
    SessionShown,
)
from peeklock.broker.vocabulary.errors import (
    EntityDeleted,
    InvalidOperation,
    MessageNotFound,
    MessageSizeExceeded,
    SessionCannotBeLocked,
    SessionLockLost,
    SessionWaitTimedOut,
)
from peeklock.broker.vocabulary.message import Message, MessageState, MessageView
from tests.broker.harness import EMPTY, LOTS, MINUTE_MS, Broker, arriving, deliveries, numbers, token


@pytest.fixture
def broker() -> Broker:
    made = Broker()
    made.create(requires_session=True)
    return made


def listed(broker: Broker, since_ms: int | None = None, skip: int = 0, top: int = 100) -> list[str]:
    command = ListSessions(Address("orders"), since_ms, skip, top, broker.reply_to())
    return broker.one(command, SessionsFound).session_ids


def set_state(broker: Broker, state: bytes | None, session_id: str = "a", connection: int = 1) -> None:
    command = SetSessionState(Address("orders"), session_id, state, broker.reply_to(connection))
    broker.one(command, Done)


def disposition(
    broker: Broker,
    view: MessageView,
    to: Disposition = Disposition.COMPLETED,
    *,
    connection: int = 1,
    session_id: str | None = "a",
) -> UpdateDisposition:
    where, reply_to = Address("orders"), broker.reply_to(connection)
    return UpdateDisposition(where, [token(view)], to, reply_to, session_id=session_id)


def state_record(broker: Broker, session_id: str = "a") -> Message | None:
    command = GetSessionState(Address("orders"), session_id, broker.reply_to())
    found = broker.one(command, MessagesFound).messages
    return found[0].message if found else None


def test_a_message_without_a_session_id_is_rejected(broker: Broker) -> None:
    """Req: G-01"""
    error = broker.refused(Send(4, arriving(), EMPTY, broker.reply_to()))
    assert isinstance(error, InvalidOperation)
    assert "SessionId" in str(error)
    broker.send(session_id="")  # the empty text is an id
    assert listed(broker) == [""]


def test_a_session_is_held_by_one_receiver_and_gives_only_its_messages_in_order(broker: Broker) -> None:
    """Req: G-01"""
    for session_id in "abab":
        broker.send(session_id=session_id)
    opened = broker.accept("b")
    assert (opened.session_id, opened.locked_until_ms) == ("b", broker.now_ms + MINUTE_MS)
    found = broker.credit(opened.link)
    assert numbers(found) == [2, 4]
    assert all(delivery.locked_until_ms == 0 and delivery.lock_token for delivery in found)
    error = broker.refused(broker.wish("b"))
    assert isinstance(error, SessionCannotBeLocked)
    broker.send(session_id="a")
    assert numbers(deliveries(broker.do(Send(4, arriving(session_id="b"), EMPTY, None)))) == [6]


def test_a_plain_receiver_and_a_session_receiver_do_not_mix(broker: Broker) -> None:
    """Req: G-01, L-17"""
    broker.create("plain")
    for command in (
        OpenReceiver(broker.link(), Address("orders"), ReceiveMode.PEEK_LOCK),
        broker.wish("a", "plain"),
        OpenReceiver(
            broker.link(),
            Address("orders", SubQueue.DEAD_LETTER),
            ReceiveMode.PEEK_LOCK,
            broker.wish("a").session,
        ),
    ):
        assert isinstance(broker.refused(command), InvalidOperation)
    plain = OpenReceiver(broker.link(), Address("orders"), ReceiveMode.PEEK_LOCK)
    text = str(broker.refused(plain))  # the service's sentence, wire contract C19
    assert text.startswith("It is not possible for an entity that requires sessions to create a ")
    assert "non-sessionful message receiver. Entity: 'orders'." in text


def test_next_available_gives_the_session_that_has_been_available_longest(broker: Broker) -> None:
    """Req: G-06"""
    for session_id in "abcab":
        broker.send(session_id=session_id)
    first = broker.accept()
    assert first.session_id == "a"
    broker.do(CloseLink(first.link))  # it has messages still, and is the last in line now
    assert [broker.accept().session_id for _ in range(3)] == ["b", "c", "a"]


def test_accept_next_waits_until_a_session_becomes_available(broker: Broker) -> None:
    """Req: G-04"""
    effects = broker.do(broker.wish(connection=2))
    assert effects == []
    broker.schedule(5_000, session_id="later")  # not available before its time
    effects = broker.do(Send(4, arriving(session_id="x"), EMPTY, None))
    assert [type(effect) for effect in effects] == [ReceiverOpened]
    assert effects[0].session_id == "x"  # type: ignore[union-attr]  # just seen
    broker.do(broker.wish())
    assert [effect.session_id for effect in broker.advance(5_000) if isinstance(effect, ReceiverOpened)] == [
        "later"
    ]


def test_accept_next_times_out(broker: Broker) -> None:
    """Req: G-04"""
    wish = broker.wish(wait_ms=10_000)
    broker.do(wish)
    assert broker.advance(9_999) == []
    (effect,) = broker.advance(1)
    assert isinstance(effect, LinkRefused)
    assert effect.link == wish.link
    assert isinstance(effect.error, SessionWaitTimedOut)
    broker.send(session_id="a")
    assert broker.accept().session_id == "a"


@pytest.mark.parametrize("how", ["close", "drop", "break"])
def test_a_cancelled_wait_never_gets_a_session(broker: Broker, how: str) -> None:
    """Req: G-04, L-13"""
    wish = broker.wish(connection=7)
    broker.do(wish)
    if how == "close":
        broker.do(CloseLink(wish.link))
    else:
        broker.drop(7, broken=how == "break")
    assert broker.do(Send(4, arriving(session_id="a"), EMPTY, None)) == []
    assert broker.accept().session_id == "a"
    assert broker.advance(MINUTE_MS - 1) == []


def test_many_cancelled_waits_leave_nothing_behind(broker: Broker) -> None:
    for _ in range(300):
        wish = broker.wish()
        broker.do(wish)
        broker.do(CloseLink(wish.link))
    sessions = broker.namespace._queues[4].sessions
    assert sessions is not None
    assert len(sessions._wait_ends) < 100


def test_a_holder_gets_what_stands_behind_many_expired_messages(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Req: G-01, E-02, T-08"""
    monkeypatch.setattr("peeklock.broker.queue.delivery.PASS_OVER_MAX", 2)
    for _ in range(5):
        broker.send(session_id="a", ttl_ms=1_000)
    last = broker.send(session_id="a")
    opened = broker.accept("a")
    broker.jump(1_000)
    assert broker.do(SetCredit(opened.link, 2, LOTS, drain=True)) == []
    delivered, drained = broker.settle_time()
    assert isinstance(delivered, Deliver)
    assert delivered.message.position == last.position
    assert drained == Drained(opened.link)


def test_renewal_prolongs_all_that_is_held(broker: Broker) -> None:
    """Req: G-02, L-18"""
    broker.send(session_id="a")
    opened = broker.accept("a")
    (delivery,) = broker.credit(opened.link)
    for _ in range(60 * 5):  # hours
        broker.advance(59_000)
        renewed = broker.one(RenewSessionLock(Address("orders"), "a", broker.reply_to()), SessionLockRenewed)
        assert renewed.locked_until_ms == broker.now_ms + MINUTE_MS
    broker.complete(delivery)
    assert broker.peek() == []


def test_messages_of_a_session_are_not_renewed_one_by_one(broker: Broker) -> None:
    """Req: G-02"""
    broker.send(session_id="a")
    (delivery,) = broker.credit(broker.accept("a").link)
    error = broker.refused(RenewLocks(Address("orders"), [token(delivery)], broker.reply_to()))
    assert isinstance(error, InvalidOperation)


def test_only_the_connection_that_holds_a_session_may_ask_for_it(broker: Broker) -> None:
    """Req: G-02, G-03"""
    broker.send(session_id="a")
    broker.accept("a", connection=1)
    where = Address("orders")
    for command in (
        RenewSessionLock(where, "a", broker.reply_to(2)),
        GetSessionState(where, "a", broker.reply_to(2)),
        SetSessionState(where, "a", b"x", broker.reply_to(2)),
        RenewSessionLock(where, "unknown", broker.reply_to(1)),
    ):
        assert isinstance(broker.refused(command), SessionLockLost)


@pytest.mark.parametrize("to", list(Disposition))
def test_only_the_holder_of_a_session_settles_its_messages_by_token(broker: Broker, to: Disposition) -> None:
    """Also one that was received by number, and in a transaction. Req: L-14, G-02. Source: contract C20."""
    for _ in range(2):
        broker.send(session_id="a")
    opened = broker.accept("a", connection=1)
    first, second = broker.credit(opened.link)
    broker.accept("b", connection=2)
    broker.defer(second)
    (fetched,) = broker.receive_deferred(2, session_id="a")
    for view in (first, fetched):
        for named in ("a", "b", None):
            asked = disposition(broker, view, to, connection=2, session_id=named)
            assert isinstance(broker.refused(asked), SessionLockLost)
    transaction_id = broker.declare(broker.coordinator(2))
    asked = disposition(broker, first, to, connection=2)
    assert isinstance(broker.refused(Enlist(2, transaction_id, asked)), SessionLockLost)
    for view in (first, fetched):
        broker.one(disposition(broker, view, to, connection=1), Done)


@pytest.mark.parametrize(("how", "count"), [("close", 0), ("end of connection", 0), ("broken connection", 1)])
def test_a_session_is_released_with_its_link(broker: Broker, how: str, count: int) -> None:
    """Req: L-13, L-08, G-02"""
    broker.send(session_id="a")
    opened = broker.accept("a", connection=5)
    broker.credit(opened.link)
    if how == "close":
        broker.do(CloseLink(opened.link))
    else:
        broker.drop(5, broken=how == "broken connection")
    (delivery,) = broker.credit(broker.accept("a").link)
    assert delivery.delivery_count == count


def test_an_abandoned_message_comes_next_again(broker: Broker) -> None:
    """Req: G-01, L-07"""
    for _ in range(3):
        broker.send(session_id="a")
    opened = broker.accept("a")
    first, second = broker.credit(opened.link, 2)
    broker.abandon(first)
    assert numbers(broker.credit(opened.link, 4)) == [1, 3]
    broker.complete(second)


def test_the_last_attempt_dead_letters_out_of_a_session(broker: Broker) -> None:
    """Req: L-08, L-17, G-01"""
    broker.update(max_delivery_count=1)
    broker.send(session_id="a")
    (delivery,) = broker.credit(broker.accept("a").link)
    broker.abandon(delivery)
    (dead,) = broker.receive_dead()  # by a receiver without sessions
    assert dead.message.sequence_number == 1
    broker.complete(dead, 5)


def test_receive_and_delete_from_a_session(broker: Broker) -> None:
    """Req: L-01, G-01"""
    broker.send(session_id="a")
    broker.send(session_id="a")
    opened = broker.accept("a", deletes=True)
    assert numbers(broker.credit(opened.link, 1)) == [1]
    assert numbers(broker.peek()) == [2]
    broker.do(CloseLink(opened.link))
    assert numbers(broker.credit(broker.accept().link)) == [2]


def test_deferred_messages_are_fetched_under_the_lock_of_their_session(broker: Broker) -> None:
    """Req: G-05"""
    broker.send(session_id="a")
    broker.send(session_id="b")
    opened = broker.accept("a")
    (delivery,) = broker.credit(opened.link)
    broker.defer(delivery)
    assert listed(broker) == ["a", "b"]
    (view,) = broker.receive_deferred(1, session_id="a")
    assert view.state is MessageState.DEFERRED
    broker.abandon(view)
    (view,) = broker.receive_deferred(1, session_id="a")
    broker.complete(view)
    mode = ReceiveMode.PEEK_LOCK
    of_another = ReceiveDeferred(Address("orders"), [SequenceNumber(2)], mode, broker.reply_to(), "a")
    assert isinstance(broker.refused(of_another), MessageNotFound)
    broker.do(CloseLink(opened.link))
    not_held = ReceiveDeferred(Address("orders"), [SequenceNumber(1)], mode, broker.reply_to(), "a")
    assert isinstance(broker.refused(not_held), SessionLockLost)


def test_a_deferred_message_of_a_session_shows_the_end_of_its_lock(broker: Broker) -> None:
    """The Java client fails without it. Req: G-05. Source: wire contract C4."""
    broker.send(session_id="a")
    opened = broker.accept("a")
    (delivery,) = broker.credit(opened.link)
    broker.defer(delivery)
    (view,) = broker.receive_deferred(1, session_id="a")
    assert view.locked_until_ms == opened.locked_until_ms
    broker.abandon(view)
    broker.advance(1_000)
    renewed = broker.one(RenewSessionLock(Address("orders"), "a", broker.reply_to()), SessionLockRenewed)
    (view,) = broker.receive_deferred(1, session_id="a")
    assert view.locked_until_ms == renewed.locked_until_ms == broker.now_ms + MINUTE_MS
    broker.abandon(view)
    (deleted,) = broker.receive_deferred(1, session_id="a", deletes=True)
    assert (deleted.lock_token, deleted.locked_until_ms) == (None, 0)


def test_a_deferred_message_held_under_a_session_lock_returns_when_it_lapses(broker: Broker) -> None:
    """Req: G-05, L-08"""
    broker.send(session_id="a")
    opened = broker.accept("a")
    (delivery,) = broker.credit(opened.link)
    broker.defer(delivery)
    broker.receive_deferred(1, session_id="a")
    broker.advance(MINUTE_MS)
    (view,) = broker.peek()
    assert (view.state, view.delivery_count) == (MessageState.DEFERRED, 2)
    broker.accept("a")
    assert broker.receive_deferred(1, session_id="a")


def test_a_deferred_message_of_a_session_is_not_found_without_naming_it(broker: Broker) -> None:
    """Req: G-05"""
    broker.send(session_id="a")
    (delivery,) = broker.credit(broker.accept("a").link)
    broker.defer(delivery)
    where, mode = Address("orders"), ReceiveMode.PEEK_LOCK
    error = broker.refused(ReceiveDeferred(where, [SequenceNumber(1)], mode, broker.reply_to()))
    assert isinstance(error, InvalidOperation)
    error = broker.refused(ReceiveDeferred(where, [SequenceNumber(9)], mode, broker.reply_to(), "a"))
    assert isinstance(error, MessageNotFound)


def test_scheduled_messages_join_their_session_on_activation(broker: Broker) -> None:
    """Req: G-05, S-06"""
    broker.schedule(5_000, session_id="a")
    assert listed(broker) == []
    opened = broker.accept("a")
    assert broker.credit(opened.link) == []
    found = deliveries(broker.advance(5_000))
    assert numbers(found) == [2]
    assert found[0].message.session_id == "a"


def test_a_state_is_kept_replaced_and_cleared(broker: Broker) -> None:
    """Req: G-03"""
    broker.accept("a")
    assert state_record(broker) is None
    set_state(broker, b"one")
    set_state(broker, b"twelve")
    record = state_record(broker)
    assert record is not None
    assert record.size_bytes == 6
    assert broker.view().size_bytes == 6
    set_state(broker, b"")
    assert state_record(broker) is not None
    set_state(broker, None)
    assert state_record(broker) is None
    assert broker.view().size_bytes == 0


def test_a_state_outlives_its_messages_and_a_restart(broker: Broker) -> None:
    """Req: G-03, R-02"""
    broker.send(session_id="a")
    opened = broker.accept("a")
    (delivery,) = broker.credit(opened.link)
    set_state(broker, b"one")
    broker.complete(delivery)
    broker.do(CloseLink(opened.link))
    assert listed(broker) == ["a"]
    broker.restart()
    assert listed(broker) == ["a"]
    broker.accept("a")
    assert state_record(broker) is not None
    set_state(broker, b"two")
    broker.restart()
    broker.accept("a")
    set_state(broker, None)
    broker.restart()
    assert listed(broker) == []
    assert broker.view().size_bytes == 0


def test_a_state_over_the_limit_is_refused(broker: Broker) -> None:
    """Req: G-03, R-05"""
    broker.accept("a")
    set_state(broker, bytes(256 * 1024))
    command = SetSessionState(Address("orders"), "a", bytes(256 * 1024 + 1), broker.reply_to())
    assert isinstance(broker.refused(command), MessageSizeExceeded)


def test_sessions_are_listed_with_messages_or_by_their_states_age(broker: Broker) -> None:
    """Req: G-07"""
    for session_id in "cab":
        broker.send(session_id=session_id)
    opened = broker.accept("old")
    set_state(broker, b"1", "old")
    since_ms = broker.now_ms
    broker.advance(1_000)
    broker.accept("new")
    set_state(broker, b"1", "new")
    assert listed(broker) == ["a", "b", "c", "new", "old"]
    assert listed(broker, since_ms) == ["new"]
    assert listed(broker, since_ms - 1) == ["new", "old"]
    assert listed(broker, skip=1, top=2) == ["b", "c"]
    assert listed(broker, skip=9) == []
    broker.do(CloseLink(opened.link))
    broker.create("plain")
    command = ListSessions(Address("plain"), None, 0, 10, broker.reply_to())
    assert isinstance(broker.refused(command), InvalidOperation)


def test_a_session_is_shown_whoever_holds_it(broker: Broker) -> None:
    broker.send(session_id="A")
    broker.schedule(60_000, session_id="a")

    def shown(session_id: str = "a") -> SessionShown:
        return broker.one(ShowSession(Address("orders"), session_id, broker.reply_to(9)), SessionShown)

    found = shown()
    assert (found.session_id, found.locked_until_ms, found.state) == ("a", 0, None)
    assert (found.active, found.deferred, found.scheduled) == (1, 0, 1)
    broker.accept("a")
    set_state(broker, b"1")
    found = shown()
    assert found.locked_until_ms == broker.now_ms + MINUTE_MS
    assert found.state is not None
    assert found.state.message.size_bytes == 1
    broker.advance(MINUTE_MS)
    assert shown().locked_until_ms == 0
    assert shown("nobody").active == 0
    broker.create("plain")
    command = ShowSession(Address("plain"), "a", broker.reply_to())
    assert isinstance(broker.refused(command), InvalidOperation)


def test_a_session_without_anything_is_forgotten(broker: Broker) -> None:
    broker.send(session_id="a")
    opened = broker.accept("a")
    (delivery,) = broker.credit(opened.link)
    broker.complete(delivery)
    broker.do(CloseLink(opened.link))
    broker.do(CloseLink(broker.accept("never used").link))
    assert broker.namespace.totals().sessions == 0


def test_peek_and_batch_delete_of_one_session(broker: Broker) -> None:
    """Req: S-11, A-06"""
    for session_id in "abab":
        broker.send(session_id=session_id)
    broker.schedule(5_000, session_id="a")
    broker.credit(broker.accept("a").link, 1)
    assert numbers(broker.peek(session_id="a")) == [1, 3, 5]
    # Of a held session only what was delivered is locked, as long as the session is.
    assert [view.locked_until_ms for view in broker.peek(session_id="a")] == [broker.now_ms + MINUTE_MS, 0, 0]
    assert numbers(broker.peek(2, session_id="a")) == [3, 5]
    assert numbers(broker.peek(session_id="a", count=1)) == [1]
    assert broker.peek(session_id="none") == []
    command = DeleteMessages(Address("orders"), 10, broker.now_ms, broker.reply_to(), "a")
    assert broker.one(command, MessagesDeleted).count == 1  # one is locked, one scheduled
    assert numbers(broker.peek(session_id="a")) == [1, 5]
    assert numbers(broker.peek(session_id="b")) == [2, 4]


def test_a_changed_entity_drops_the_locks_of_its_sessions(broker: Broker) -> None:
    """Req: L-12"""
    broker.send(session_id="a")
    opened = broker.accept("a")
    broker.credit(opened.link)
    broker.update(user_metadata="note")  # this leaves them alone
    effects = broker.update(lock_duration_ms=30_000)
    (detached,) = [effect for effect in effects if isinstance(effect, DetachLink)]
    assert detached.link == opened.link
    assert isinstance(detached.error, SessionLockLost)
    (delivery,) = broker.credit(broker.accept("a").link)
    assert delivery.delivery_count == 0


def test_a_deleted_or_disabled_entity_lets_nobody_wait(broker: Broker) -> None:
    """Req: G-04, A-04"""
    broker.send(session_id="held")
    held = broker.accept()
    broker.do(broker.wish())
    effects = broker.update(status=EntityStatus.DISABLED)
    assert {type(effect) for effect in effects if isinstance(effect, LinkRefused | DetachLink)} == {
        LinkRefused,
        DetachLink,
    }
    broker.update(status=EntityStatus.ACTIVE)
    held = broker.accept()
    broker.do(broker.wish())
    effects = broker.do(DeleteEntity("orders", broker.reply_to()))
    errors = {effect.link: effect.error for effect in effects if isinstance(effect, LinkRefused | DetachLink)}
    assert len(errors) == 2
    assert held.link in errors
    assert all(isinstance(error, EntityDeleted) for error in errors.values())


def test_locks_and_waits_do_not_survive_a_restart_but_messages_do(broker: Broker) -> None:
    """Req: L-12, G-01"""
    for session_id in "ab":
        broker.send(session_id=session_id)
    broker.credit(broker.accept("a").link)
    broker.restart()
    assert [broker.accept().session_id for _ in range(2)] == ["a", "b"]


def test_expired_messages_leave_their_session(broker: Broker) -> None:
    """Req: E-02, E-08, G-01"""
    broker.update(dead_lettering_on_expiration=True)
    broker.send(session_id="a", ttl_ms=1_000)
    broker.send(session_id="a")
    broker.send(session_id="gone", ttl_ms=1_000)
    broker.advance(1_000)
    assert listed(broker) == ["a"]
    assert numbers(broker.credit(broker.accept().link)) == [2]
    assert len(broker.peek_dead()) == 2


def test_a_locked_message_of_a_session_expires_when_its_session_is_released(broker: Broker) -> None:
    """Req: E-03"""
    broker.send(session_id="a", ttl_ms=1_000)
    opened = broker.accept("a")
    broker.credit(opened.link)
    broker.advance(2_000)
    assert numbers(broker.peek()) == [1]
    broker.do(CloseLink(opened.link))
    assert broker.peek() == []


def test_a_longer_default_saves_what_ran_out_while_its_session_was_held(broker: Broker) -> None:
    """What an update sets counts when it drops the locks. Req: L-12, E-03, E-04"""
    broker.update(default_ttl_ms=1_000)
    broker.send(session_id="a")
    broker.credit(broker.accept("a").link)
    broker.advance(1_000)
    broker.update(default_ttl_ms=MINUTE_MS)
    broker.settle_time()
    assert len(broker.peek()) == 1


def test_duplicates_are_found_within_and_across_sessions() -> None:
    """Req: D-01"""
    broker = Broker()
    broker.create(requires_session=True, requires_duplicate_detection=True)
    broker.send(session_id="a", message_id=b"1")
    broker.send(session_id="a", message_id=b"1")
    broker.send(session_id="b", message_id=b"1")
    broker.send(session_id="b", message_id=b"2")
    assert numbers(broker.peek()) == [1, 2]


def test_a_long_session_with_many_gone_messages_stays_in_order(broker: Broker) -> None:
    for _ in range(500):
        broker.send(session_id="a")
    opened = broker.accept("a")
    kept: list[Deliver] = []
    for _ in range(250):
        keep, gone = broker.credit(opened.link, 2 + 2 * len(kept))
        broker.complete(gone)
        kept.append(keep)
    for delivery in reversed(kept):
        broker.abandon(delivery)
    assert numbers(broker.credit(opened.link, LOTS)) == list(range(1, 500, 2))


@pytest.mark.parametrize("partitioned", [False, True])
def test_a_long_session_is_browsed_from_where_the_reader_is(
    partitioned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Req: S-11, T-08"""
    broker = Broker()
    broker.create(requires_session=True, enable_partitioning=partitioned)
    broker.checks = False
    for number in range(1_000):
        broker.send(session_id="ab"[number % 2])
    opened = broker.accept("a")
    for delivery in broker.credit(opened.link, 300):
        broker.complete(delivery)
    looked_at: list[int] = []
    find = MessageQueue.find

    def noting(queue: MessageQueue, position: int) -> Any:
        looked_at.append(position)
        return find(queue, position)

    monkeypatch.setattr(MessageQueue, "find", noting)
    read: list[int] = []
    while found := numbers(broker.peek(read[-1] + 1 if read else 0, 10, session_id="a")):
        read += found
    assert len(read) == 200
    assert read == sorted(read)
    assert len(looked_at) < 1_000
    assert numbers(broker.peek(1, 1, session_id="nobody")) == []


def test_a_pre_settled_send_wakes_who_waits(broker: Broker) -> None:
    """Req: G-04, T-06"""
    broker.do(broker.wish())
    effects = broker.do(Send(4, arriving(session_id="a"), EMPTY, None))
    assert [type(effect) for effect in effects] == [ReceiverOpened]
