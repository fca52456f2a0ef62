"""Forwarding between entities: in one frame, with a limit of hops, and what cannot be passed on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from peeklock.amqp import codec
from peeklock.broker.entities import forwarding
from peeklock.broker.vocabulary.changes import MessageRemoved, MessageStored
from peeklock.broker.vocabulary.commands import (
    Address,
    CreateEntity,
    DeleteEntity,
    DeleteMessages,
    Fetched,
    OpenReceiver,
    OpenSender,
    ReceiveMode,
    Send,
    SubQueue,
    UpdateEntity,
)
from peeklock.broker.vocabulary.descriptions import EntityStatus, QueueDescription
from peeklock.broker.vocabulary.effects import (
    Accepted,
    DetachLink,
    Fetch,
    MessagesDeleted,
    Rejected,
    SenderOpened,
)
from peeklock.broker.vocabulary.errors import ArgumentInvalid, EntityDeleted, InvalidOperation, QuotaExceeded
from peeklock.broker.vocabulary.message import Message, MessageView, Routing
from peeklock.broker.vocabulary.quotas import PREMIUM
from tests.broker.harness import EMPTY, MINUTE_MS, Broker, arriving, deliveries, numbers, payload_of

TRANSFERS = SubQueue.TRANSFER_DEAD_LETTER


@pytest.fixture
def broker() -> Broker:
    """Messages to 'a' (4) come to rest in 'b' (8)."""
    made = Broker()
    made.create("a")
    made.create("b")
    made.update("a", forward_to="b")
    return made


def reason_of(view: MessageView) -> str:
    assert view.message.overlay is not None
    reason: str = codec.decode(view.message.overlay)[0]["DeadLetterReason"]
    return reason


def chain(length: int) -> Broker:
    """Make q0 -> q1 -> ... -> q<length>, with queue ids 4, 8, ..."""
    broker = Broker()
    for number in range(length + 1):
        broker.create(f"q{number}")
    for number in range(length):
        broker.update(f"q{number}", forward_to=f"q{number + 1}")
    return broker


def test_a_message_is_passed_on_in_one_frame(broker: Broker) -> None:
    """Req: F-01"""
    broker.create("other")
    facts = len(broker.facts)
    effects = broker.do(Send(4, arriving(), EMPTY, broker.reply_to()))
    assert [type(effect) for effect in effects] == [Accepted]
    stored = [fact for fact in broker.facts[facts:] if isinstance(fact, MessageStored | MessageRemoved)]
    assert [(type(fact), fact.queue_id) for fact in stored] == [(MessageStored, 8)]
    assert broker.peek(name="a") == []
    assert numbers(broker.peek(name="b")) == [1]


def test_the_number_of_the_first_entity_is_kept_and_each_counts_its_own(broker: Broker) -> None:
    """Req: F-01, S-01"""
    broker.send(8)
    broker.send(4)
    broker.send(4)
    views = broker.peek(name="b")
    assert numbers(views) == [1, 2, 3]
    assert [view.message.enqueued_sequence_number for view in views] == [1, 1, 2]
    broker.restart()
    broker.send(4)
    assert broker.peek(name="b")[-1].message.enqueued_sequence_number == 3


def test_a_receiver_of_the_target_gets_it_at_once(broker: Broker) -> None:
    """Req: F-01"""
    link = broker.receiver("b")
    broker.credit(link)
    assert len(deliveries(broker.do(Send(4, arriving(), EMPTY, None)))) == 1


def test_nobody_receives_from_an_entity_that_forwards(broker: Broker) -> None:
    """Req: F-01"""
    command = OpenReceiver(broker.link(), Address("a"), ReceiveMode.PEEK_LOCK)
    assert isinstance(broker.refused(command), InvalidOperation)
    for sub_queue in (SubQueue.DEAD_LETTER, TRANSFERS):
        broker.receiver("a", sub_queue=sub_queue)
    link = broker.receiver("b")
    broker.create("c")
    effects = broker.update("b", forward_to="c")
    assert [effect.link for effect in effects if isinstance(effect, DetachLink)] == [link]


def test_four_hops_are_allowed_and_a_fifth_dead_letters(broker: Broker) -> None:
    """Req: F-01"""
    long = chain(4)
    long.send(4)
    (view,) = long.peek(name="q4")
    assert (view.message.hops, view.message.enqueued_sequence_number) == (4, 1)
    longer = chain(5)
    longer.send(4)
    assert longer.peek(name="q5") == []
    (view,) = longer.peek(name="q4", sub_queue=SubQueue.DEAD_LETTER)
    assert reason_of(view) == "MaxTransferHopCountExceeded"
    longer.restart()
    assert len(longer.peek(name="q4", sub_queue=SubQueue.DEAD_LETTER)) == 1


@pytest.mark.parametrize(
    ("obstacle", "reason"),
    [
        ("deleted", "MessagingEntityNotFound"),
        ("disabled", "MessagingEntityDisabled"),
        ("send-disabled", "MessagingEntityDisabled"),
    ],
)
def test_what_cannot_be_passed_on_goes_to_the_transfer_dead_letter_queue(
    broker: Broker, obstacle: str, reason: str
) -> None:
    """Req: F-01, L-17"""
    if obstacle == "deleted":
        broker.do(DeleteEntity("b", broker.reply_to()))
    else:
        status = EntityStatus.DISABLED if obstacle == "disabled" else EntityStatus.SEND_DISABLED
        broker.update("b", status=status)
    broker.send(4)
    (view,) = broker.peek(name="a", sub_queue=TRANSFERS)
    assert reason_of(view) == reason
    assert view.message.sequence_number == 1
    assert view.message.enqueued_at_ms == broker.now_ms
    assert broker.view("a").transfer_dead_letter_count == 1
    broker.restart()
    assert len(broker.peek(name="a", sub_queue=TRANSFERS)) == 1
    (delivery,) = broker.receive(1, "a", sub_queue=TRANSFERS)
    broker.complete(delivery, 6)
    assert broker.view("a").transfer_dead_letter_count == 0


def test_a_message_over_the_limit_of_the_target_goes_to_the_transfer_dead_letter_queue() -> None:
    """Req: F-01"""
    broker = Broker(PREMIUM)
    broker.create("b")
    broker.create("a", forward_to="b", max_message_size_kb=2048)
    broker.send(8, size=1_500 * 1024)
    (view,) = broker.peek(name="a", sub_queue=TRANSFERS)
    assert reason_of(view) == "MessageSizeExceeded"


def test_a_full_target_rejects_the_sender() -> None:
    """Req: F-01, A-05"""
    broker = Broker(enforce_quotas=True)
    broker.create("b")
    broker.create("a", forward_to="b")
    chunk = 256 * 1024
    broker.checks = False
    for _ in range(1024 * 1024 * 1024 // chunk):
        broker.send(4, size=chunk)
    broker.checks = True
    (effect,) = broker.do(Send(8, arriving(), EMPTY, broker.reply_to()))
    assert isinstance(effect, Rejected)
    assert isinstance(effect.error, QuotaExceeded)
    assert "'b'" in str(effect.error)


@pytest.mark.parametrize("settings", [{"forward_to": "missing"}, {"forward_dead_lettered_to": "missing"}])
def test_a_target_that_cannot_be_is_refused_at_definition(broker: Broker, settings: dict[str, Any]) -> None:
    """Req: F-01"""
    command = CreateEntity(QueueDescription("new", **settings), broker.reply_to())
    assert isinstance(broker.refused(command), ArgumentInvalid)


def test_an_entity_whose_target_is_gone_can_be_changed_otherwise(broker: Broker) -> None:
    """Req: F-01, A-07"""
    broker.do(DeleteEntity("b", broker.reply_to()))
    broker.update("a", max_delivery_count=3)
    assert broker.view("a").description.max_delivery_count == 3
    found: Any = broker.view("a").description
    command = UpdateEntity(replace(found, forward_dead_lettered_to="b"), broker.reply_to())
    assert isinstance(broker.refused(command), ArgumentInvalid)


def test_dead_letters_are_forwarded_with_their_source(broker: Broker) -> None:
    """Req: F-01, L-09"""
    broker.create("graves")
    broker.update("b", forward_dead_lettered_to="graves")
    broker.send(8, ttl_ms=MINUTE_MS)
    (delivery,) = broker.receive(1, "b")
    broker.jump(1_000)
    broker.dead_letter(delivery, 8, reason="why")
    assert broker.peek(name="b", sub_queue=SubQueue.DEAD_LETTER) == []
    (view,) = broker.peek(name="graves")
    message = view.message
    assert (message.dead_letter_source, message.delivery_count, message.hops) == ("b", 0, 1)
    assert (message.enqueued_at_ms, message.enqueued_sequence_number) == (broker.now_ms, 1)
    assert view.ttl_ms == MINUTE_MS  # counted anew
    assert reason_of(view) == "why"
    broker.restart()
    assert broker.peek(name="graves")[0].message.dead_letter_source == "b"


def test_what_expires_is_forwarded_as_a_dead_letter(broker: Broker) -> None:
    """Req: F-01, E-08"""
    broker.create("graves")
    broker.update("b", forward_dead_lettered_to="graves", dead_lettering_on_expiration=True)
    broker.send(8, ttl_ms=1_000)
    link = broker.receiver("graves")
    broker.credit(link)
    (delivery,) = deliveries(broker.advance(1_000))
    assert reason_of(delivery) == "TTLExpiredException"


def test_dead_letters_that_were_there_are_forwarded_once_the_entity_says_so(broker: Broker) -> None:
    """Req: F-01"""
    broker.create("graves")
    for _ in range(3):
        broker.send(8)
    held, *others = broker.receive(3, "b")
    for view in [held, *others]:
        broker.dead_letter(view, 8)
    (locked,) = broker.receive(1, "b", sub_queue=SubQueue.DEAD_LETTER)
    broker.update("b", forward_dead_lettered_to="graves")  # which drops the lock
    broker.advance(0)
    assert broker.peek(name="b", sub_queue=SubQueue.DEAD_LETTER) == []
    assert len(broker.peek(name="graves")) == 3
    assert locked is not None


def test_messages_that_were_there_are_passed_on_in_order_before_newer_ones(broker: Broker) -> None:
    """Req: F-01, A-07"""
    broker.create("c")
    for _ in range(3):
        broker.send(8)
    broker.update("b", forward_to="c")
    broker.send(8)
    assert len(broker.peek(name="b")) == 4
    broker.advance(0)
    assert broker.peek(name="b") == []
    views = broker.peek(name="c")
    assert [view.message.enqueued_sequence_number for view in views] == [1, 2, 3, 4]


def test_scheduled_messages_are_passed_on_when_they_are_due(broker: Broker) -> None:
    """Req: F-01, S-06"""
    broker.schedule(5_000, name="a")
    assert broker.peek(name="b") == []
    broker.advance(5_000)
    (view,) = broker.peek(name="b")
    assert view.message.enqueued_at_ms == broker.now_ms
    assert broker.peek(name="a") == []


def test_a_target_with_sessions_wants_a_session_id() -> None:
    """Req: F-01, G-01"""
    broker = Broker()
    broker.create("b", requires_session=True)
    broker.create("a", forward_to="b")
    broker.send(8, session_id="s")
    broker.send(8)
    assert [view.message.session_id for view in broker.peek(name="b")] == ["s"]
    (view,) = broker.peek(name="a", sub_queue=TRANSFERS)
    assert reason_of(view) == "Session ID is null."


def test_duplicates_are_dropped_at_the_target_too() -> None:
    """Req: F-01, D-01"""
    broker = Broker()
    broker.create("b", requires_duplicate_detection=True)
    broker.create("a", forward_to="b")
    broker.send(8, message_id=b"1")
    broker.send(8, message_id=b"1")
    broker.send(4, message_id=b"1")
    assert len(broker.peek(name="b")) == 1


def test_the_gateway_is_told_to_read_what_the_end_of_a_chain_needs() -> None:
    """Req: F-01"""
    broker = Broker()
    broker.create("c", requires_session=True)
    broker.create("b", forward_to="c")
    broker.create("a", forward_to="b")
    broker.create("plain")
    for name, expected in (("a", True), ("plain", False)):
        opened = broker.one(OpenSender(broker.link(), Address(name)), SenderOpened)
        assert opened.reads_routing is expected
    via = OpenSender(broker.link(), Address("plain"), Address("a"))
    assert broker.one(via, SenderOpened).reads_routing


def test_a_message_of_which_too_little_is_known_waits_until_it_was_read() -> None:
    """Req: F-01"""
    broker = Broker()
    broker.create("b", requires_session=True)
    broker.create("a", forward_to="b")
    effects = []
    for _ in range(3):
        effects += broker.do(Send(8, Message(10), EMPTY, None))
    effects += broker.advance(0)
    asked = [effect for effect in effects if isinstance(effect, Fetch)]
    assert [fetch.message.sequence_number for fetch in asked] == [1, 2, 3]
    assert broker.advance(MINUTE_MS) == []  # it is asked once
    for fetch, session_id in reversed([*zip(asked, ("x", None, "y"), strict=True)]):
        broker.do(
            Fetched(fetch.queue_id, fetch.message.position, payload_of(Routing(None, session_id, None)))
        )
    broker.do(Fetched(8, 99, payload_of(Routing())))
    broker.advance(0)
    views = broker.peek(name="b")
    assert [(view.message.session_id, view.message.enqueued_sequence_number) for view in views] == [
        ("x", 1),
        ("y", 3),
    ]
    assert len(broker.peek(name="a", sub_queue=TRANSFERS)) == 1
    assert broker.peek(name="a") == []


def test_parked_messages_are_asked_for_again_after_a_restart() -> None:
    """Req: F-01, R-02"""
    broker = Broker()
    broker.create("b", requires_session=True)
    broker.create("a", forward_to="b")
    broker.do(Send(8, Message(10), EMPTY, None))
    broker.restart()
    (fetch,) = broker.advance(0)
    assert isinstance(fetch, Fetch)
    broker.do(Fetched(fetch.queue_id, fetch.message.position, payload_of(Routing(None, "s", None))))
    broker.advance(0)
    assert len(broker.peek(name="b")) == 1


def test_dead_letters_for_a_target_with_sessions_are_read_first() -> None:
    """Req: F-01, G-01"""
    broker = Broker()
    broker.create("graves", requires_session=True)
    broker.create("a", forward_dead_lettered_to="graves", max_delivery_count=1)
    broker.send(8, session_id="s")
    (delivery,) = broker.receive(1, "a")
    broker.abandon(delivery, 8)
    (fetch,) = [effect for effect in broker.advance(0) if isinstance(effect, Fetch)]
    broker.do(Fetched(fetch.queue_id, fetch.message.position, payload_of(Routing(None, "s", None))))
    broker.advance(0)
    (view,) = broker.peek(name="graves")
    assert (view.message.session_id, view.message.dead_letter_source) == ("s", "a")


def test_sending_via_an_entity_ends_at_the_destination_or_in_its_transfer_dead_letters(
    broker: Broker,
) -> None:
    """Req: F-03, F-01"""
    broker.create("via")
    destination = Address("b")
    (effect,) = broker.do(Send(12, arriving(), EMPTY, broker.reply_to(), destination))
    assert isinstance(effect, Accepted)
    (view,) = broker.peek(name="b")
    assert view.message.enqueued_sequence_number == 1
    broker.do(DeleteEntity("b", broker.reply_to()))
    broker.do(Send(12, arriving(), EMPTY, broker.reply_to(), destination))
    (view,) = broker.peek(name="via", sub_queue=TRANSFERS)
    assert view.message.sequence_number == 2
    assert broker.peek(name="via") == []


def test_a_time_to_live_is_capped_on_the_way_and_counts_from_the_arrival(broker: Broker) -> None:
    """Req: F-01, E-04"""
    broker.update("a", default_ttl_ms=60_000)
    broker.send(4, ttl_ms=90_000)
    broker.send(4)
    first, second = broker.peek(name="b")
    assert (first.ttl_ms, second.ttl_ms) == (60_000, None)


def test_a_receiver_of_dead_letters_may_hold_one_that_waits_to_be_read() -> None:
    """Req: F-01, L-02"""
    broker = Broker()
    broker.create("graves", requires_session=True)
    broker.create("a", forward_dead_lettered_to="graves", max_delivery_count=1)
    broker.send(8, session_id="s")
    link = broker.receiver("a", sub_queue=SubQueue.DEAD_LETTER)
    (delivery,) = broker.receive(1, "a")
    broker.abandon(delivery, 8)
    (held,) = broker.credit(link)
    fetches = [effect for effect in broker.advance(0) if isinstance(effect, Fetch)]
    for fetch in fetches:
        broker.do(Fetched(fetch.queue_id, fetch.message.position, payload_of(Routing(None, "s", None))))
    broker.advance(0)
    broker.complete(held, 9)
    assert broker.peek(name="graves") == []


def forwarding_to_sessions(count: int) -> tuple[Broker, list[Fetch]]:
    """Return the fetches of so many messages of 'a' (8) that are pending for 'b' (4)."""
    broker = Broker()
    broker.create("b", requires_session=True)
    broker.create("a", forward_to="b")
    for _ in range(count):
        broker.do(Send(8, Message(10, ttl_ms=MINUTE_MS), EMPTY, None))
    return broker, [effect for effect in broker.advance(0) if isinstance(effect, Fetch)]


def answer(broker: Broker, fetches: list[Fetch]) -> list[Fetch]:
    """Answer fetches; return the next ones."""
    for fetch in fetches:
        broker.do(Fetched(fetch.queue_id, fetch.message.position, payload_of(Routing(None, "s", None))))
    return [effect for effect in broker.advance(0) if isinstance(effect, Fetch)]


def test_messages_that_go_while_they_are_read_do_not_hold_up_those_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Req: F-01, A-06"""
    monkeypatch.setattr(forwarding, "FETCH_MAX", 2)
    broker, asked = forwarding_to_sessions(5)
    assert len(asked) == 2
    broker.one(DeleteMessages(Address("a"), 2, broker.now_ms, broker.reply_to()), MessagesDeleted)
    while asked:
        asked = answer(broker, asked)
    assert len(broker.peek(name="b")) == 3
    assert broker.peek(name="a") == []


