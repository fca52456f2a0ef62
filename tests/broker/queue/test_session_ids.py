"""Which session ids are one, and what of a session keeps its spelling."""

from __future__ import annotations

import sys
import unicodedata
from typing import Any

import pytest

from peeklock.broker.namespace import SLICE
from peeklock.broker.queue.session_ids import folded
from peeklock.broker.vocabulary.changes import MessageRemoved, MessageStored
from peeklock.broker.vocabulary.commands import (
    Address,
    ClaimMessages,
    CloseLink,
    Defer,
    DeleteMessages,
    Enlist,
    ListSessions,
    Peek,
    RenewSessionLock,
    Send,
    SequenceNumber,
    SetSessionState,
)
from peeklock.broker.vocabulary.effects import (
    Claimed,
    Done,
    MessagesDeleted,
    MessagesFound,
    ReceiverOpened,
    SessionLockRenewed,
    SessionsFound,
)
from peeklock.broker.vocabulary.errors import InvalidOperation, SessionCannotBeLocked
from peeklock.broker.vocabulary.events import EventType
from peeklock.rules.filters import CorrelationFilter
from tests.broker.harness import EMPTY, LOTS, MINUTE_MS, Broker, arriving, numbers, token

ORDERS = Address("orders")


@pytest.fixture
def broker() -> Broker:
    made = Broker()
    made.create(requires_session=True)
    return made


def listed(broker: Broker, since_ms: int | None = None, skip: int = 0, top: int = 100) -> list[str]:
    return broker.one(ListSessions(ORDERS, since_ms, skip, top, broker.reply_to()), SessionsFound).session_ids


def set_state(broker: Broker, session_id: str, state: bytes | None = b"state") -> None:
    broker.one(SetSessionState(ORDERS, session_id, state, broker.reply_to()), Done)


def spellings(views: list[Any]) -> list[str]:
    return [view.message.session_id for view in views]


def peeked(broker: Broker, session_id: str, number: int = 0) -> list[int]:
    command = Peek(ORDERS, SequenceNumber(number), 99, LOTS, broker.reply_to(), session_id)
    return numbers(broker.one(command, MessagesFound).messages)


# Folding


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("order-7", "ORDER-7"),
        ("Straße", "STRAßE"),
        ("σίσυφος", "ΣΊΣΥΦΟΣ"),
        ("\u03c2", "\u03c3"),  # the sigma at the end of a word and the other one
        ("âéñ", "ÂÉÑ"),
        ("µ", "μ"),  # the sign of the Latin-1 block and the Greek letter
        ("ᾳ", "ᾼ"),  # one letter, though its full mapping is two
        ("ǆ", "ǅ"),
        ("привет", "ПРИВЕТ"),
        ("𐐨", "𐐀"),
        ("", ""),
    ],
)
def test_spellings_of_one_session(one: str, other: str) -> None:
    """Req: C27"""
    assert folded(one) == folded(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("\u0131", "I"),  # Turkish: in no language, and nothing becomes ASCII
        ("\u0131", "i"),
        ("İ", "i"),
        ("İ", "I"),
        ("\u017f", "s"),  # long
        ("ß", "SS"),
        ("ß", "ẞ"),
        ("ﬁ", "FI"),
        ("\u212a", "k"),  # the sign for kelvin
        ("\u00e9", "e\u0301"),  # composed and not
        ("a", "a "),
    ],
)
def test_ids_of_different_sessions(one: str, other: str) -> None:
    """Req: C27. As .NET's ordinal comparison has them."""
    assert folded(one) != folded(other)


def test_every_letter_folds_alone_to_one_letter_that_stays() -> None:
    """Req: C27"""
    for letter in filter(str.isalpha, map(chr, range(sys.maxunicode + 1))):
        upper = folded(letter)
        assert len(upper) == 1
        if upper != letter:
            assert unicodedata.category(letter) in {"Ll", "Lt"}, letter
            assert upper.isascii() == letter.isascii()
            assert folded(upper) == upper
            assert folded(f"a{letter}B") == f"A{upper}B"


def test_lone_surrogates_fold_to_themselves() -> None:
    """Some clients send them. Req: C27, R-05"""
    assert folded("a\udc80") == "A\udc80"


# Sessions


def test_messages_of_all_spellings_are_one_session_and_keep_their_own(broker: Broker) -> None:
    """Req: C27, G-01"""
    for session_id in ("Ab", "other", "aB", "AB", "Ab"):
        broker.send(session_id=session_id)
    opened = broker.accept("ab")
    assert opened.session_id == "ab"  # as it was asked for
    found = broker.credit(opened.link, 9)
    assert numbers(found) == [1, 3, 4, 5]
    assert spellings(found) == ["Ab", "aB", "AB", "Ab"]
    assert isinstance(broker.refused(broker.wish("AB", connection=2)), SessionCannotBeLocked)
    assert listed(broker) == ["Ab", "other"]


