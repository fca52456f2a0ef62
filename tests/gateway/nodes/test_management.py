"""The `$management` node: each operation, each error, the envelope."""

from __future__ import annotations

import uuid
from functools import partial
from typing import Any

import pytest

from peeklock.amqp.codec import decode_typed
from peeklock.amqp.encoding import encode
from peeklock.amqp.events import DeliveryReceived, DispositionReceived, LinkDetached, LinkDrained
from peeklock.amqp.messaging import scan
from peeklock.amqp.performatives import ACCEPTED, Rejected
from peeklock.amqp.types import Array, Int, Long, Role, Symbol, Timestamp, UByte, UInt, ULong
from peeklock.auth import Authority, Right, SasRule
from peeklock.broker.vocabulary.addresses import LockToken
from peeklock.broker.vocabulary.commands import (
    Address,
    CancelScheduled,
    DeleteMessages,
    Disposition,
    LookUp,
    Peek,
    PurgeMessages,
    ReceiveDeferred,
    ReceiveMode,
    RenewLocks,
    Schedule,
    SequenceNumber,
    SubQueue,
    UpdateDisposition,
)
from peeklock.broker.vocabulary.effects import (
    Done,
    EntityFound,
    Failed,
    LocksRenewed,
    MessagesDeleted,
    MessagesFound,
    MessagesScheduled,
)
from peeklock.broker.vocabulary.errors import (
    ArgumentInvalid,
    EntityDisabled,
    EntityNotFound,
    MessageLockLost,
    MessageNotFound,
    QuotaExceeded,
)
from peeklock.broker.vocabulary.message import Message, MessageState, Routing
from peeklock.gateway.context import GatewayLimits
from peeklock.gateway.nodes.management import OPERATIONS, encode_found
from tests.gateway.harness import (
    KEY,
    KEY_NAME,
    TOKEN,
    Harness,
    ask,
    message_bytes,
    refused,
    section,
    view,
    view_of_queue,
)

NODE = "orders/$management"


@pytest.fixture
def rig() -> Harness:
    return Harness()


@pytest.fixture
def sender(rig: Harness) -> int:
    return rig.pair(NODE)[0]


# Operations


@pytest.mark.parametrize(
    "tokens",
    [
        Array.of(uuid.UUID, [TOKEN, uuid.UUID(int=2)]),
        [TOKEN, uuid.UUID(int=2)],
        [str(TOKEN), str(uuid.UUID(int=2))],
    ],
)
def test_renew_lock_answers_an_array_of_timestamps(rig: Harness, sender: int, tokens: Any) -> None:
    """Req: L-03. Tokens as uuids or strings, in an array or a list. Source: wire contract 5.1, 5.2, 0.4."""
    ask(rig, sender, "renew-lock", {"lock-tokens": tokens})
    command = rig.take(RenewLocks)
    assert (command.address, command.lock_tokens) == (
        Address("orders"),
        [TOKEN.bytes_le, uuid.UUID(int=2).bytes_le],
    )
    rig.effect(LocksRenewed(command.reply_to, [5, 6]))
    response = rig.response()
    assert (response.status, response.condition) == (200, None)
    assert response.body == {"expirations": [5, 6]}
    assert b"\xa1\x0bexpirations" + encode(Array.of(Timestamp, [5, 6])) in response.raw


@pytest.mark.parametrize("size", [0, 1, 200, 243, 244, 255, 256, 70_000])
@pytest.mark.parametrize("token", [None, TOKEN])
def test_a_found_message_is_encoded_as_any_map(size: int, token: uuid.UUID | None) -> None:
    message = bytes(size)
    item: dict[str, Any] = {"message": message} | ({} if token is None else {"lock-token": token})
    assert encode_found(message, None if token is None else LockToken(token.bytes_le)) == encode(item)


def test_a_single_renewal_is_an_array_too(rig: Harness, sender: int) -> None:
    """Source: wire contract 5.2."""
    ask(rig, sender, "renew-lock", {"lock-tokens": Array.of(uuid.UUID, [TOKEN])})
    rig.effect(LocksRenewed(rig.take(RenewLocks).reply_to, [1_700_000_000_000]))
    expected = b"\xe0\x0a\x01\x83" + (1_700_000_000_000).to_bytes(8, "big")
    assert rig.response().raw.endswith(b"\xa1\x0bexpirations" + expected)


@pytest.mark.parametrize("error", [MessageLockLost("gone")])
def test_a_lost_lock_is_410(rig: Harness, sender: int, error: MessageLockLost) -> None:
    """Req: L-11."""
    ask(rig, sender, "renew-lock", {"lock-tokens": [TOKEN]})
    rig.effect(Failed(rig.take(RenewLocks).reply_to, error))
    refused(rig, 410, "com.microsoft:message-lock-lost")