def test_nothing_is_kept_of_messages_that_went_before_they_were_passed_on() -> None:
    """Req: F-01"""
    broker, asked = forwarding_to_sessions(3)
    answer(broker, asked[1:])
    broker.advance(MINUTE_MS)
    answer(broker, asked[:1])
    assert not broker.namespace._entities.forwarding._asked


@pytest.mark.parametrize("forward_to", [None, "plain"])
def test_nothing_is_kept_of_what_was_asked_for_a_forward_that_is_no_more(forward_to: str | None) -> None:
    """Req: F-01, A-07"""
    broker, asked = forwarding_to_sessions(3)
    broker.create("plain")
    answer(broker, asked[2:])
    broker.update("a", forward_to=forward_to)
    assert answer(broker, asked[:2]) == []
    assert len(broker.peek(name=forward_to or "a")) == 3
    assert not broker.namespace._entities.forwarding._asked


def test_a_dead_letter_that_is_given_back_is_passed_on() -> None:
    """Req: F-01, L-07"""
    broker = Broker()
    broker.create("graves", requires_session=True)
    broker.create("a", forward_dead_lettered_to="graves", max_delivery_count=1)
    broker.send(8)
    (delivery,) = broker.receive(1, "a")
    link = broker.receiver("a", sub_queue=SubQueue.DEAD_LETTER)
    broker.abandon(delivery, 8)
    (held,) = broker.credit(link, 1)
    assert broker.advance(0) == []
    broker.abandon(held, 9)
    answer(broker, [effect for effect in broker.advance(0) if isinstance(effect, Fetch)])
    assert len(broker.peek(name="graves")) == 1