def test_the_next_session_is_named_as_its_first_message_names_it(broker: Broker) -> None:
    """Req: C27. Whatever its state is; one that is gone is no message of it."""
    for session_id in ("Ab", "aB", "AB"):
        broker.send(session_id=session_id)
    for expected in ("Ab", "aB", "AB"):
        opened = broker.accept()
        assert opened.session_id == expected
        assert listed(broker) == [expected]
        broker.complete(broker.credit(opened.link)[0])
        broker.do(CloseLink(opened.link))
    broker.send(session_id="ab")
    broker.send(session_id="AB")
    opened = broker.accept("aB")
    first, *_ = broker.credit(opened.link, 1)
    broker.do(Defer(4, token(first), broker.reply_to()))
    broker.do(CloseLink(opened.link))
    assert broker.accept().session_id == "ab"
    broker.restart()
    assert broker.accept().session_id == "ab"


def test_a_waiting_receiver_gets_a_session_that_another_spelling_makes_available(broker: Broker) -> None:
    """Req: C27, G-01"""
    held = broker.accept("ab")
    broker.do(broker.wish(None, connection=2))
    broker.send(session_id="AB")
    (opened,) = [e for e in broker.do(CloseLink(held.link)) if isinstance(e, ReceiverOpened)]
    assert opened.session_id == "AB"


def test_what_is_asked_of_a_session_may_be_spelt_in_any_way(broker: Broker) -> None:
    """Req: C27, G-02, G-03, G-05, A-06"""
    for session_id in ("ab", "AB", "x"):
        broker.send(session_id=session_id)
    opened = broker.accept("aB")
    broker.one(RenewSessionLock(ORDERS, "AB", broker.reply_to()), SessionLockRenewed)
    first, *_ = broker.credit(opened.link, 1)
    broker.do(Defer(4, token(first), broker.reply_to()))
    assert numbers(broker.receive_deferred(1, session_id="Ab")) == [1]
    assert peeked(broker, "Ab") == [1, 2]
    assert peeked(broker, "Ab", 2) == [2]
    command = DeleteMessages(ORDERS, 9, broker.now_ms, broker.reply_to(), "aB")
    assert broker.one(command, MessagesDeleted).count == 1
    assert numbers(broker.peek()) == [1, 3]


def test_a_state_is_that_of_all_spellings(broker: Broker) -> None:
    """Req: C27, G-03, G-07. A session with a state alone is named as its holder named it."""
    opened = broker.accept("Ab")
    set_state(broker, "AB")
    broker.do(CloseLink(opened.link))
    assert listed(broker) == ["Ab"]
    broker.restart()
    assert listed(broker) == listed(broker, broker.now_ms - MINUTE_MS) == ["Ab"]
    broker.accept("ab")
    set_state(broker, "ab", None)
    assert listed(broker) == []
    assert broker.view().size_bytes == 0


def test_sessions_are_listed_in_the_order_of_their_folded_ids(broker: Broker) -> None:
    """Req: C27, G-07. Page by page."""
    for session_id in ("b", "C", "a", "Ä", "é", "_"):
        broker.send(session_id=session_id)
    assert listed(broker) == ["a", "b", "C", "_", "Ä", "é"]
    assert [listed(broker, skip=skip, top=2) for skip in (0, 2, 4, 6)] == [
        ["a", "b"],
        ["C", "_"],
        ["Ä", "é"],
        [],
    ]


def test_a_lapsed_session_is_found_by_any_spelling(broker: Broker) -> None:
    """Req: C27, G-02. Its first holder's link goes when another spelling of it is accepted, or used."""
    for use in (
        lambda: broker.wish("AB", connection=2),
        lambda: RenewSessionLock(ORDERS, "aB", broker.reply_to()),
    ):
        broker.send(session_id="ab")
        opened = broker.accept("ab")
        broker.advance(MINUTE_MS)
        effects = broker.do(use())
        (detached,) = [effect for effect in effects if getattr(effect, "link", None) == opened.link]
        assert "'ab'" in str(detached.error)  # type: ignore[union-attr]  # or it fails
        broker.drop(2)


def test_a_cursor_claims_all_spellings_as_one_session(broker: Broker) -> None:
    """Req: C27, X-06"""
    for session_id in ("ab", "AB"):
        broker.send(session_id=session_id)
    command = ClaimMessages(ORDERS, "lake", 1, LOTS, broker.reply_to())
    assert broker.one(command, Claimed).count == 1
    assert isinstance(broker.refused(broker.wish("aB")), SessionCannotBeLocked)
    broker.restart()
    assert isinstance(broker.refused(broker.wish("aB")), SessionCannotBeLocked)
    assert broker.one(ClaimMessages(ORDERS, "lake", 9, LOTS, broker.reply_to()), Claimed).count == 1


def test_events_of_a_session_carry_the_spelling_that_was_asked_for(broker: Broker) -> None:
    """Req: C27, X-03. Those of its messages carry theirs."""
    broker.send(session_id="AB")
    for asked, said in (("ab", "ab"), (None, "AB")):
        broker.events.clear()
        opened = broker.accept(asked)
        broker.credit(opened.link)
        broker.do(CloseLink(opened.link))
        kinds = (EventType.SESSION_LOCKED, EventType.SESSION_RELEASED)
        assert [event.session_id for event in broker.events if event.type in kinds] == [said, said]
        assert {event.session_id for event in broker.events if event.type not in kinds} == {"AB"}