@pytest.mark.parametrize(
    ("start", "count", "expected"),
    [
        (Long(0), Int(1), (0, 1)),
        (5, ULong(7), (5, 7)),
        (Long(-3), UByte(1), (0, 1)),
        (Int(2), 10**9, (2, 4096)),
    ],
)
def test_peek_asks_from_a_number(
    rig: Harness, sender: int, start: Any, count: Any, expected: tuple[int, int]
) -> None:
    """Req: S-11, R-05. Source: wire contract 5.2: a negative number is the start."""
    ask(rig, sender, "peek-message", {"from-sequence-number": start, "message-count": count})
    command = rig.take(Peek)
    assert (command.address, command.from_sequence_number, command.count_max) == (
        Address("orders"),
        *expected,
    )
    assert command.bytes_max == GatewayLimits().reply_bytes_max


def test_peeked_messages_are_whole_messages_without_a_lock(rig: Harness, sender: int) -> None:
    """Req: S-11, S-08. Each shows its state. Source: wire contract 5.2, 3.2."""
    ask(rig, sender, "peek-message", {"from-sequence-number": Long(0), "message-count": Int(9)})
    states = [MessageState.ACTIVE, MessageState.DEFERRED, MessageState.SCHEDULED]
    views = []
    for number, state in enumerate(states, 1):
        rig.payloads[number] = message_bytes(str(number).encode())
        views.append(view(rig.payloads[number], number, state=state, delivery_count=number))
    rig.effect(MessagesFound(rig.take(Peek).reply_to, views))
    response = rig.response()
    assert response.status == 200
    assert isinstance(response.body["messages"], list)
    assert not isinstance(response.body["messages"], Array)
    for number, item in enumerate(response.body["messages"], 1):
        assert set(item) == {"message"}
        sections = scan(item["message"])
        annotations = sections.decode_message_annotations()
        assert annotations["x-opt-sequence-number"] == number
        assert annotations["x-opt-message-state"] == number - 1
        assert "x-opt-locked-until" not in annotations
        assert sections.delivery_annotations is None
        assert sections.decode_header().delivery_count == number
        assert item["message"].endswith(section(0x75, str(number).encode()))


@pytest.mark.parametrize(("omit", "omitted"), [(True, True), (False, False), (None, False)])
def test_peek_leaves_the_bodies_out_where_it_is_asked_to(
    rig: Harness, sender: int, omit: bool | None, omitted: bool
) -> None:
    """Req: S-11. All other sections are there. Source: wire contract 5.2, C8."""
    asked = {"from-sequence-number": Long(0), "message-count": Int(9), "omit-message-body": omit}
    ask(rig, sender, "peek-message", asked)
    footer = section(0x78, {Symbol("k"): 1})
    head = message_bytes(b"", properties=["id"], application_properties={"n": 1})[: -len(section(0x75, b""))]
    bodies = [section(0x75, b"a") + section(0x75, b"b"), section(0x77, {"a": 1}), section(0x76, [1]), b""]
    views = []
    for number, body in enumerate(bodies, 1):
        rig.payloads[number] = head + body + footer
        views.append(view(rig.payloads[number], number))
    rig.effect(MessagesFound(rig.take(Peek).reply_to, views))
    for item, body in zip(rig.response().body["messages"], bodies, strict=True):
        sections = scan(item["message"])
        assert sections.message_annotations is not None
        assert item["message"].endswith(head + (b"" if omitted else body) + footer)
        assert (sections.body is None) == (omitted or not body)


def test_whether_to_leave_bodies_out_is_a_boolean(rig: Harness, sender: int) -> None:
    """Req: R-05"""
    asked = {"from-sequence-number": Long(0), "message-count": Int(9), "omit-message-body": "yes"}
    ask(rig, sender, "peek-message", asked)
    refused(rig, 400, "com.microsoft:argument-error")


@pytest.mark.parametrize("operation", ["peek-message", "receive-by-sequence-number"])
def test_nothing_found_is_204_with_an_empty_body(rig: Harness, sender: int, operation: str) -> None:
    """Source: wire contract 5.2."""
    body = {"from-sequence-number": 1, "message-count": 1, "sequence-numbers": [1]}
    ask(rig, sender, operation, body)
    command: Any
    [command] = rig.commands
    rig.effect(MessagesFound(command.reply_to, []))
    response = rig.response()
    assert (response.status, response.body) == (204, {})


