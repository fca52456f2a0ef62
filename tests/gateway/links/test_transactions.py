"""Transactions: what controllers, senders and receivers say in them -> commands, effects -> answers."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from peeklock.amqp.coordination import Declare, Discharge, encode_coordination
from peeklock.amqp.encoding import encode
from peeklock.amqp.errors import AmqpError
from peeklock.amqp.events import DeliveryReceived, DispositionReceived, LinkAttached, LinkDetached, LinkFlow
from peeklock.amqp.messaging import BATCH_FORMAT
from peeklock.amqp.performatives import (
    ACCEPTED,
    RELEASED,
    Coordinator,
    Declared,
    DeliveryState,
    Modified,
    Received,
    Rejected,
    Source,
    TransactionalState,
)
from peeklock.amqp.types import Array, Described, Role, Symbol, Timestamp
from peeklock.auth import Authority, SasRule, generate
from peeklock.broker.vocabulary import commands
from peeklock.broker.vocabulary.commands import (
    Abandon,
    Address,
    CancelScheduled,
    CloseLink,
    Complete,
    DeadLetter,
    Defer,
    DeleteMessages,
    Disposition,
    DropConnection,
    Enlist,
    LinkId,
    LookUp,
    OpenCoordinator,
    OpenSender,
    RenewLocks,
    ReplyTo,
    Schedule,
    Send,
    SendBatch,
    SequenceNumber,
    SetSessionState,
    UpdateDisposition,
)
from peeklock.broker.vocabulary.effects import (
    Accepted,
    CoordinatorOpened,
    Deliver,
    Enlisted,
    EntityFound,
    Failed,
    LinkRefused,
    LocksRenewed,
    MessagesScheduled,
    SenderOpened,
    Settled,
    SettlementFailed,
    TransactionEnded,
)
from peeklock.broker.vocabulary.effects import Declared as DeclaredEffect
from peeklock.broker.vocabulary.effects import Rejected as RejectedEffect
from peeklock.broker.vocabulary.errors import (
    InvalidOperation,
    MessageLockLost,
    NotSupported,
    QuotaExceeded,
    ServerBusy,
    ServiceBusError,
    TransactionRolledBack,
    TransactionTimedOut,
    TransactionUnknown,
)
from peeklock.gateway.links.coordinator import REQUEST_BYTES_MAX
from tests.gateway.harness import (
    CONNECTION_ID,
    KEY,
    KEY_NAME,
    QUEUE_ID,
    SIZE_MAX,
    TOKEN,
    Harness,
    message_bytes,
    section,
    view_of_queue,
)

TXN = bytes(range(16))
WITHIN = TransactionalState(TXN)
DESTINATION = Symbol("com.microsoft:transfer-destination-address")


@pytest.fixture
def rig() -> Harness:
    return Harness()


def declare(rig: Harness, control: int, txn_id: bytes = TXN) -> None:
    """Declare a transaction, and let the broker give it an id."""
    delivery_id = rig.transfer(control, encode_coordination(Declare()))
    rig.effect(DeclaredEffect(rig.take(commands.Declare).reply_to, txn_id))
    assert outcome(rig, delivery_id) == Declared(txn_id)


def discharge(rig: Harness, control: int, *, fail: bool = False, **options: Any) -> commands.Discharge:
    """Discharge the transaction; gives the command."""
    rig.transfer(control, encode_coordination(Discharge(TXN, fail)), **options)
    return rig.take(commands.Discharge)


def outcome(rig: Harness, delivery_id: int, role: Role = Role.RECEIVER) -> DeliveryState | None:
    """Take the next disposition: settled, of one delivery; gives its state."""
    event = rig.take_event(DispositionReceived)
    assert (event.role, event.first, event.last, event.settled) == (role, delivery_id, delivery_id, True)
    return event.state


def provisional(rig: Harness, delivery_id: int) -> DeliveryState | None:
    """Take the next disposition: the outcome of one delivery in a transaction, which does not settle it."""
    event = rig.take_event(DispositionReceived)
    assert (event.role, event.first, event.last) == (Role.SENDER, delivery_id, delivery_id)
    assert not event.settled
    return event.state


def silent(rig: Harness) -> bool:
    return not any(isinstance(event, DispositionReceived) for event in rig.events)


# The coordinator's link


@pytest.mark.parametrize(
    "capabilities", [None, Symbol("amqp:local-transactions"), (Symbol("amqp:local-transactions"),)]
)
def test_a_coordinator_is_attached_and_echoed(rig: Harness, capabilities: Any) -> None:
    """Req: F-03. Source: wire contract 0.1, 6."""
    handle = rig.attach(Role.SENDER, Coordinator(capabilities), name="control")
    command = rig.take(OpenCoordinator)
    assert command.link.connection_id == CONNECTION_ID
    assert not any(isinstance(event, LinkAttached) for event in rig.events)
    rig.effect(CoordinatorOpened(command.link))
    attached = rig.take_event(LinkAttached)
    assert (attached.handle, attached.name, attached.role) == (handle, "control", Role.RECEIVER)
    assert isinstance(attached.target, Coordinator)
    assert attached.target_raw.startswith(b"\x00\x53\x30")
    assert rig.take_event(LinkFlow).credit == 100


def test_a_coordinator_that_the_broker_does_not_offer_is_refused(rig: Harness) -> None:
    """Source: wire contract 2.2."""
    rig.attach(Role.SENDER, Coordinator())
    rig.effect(LinkRefused(rig.take(OpenCoordinator).link, NotSupported("Not on the basic tier.")))
    assert str(rig.refusal().condition) == "amqp:not-implemented"


def test_a_coordinator_sends_nothing(rig: Harness) -> None:
    rig.client.attach(rig.channel, "control", Role.RECEIVER, Source("orders"), Coordinator())
    rig.pump()
    assert str(rig.refusal().condition) == "amqp:not-allowed"
    assert rig.commands == []


def test_a_transaction_can_be_declared_before_any_claim() -> None:
    """For transactions across entities the Java client opens the coordinator first of all, and it declares
    before it has opened a link to an entity. What is enlisted needs a claim.

    Req: R-04, F-03. Source: azure-core-amqp 2.12.1, `ReactorSession`; azure-messaging-servicebus 7.17.20,
    `ServiceBusSenderAsyncClient.createTransaction`.
    """
    rig = Harness(mechanism="ANONYMOUS", authority=Authority([SasRule(KEY_NAME, KEY)]))
    declare(rig, rig.controller())
    rig.attach(Role.SENDER, "orders", name="send")
    assert str(rig.refusal().condition) == "amqp:unauthorized-access"


def test_a_controller_whose_last_claim_runs_out_loses_its_link(rig: Harness) -> None:
    """Req: R-04, F-03."""
    rig = Harness(mechanism="ANONYMOUS")
    sender, _ = rig.pair("$cbs")
    expires_at_ms = rig.clock.now_ms + 60_000
    rig.put_token(sender, "sb://localhost/", generate("sb://localhost/", KEY_NAME, KEY, expires_at_ms))
    handle = rig.controller()
    rig.clock.now_ms = expires_at_ms + 1_000
    rig.commands += rig.gateway.tick(rig.clock.now_ms)
    rig.pump()
    rig.take(CloseLink)
    assert rig.take_event(LinkDetached).handle == handle


def test_a_transaction_is_declared_and_committed(rig: Harness) -> None:
    """Req: F-03. Source: wire contract 6."""
    control = rig.controller()
    delivery_id = rig.transfer(control, encode_coordination(Declare()))
    command = rig.take(commands.Declare)
    assert command.reply_to == ReplyTo(*command.link, delivery_id)
    assert silent(rig)
    rig.effect(DeclaredEffect(command.reply_to, TXN))
    assert outcome(rig, delivery_id) == Declared(TXN)
    ended = discharge(rig, control)
    assert (ended.link, ended.transaction_id, ended.fail) == (command.link, TXN, False)
    rig.effect(Accepted(ended.reply_to))
    assert outcome(rig, 1) == ACCEPTED


@pytest.mark.parametrize("value", [[TXN], [TXN, None], [TXN, False]])
def test_a_discharge_that_does_not_say_fail_commits(rig: Harness, value: list[Any]) -> None:
    """Source: AMQP 4.5.3."""
    rig.transfer(rig.controller(), section(0x77, Described(0x32, value)))
    assert rig.take(commands.Discharge).fail is False


def test_a_discharge_that_says_fail_rolls_back(rig: Harness) -> None:
    """Req: F-03."""
    assert discharge(rig, rig.controller(), fail=True).fail is True


@pytest.mark.parametrize(
    ("error", "condition"),
    [
        (TransactionUnknown("x"), "amqp:transaction:unknown-id"),
        (TransactionTimedOut("x"), "amqp:transaction:timeout"),
        (TransactionRolledBack("x"), "amqp:transaction:rollback"),
    ],
)
def test_a_discharge_that_fails_says_why(rig: Harness, error: ServiceBusError, condition: str) -> None:
    """Req: F-03, T-02. Source: wire contract 6."""
    command = discharge(rig, rig.controller())
    rig.effect(RejectedEffect(command.reply_to, error))
    assert str(rig.rejection(0).condition) == condition


def test_a_declare_that_waited_for_too_long_is_refused(rig: Harness) -> None:
    """Req: F-03, C34."""
    rig.transfer(rig.controller(), encode_coordination(Declare()))
    rig.effect(RejectedEffect(rig.take(commands.Declare).reply_to, ServerBusy("5000 are open")))
    assert str(rig.rejection(0).condition) == "com.microsoft:server-busy"


@pytest.mark.parametrize(
    ("payload", "condition"),
    [
        (b"", "amqp:decode-error"),
        (b"noise", "amqp:decode-error"),
        (message_bytes(b"data"), "amqp:decode-error"),
        (message_bytes("declare"), "amqp:decode-error"),
        (section(0x77, Described(0x30, [])), "amqp:decode-error"),
        (section(0x77, Described(0x32, [TXN, "yes"])), "amqp:decode-error"),
        (section(0x77, Described(0x31, [b"global"])), "amqp:not-implemented"),
    ],
)
def test_what_a_coordinator_does_not_take_is_rejected_and_the_link_lives_on(
    rig: Harness, payload: bytes, condition: str
) -> None:
    """Req: R-05, F-03."""
    control = rig.controller()
    delivery_id = rig.transfer(control, payload)
    assert str(rig.rejection(delivery_id).condition) == condition
    rig.transfer(control, payload, settled=True)
    assert rig.commands == []
    assert silent(rig)
    rig.transfer(control, encode_coordination(Declare()))
    rig.take(commands.Declare)


def test_a_request_that_is_too_long_is_rejected(rig: Harness) -> None:
    """Req: R-05."""
    delivery_id = rig.transfer(rig.controller(), b"x" * (REQUEST_BYTES_MAX + 1))
    assert str(rig.rejection(delivery_id).condition) == "amqp:link:message-size-exceeded"


@pytest.mark.parametrize("txn_id", [None, "text", 5, b"", b"x" * 33])
def test_a_discharge_of_what_is_no_id_is_for_the_broker_to_refuse(rig: Harness, txn_id: Any) -> None:
    """It knows no such transaction: `unknown-id`. Req: R-05, F-03."""
    rig.transfer(rig.controller(), section(0x77, Described(0x32, [txn_id, True])))
    expected = txn_id if isinstance(txn_id, bytes) else b""
    assert rig.take(commands.Discharge).transaction_id == expected


def test_a_pre_settled_declare_is_dropped_and_a_pre_settled_discharge_done_in_silence(
    rig: Harness,
) -> None:
    """Nobody would learn the id of the one; of the other, only the answer is unwanted. Req: F-03."""
    control = rig.controller()
    rig.transfer(control, encode_coordination(Declare()), settled=True)
    assert rig.commands == []
    for answer in (Accepted, lambda reply_to: RejectedEffect(reply_to, TransactionUnknown("x"))):
        rig.effect(answer(discharge(rig, control, settled=True).reply_to))
        assert silent(rig)


def test_a_controller_may_speak_before_it_is_answered(rig: Harness) -> None:
    """Source: wire contract 2.7."""
    handle = rig.attach(Role.SENDER, Coordinator())
    opened = rig.take(OpenCoordinator)
    payload = encode_coordination(Declare())
    # The client half would hold it back without credit: the frame is written by hand.
    fields = b"\x52" + bytes([handle]) + b"\x43\xa0\x01t\x43\x42"
    body = b"\x00\x53\x14\xc0" + bytes([len(fields) + 1, 5]) + fields + payload
    size = (8 + len(body)).to_bytes(4, "big")
    rig.commands += rig.gateway.receive(size + b"\x02\x00\x00\x00" + body, rig.clock.now_ms)
    assert rig.commands == []
    assert rig.gateway.uncommitted_bytes > len(payload)
    rig.effect(CoordinatorOpened(opened.link))
    assert rig.take(commands.Declare).reply_to == ReplyTo(*opened.link, 0)
    assert rig.gateway.uncommitted_bytes == 0


def test_credit_for_a_controller_does_not_run_out(rig: Harness) -> None:
    control = rig.controller()
    for number in range(250):
        assert rig.client.credit(rig.channel, control) > 0
        declare(rig, control, number.to_bytes(16, "big"))
    for _ in range(150):
        assert rig.client.credit(rig.channel, control) > 0
        rig.transfer(control, encode_coordination(Declare()), settled=True)
        rig.transfer(control, b"nonsense")


def test_a_request_keeps_its_credit_until_it_is_answered(rig: Harness) -> None:
    """Req: F-03, R-05, C34."""
    control = rig.controller()
    for left in range(100, 0, -1):
        assert rig.client.credit(rig.channel, control) == left
        rig.transfer(control, encode_coordination(Declare()))
    assert rig.client.credit(rig.channel, control) == 0
    asked = [rig.take(commands.Declare).reply_to for _ in range(100)]
    for number, reply_to in enumerate(asked, 1):
        rig.effect(DeclaredEffect(reply_to, number.to_bytes(16, "big")))
        assert rig.client.credit(rig.channel, control) == min(number, 51)


@pytest.mark.parametrize("how", ["detach", "end", "close", "cut"])
def test_losing_the_coordinators_link_is_told_to_the_broker(rig: Harness, how: str) -> None:
    """Which rolls back what was declared over it. Req: F-03."""
    control = rig.controller()
    declare(rig, control)
    if how == "detach":
        rig.client.detach(rig.channel, control)
    elif how == "end":
        rig.client.end(rig.channel)
    elif how == "close":
        rig.client.close()
    else:
        rig.commands += rig.gateway.eof(rig.clock.now_ms)
    rig.pump()
    if how in ("detach", "end"):
        rig.take(CloseLink)
    else:
        assert rig.take(DropConnection).broken is (how == "cut")
    assert rig.commands == []


def test_an_answer_for_a_controller_that_is_gone_reaches_nobody(rig: Harness) -> None:
    control = rig.controller()
    rig.transfer(control, encode_coordination(Declare()))
    command = rig.take(commands.Declare)
    rig.client.detach(rig.channel, control)
    rig.pump()
    rig.effect(DeclaredEffect(command.reply_to, TXN), Accepted(command.reply_to))
    assert silent(rig)


# Sending


def test_a_send_within_a_transaction_is_enlisted_and_answered_so(rig: Harness) -> None:
    """Req: F-03. Source: wire contract 4.1, 6."""
    payload = message_bytes()
    delivery_id = rig.transfer(rig.sender(), payload, state=WITHIN)
    enlist = rig.take(Enlist)
    assert (enlist.connection_id, enlist.transaction_id) == (CONNECTION_ID, TXN)
    assert isinstance(enlist.command, Send)
    assert (enlist.command.queue_id, enlist.command.sections.payload) == (QUEUE_ID, payload)
    assert enlist.command.reply_to is not None
    assert rig.commands == []
    assert rig.gateway.uncommitted_bytes > 0
    rig.effect(Enlisted(enlist.command.reply_to))
    assert outcome(rig, delivery_id) == TransactionalState(TXN, ACCEPTED)
    assert rig.gateway.uncommitted_bytes == 0


def test_a_batch_within_a_transaction_is_enlisted_whole(rig: Harness) -> None:
    """Req: F-03, T-07."""
    envelope = section(0x75, message_bytes(b"a")) + section(0x75, message_bytes(b"b"))
    delivery_id = rig.transfer(rig.sender(), envelope, message_format=BATCH_FORMAT, state=WITHIN)
    command = rig.take(Enlist).command
    assert isinstance(command, SendBatch)
    assert len(command.messages) == 2
    assert command.reply_to is not None
    rig.effect(Enlisted(command.reply_to))
    assert outcome(rig, delivery_id) == TransactionalState(TXN, ACCEPTED)


def test_plain_and_transactional_sends_of_one_link_keep_their_outcomes(rig: Harness) -> None:
    """Req: F-03. Whatever the order in which they are answered."""
    sender = rig.sender()
    other = b"other"
    states = [None, WITHIN, None, TransactionalState(other), WITHIN]
    replies: list[ReplyTo] = []
    for state in states:
        rig.transfer(sender, message_bytes(), state=state)
        command = rig.commands.pop()
        work = command.command if isinstance(command, Enlist) else command
        assert isinstance(work, Send)
        assert work.reply_to is not None
        replies.append(work.reply_to)
    rig.effect(
        Accepted(replies[0]),
        RejectedEffect(replies[1], QuotaExceeded("full")),
        Accepted(replies[2]),
        Enlisted(replies[3]),
        Enlisted(replies[4]),
    )
    assert outcome(rig, 0) == ACCEPTED
    assert str(rig.rejection(1).condition) == "amqp:resource-limit-exceeded"
    assert outcome(rig, 2) == ACCEPTED
    assert outcome(rig, 3) == TransactionalState(other, ACCEPTED)
    assert outcome(rig, 4) == TransactionalState(TXN, ACCEPTED)
    assert rig.gateway.uncommitted_bytes == 0


@pytest.mark.parametrize(
    ("error", "condition"),
    [
        (TransactionUnknown("x"), "amqp:transaction:unknown-id"),
        (TransactionTimedOut("x"), "amqp:transaction:timeout"),
        (QuotaExceeded("x"), "amqp:resource-limit-exceeded"),
    ],
)
def test_a_send_that_cannot_be_enlisted_is_rejected(
    rig: Harness, error: ServiceBusError, condition: str
) -> None:
    """Req: F-03, T-02."""
    delivery_id = rig.transfer(rig.sender(), message_bytes(), state=WITHIN)
    command = rig.take(Enlist).command
    assert command.reply_to is not None
    rig.effect(RejectedEffect(command.reply_to, error))
    assert str(rig.rejection(delivery_id).condition) == condition
    assert rig.gateway.uncommitted_bytes == 0


def test_a_malformed_message_is_not_enlisted(rig: Harness) -> None:
    """Req: F-03, R-05."""
    delivery_id = rig.transfer(rig.sender(), b"noise", state=WITHIN)
    assert str(rig.rejection(delivery_id).condition) == "amqp:decode-error"
    assert rig.commands == []


def test_a_pre_settled_send_is_enlisted_without_an_answer(rig: Harness) -> None:
    """Req: F-03, T-06."""
    rig.transfer(rig.sender(), message_bytes(), state=WITHIN, settled=True)
    assert rig.take(Enlist).command.reply_to is None
    assert silent(rig)


def test_a_delivery_id_used_twice_confuses_nobody_else(rig: Harness) -> None:
    """Req: R-05. Only a broken client does it; its link and connection live on."""
    rig.sender()
    payload = message_bytes()
    for txn_id in (b"a", b"b"):
        state = encode(Described(0x34, [txn_id]))
        fields = b"\x43\x43\xa0\x01t\x43\x42\x42\x40" + state
        body = b"\x00\x53\x14\xc0" + bytes([len(fields) + 1, 8]) + fields + payload
        size = (8 + len(body)).to_bytes(4, "big")
        rig.commands += rig.gateway.receive(size + b"\x02\x00\x00\x00" + body, rig.clock.now_ms)
    enlists = [rig.take(Enlist) for _ in range(2)]
    rig.effect(*(Enlisted(enlist.command.reply_to) for enlist in enlists if enlist.command.reply_to))
    assert not rig.gateway.closing


@pytest.mark.parametrize("fields", [[], [None], ["text"], [b"x" * 33], [TXN, Described(0x34, [TXN])]])
def test_a_state_that_names_no_transaction_is_never_a_plain_send(rig: Harness, fields: list[Any]) -> None:
    """Req: F-03, R-05. The broker refuses what it does not know; the connection lives on."""
    rig.sender()
    state = encode(Described(0x34, fields))
    head = b"\x43\x43\xa0\x01t\x43\x42\x42\x40" + state
    body = b"\x00\x53\x14\xc0" + bytes([len(head) + 1, 8]) + head + message_bytes()
    size = (8 + len(body)).to_bytes(4, "big")
    rig.commands += rig.gateway.receive(size + b"\x02\x00\x00\x00" + body, rig.clock.now_ms)
    enlist = rig.take(Enlist)
    assert enlist.transaction_id == (fields[0] if fields and isinstance(fields[0], bytes) else b"")
    assert enlist.command.reply_to is not None
    rig.effect(RejectedEffect(enlist.command.reply_to, TransactionUnknown("x")))
    assert b"amqp:transaction:unknown-id" in rig.sent
    assert not rig.gateway.closing


# Settling


def delivered(rig: Harness, count: int = 1) -> list[int]:
    """Deliver messages to a receiver; gives their delivery ids."""
    _, command = rig.receiver(credit=count)
    rig.commands.clear()
    rig.effect(*(rig.deliver(command.link, message_bytes(), number=n + 1) for n in range(count)))
    ids = [event.delivery_id for event in rig.events if isinstance(event, DeliveryReceived)]
    rig.events = [event for event in rig.events if not isinstance(event, DeliveryReceived)]
    return ids


def enlisted(rig: Harness) -> Any:
    """Take an enlisted settlement that wants an answer."""
    enlist = rig.take(Enlist)
    assert (enlist.connection_id, enlist.transaction_id) == (CONNECTION_ID, TXN)
    return enlist.command


DEAD = Rejected(AmqpError("com.microsoft:dead-letter", "why", {Symbol("DeadLetterReason"): "r"}))


@pytest.mark.parametrize(
    ("said", "expected", "echo"),
    [
        (ACCEPTED, lambda token, to: Complete(QUEUE_ID, token, to), ACCEPTED),
        (
            Modified(True, False, {Symbol("k"): 1}),
            lambda token, to: Abandon(QUEUE_ID, token, to, {"k": 1}),
            Modified(True, False),
        ),
        (Modified(False, True), lambda token, to: Defer(QUEUE_ID, token, to), Modified(False, True)),
        (DEAD, lambda token, to: DeadLetter(QUEUE_ID, token, to, "r", "why"), Rejected()),
    ],
)
def test_a_settlement_within_a_transaction_is_enlisted_and_echoed(
    rig: Harness, said: DeliveryState, expected: Callable[[bytes, ReplyTo], Any], echo: DeliveryState
) -> None:
    """Req: F-03, L-06, L-09. Source: wire contract 4.3, 6."""
    [delivery_id] = delivered(rig)
    rig.settle(delivery_id, delivery_id, TransactionalState(TXN, said))
    command = enlisted(rig)
    assert command == expected(TOKEN.bytes_le, command.reply_to)
    assert rig.commands == []
    assert silent(rig)
    rig.effect(Enlisted(command.reply_to))
    assert provisional(rig, delivery_id) == TransactionalState(TXN, echo)


@pytest.mark.parametrize(
    "said",
    [None, RELEASED, Received(1, 2), Declared(b"x"), TransactionalState(TXN, ACCEPTED)],
    ids=["missing", "released", "received", "declared", "nested"],
)
def test_an_outcome_that_a_transaction_cannot_have_leaves_the_delivery_alone(
    rig: Harness, said: DeliveryState | None
) -> None:
    """Req: F-03, R-05."""
    [delivery_id] = delivered(rig)
    rig.settle(delivery_id, delivery_id, TransactionalState(TXN, said))
    state = outcome(rig, delivery_id, Role.SENDER)
    assert isinstance(state, Rejected)
    assert state.error is not None
    assert str(state.error.condition) == "amqp:not-allowed"
    rig.settle(delivery_id, delivery_id, TransactionalState(TXN, said), settled=True)
    assert silent(rig)
    assert rig.commands == []
    rig.settle(delivery_id, delivery_id, ACCEPTED)
    rig.take(Complete)


def test_a_range_within_a_transaction_is_enlisted_one_by_one(rig: Harness) -> None:
    """Unknown deliveries of it have lost their locks. Req: F-03, L-11, T-04."""
    ids = delivered(rig, 5)
    rig.settle(ids[2], ids[2], ACCEPTED)
    rig.take(Complete)
    rig.settle(ids[0], ids[4], TransactionalState(TXN, ACCEPTED))
    found = [enlisted(rig) for _ in range(4)]
    assert [command.reply_to.number for command in found] == [ids[0], ids[1], ids[3], ids[4]]
    state = outcome(rig, ids[2], Role.SENDER)
    assert isinstance(state, Rejected)
    assert state.error is not None
    assert str(state.error.condition) == "com.microsoft:message-lock-lost"
    rig.effect(*(Enlisted(command.reply_to) for command in found))
    events = [rig.take_event(DispositionReceived) for _ in range(2)]
    assert [(event.first, event.last) for event in events] == [(ids[0], ids[1]), (ids[3], ids[4])]
    assert all(event.state == TransactionalState(TXN, ACCEPTED) for event in events)


@pytest.mark.parametrize(
    ("error", "condition"),
    [
        (TransactionUnknown("x"), "amqp:transaction:unknown-id"),
        (TransactionTimedOut("x"), "amqp:transaction:timeout"),
        (QuotaExceeded("x"), "amqp:resource-limit-exceeded"),
    ],
)
def test_a_delivery_that_could_not_be_enlisted_can_be_settled_outside(
    rig: Harness, error: ServiceBusError, condition: str
) -> None:
    """Req: F-03, L-11."""
    [delivery_id] = delivered(rig)
    rig.settle(delivery_id, delivery_id, TransactionalState(TXN, ACCEPTED))
    rig.effect(SettlementFailed(enlisted(rig).reply_to, error))
    state = outcome(rig, delivery_id, Role.SENDER)
    assert isinstance(state, Rejected)
    assert state.error is not None
    assert str(state.error.condition) == condition
    rig.settle(delivery_id, delivery_id, ACCEPTED)
    command = rig.take(Complete)
    assert command.lock_token == TOKEN.bytes_le
    assert command.reply_to is not None
    rig.effect(Settled(command.reply_to))
    assert outcome(rig, delivery_id, Role.SENDER) == ACCEPTED


@pytest.mark.parametrize("txn_id", [b"", b"x" * 33])
def test_a_settlement_within_what_is_no_transaction_is_for_the_broker_to_refuse(
    rig: Harness, txn_id: bytes
) -> None:
    """Req: F-03, R-05."""
    [delivery_id] = delivered(rig)
    rig.settle(delivery_id, delivery_id, TransactionalState(txn_id, ACCEPTED))
    assert rig.take(Enlist).transaction_id == txn_id


def test_after_a_roll_back_a_delivery_can_be_settled_anew(rig: Harness) -> None:
    """It is locked as before, so long as its lock lasts. Req: F-03. Source: wire contract 6, C13."""
    control = rig.controller()
    [delivery_id] = delivered(rig)
    for coordination_id in (0, 2):
        declare(rig, control)
        rig.settle(delivery_id, delivery_id, TransactionalState(TXN, ACCEPTED))
        rig.effect(Enlisted(enlisted(rig).reply_to))
        assert provisional(rig, delivery_id) == TransactionalState(TXN, ACCEPTED)
        rig.effect(Accepted(discharge(rig, control, fail=True).reply_to))
        assert outcome(rig, coordination_id + 1) == ACCEPTED
        assert silent(rig)
    rig.settle(delivery_id, delivery_id, RELEASED, settled=True)
    assert rig.take(commands.Release).lock_token == TOKEN.bytes_le


def test_after_the_commit_a_delivery_is_not_known_any_more(rig: Harness) -> None:
    """A settled disposition ends it. Others of the link are known. Req: F-03, L-11. Source: wire contract
    C13."""
    control = rig.controller()
    declare(rig, control)
    first, second = delivered(rig, 2)
    rig.settle(first, first, TransactionalState(TXN, ACCEPTED))
    rig.effect(Enlisted(enlisted(rig).reply_to))
    assert provisional(rig, first) == TransactionalState(TXN, ACCEPTED)
    rig.effect(Accepted(discharge(rig, control).reply_to))
    assert outcome(rig, first, Role.SENDER) == TransactionalState(TXN, ACCEPTED)
    assert outcome(rig, 1) == ACCEPTED
    rig.settle(first, second, ACCEPTED)
    assert rig.take(Complete).lock_token != TOKEN.bytes_le
    assert rig.commands == []
    state = outcome(rig, first, Role.SENDER)
    assert isinstance(state, Rejected)
    assert state.error is not None
    assert str(state.error.condition) == "com.microsoft:message-lock-lost"


def test_a_commit_for_a_link_that_is_gone_is_no_harm(rig: Harness) -> None:
    control = rig.controller()
    declare(rig, control)
    [delivery_id] = delivered(rig)
    rig.settle(delivery_id, delivery_id, TransactionalState(TXN, ACCEPTED))
    rig.effect(Enlisted(enlisted(rig).reply_to))
    provisional(rig, delivery_id)
    rig.client.detach(rig.channel, 1)
    rig.pump()
    rig.effect(Accepted(discharge(rig, control).reply_to))
    assert outcome(rig, 1) == ACCEPTED


def test_a_delivery_settled_on_the_clients_side_is_enlisted_without_an_answer(rig: Harness) -> None:
    """And is known no longer, since the client has forgotten it. Req: F-03. Source: wire contract 4.3."""
    [delivery_id] = delivered(rig)
    rig.settle(delivery_id, delivery_id, TransactionalState(TXN, ACCEPTED), settled=True)
    assert enlisted(rig).reply_to is None
    assert silent(rig)
    rig.settle(delivery_id, delivery_id, ACCEPTED)
    assert rig.commands == []


def test_the_clients_half_of_a_settlement_is_no_second_one(rig: Harness) -> None:
    """Some clients settle on their side once they are answered; then the commit does not. Req: F-03.
    Source: AMQP 4.4.2."""
    control = rig.controller()
    declare(rig, control)
    [delivery_id] = delivered(rig)
    rig.settle(delivery_id, delivery_id, TransactionalState(TXN, ACCEPTED))
    rig.settle(delivery_id, delivery_id, TransactionalState(TXN, ACCEPTED), settled=True)
    rig.effect(Enlisted(enlisted(rig).reply_to))
    rig.settle(delivery_id, delivery_id, TransactionalState(TXN, ACCEPTED), settled=True)
    assert rig.commands == []
    assert provisional(rig, delivery_id) == TransactionalState(TXN, ACCEPTED)
    rig.effect(Accepted(discharge(rig, control).reply_to))
    assert outcome(rig, 1) == ACCEPTED
    assert silent(rig)


@pytest.mark.parametrize("what", ["message", "oversized", "outcome"])
@pytest.mark.parametrize("settled", [True, False])
def test_what_was_refused_and_nobody_was_told_of_keeps_a_transaction_from_its_commit(
    rig: Harness, what: str, settled: bool
) -> None:
    """Else a part of it would be missing. What was told is for the client to judge. Req: F-03, T-06."""
    control = rig.controller()
    declare(rig, control)
    if what == "outcome":
        [delivery_id] = delivered(rig)
        rig.settle(delivery_id, delivery_id, TransactionalState(TXN, RELEASED), settled=settled)
    else:
        payload = b"noise" if what == "message" else b"x" * (SIZE_MAX + 1)
        rig.transfer(rig.sender(), payload, state=WITHIN, settled=settled)
    assert silent(rig) is settled
    rig.events.clear()
    command = discharge(rig, control)
    assert command.fail is settled
    rig.effect(Accepted(command.reply_to))
    state = rig.take_event(DispositionReceived).state
    if not settled:
        assert state == ACCEPTED
        return
    assert isinstance(state, Rejected)
    assert state.error is not None
    assert str(state.error.condition) == "amqp:transaction:rollback"


def test_what_was_refused_does_not_hinder_a_roll_back_nor_another_transaction(rig: Harness) -> None:
    """Req: F-03."""
    control = rig.controller()
    declare(rig, control)
    declare(rig, control, b"other")
    rig.transfer(rig.sender(), b"noise", state=TransactionalState(b"other"), settled=True)
    for fail in (False, True):
        command = discharge(rig, control, fail=fail)
        assert command.fail is fail
        rig.effect(Accepted(command.reply_to))
        assert rig.take_event(DispositionReceived).state == ACCEPTED


def test_a_delivery_settled_in_two_transactions_at_once_is_answered_in_order(rig: Harness) -> None:
    """Req: F-03, R-05. The broker takes the first and refuses the others."""
    [delivery_id] = delivered(rig)
    rig.settle(delivery_id, delivery_id, TransactionalState(TXN, Modified(True, False)))
    rig.settle(delivery_id, delivery_id, TransactionalState(b"other", ACCEPTED))
    rig.settle(delivery_id, delivery_id, Modified(False, True))
    first, second = enlisted(rig), rig.take(Enlist).command
    third = rig.take(Defer)
    assert second.reply_to is not None
    assert third.reply_to is not None
    rig.effect(Enlisted(first.reply_to))
    rig.effect(SettlementFailed(second.reply_to, MessageLockLost("x")))
    rig.effect(SettlementFailed(third.reply_to, MessageLockLost("x")))
    assert provisional(rig, delivery_id) == TransactionalState(TXN, Modified(True, False))
    for _ in range(2):
        assert isinstance(outcome(rig, delivery_id, Role.SENDER), Rejected)


def test_the_answer_to_an_enlisted_settlement_stays_behind_earlier_deliveries(rig: Harness) -> None:
    """Req: F-03."""
    _, command = rig.receiver(credit=2)
    rig.effect(rig.deliver(command.link, message_bytes(b"here")))
    waiting: Deliver = rig.deliver(command.link, message_bytes(b"waits"), number=2)
    body = rig.payloads.pop(waiting.message.body_row)
    rig.effect(waiting)
    first = rig.take_event(DeliveryReceived).delivery_id
    rig.settle(first, first, TransactionalState(TXN, ACCEPTED))
    rig.effect(Enlisted(enlisted(rig).reply_to))
    assert silent(rig)
    rig.payloads[waiting.message.body_row] = body
    rig.gateway.bodies_arrived(lambda message: rig.payloads.get(message.body_row), rig.clock.now_ms)
    rig.pump()
    assert isinstance(rig.events[-2], DeliveryReceived)
    assert provisional(rig, first) == TransactionalState(TXN, ACCEPTED)


@pytest.mark.parametrize("how", ["timed out", "link", "session", "connection", "refused"])
def test_what_is_remembered_of_a_transaction_goes_with_it(rig: Harness, how: str) -> None:
    """Req: R-05, C34."""
    control, other = rig.controller(), rig.controller()
    kept = b"kept"
    declare(rig, other, kept)
    for number in range(200):
        declare(rig, control, number.to_bytes(16, "big"))
    declare(rig, control)
    transactions = rig.gateway._transactions.open
    assert len(transactions) == 202
    rig.transfer(other, encode_coordination(Discharge(TXN, fail=True)))  # is not this link's
    rig.effect(RejectedEffect(rig.take(commands.Discharge).reply_to, TransactionUnknown("x")))
    assert len(transactions) == 202
    if how == "timed out":
        link = LinkId(CONNECTION_ID, 1)
        for _ in range(2):
            rig.effect(TransactionEnded(link, TXN))
        assert len(transactions) == 201
    elif how == "refused":
        rig.effect(RejectedEffect(discharge(rig, control).reply_to, TransactionRolledBack("x")))
        assert len(transactions) == 201
    elif how == "link":
        rig.client.detach(rig.channel, control)
        rig.pump()
        assert list(transactions) == [kept]
    else:
        if how == "session":
            rig.client.end(rig.channel)
        else:
            rig.client.close()
        rig.pump()
        assert not transactions


def test_a_command_names_the_via_entity_of_the_coordinators_session_alone(rig: Harness) -> None:
    """Req: F-03, C48."""
    control = rig.controller()
    declare(rig, control)
    rig.receiver("News/Subscriptions/one")
    rig.sender("other")
    sender = rig.sender("third")
    rig.transfer(sender, message_bytes(), state=WITHIN)
    assert rig.take(Enlist).via == "news"
    rig.transfer(sender, message_bytes(), state=TransactionalState(b"of nobody"))
    assert rig.take(Enlist).via is None
    rig.channel = rig.client.begin()
    rig.transfer(rig.sender("news"), message_bytes(), state=WITHIN)
    assert rig.take(Enlist).via is None


# Requests


def test_a_disposition_by_request_is_enlisted_and_answered_200(rig: Harness) -> None:
    """The request itself is settled at once. Req: F-03, L-14. Source: wire contract 0.6, 6."""
    sender, _ = rig.pair("orders/$management")
    body = {"disposition-status": "completed", "lock-tokens": Array.of(uuid.UUID, [TOKEN])}
    rig.request(sender, "com.microsoft:update-disposition", body, state=WITHIN)
    assert outcome(rig, 0) == TransactionalState(TXN, ACCEPTED)
    enlist = rig.take(Enlist)
    assert (enlist.connection_id, enlist.transaction_id) == (CONNECTION_ID, TXN)
    command = enlist.command
    assert isinstance(command, UpdateDisposition)
    assert (command.lock_tokens, command.disposition) == ([TOKEN.bytes_le], Disposition.COMPLETED)
    rig.effect(Enlisted(command.reply_to))
    assert rig.response().status == 200


@pytest.mark.parametrize(
    ("error", "status", "condition"),
    [
        (TransactionUnknown("x"), 404, "amqp:transaction:unknown-id"),
        (TransactionTimedOut("x"), 408, "amqp:transaction:timeout"),
        (MessageLockLost("x"), 410, "com.microsoft:message-lock-lost"),
    ],
)
def test_a_disposition_by_request_that_cannot_be_enlisted_says_why(
    rig: Harness, error: ServiceBusError, status: int, condition: str
) -> None:
    """Req: F-03."""
    sender, _ = rig.pair("orders/$management")
    body = {"disposition-status": "abandoned", "lock-tokens": Array.of(uuid.UUID, [TOKEN])}
    rig.request(sender, "com.microsoft:update-disposition", body, state=WITHIN)
    reply_to = rig.take(Enlist).command.reply_to
    assert reply_to is not None
    rig.effect(Failed(reply_to, error))
    response = rig.response()
    assert (response.status, str(response.condition)) == (status, condition)


def test_locks_are_renewed_at_once_within_a_transaction_too(rig: Harness) -> None:
    """Req: F-03, L-10. Source: wire contract 6."""
    sender, _ = rig.pair("orders/$management")
    body = {"lock-tokens": Array.of(uuid.UUID, [TOKEN])}
    rig.request(sender, "com.microsoft:renew-lock", body, state=WITHIN)
    rig.effect(LocksRenewed(rig.take(RenewLocks).reply_to, [5]))
    assert rig.response().status == 200


def test_a_schedule_within_a_transaction_is_enlisted_and_answered_with_its_numbers(rig: Harness) -> None:
    """Req: F-03, S-05. Source: wire contract C12; .NET sends the request settled."""
    sender, _ = rig.pair("orders/$management")
    body = {"messages": [{"message": message_bytes()}, {"message": message_bytes()}]}
    rig.request(sender, "com.microsoft:schedule-message", body, state=WITHIN, settled=True)
    assert silent(rig)
    enlist = rig.take(Enlist)
    assert (enlist.connection_id, enlist.transaction_id) == (CONNECTION_ID, TXN)
    assert isinstance(enlist.command, Schedule)
    assert len(enlist.command.messages) == 2
    rig.effect(MessagesScheduled(enlist.command.reply_to, [SequenceNumber(7), SequenceNumber(8)]))
    response = rig.response()
    assert (response.status, list(response.body["sequence-numbers"])) == (200, [7, 8])
    rig.request(sender, "com.microsoft:schedule-message", body, state=WITHIN)
    refused = rig.take(Enlist).command
    assert refused.reply_to is not None
    rig.effect(Failed(refused.reply_to, InvalidOperation("two partition keys")))
    assert (rig.response().condition, rig.commands) == ("amqp:not-allowed", [])


@pytest.mark.parametrize(
    ("operation", "body", "kind"),
    [
        ("cancel-scheduled-message", {"sequence-numbers": [1]}, CancelScheduled),
        ("set-session-state", {"session-id": "s", "session-state": b"x"}, SetSessionState),
    ],
)
def test_a_cancellation_and_a_state_are_enlisted_and_answered_200(
    rig: Harness, operation: str, body: dict[str, Any], kind: type
) -> None:
    """Req: F-03, S-06, G-03, C30."""
    sender, _ = rig.pair("orders/$management")
    rig.request(sender, f"com.microsoft:{operation}", body, state=WITHIN, settled=True)
    enlist = rig.take(Enlist)
    assert (enlist.transaction_id, type(enlist.command)) == (TXN, kind)
    assert enlist.command.reply_to is not None
    rig.effect(Enlisted(enlist.command.reply_to))
    assert rig.response().status == 200


def test_messages_are_deleted_at_once_within_a_transaction_too(rig: Harness) -> None:
    """Req: F-03, C30."""
    sender, _ = rig.pair("orders/$management")
    body = {"message-count": 1, "enqueued-time-utc": Timestamp(1)}
    rig.request(sender, "com.microsoft:batch-delete-messages", body, state=WITHIN)
    assert rig.take(DeleteMessages).count_max == 1


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        ("peeklock:purge-messages", {"enqueued-time-utc": Timestamp(1)}),
        ("peeklock:cursor-take", {"cursor": "lake", "owner": "host:1"}),
        ("peeklock:cursor-claim", {"cursor": "lake", "max-messages": 1, "max-bytes": 1}),
        ("peeklock:cursor-commit", {"cursor": "lake", "claim": 1}),
        ("peeklock:cursor-release", {"cursor": "lake"}),
    ],
)
def test_other_changes_are_refused_within_a_transaction(
    rig: Harness, operation: str, body: dict[str, Any]
) -> None:
    """They are done at once and cannot be undone. Req: F-03."""
    sender, _ = rig.pair("orders/$management")
    rig.request(sender, operation, body, state=WITHIN)
    assert outcome(rig, 0) == TransactionalState(TXN, ACCEPTED)
    response = rig.response()
    assert (response.status, str(response.condition)) == (400, "amqp:not-allowed")
    assert rig.commands == []
    rig.request(sender, operation, body)
    assert not isinstance(rig.commands.pop(), Enlist)


# Sending via an entity


@pytest.mark.parametrize("text", ["audit", "/audit", "amqps://host:5671/audit", Symbol("audit")])
def test_a_sender_via_an_entity_names_its_destination_with_each_message(rig: Harness, text: str) -> None:
    """Req: F-03. Source: wire contract 2.1, 2.5, 6."""
    handle = rig.attach(Role.SENDER, "orders", properties={DESTINATION: text})
    command = rig.take(OpenSender)
    assert (command.address, command.destination) == (Address("orders"), Address("audit"))
    rig.effect(SenderOpened(command.link, QUEUE_ID, SIZE_MAX, False))
    rig.transfer(handle, message_bytes())
    assert rig.take(Send).destination == Address("audit")
    rig.transfer(handle, section(0x75, message_bytes()), message_format=BATCH_FORMAT)
    assert rig.take(SendBatch).destination == Address("audit")
    rig.transfer(handle, message_bytes(), state=WITHIN)
    command = rig.take(Enlist).command  # type: ignore[assignment]  # it is a settlement
    assert command.destination == Address("audit")


def test_a_null_destination_is_none(rig: Harness) -> None:
    rig.attach(Role.SENDER, "orders", properties={DESTINATION: None})
    assert rig.take(OpenSender).destination is None


@pytest.mark.parametrize(
    ("destination", "condition"),
    [
        (5, "amqp:invalid-field"),
        (b"audit", "amqp:invalid-field"),
        (["audit"], "amqp:invalid-field"),
        ("", "amqp:invalid-field"),
        ("amqps://host/", "amqp:invalid-field"),
        ("audit/$DeadLetterQueue", "amqp:not-allowed"),
        ("audit/$Transfer/$DeadLetterQueue", "amqp:not-allowed"),
        ("audit/$management", "amqp:not-allowed"),
        ("$cbs", "amqp:not-allowed"),
    ],
)
def test_a_destination_that_cannot_be_one_is_refused(rig: Harness, destination: Any, condition: str) -> None:
    """Req: R-05. Source: wire contract 2.2."""
    rig.attach(Role.SENDER, "orders", properties={DESTINATION: destination})
    assert str(rig.refusal().condition) == condition
    assert rig.commands == []


@pytest.mark.parametrize("granted", [("orders",), ("audit",), ("orders", "audit")])
def test_sending_via_an_entity_needs_the_right_to_send_to_both(granted: tuple[str, ...]) -> None:
    """Req: R-04. Source: wire contract 6: clients put two tokens."""
    rig = Harness(mechanism="ANONYMOUS")
    sender, _ = rig.pair("$cbs")
    expires_at_ms = rig.clock.now_ms + 60_000
    for name in granted:
        audience = f"sb://localhost/{name}"
        lasts_ms = expires_at_ms + (60_000 if name == "orders" else 0)
        rig.put_token(sender, audience, generate(audience, KEY_NAME, KEY, lasts_ms))
        rig.effect(EntityFound(rig.take(LookUp).reply_to, view_of_queue(name)))
    rig.attach(Role.SENDER, "orders", properties={DESTINATION: "audit"})
    if len(granted) == 1:
        assert str(rig.refusal().condition) == "amqp:unauthorized-access"
        assert rig.commands == []
        return
    command = rig.take(OpenSender)
    rig.effect(SenderOpened(command.link, QUEUE_ID, SIZE_MAX, False))
    # The link lives no longer than the first of both grants.
    rig.clock.now_ms = expires_at_ms + 1_000
    rig.commands += rig.gateway.tick(rig.clock.now_ms)
    rig.pump()
    assert rig.take(CloseLink).link == command.link