def test_what_is_sent_via_a_queue_need_not_be_fit_for_it() -> None:
    """Its sessions and its duplicates are of no concern to messages that only pass. Req: F-01, F-03"""
    broker = Broker()
    broker.create("via", requires_session=True, requires_duplicate_detection=True)
    broker.create("b")
    for _ in range(2):
        message = arriving(message_id=b"1")
        effects = broker.do(Send(4, message, EMPTY, broker.reply_to(), Address("b")))
        assert [type(effect) for effect in effects] == [Accepted]
    assert len(broker.peek(name="b")) == 2


def test_what_is_sent_via_a_queue_may_come_back_to_it() -> None:
    """Req: F-01, D-01"""
    broker = Broker()
    broker.create("via", requires_duplicate_detection=True)
    broker.create("b", forward_to="via")
    for destination in (Address("b"), Address("via"), Address("b")):
        broker.do(Send(4, arriving(message_id=b"1"), EMPTY, broker.reply_to(), destination))
    (view,) = broker.peek(name="via")
    assert view.message.hops == 2


def test_a_scheduled_message_sent_via_a_queue_is_scheduled_at_its_destination(broker: Broker) -> None:
    """Req: F-01, S-05"""
    broker.create("via")
    message = arriving(scheduled_at_ms=broker.now_ms + 5_000)
    broker.do(Send(12, message, EMPTY, broker.reply_to(), Address("b")))
    assert broker.view("b").scheduled_count == 1
    broker.restart()
    broker.advance(5_000)
    assert (len(broker.peek(name="b")), broker.peek(name="via")) == (1, [])
    broker.do(DeleteEntity("b", broker.reply_to()))
    message = arriving(scheduled_at_ms=broker.now_ms + 5_000)
    broker.do(Send(12, message, EMPTY, broker.reply_to(), Address("b")))
    assert len(broker.receive(1, "via", sub_queue=TRANSFERS)) == 1