@pytest.mark.parametrize(
    ("setting", "mode"),
    [
        (UInt(1), ReceiveMode.PEEK_LOCK),
        (UByte(0), ReceiveMode.RECEIVE_AND_DELETE),
        (None, ReceiveMode.PEEK_LOCK),
    ],
)
def test_deferred_messages_are_received_by_number_in_either_mode(
    rig: Harness, sender: int, setting: Any, mode: ReceiveMode
) -> None:
    """Req: L-10. The lock token is a uuid in RFC order. Source: wire contract 5.2, 3.4."""
    numbers = Array.of(Long, [3, 4])
    ask(
        rig,
        sender,
        "receive-by-sequence-number",
        {"sequence-numbers": numbers, "receiver-settle-mode": setting},
    )
    command = rig.take(ReceiveDeferred)
    assert (command.address, command.sequence_numbers, command.mode) == (Address("orders"), [3, 4], mode)
    payload = rig.payloads[3] = message_bytes()
    locks = mode is ReceiveMode.PEEK_LOCK
    found = view(
        payload,
        3,
        lock_token=TOKEN.bytes_le if locks else None,
        locked_until_ms=rig.clock.now_ms + 60_000 if locks else 0,
        state=MessageState.DEFERRED,
    )
    rig.effect(MessagesFound(command.reply_to, [found]))
    response = rig.response()
    [item] = response.body["messages"]
    annotations = scan(item["message"]).decode_message_annotations()
    assert annotations["x-opt-message-state"] == 1
    if locks:
        assert item["lock-token"] == TOKEN
        assert b"\xa1\x0alock-token\x98" + TOKEN.bytes in response.raw
        assert annotations["x-opt-locked-until"] == rig.clock.now_ms + 60_000
    else:
        assert "lock-token" not in item
        assert "x-opt-locked-until" not in annotations


def test_a_number_that_is_not_deferred_is_404(rig: Harness, sender: int) -> None:
    """Req: L-10, T-03."""
    ask(
        rig,
        sender,
        "receive-by-sequence-number",
        {"sequence-numbers": [Long(9)], "receiver-settle-mode": UInt(1)},
    )
    rig.effect(Failed(rig.take(ReceiveDeferred).reply_to, MessageNotFound("no 9")))
    refused(rig, 404, "com.microsoft:message-not-found")


def test_an_answer_whose_bodies_are_not_in_memory_waits_and_others_pass(rig: Harness, sender: int) -> None:
    """Req: S-11."""
    for number in (1, 2):
        ask(
            rig,
            sender,
            "peek-message",
            {"from-sequence-number": number, "message-count": 1},
            message_id=f"m{number}",
        )
    slow, fast = rig.take(Peek), rig.take(Peek)
    rig.payloads[2] = message_bytes(b"2")
    rig.effect(
        MessagesFound(slow.reply_to, [view(message_bytes(b"1"), 1), view(message_bytes(b"2"), 2)]),
        MessagesFound(fast.reply_to, [view(message_bytes(b"2"), 2)]),
    )
    assert rig.response().correlation_id == "m2"
    assert rig.gateway.bodies_wanted() == {1}
    arrived = {1: message_bytes(b"1")}  # the other one is in memory no longer
    rig.gateway.bodies_arrived(lambda message: arrived.get(message.body_row), rig.clock.now_ms)
    rig.pump()
    response = rig.response()
    assert response.correlation_id == "m1"
    assert [item["message"][-1:] for item in response.body["messages"]] == [b"1", b"2"]
    assert rig.gateway.bodies_wanted() == set()


def _body_of(arrived: dict[int, bytes], message: Message) -> bytes | None:
    return arrived.get(message.body_row)


def test_an_answer_waits_for_the_last_of_its_bodies(rig: Harness, sender: int) -> None:
    """Req: S-11. Each read of the store brings some."""
    ask(rig, sender, "peek-message", {"from-sequence-number": 1, "message-count": 3})
    views = [view(message_bytes(str(number).encode()), number) for number in (1, 2, 3)]
    rig.effect(MessagesFound(rig.take(Peek).reply_to, views))
    for number, left in ((3, {1, 2}), (1, {2}), (2, set())):
        assert not any(type(event) is DeliveryReceived for event in rig.events)
        arrived = {number: message_bytes(str(number).encode())}
        rig.gateway.bodies_arrived(partial(_body_of, arrived), rig.clock.now_ms)
        rig.pump()
        assert rig.gateway.bodies_wanted() == left
    assert [item["message"][-1:] for item in rig.response().body["messages"]] == [b"1", b"2", b"3"]


