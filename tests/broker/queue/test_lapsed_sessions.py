"""A session's lock that lapses: the session is free at once, its link follows.

Source: wire contract C7, C40.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from peeklock.broker.queue.lapsed_sessions import DETACH_AFTER_MS
from peeklock.broker.vocabulary.commands import (
    Abandon,
    Address,
    ClaimMessages,
    CloseLink,
    Command,
    Complete,
    DeadLetter,
    Defer,
    DeleteEntity,
    Disposition,
    Enlist,
    GetSessionState,
    LockToken,
    Peek,
    ReceiveDeferred,
    ReceiveMode,
    Release,
    RenewSessionLock,
    Send,
    SequenceNumber,
    SetCredit,
    SetSessionState,
    UpdateDisposition,
)
from peeklock.broker.vocabulary.descriptions import EntityStatus
from peeklock.broker.vocabulary.effects import (
    Claimed,
    Deliver,
    DetachLink,
    Drained,
    Effect,
    ReceiverOpened,
    SessionLockLapsed,
    SettlementFailed,
)
from peeklock.broker.vocabulary.errors import EntityDeleted, ServiceBusError, SessionLockLost
from peeklock.broker.vocabulary.events import EventType
from tests.broker.harness import EMPTY, LOTS, MINUTE_MS, Broker, arriving, deliveries, numbers, token

WHERE = Address("orders")


@pytest.fixture
def broker() -> Broker:
    made = Broker()
    made.create(requires_session=True)
    return made


def kinds(effects: list[Effect]) -> list[type]:
    return [type(effect) for effect in effects]


def lapse(broker: Broker) -> tuple[ReceiverOpened, Deliver]:
    """Lapse a session whose only message is delivered and unsettled."""
    broker.send(session_id="a")
    opened = broker.accept("a")
    (delivery,) = broker.credit(opened.link)
    assert kinds(broker.advance(MINUTE_MS)) == [SessionLockLapsed]
    return opened, delivery


def detached(effects: list[Effect]) -> DetachLink:
    (found,) = [effect for effect in effects if isinstance(effect, DetachLink)]
    assert isinstance(found.error, SessionLockLost)
    return found


def test_a_lapse_frees_the_session_at_its_instant_and_detaches_the_link_later(broker: Broker) -> None:
    """Req: G-02, L-08"""
    broker.send(session_id="a")
    opened = broker.accept("a")
    broker.credit(opened.link)
    assert broker.advance(MINUTE_MS - 1) == []
    assert broker.advance(1) == [SessionLockLapsed(opened.link)]
    assert broker.events[-1].type is EventType.SESSION_RELEASED
    assert broker.events[-1].at_ms == opened.locked_until_ms
    assert broker.peek()[0].delivery_count == 1
    assert broker.advance(DETACH_AFTER_MS - 1) == []
    assert detached(broker.advance(1)).link == opened.link
    assert broker.settle_time() == []
    (again,) = broker.credit(broker.accept("a").link)
    assert again.delivery_count == 1


def test_another_receiver_that_gets_the_session_ends_the_link_of_the_last_one(broker: Broker) -> None:
    """Also one that has waited for any. Req: G-02, G-04, G-06"""
    opened, _ = lapse(broker)
    effects = broker.do(broker.wish("a", connection=2))
    assert kinds(effects) == [DetachLink, ReceiverOpened]
    assert detached(effects).link == opened.link
    second = next(effect for effect in effects if isinstance(effect, ReceiverOpened))
    assert broker.do(broker.wish(connection=3)) == []
    broker.do(broker.wish(connection=4))
    effects = broker.advance(MINUTE_MS)
    assert kinds(effects) == [SessionLockLapsed, DetachLink, ReceiverOpened]
    assert detached(effects).link == second.link


def test_who_accepts_the_session_anew_loses_the_old_link_first(broker: Broker) -> None:
    """Req: G-02"""
    opened, _ = lapse(broker)
    effects = broker.do(broker.wish("a", connection=1))
    assert kinds(effects) == [DetachLink, ReceiverOpened]
    assert detached(effects).link == opened.link
    broker.one(RenewSessionLock(WHERE, "a", broker.reply_to()), object)


def test_a_lapsed_session_is_offered_by_age_like_any_other(broker: Broker) -> None:
    """Req: G-06"""
    opened, _ = lapse(broker)
    broker.send(session_id="b")
    assert broker.accept(connection=2).session_id == "a"
    assert broker.accept(connection=2).session_id == "b"
    assert opened.session_id == "a"


def test_nothing_is_delivered_over_the_link_of_a_lapsed_session(broker: Broker) -> None:
    """Whatever its credit. Req: G-02, L-08"""
    opened, _ = lapse(broker)
    assert broker.do(SetCredit(opened.link, LOTS, LOTS)) == []
    assert broker.do(Send(4, arriving(session_id="a"), EMPTY, None)) == []
    assert [view.delivery_count for view in broker.peek()] == [1, 0]


def test_a_drain_of_a_lapsed_session_is_answered_at_once(broker: Broker) -> None:
    """Req: G-02, T-08"""
    opened, _ = lapse(broker)
    broker.send(session_id="a")
    for _ in range(2):
        assert broker.do(SetCredit(opened.link, 100, LOTS, drain=True)) == [Drained(opened.link)]
    assert broker.do(SetCredit(opened.link, 100, LOTS)) == []  # an echo is none


def test_nothing_is_delivered_under_a_lock_that_has_run_out(broker: Broker) -> None:
    """It would count as an attempt, and nobody could settle it. A drain is answered with the lapse.

    Req: G-02, L-08
    """
    broker.send(session_id="a")
    opened = broker.accept("a")
    broker.jump(MINUTE_MS)
    assert broker.credit(opened.link) == []
    assert deliveries(broker.do(Send(4, arriving(session_id="a"), EMPTY, None))) == []
    assert broker.do(SetCredit(opened.link, 5, LOTS, drain=True)) == []
    assert broker.settle_time() == [SessionLockLapsed(opened.link), Drained(opened.link)]
    assert [view.delivery_count for view in broker.peek()] == [0, 0]


Use = Callable[[Broker, LockToken], Command]

USES: dict[str, Use] = {
    "complete": lambda broker, token: Complete(4, token, broker.reply_to()),
    "complete without an answer": lambda broker, token: Complete(4, token, None),
    "abandon": lambda broker, token: Abandon(4, token, broker.reply_to()),
    "defer": lambda broker, token: Defer(4, token, broker.reply_to()),
    "dead-letter": lambda broker, token: DeadLetter(4, token, broker.reply_to()),
    "release": lambda broker, token: Release(4, token, broker.reply_to()),
    "renew": lambda broker, token: RenewSessionLock(WHERE, "a", broker.reply_to()),
    "get state": lambda broker, token: GetSessionState(WHERE, "a", broker.reply_to()),
    "set state": lambda broker, token: SetSessionState(WHERE, "a", b"x", broker.reply_to()),
    "by number": lambda broker, token: ReceiveDeferred(
        WHERE, [SequenceNumber(1)], ReceiveMode.PEEK_LOCK, broker.reply_to(), "a"
    ),
    "by token": lambda broker, token: UpdateDisposition(
        WHERE, [token], Disposition.COMPLETED, broker.reply_to()
    ),
    "by token, with the session": lambda broker, token: UpdateDisposition(
        WHERE, [LockToken(bytes(16))], Disposition.COMPLETED, broker.reply_to(), session_id="a"
    ),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("timer", ["in time", "late"])
def test_who_uses_a_lapsed_session_is_refused_and_loses_the_link(
    broker: Broker, use: str, timer: str
) -> None:
    """The refusal comes first. Req: G-02, L-11"""
    broker.send(session_id="a")
    opened = broker.accept("a")
    (delivery,) = broker.credit(opened.link)
    if timer == "in time":
        broker.advance(MINUTE_MS)
    else:
        broker.jump(MINUTE_MS)
    facts = len(broker.facts)
    effects = broker.do(USES[use](broker, token(delivery)))
    assert len(broker.facts) == facts
    *refusals, gone = [*effects, *broker.settle_time()]
    assert detached([gone]).link == opened.link
    assert [type(refusal.error) for refusal in refusals] == (  # type: ignore[union-attr]  # or it fails
        [] if use == "complete without an answer" else [SessionLockLost]
    )
    assert broker.peek()[0].delivery_count == 1
    assert broker.advance(MINUTE_MS) == []
    broker.accept("a", connection=2)


def test_a_use_within_a_transaction_is_one(broker: Broker) -> None:
    """Req: G-02, F-03"""
    transaction_id = broker.declare(broker.coordinator())
    opened, delivery = lapse(broker)
    asked = Complete(4, token(delivery), broker.reply_to())
    refused, gone = broker.do(Enlist(1, transaction_id, asked))
    assert isinstance(refused, SettlementFailed)
    assert isinstance(refused.error, SessionLockLost)
    assert detached([gone]).link == opened.link


@pytest.mark.parametrize("use", [name for name in USES if "by" in name or name in ("renew", "set state")])
def test_another_connection_that_asks_is_no_use_of_the_holder(broker: Broker, use: str) -> None:
    """Req: G-02, L-14"""
    opened, delivery = lapse(broker)
    command = USES[use](broker, token(delivery))
    command.reply_to = broker.reply_to(2)  # type: ignore[union-attr]  # all of them have one
    assert isinstance(broker.refused(command), SessionLockLost)
    assert detached(broker.advance(DETACH_AFTER_MS)).link == opened.link


def test_a_peek_is_no_use(broker: Broker) -> None:
    """Req: G-02, S-11"""
    opened, _ = lapse(broker)
    effects = broker.do(Peek(WHERE, SequenceNumber(0), 10, LOTS, broker.reply_to(), "a"))
    assert DetachLink not in kinds(effects)
    assert detached(broker.advance(DETACH_AFTER_MS)).link == opened.link


def test_a_change_of_the_entity_ends_the_link_at_once(broker: Broker) -> None:
    """Req: G-02, L-12"""
    opened, _ = lapse(broker)
    assert detached(broker.update(max_delivery_count=5)).link == opened.link
    assert broker.advance(MINUTE_MS) == []


@pytest.mark.parametrize("how", ["delete", "disable"])
def test_deleting_and_disabling_end_the_link_at_once(broker: Broker, how: str) -> None:
    """Req: A-04, A-07"""
    opened, _ = lapse(broker)
    expected: type[ServiceBusError]
    if how == "delete":
        effects, expected = broker.do(DeleteEntity("orders", broker.reply_to())), EntityDeleted
    else:
        effects, expected = (
            broker.update(status=EntityStatus.DISABLED),
            SessionLockLost,
        )  # a change drops locks
    (gone,) = [effect for effect in effects if isinstance(effect, DetachLink)]
    assert (gone.link, type(gone.error)) == (opened.link, expected)


@pytest.mark.parametrize("how", ["close", "drop", "break"])
def test_a_link_of_a_lapsed_session_that_is_gone_leaves_nothing(broker: Broker, how: str) -> None:
    """What lapsed is counted once. Req: L-13, L-08"""
    opened, _ = lapse(broker)
    if how == "close":
        broker.do(CloseLink(opened.link))
    else:
        broker.drop(broken=how == "break")
    assert broker.advance(MINUTE_MS) == []
    (again,) = broker.credit(broker.accept("a", connection=2).link)
    assert again.delivery_count == 1


def test_a_cursor_can_have_a_lapsed_session(broker: Broker) -> None:
    """Req: G-02, X-06"""
    opened, _ = lapse(broker)
    claim = ClaimMessages(WHERE, "spark", 10, LOTS, broker.reply_to())
    assert broker.one(claim, Claimed).count == 1
    assert detached(broker.advance(DETACH_AFTER_MS)).link == opened.link


def test_a_session_that_is_empty_by_its_lapse_is_forgotten_and_its_link_is_not(broker: Broker) -> None:
    """Req: G-02"""
    opened = broker.accept("a")
    broker.advance(MINUTE_MS)
    sessions = broker.namespace._queues[4].sessions
    assert sessions is not None
    assert len(sessions) == 0
    assert detached(broker.advance(DETACH_AFTER_MS)).link == opened.link


def test_links_of_many_lapsed_sessions_are_detached_in_order(broker: Broker) -> None:
    """Req: G-02"""
    links = []
    for number in range(5):
        links.append(broker.accept(f"s{number}").link)
        broker.advance(100)
    gone = [effect.link for effect in broker.advance(2 * MINUTE_MS) if isinstance(effect, DetachLink)]
    assert gone == links


def test_received_and_deleted_the_next_holder_gets_what_is_left(broker: Broker) -> None:
    """Req: L-01, G-02"""
    for _ in range(2):
        broker.send(session_id="a")
    opened = broker.accept("a", deletes=True)
    broker.credit(opened.link, 1)
    broker.advance(MINUTE_MS)
    assert broker.credit(opened.link, 2) == []
    assert numbers(broker.credit(broker.accept("a", connection=2).link)) == [2]