def test_the_key_of_duplicates_and_the_partition_key_are_compared_exactly() -> None:
    """Req: C27, D-01. In an entity with partitions an id counts together with the session id as sent."""
    broker = Broker()
    broker.create(requires_session=True, enable_partitioning=True, requires_duplicate_detection=True)
    for session_id in ("ab", "AB", "ab"):
        broker.send(session_id=session_id, message_id=b"\xa1\x01m")
    assert len(broker.peek()) == 2


def test_a_rule_sees_the_session_id_as_it_was_sent() -> None:
    """Req: C27, P-01"""
    broker = Broker()
    broker.create_topic()
    broker.subscribe("exact", CorrelationFilter(session_id="ab"))
    for session_id in ("ab", "AB"):
        broker.publish(group_id=session_id)
    assert len(broker.peek(name="news/Subscriptions/exact")) == 1


# Partitions


def partitioned() -> Broker:
    broker = Broker()
    broker.create(requires_session=True, enable_partitioning=True)
    return broker


def test_all_spellings_are_in_one_partition() -> None:
    """Req: C27, S-02"""
    broker = partitioned()
    for name in "abcdefgh":
        found = {broker.send(session_id=one).sequence_number >> 48 for one in (name, name.upper())}
        assert len(found) == 1


def test_a_transaction_takes_all_spellings_of_one_session() -> None:
    """Req: C27, F-03. And no other session."""
    broker = partitioned()
    transaction = broker.declare(broker.coordinator())
    for session_id in ("ab", "AB"):
        broker.enlist(transaction, Send(4, arriving(session_id=session_id), EMPTY, broker.reply_to()))
    other = Send(4, arriving(session_id="other"), EMPTY, broker.reply_to())
    assert isinstance(broker.refused(Enlist(1, transaction, other)), InvalidOperation)


def respell(broker: Broker, session_id: str, other: str) -> None:
    """Have been stored under another id what is stored under that one, and start anew."""
    for fact in broker.facts:
        if isinstance(fact, MessageStored | MessageRemoved) and fact.message.session_id == session_id:
            fact.message.session_id = other
    broker.restart()


def test_a_session_in_two_partitions_is_received_in_the_order_of_arrival() -> None:
    """Req: C27. As an older release stored it; a peek goes by number, so partition by partition."""
    broker = partitioned()
    sent = [broker.send(session_id=session_id).sequence_number for session_id in "bcbcb"]
    assert sent[0] >> 48 != sent[1] >> 48
    respell(broker, "c", "B")
    in_order = sorted(sent)
    assert peeked(broker, "b") == in_order
    for start in (*in_order, in_order[2] + 1):
        assert peeked(broker, "B", start) == [number for number in in_order if number >= start]
    opened = broker.accept()
    assert opened.session_id == "b"
    assert numbers(broker.credit(opened.link, 9)) == sent
    broker.do(CloseLink(opened.link))
    command = DeleteMessages(ORDERS, 2, broker.now_ms, broker.reply_to(), "b")
    assert broker.one(command, MessagesDeleted).count == 2
    assert sorted(numbers(broker.peek())) == sorted(sent[2:])


# What an older release stored


def test_of_two_stored_states_the_one_set_last_counts(broker: Broker) -> None:
    """Req: C27. The other one is removed by a fact once the broker has started."""
    for session_id, state in (("ab", b"first"), ("other", b"second one"), ("x", b"third")):
        broker.accept(session_id)
        set_state(broker, session_id, state)
    respell(broker, "other", "AB")
    assert broker.namespace.replaced_states() == [("orders", ["ab"])]
    assert listed(broker) == ["AB", "x"]
    broker.advance(0)
    (removed,) = [fact for fact in broker.facts if isinstance(fact, MessageRemoved)]
    assert (removed.message.session_id, removed.message.size_bytes) == ("ab", 5)
    assert broker.view().size_bytes == len(b"second one" + b"third")
    broker.restart()
    assert broker.namespace.replaced_states() == []
    assert listed(broker) == ["AB", "x"]


def test_replaced_states_go_in_slices(broker: Broker) -> None:
    """Req: C27, R-05"""
    broker.checks = False
    for number in range(3 * SLICE):
        opened = broker.accept(f"s{number}")
        set_state(broker, f"s{number}")
        broker.do(CloseLink(opened.link))
    for fact in broker.facts:
        if isinstance(fact, MessageStored):
            fact.message.session_id = "all of them"
    broker.restart()
    removed = []
    while broker.namespace.replaced_states():
        changes, _ = broker.namespace.advance(broker.now_ms)
        removed.append(len(changes))
    assert sum(removed) == 3 * SLICE - 1
    assert max(removed) <= SLICE
    assert listed(broker) == ["all of them"]