@pytest.mark.parametrize("message_id", ["text", uuid.UUID(int=7), None])
def test_schedule_reads_messages_and_answers_an_array_of_longs(
    rig: Harness, sender: int, message_id: Any
) -> None:
    """Req: S-05, S-06. Source: wire contract 5.2; JavaScript reads the elements as 8 bytes each."""
    payload = message_bytes(
        properties=[message_id, *[None] * 9, "s"],
        annotations={Symbol("x-opt-scheduled-enqueue-time"): Timestamp(1_700_000_099_000)},
    )
    item = {"message-id": message_id, "message": payload, "session-id": "s", "partition-key": None}
    ask(rig, sender, "schedule-message", {"messages": [item, {"message": message_bytes()}]})
    command = rig.take(Schedule)
    assert command.address == Address("orders")
    [(first, sections), (second, _)] = command.messages
    assert (first.scheduled_at_ms, first.size_bytes, sections.payload) == (
        1_700_000_099_000,
        len(payload),
        payload,
    )
    assert first.routing == Routing(None if message_id is None else encode(message_id), "s")
    assert second.scheduled_at_ms == rig.clock.now_ms  # no time given: now
    rig.effect(MessagesScheduled(command.reply_to, [SequenceNumber(7), SequenceNumber(8)]))
    response = rig.response()
    assert (response.status, response.body) == (200, {"sequence-numbers": [7, 8]})
    golden = b"\xa1\x10sequence-numbers\xe0\x12\x02\x81" + (7).to_bytes(8, "big") + (8).to_bytes(8, "big")
    assert response.raw.endswith(golden)


def test_one_bad_message_refuses_the_whole_schedule(rig: Harness, sender: int) -> None:
    """Req: S-05."""
    bad = message_bytes(properties=["m" * 129])
    ask(rig, sender, "schedule-message", {"messages": [{"message": message_bytes()}, {"message": bad}]})
    refused(rig, 400, "com.microsoft:argument-error")
    bad = message_bytes(application_properties={"k": "v" * 32_769})
    ask(rig, sender, "schedule-message", {"messages": [{"message": message_bytes()}, {"message": bad}]})
    refused(rig, 400, "amqp:not-allowed")
    ask(rig, sender, "schedule-message", {"messages": [{"message": b"nonsense"}]})
    refused(rig, 400, "amqp:decode-error")
    assert rig.commands == []


@pytest.mark.parametrize("numbers", [Array.of(Long, [1, 2]), [Int(1), ULong(2)]])
def test_cancel_answers_200_or_404(rig: Harness, sender: int, numbers: Any) -> None:
    """Req: S-06. Source: wire contract 5.2."""
    ask(rig, sender, "cancel-scheduled-message", {"sequence-numbers": numbers})
    command = rig.take(CancelScheduled)
    assert (command.address, command.sequence_numbers) == (Address("orders"), [1, 2])
    rig.effect(Done(command.reply_to))
    response = rig.response()
    assert (response.status, response.body) == (200, {})
    ask(rig, sender, "cancel-scheduled-message", {"sequence-numbers": numbers})
    rig.effect(Failed(rig.take(CancelScheduled).reply_to, MessageNotFound("fired")))
    refused(rig, 404, "com.microsoft:message-not-found")


@pytest.mark.parametrize(
    ("status", "disposition"),
    [
        ("completed", Disposition.COMPLETED),
        ("abandoned", Disposition.ABANDONED),
        ("suspended", Disposition.SUSPENDED),
        ("defered", Disposition.DEFERRED),
        ("deferred", Disposition.DEFERRED),
        ("Completed", Disposition.COMPLETED),
    ],
)
def test_update_disposition_settles_by_token(
    rig: Harness, sender: int, status: str, disposition: Disposition
) -> None:
    """Req: L-14. Source: wire contract 4.4, 5.2."""
    body = {"disposition-status": status, "lock-tokens": Array.of(uuid.UUID, [TOKEN])}
    ask(rig, sender, "update-disposition", body)
    command = rig.take(UpdateDisposition)
    assert (command.address, command.lock_tokens, command.disposition) == (
        Address("orders"),
        [TOKEN.bytes_le],
        disposition,
    )
    assert (command.reason, command.description, command.properties) == (None, None, None)
    rig.effect(Done(command.reply_to))
    assert (rig.response().status, rig.commands) == (200, [])


def test_reason_description_and_properties_come_along(rig: Harness, sender: int) -> None:
    """Req: L-14, L-09. Values keep their types."""
    body = {
        "disposition-status": "suspended",
        "lock-tokens": [TOKEN],
        "deadletter-reason": "why",
        "deadletter-description": "because",
        "properties-to-modify": {"tries": UInt(3), "gone": None},
        "session-id": None,
    }
    ask(rig, sender, "update-disposition", body)
    command = rig.take(UpdateDisposition)
    assert (command.reason, command.description) == ("why", "because")
    assert command.properties == {"tries": 3, "gone": None}
    assert command.properties is not None
    assert type(command.properties["tries"]) is UInt
    rig.effect(Failed(command.reply_to, MessageLockLost("gone")))
    refused(rig, 410, "com.microsoft:message-lock-lost")