def test_a_destination_that_was_made_anew_with_other_needs_refuses_what_does_not_tell_them(
    broker: Broker,
) -> None:
    """The link was told not to read them. Req: F-01, F-03"""
    broker.create("via")
    command = OpenSender(broker.link(), Address("via"), Address("b"))
    assert not broker.one(command, SenderOpened).reads_routing
    broker.do(DeleteEntity("b", broker.reply_to()))
    broker.create("b", requires_session=True)
    error = broker.refused(Send(12, Message(100), EMPTY, broker.reply_to(), Address("b")))
    assert isinstance(error, EntityDeleted)
    broker.do(Send(12, arriving(session_id="s"), EMPTY, broker.reply_to(), Address("b")))
    assert len(broker.peek(name="b")) == 1


def test_a_queue_that_only_passes_on_need_not_have_room() -> None:
    """Req: F-01, A-05"""
    broker = Broker(enforce_quotas=True)
    broker.create("c")
    broker.create("b", forward_to="c")
    broker.create("a", forward_to="b")
    broker.namespace._queues[9].size_bytes = 1 << 40  # dead letters
    broker.checks = False
    broker.send(12)
    assert len(broker.peek(name="c")) == 1


def test_a_target_that_remembers_too_many_ids_rejects_the_sender() -> None:
    """Req: F-01, D-01, T-08"""
    broker = Broker()
    broker.create("b", requires_duplicate_detection=True)
    broker.create("a", forward_to="b", forward_dead_lettered_to="b")
    broker.schedule(1_000, name="a", message_id=b"later")
    duplicates = broker.namespace._queues[4].duplicates
    assert duplicates is not None
    duplicates.count_max = 2
    for message_id in (b"1", b"2"):
        broker.send(8, message_id=message_id)
    error = broker.refused(Send(8, arriving(message_id=b"3"), EMPTY, broker.reply_to()))
    assert isinstance(error, QuotaExceeded)
    answer(broker, [effect for effect in broker.advance(1_000) if isinstance(effect, Fetch)])
    (view,) = broker.peek(name="a", sub_queue=TRANSFERS)
    assert reason_of(view) == "QuotaExceeded"
