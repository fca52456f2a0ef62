"""What is known of the messages that left recently."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Properties, scan
from peeklock.broker.content.routing import routing_of
from peeklock.broker.record.history import (
    BODY_BYTES_MAX,
    DELIVERIES_MAX,
    Delivery,
    Ending,
    Entry,
    History,
    Outcome,
)
from peeklock.broker.vocabulary.commands import (
    Address,
    CancelScheduled,
    ClaimMessages,
    CommitClaims,
    PurgeMessages,
    Send,
    SetCredit,
    SubQueue,
)
from peeklock.broker.vocabulary.effects import Accepted, Claimed, ClaimsLeft
from peeklock.broker.vocabulary.message import Message, MessageState
from peeklock.rules.filters import SqlFilter
from tests.broker.harness import LOTS, MINUTE_MS, START_MS, Broker


def payload_of(data: bytes = b"body", **properties: Any) -> bytes:
    return encode_message(properties=Properties(message_id="m"), application_properties=properties, data=data)


class Remembering(Broker):
    """A broker with a history."""

    def __init__(self, size: int = 50, **settings: Any) -> None:
        self.history = History(size)
        super().__init__(history=self.history, **settings)

    def put(self, queue_id: int = 4, payload: bytes | None = None, **fields: Any) -> Message:
        payload = payload_of() if payload is None else payload
        message = Message(len(payload), routing=routing_of(scan(payload), None), **fields)
        assert isinstance(self.do(Send(queue_id, message, scan(payload), self.reply_to()))[0], Accepted)
        return message

    def entries(self) -> list[Entry]:
        """Return all entries, the oldest first."""
        return self.history.newest(None, 1_000)[::-1]


@pytest.fixture(params=["captured", "not captured"])
def broker(request: pytest.FixtureRequest) -> Remembering:
    if request.param == "captured":
        made = Remembering()
    else:
        made = Remembering(captures_body=None)
        made.checks = False  # which read events
    made.create()
    return made


def test_a_completed_message_is_remembered_with_who_took_it(broker: Remembering) -> None:
    """Req: A-08"""
    payload = payload_of(colour="red")
    broker.put(payload=payload, ttl_ms=MINUTE_MS)
    link = broker.receiver(connection=7)
    (delivery,) = broker.credit(link, 1)
    broker.jump(300)
    assert broker.history.newest(None, 9) == []
    broker.complete(delivery)
    (entry,) = broker.entries()
    assert (entry.no, entry.address, entry.outcome) == (1, Address("orders"), Outcome.COMPLETED)
    assert (entry.payload, entry.body_cut) == (payload, False)
    assert (entry.view.message, entry.view.ttl_ms) == (delivery.message, MINUTE_MS)
    assert (entry.view.state, entry.view.lock_token) == (MessageState.ACTIVE, None)
    assert (entry.left_at_ms, entry.connection_id) == (START_MS + 300, 1)
    assert entry.deliveries == (Delivery(START_MS, 7, link, None),)
    assert (entry.deliveries_total, entry.reason, entry.moved_to) == (1, None, None)


def test_each_delivery_has_its_ending(broker: Remembering) -> None:
    """Req: A-08, L-07, L-08"""
    broker.update(lock_duration_ms=5_000)
    broker.put()
    broker.abandon(broker.receive()[0])
    broker.release(broker.receive()[0])
    broker.receive()
    broker.advance(5_000)
    broker.defer(broker.receive()[0])
    (view,) = broker.receive_deferred(1, connection=3)
    broker.complete(view)
    (entry,) = broker.entries()
    endings = [Ending.ABANDONED, Ending.RELEASED, Ending.LOCK_LAPSED, Ending.DEFERRED, None]
    assert [delivery.ended for delivery in entry.deliveries] == endings
    assert entry.deliveries[2].ended_at_ms == START_MS + 5_000
    assert (entry.deliveries[-1].connection_id, entry.deliveries[-1].link) == (3, None)
    assert entry.view.delivery_count == 3
    assert entry.view.state is MessageState.DEFERRED


def test_the_last_deliveries_are_kept_and_all_are_counted(broker: Remembering) -> None:
    """Req: A-08, T-08"""
    broker.update(max_delivery_count=1_000)
    broker.put()
    for _ in range(3 * DELIVERIES_MAX):
        broker.abandon(broker.receive()[0])
    broker.complete(broker.receive()[0])
    (entry,) = broker.entries()
    assert len(entry.deliveries) == DELIVERIES_MAX
    assert entry.deliveries_total == 3 * DELIVERIES_MAX + 1
    assert entry.deliveries[-1].ended is None


def test_it_is_told_how_messages_leave(broker: Remembering) -> None:
    """Req: A-08"""
    broker.put()
    broker.receive(deletes=True)
    broker.put(ttl_ms=1_000)
    broker.advance(1_000)
    broker.put()
    broker.do(PurgeMessages(Address("orders"), broker.now_ms, broker.reply_to()))
    broker.settle_time()
    scheduled = broker.put(scheduled_at_ms=broker.now_ms + 1_000)
    broker.do(CancelScheduled(Address("orders"), [scheduled.sequence_number], broker.reply_to()))
    broker.put()
    claimed = broker.one(ClaimMessages(Address("orders"), "c", 1, LOTS, broker.reply_to(5)), Claimed)
    broker.one(CommitClaims(Address("orders"), "c", claimed.no, broker.reply_to()), ClaimsLeft)
    entries = broker.entries()
    assert [entry.outcome for entry in entries] == [
        Outcome.RECEIVED_AND_DELETED,
        Outcome.EXPIRED,
        Outcome.PURGED,
        Outcome.CANCELLED,
        Outcome.COMMITTED,
    ]
    assert [entry.no for entry in entries] == [1, 2, 3, 4, 5]
    assert [entry.deliveries_total for entry in entries] == [1, 0, 0, 0, 1]
    assert entries[4].deliveries[0].connection_id == 5
    assert entries[1].connection_id == 0
    assert all(entry.payload == payload_of() for entry in entries)


def test_a_dead_letter_has_an_entry_for_each_queue_that_it_left(broker: Remembering) -> None:
    """Req: A-08, L-17"""
    broker.put()
    broker.dead_letter(broker.receive()[0], reason="broken")
    (dead,) = broker.receive_dead()
    broker.complete(dead, 5)
    first, second = broker.entries()
    assert (first.outcome, first.reason) == (Outcome.DEAD_LETTERED, "broken")
    assert first.moved_to == "orders/$deadletterqueue"
    assert second.address == Address("orders", SubQueue.DEAD_LETTER)
    assert second.outcome is Outcome.COMPLETED
    assert second.view.message.overlay is not None
    assert first.payload == second.payload == payload_of()
    assert (first.deliveries_total, second.deliveries_total) == (1, 1)


def test_an_expired_message_may_be_a_dead_letter_then(broker: Remembering) -> None:
    """Req: A-08, E-08"""
    broker.update(dead_lettering_on_expiration=True)
    broker.put(ttl_ms=1_000)
    broker.advance(1_000)
    (entry,) = broker.entries()
    assert entry.outcome is Outcome.EXPIRED
    assert (entry.reason, entry.moved_to) == ("TTLExpiredException", "orders/$deadletterqueue")


def test_what_goes_on_by_itself_is_one_message(broker: Remembering) -> None:
    """Req: A-08, F-01, S-07"""
    last = broker.create("last")
    first = broker.create("first", forward_to="last")
    broker.put(first)
    broker.put(last, scheduled_at_ms=START_MS + 1_000)
    broker.put(first, scheduled_at_ms=START_MS + 1_000)
    broker.advance(1_000)
    for view in broker.receive(3, "last"):
        broker.complete(view, last)
    entries = broker.entries()
    assert [entry.address.path for entry in entries] == ["last"] * 3
    assert [entry.payload for entry in entries] == [payload_of()] * 3


def test_each_subscription_has_its_copy_and_nobody_took_what_no_rule_chose(broker: Remembering) -> None:
    """Req: A-08, P-01"""
    topic = broker.create_topic()
    ids = [broker.subscribe(name, SqlFilter("colour = 'red'")) for name in ("one", "two")]
    broker.put(topic, payload_of(colour="blue"))
    broker.put(topic, payload_of(colour="red"))
    broker.publish({"colour": "red"}, topic_id=topic, scheduled_at_ms=START_MS + 1_000)
    for queue_id, name in zip(ids, ("one", "two"), strict=True):
        (view,) = broker.receive(name=f"news/Subscriptions/{name}")
        broker.complete(view, queue_id)
    unmatched, *completed = broker.entries()
    assert (unmatched.outcome, unmatched.address) == (Outcome.UNMATCHED, Address("news"))
    assert unmatched.payload == payload_of(colour="blue")
    paths = [entry.address.path for entry in completed]
    assert paths == ["news/Subscriptions/one", "news/Subscriptions/two"]
    assert [entry.payload for entry in completed] == [payload_of(colour="red")] * 2


@pytest.mark.parametrize("size", [BODY_BYTES_MAX + 1, 10 * BODY_BYTES_MAX])
def test_a_large_body_is_cut(broker: Remembering, size: int) -> None:
    """Req: A-08, T-08"""
    broker.put(payload=payload_of(bytes(range(256)) * (size // 256 + 1), colour="red"))
    broker.receive(deletes=True)
    (entry,) = broker.entries()
    assert entry.body_cut
    assert entry.payload is not None
    sections = scan(entry.payload)
    assert sections.decode_application_properties() == {"colour": "red"}
    assert sections.decode_body() == [("data", bytes(range(256)) * (BODY_BYTES_MAX // 256))]


def test_a_large_body_that_is_no_data_is_left_out(broker: Remembering) -> None:
    """Req: A-08, T-08"""
    broker.put(payload=encode_message(properties=Properties(message_id="m"), value="x" * 9_000))
    broker.put(payload=payload_of(b"x" * 4_000, large="y" * 9_000))
    broker.receive(2, deletes=True)
    first, second = broker.entries()
    assert first.body_cut
    assert first.payload is not None
    assert scan(first.payload).body is None
    assert scan(first.payload).decode_properties().message_id == "m"
    assert (second.payload, second.body_cut) == (payload_of(b"x" * 4_000, large="y" * 9_000), False)


def test_what_was_stored_before_the_start_has_no_payload(broker: Remembering) -> None:
    """Req: A-08"""
    broker.put()
    broker.abandon(broker.receive()[0])
    if broker.checks:
        broker.checks = False
    broker.settings["history"] = broker.history = History(9)
    broker.restart()
    broker.complete(broker.receive()[0])
    (entry,) = broker.entries()
    assert (entry.payload, entry.body_cut, entry.deliveries_total) == (None, False, 1)
    assert entry.view.delivery_count == 1


def test_the_ring_and_what_is_followed_are_bounded() -> None:
    """Req: A-08, T-08"""
    broker = Remembering(3)
    broker.create()
    for _ in range(8):
        broker.put()
    held = broker.receive(5)
    assert (len(broker.history.lives), len(broker.history.late)) == (3, 3)
    for view in held:
        broker.complete(view)
    (newest,) = broker.history.newest(None, 1)
    assert (newest.no, newest.payload, newest.deliveries_total) == (5, None, 1)
    broker.receive(3, deletes=True)
    assert [entry.no for entry in broker.history.newest(None, 9)] == [8, 7, 6]
    assert all(entry.payload == payload_of() for entry in broker.entries())
    assert broker.history.lives == broker.history.late == {}


def test_entries_are_paged_backwards(broker: Remembering) -> None:
    """Req: A-08"""
    for _ in range(7):
        broker.put()
    broker.receive(7, deletes=True)
    history = broker.history
    assert [entry.no for entry in history.newest(None, 3)] == [7, 6, 5]
    assert [entry.no for entry in history.newest(5, 3)] == [4, 3, 2]
    assert [entry.no for entry in history.newest(2, 3)] == [1]
    assert history.newest(1, 3) == history.newest(-5, 3) == history.newest(None, 0) == []
    assert [entry.no for entry in history.newest(100, 1)] == [7]


def test_without_capture_no_batch_is_made_for_it() -> None:
    """Req: T-08"""
    broker = Remembering(captures_body=None)
    broker.checks = False
    broker.create()
    broker.put()
    broker.do(SetCredit(broker.receiver(), 1, LOTS))
    assert broker.namespace.take_events() is None
    broker.namespace.flush_events()
    assert not broker.namespace.events_due
    broker.restart()
    assert not broker.namespace.events_due
    assert broker.namespace.take_events() is None


@settings(max_examples=50, deadline=None)
@given(
    size=st.integers(1, 6),
    steps=st.lists(st.sampled_from(["put", "take", "abandon", "dead_letter", "take dead"]), max_size=30),
)
def test_each_message_that_leaves_has_one_entry(size: int, steps: list[str]) -> None:
    """Req: A-08"""
    broker = Remembering(size)
    broker.create(max_delivery_count=2)
    left = 0
    for step in steps:
        if step == "put":
            broker.put()
        elif step == "take dead":
            left += len(broker.receive_dead(deletes=True))
        else:
            for view in broker.receive():
                if step == "take":
                    broker.complete(view)
                elif step == "dead_letter":
                    broker.dead_letter(view)
                else:
                    broker.abandon(view)
                left += step != "abandon" or view.delivery_count == 1
    assert broker.history.last_no == left
    assert [entry.no for entry in broker.entries()] == [*range(max(1, left - size + 1), left + 1)]