def test_a_reason_that_is_no_text_keeps_its_type(rig: Harness, sender: int) -> None:
    """Req: C31. A symbol is text, a null nothing."""
    body: dict[str, Any] = {
        "disposition-status": "suspended",
        "lock-tokens": [TOKEN],
        "deadletter-reason": Timestamp(5),
        "deadletter-description": Symbol("because"),
        "properties-to-modify": {"DeadLetterReason": "another", "tries": UInt(3)},
    }
    ask(rig, sender, "update-disposition", body)
    command = rig.take(UpdateDisposition)
    assert (command.reason, command.description) == (None, "because")
    assert command.properties == {"DeadLetterReason": Timestamp(5), "tries": UInt(3)}
    assert type(command.properties["DeadLetterReason"]) is Timestamp
    ask(
        rig,
        sender,
        "update-disposition",
        {**body, "deadletter-reason": None, "deadletter-description": 5},
    )
    command = rig.take(UpdateDisposition)
    assert (command.reason, command.description) == (None, None)
    told = {"DeadLetterReason": "another", "DeadLetterErrorDescription": 5, "tries": 3}
    assert command.properties == told
    ask(rig, sender, "update-disposition", {**body, "disposition-status": "abandoned"})
    assert rig.take(UpdateDisposition).properties == body["properties-to-modify"]


@pytest.mark.parametrize("asked", [1, 4000])
def test_batch_delete_answers_how_many(rig: Harness, sender: int, asked: int) -> None:
    """Req: A-06. Source: wire contract 5.2."""
    ask(
        rig,
        sender,
        "batch-delete-messages",
        {"message-count": Int(asked), "enqueued-time-utc": Timestamp(99)},
    )
    command = rig.take(DeleteMessages)
    assert (command.address, command.count_max, command.enqueued_before_ms) == (Address("orders"), asked, 99)
    rig.effect(MessagesDeleted(command.reply_to, 1))
    response = rig.response()
    assert (response.status, response.body) == (200, {"message-count": 1})
    body = scan(response.raw).body
    assert body is not None
    value = decode_typed(response.raw, body[0] + 3)[0]["message-count"]
    assert type(value) is Int
    ask(
        rig,
        sender,
        "batch-delete-messages",
        {"message-count": Int(asked), "enqueued-time-utc": Timestamp(99)},
    )
    rig.effect(MessagesDeleted(rig.take(DeleteMessages).reply_to, 0))
    assert rig.response().status == 204


@pytest.mark.parametrize(("at", "passed"), [(Timestamp(99), 99), (None, None), (Long(2**62), 2**62)])
def test_purge_answers_how_many_even_none(rig: Harness, sender: int, at: Any, passed: int | None) -> None:
    """Req: A-06. All that was enqueued until now, unless a time is given."""
    for count in (0, 1_000_000):
        ask(rig, sender, "peeklock:purge-messages", {} if at is None else {"enqueued-time-utc": at})
        command = rig.take(PurgeMessages)
        assert command.address == Address("orders")
        assert command.enqueued_before_ms == (rig.clock.now_ms if passed is None else passed)
        rig.effect(MessagesDeleted(command.reply_to, count))
        response = rig.response()
        assert (response.status, response.condition, response.body) == (200, None, {"message-count": count})


def test_the_dead_letter_queue_has_a_node_of_its_own(rig: Harness) -> None:
    """Req: L-17. Source: wire contract 5.1."""
    sender, _ = rig.pair("orders/$DeadLetterQueue/$management")
    ask(rig, sender, "peek-message", {"from-sequence-number": 0, "message-count": 1})
    assert rig.take(Peek).address == Address("orders", SubQueue.DEAD_LETTER)


# Refusals


@pytest.mark.parametrize(
    "operation",
    ["no-such-thing", "com.microsoft:add-rules", ""],
)
def test_operations_that_are_not_offered_are_501(rig: Harness, sender: int, operation: str) -> None:
    """Req: T-03. Source: wire contract 5.1."""
    ask(rig, sender, operation, {"session-id": "s"})
    refused(rig, 501, "amqp:not-implemented")
    rig.request(sender, None, {})
    refused(rig, 501, "amqp:not-implemented")
    assert rig.commands == []


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        ("renew-lock", None),
        ("renew-lock", "text"),
        ("renew-lock", {}),
        ("renew-lock", {"lock-tokens": []}),
        ("renew-lock", {"lock-tokens": TOKEN}),
        ("renew-lock", {"lock-tokens": ["no guid"]}),
        ("renew-lock", {"lock-tokens": [7]}),
        ("peek-message", {"message-count": 1}),
        ("peek-message", {"from-sequence-number": "1", "message-count": 1}),
        ("peek-message", {"from-sequence-number": True, "message-count": 1}),
        ("schedule-message", {}),
        ("schedule-message", {"messages": []}),
        ("schedule-message", {"messages": [b"not a map"]}),
        ("schedule-message", {"messages": [{"message": "text"}]}),
        ("cancel-scheduled-message", {"sequence-numbers": ["1"]}),
        ("cancel-scheduled-message", {"sequence-numbers": 1}),
        ("receive-by-sequence-number", {"sequence-numbers": [1], "receiver-settle-mode": "x"}),
        ("update-disposition", {"lock-tokens": [TOKEN]}),
        ("update-disposition", {"lock-tokens": [TOKEN], "disposition-status": "renewed"}),
        ("update-disposition", {"lock-tokens": [TOKEN], "disposition-status": 7}),
        ("update-disposition", {"disposition-status": "completed"}),
        (
            "update-disposition",
            {"lock-tokens": [TOKEN], "disposition-status": "completed", "properties-to-modify": 1},
        ),
        ("batch-delete-messages", {"message-count": 1}),
        ("batch-delete-messages", {"message-count": "1", "enqueued-time-utc": 1}),
        ("batch-delete-messages", {"message-count": 1, "enqueued-time-utc": "now"}),
        ("peeklock:purge-messages", {"enqueued-time-utc": "now"}),
        ("peeklock:purge-messages", {"enqueued-time-utc": True}),
        ("peeklock:purge-messages", {"enqueued-time": 0}),  # misspelt, it must not mean "all"
        ("peeklock:purge-messages", None),
    ],
)
def test_a_malformed_request_is_400(rig: Harness, sender: int, operation: str, body: Any) -> None:
    """Req: R-05, T-03. Source: wire contract 5.1. The link lives on."""
    ask(rig, sender, operation, body)
    refused(rig, 400, "com.microsoft:argument-error")
    assert rig.commands == []
    assert not any(isinstance(event, LinkDetached) for event in rig.events)


@pytest.mark.parametrize("operation", ["peek-message", "batch-delete-messages"])
def test_a_count_of_nothing_is_out_of_range(rig: Harness, sender: int, operation: str) -> None:
    for count in (0, -1):
        ask(
            rig,
            sender,
            operation,
            {"from-sequence-number": 1, "message-count": count, "enqueued-time-utc": 1},
        )
        refused(rig, 400, "com.microsoft:argument-out-of-range")


def test_a_batch_delete_of_more_than_the_limit_is_refused_by_name(rig: Harness, sender: int) -> None:
    """Req: A-06. Source: wire contract C9."""
    ask(rig, sender, "batch-delete-messages", {"message-count": 4001, "enqueued-time-utc": 1})
    response = rig.response()
    assert (response.status, str(response.condition)) == (400, "com.microsoft:argument-out-of-range")
    assert "4001; the limit is 4000" in (response.description or "")
    assert rig.commands == []


@pytest.mark.parametrize(
    ("error", "status", "condition"),
    [
        (EntityNotFound("gone"), 404, "amqp:not-found"),
        (EntityDisabled("off"), 403, "com.microsoft:entity-disabled"),
        (QuotaExceeded("full"), 403, "amqp:resource-limit-exceeded"),
        (ArgumentInvalid("bad"), 400, "com.microsoft:argument-error"),
    ],
)
def test_a_refusal_of_the_broker_has_its_status_and_condition(
    rig: Harness, sender: int, error: EntityNotFound, status: int, condition: str
) -> None:
    """Req: L-11, T-02. errorCondition is a symbol: .NET casts it. Source: wire contract 0.3, 5.1."""
    ask(rig, sender, "peek-message", {"from-sequence-number": 1, "message-count": 1})
    rig.effect(Failed(rig.take(Peek).reply_to, error))
    response = refused(rig, status, condition)
    assert b"\xa1\x0eerrorCondition\xa3" in response.raw
    [(_, fields)] = rig.logged
    assert str(fields["tracking_id"]) in response.description


READING = {
    "renew-lock",
    "peek-message",
    "receive-by-sequence-number",
    "update-disposition",
    "batch-delete-messages",
    "renew-session-lock",
    "get-session-state",
    "set-session-state",
    "get-message-sessions",
    "enumerate-rules",
    "peeklock:purge-messages",
    "add-rule",
    "remove-rule",
    "peeklock:cursor-claim",
    "peeklock:cursor-take",
    "peeklock:cursor-read",
    "peeklock:cursor-commit",
    "peeklock:cursor-release",
    "peeklock:cursor-list",
}
WRITING = {"schedule-message", "cancel-scheduled-message"}
BODY = {
    "lock-tokens": [TOKEN],
    "from-sequence-number": 1,
    "message-count": 1,
    "sequence-numbers": [1],
    "disposition-status": "completed",
    "enqueued-time-utc": 1,
    "messages": [{"message": message_bytes()}],
    "session-id": "s",
    "session-state": b"state",
    "last-updated-time": Timestamp(1),
    "skip": 0,
    "top": 1,
    "rule-name": "r",
    "rule-description": {"true-filter": {}},
    "cursor": "lake",
    "owner": "o",
    "claim": Long(1),
    "max-messages": 1,
    "max-bytes": Long(1),
}


@pytest.mark.parametrize(
    ("right", "allowed"),
    [
        (Right.SEND, WRITING),
        (Right.LISTEN, READING),
        (Right.MANAGE, READING | WRITING),
    ],
)
def test_each_operation_needs_its_right(right: Right, allowed: set[str]) -> None:
    """Req: R-04. Source: wire contract 1.7."""
    assert {name.removeprefix("com.microsoft:") for name in OPERATIONS} == READING | WRITING
    rig = Harness(authority=Authority([SasRule(KEY_NAME, KEY, rights=frozenset({right}))]))
    sender, _ = rig.pair(NODE)
    for operation in sorted(READING | WRITING):
        # A purge alone takes no keys but its own.
        ask(rig, sender, operation, {} if operation == "peeklock:purge-messages" else BODY)
        if operation in allowed:
            assert len(rig.commands) == 1
            rig.commands.clear()
        else:
            refused(rig, 401, "amqp:unauthorized-access")
            assert rig.commands == []


# The envelope


def test_the_response_s_bytes_are_what_clients_read(rig: Harness, sender: int) -> None:
    """Golden bytes: statusCode is an int, keys are strings, the body is an empty map. Source: wire contract
    0.4, 5.1."""
    ask(rig, sender, "cancel-scheduled-message", {"sequence-numbers": [1]})
    rig.effect(Done(rig.take(CancelScheduled).reply_to))
    assert rig.response().raw == (
        b"\x00\x53\x73\xc0\x17\x06\x40\x40\x40\x40\x40\x98"
        + uuid.UUID(int=1).bytes
        + b"\x00\x53\x74\xc1\x29\x04\xa1\x0astatusCode\x71\x00\x00\x00\xc8\xa1\x11statusDescription\xa1\x02OK"
        + b"\x00\x53\x77\xc1\x01\x00"
    )


@pytest.mark.parametrize("message_id", [uuid.UUID(int=77), "text-id", ULong(9), ULong(2**40), b"binary"])
def test_the_correlation_id_echoes_type_and_value(rig: Harness, sender: int, message_id: Any) -> None:
    """Source: wire contract 5.1."""
    ask(rig, sender, "bogus", {}, message_id=message_id)
    response = rig.response()
    raw = scan(response.raw).property_raw(5)
    assert raw == encode(message_id)


def test_a_tracking_id_of_the_client_is_echoed(rig: Harness, sender: int) -> None:
    """Source: wire contract 5.1."""
    ask(rig, sender, "bogus", {})
    assert "com.microsoft:tracking-id" not in rig.response().properties
    fields = section(0x74, {"operation": "bogus", "com.microsoft:tracking-id": "abc"})
    rig.transfer(sender, section(0x73, ["id"]) + fields + section(0x77, {}))
    assert rig.response().properties["com.microsoft:tracking-id"] == "abc"


def test_answers_go_by_correlation_in_any_order(rig: Harness, sender: int) -> None:
    """Source: wire contract 5.1: long operations must not block others."""
    for number in range(3):
        ask(
            rig,
            sender,
            "cancel-scheduled-message",
            {"sequence-numbers": [number + 1]},
            message_id=f"m{number}",
        )
    commands = [rig.take(CancelScheduled) for _ in range(3)]
    for number in (2, 0, 1):
        rig.effect(Done(commands[number].reply_to))
        assert rig.response().correlation_id == f"m{number}"


def test_a_request_is_settled_at_once(rig: Harness, sender: int) -> None:
    """Python's sender link does not look at the role of dispositions. Source: wire contract 0.6."""
    ask(rig, sender, "peek-message", {"from-sequence-number": 1, "message-count": 1})
    outcome = rig.take_event(DispositionReceived)
    assert (outcome.settled, outcome.state) == (True, ACCEPTED)
    assert not any(isinstance(event, DeliveryReceived) for event in rig.events)


def test_what_is_no_message_is_rejected_and_the_link_lives_on(rig: Harness, sender: int) -> None:
    """Req: R-05."""
    delivery_id = rig.transfer(sender, b"nonsense")
    outcome = rig.take_event(DispositionReceived)
    assert (outcome.first, outcome.settled) == (delivery_id, True)
    assert isinstance(outcome.state, Rejected)
    assert outcome.state.error is not None
    assert str(outcome.state.error.condition) == "amqp:decode-error"
    ask(rig, sender, "bogus", {})
    assert rig.response().status == 501


def test_requests_have_credit_topped_up(rig: Harness) -> None:
    """Source: wire contract 5.1."""
    rig = Harness(limits=GatewayLimits(request_credit=4))
    sender, _ = rig.pair(NODE)
    for _ in range(9):
        assert rig.client.credit(rig.channel, sender) >= 2
        ask(rig, sender, "bogus", {})


# Which receiver a response takes (wire contract 5.1)


def test_the_receiver_named_by_reply_to_may_be_on_another_session(rig: Harness) -> None:
    """JavaScript has each link on a session of its own."""
    sender, _ = rig.pair(NODE)
    first = rig.channel
    rig.channel = rig.client.begin()
    name = str(uuid.uuid4())
    rig.attach(Role.RECEIVER, NODE, name=name, near=name)
    rig.effect(EntityFound(rig.take(LookUp).reply_to, view_of_queue()))
    rig.client.flow(rig.channel, 0, 10)
    rig.pump()
    second, rig.channel = rig.channel, first
    ask(rig, sender, "bogus", {}, reply_to=name)
    assert rig.response().event.channel == second
    ask(rig, sender, "bogus", {}, reply_to=NODE)
    assert rig.response().event.channel == first


def test_an_answer_never_takes_another_node_s_receiver(rig: Harness) -> None:
    sender = rig.attach(Role.SENDER, "$cbs")
    rig.pair(NODE)
    rig.request(sender, "bogus", {}, reply_to=NODE)
    assert not any(isinstance(event, DeliveryReceived) for event in rig.events)
    assert rig.logged[-1][0] == "reply without a link"


def test_replies_wait_for_the_client_s_credit_within_bounds(rig: Harness) -> None:
    """Req: R-05, T-08."""
    rig = Harness(limits=GatewayLimits(unsent_replies_bytes_max=2000))
    sender, receiver = rig.pair(NODE)
    rig.client.flow(rig.channel, receiver, 0)
    for number in range(5):
        ask(rig, sender, "bogus", {}, message_id=f"m{number}")
    assert not any(isinstance(event, DeliveryReceived) for event in rig.events)
    rig.client.flow(rig.channel, receiver, 3)
    rig.pump()
    assert [rig.response().correlation_id for _ in range(3)] == ["m0", "m1", "m2"]
    rig.client.flow(rig.channel, receiver, 100, drain=True)
    rig.pump()
    assert [rig.response().correlation_id for _ in range(2)] == ["m3", "m4"]
    rig.take_event(LinkDrained)
    ask(rig, sender, "bogus", {})
    assert not any(isinstance(event, DeliveryReceived) for event in rig.events)


def test_answers_with_messages_are_bounded_whatever_a_client_asks_for() -> None:
    """Req: R-05, T-03, T-08. A peek of 200 bytes may be answered with 256 KiB; clients come back later."""
    rig = Harness(limits=GatewayLimits(finding_max=2, output_bytes_max=1000))
    sender, _ = rig.pair(NODE)
    peek = {"from-sequence-number": Long(0), "message-count": Int(9)}
    for _ in range(3):
        ask(rig, sender, "peek-message", peek)
    refused(rig, 503, "com.microsoft:server-busy")
    first, second = rig.take(Peek), rig.take(Peek)
    ask(rig, sender, "renew-lock", {"lock-tokens": [TOKEN]})
    rig.take(RenewLocks)  # its answer is small
    rig.effect(MessagesFound(first.reply_to, []), Failed(second.reply_to, EntityNotFound("gone")))
    for _ in range(2):
        ask(rig, sender, "peek-message", peek)
        rig.effect(MessagesFound(rig.take(Peek).reply_to, []))
    rig.events.clear()
    rig.gateway.written(4001, rig.clock.now_ms)
    ask(rig, sender, "peek-message", peek)
    refused(rig, 503, "com.microsoft:server-busy")
