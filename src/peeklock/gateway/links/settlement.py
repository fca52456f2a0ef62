"""What a receiver's dispositions mean: outcomes in -> settlements out.

A settled delivery is forgotten; settling it again fails with a lost lock. In a transaction the outcome is
provisional, and the delivery stays known until the commit settles it. After a rollback it is locked as
before, and the client may settle it again. Source: wire contract 4.2, 4.3, 6; AMQP 1.0 sections 2.7.6 and
4.4.2; requirement L-11.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from peeklock.amqp.events import DispositionReceived
from peeklock.amqp.performatives import (
    ACCEPTED,
    RELEASED,
    Accepted,
    DeliveryState,
    Modified,
    Rejected,
    Released,
    TransactionalState,
)
from peeklock.amqp.serial import MASK, ids_in_range
from peeklock.amqp.types import SENDER
from peeklock.broker.vocabulary.commands import (
    NO_LINK,
    RUN_MAX,
    Abandon,
    Complete,
    DeadLetter,
    Defer,
    LockToken,
    Release,
    ReplyTo,
)
from peeklock.broker.vocabulary.errors import (
    InvalidOperation,
    MessageLockLost,
    ServiceBusError,
    SessionLockLost,
)
from peeklock.gateway.context import Context
from peeklock.gateway.links.receiver_endpoint import Unsettled
from peeklock.gateway.transactions import Transactions

REASON: Final = "DeadLetterReason"
DESCRIPTION: Final = "DeadLetterErrorDescription"

EnlistedSettlement = Complete | Abandon | Defer | DeadLetter
Settlement = EnlistedSettlement | Release


def settle(
    context: Context,
    transactions: Transactions,
    unsettled: Unsettled,
    event: DispositionReceived,
    now_ms: int,
) -> None:
    """Turn a receiver's disposition into commands.

    Known deliveries of the range are settled one by one. Unknown ones are answered in one range each, unless
    the client wants no answer: with the reason why the broker detached their receiver, else a lost lock.
    """
    state = event.state
    emit = context.commands.append
    if state is ACCEPTED and not event.settled:
        # Fast path: accepted, and an answer wanted.
        number, behind, further = NO_LINK, 0, list[LockToken]()  # further tokens of the last command
        for delivery_id in _known(context, unsettled, event, now_ms):
            link = unsettled.pop(delivery_id)
            if link.number == number and delivery_id == behind and len(further) < RUN_MAX - 1:
                further.append(link.take_token(delivery_id))
            else:
                assert link.queue_id is not None
                number, further = link.number, list[LockToken]()
                asked = ReplyTo(context.connection_id, number, delivery_id)
                emit(Complete(link.queue_id, link.take_token(delivery_id), asked, further))
            behind = delivery_id + 1
        return
    if state is None:
        if not event.settled:
            return
        state = RELEASED  # settled without an outcome: it was not processed
    if type(state) is TransactionalState:
        _enlist(context, transactions, unsettled, event, state, now_ms)
        return
    make = _SETTLERS.get(type(state))
    if make is None:
        return  # `received` is no outcome: the delivery stays unsettled
    echo = None if event.settled else _echo(state)
    for delivery_id in _known(context, unsettled, event, now_ms):
        link = unsettled.pop(delivery_id)
        assert link.queue_id is not None
        reply_to = None if echo is None else link.expect(delivery_id, echo)
        emit(make(link.queue_id, link.take_token(delivery_id), state, reply_to))


def _enlist(
    context: Context,
    transactions: Transactions,
    unsettled: Unsettled,
    event: DispositionReceived,
    state: TransactionalState,
    now_ms: int,
) -> None:
    """Settle when the transaction is committed.

    Deliveries that a client settles at its end are forgotten here too, whether the transaction is
    committed or not.
    """
    outcome = state.outcome
    make = _ENLISTABLE.get(type(outcome))
    if make is None:
        _refuse_outcome(context, transactions, event, state, now_ms)
        return
    assert outcome is not None
    echo = _echo(outcome)
    for delivery_id in _known(context, unsettled, event, now_ms):
        link = unsettled[delivery_id]
        assert link.queue_id is not None
        if event.settled:
            if link.settled_by_client(delivery_id, state.txn_id):
                continue  # the client's end of an earlier request, no second settlement
            del unsettled[delivery_id]
            command = make(link.queue_id, link.take_token(delivery_id), outcome, None)
        else:
            reply_to = link.expect_within(delivery_id, TransactionalState(state.txn_id, echo))
            command = make(link.queue_id, link.token(delivery_id), outcome, reply_to)
        transactions.enlist(state.txn_id, event.channel, command)


def _refuse_outcome(
    context: Context,
    transactions: Transactions,
    event: DispositionReceived,
    state: TransactionalState,
    now_ms: int,
) -> None:
    said = "nothing" if state.outcome is None else type(state.outcome).__name__.lower()
    refused = InvalidOperation(
        "In a transaction a message can be completed, abandoned, deferred or dead-lettered; the outcome of "
        f"delivery {event.first} is {said}."
    )
    refusal = context.reporter.report(refused, "", now_ms)
    if event.settled:
        transactions.spoil(state.txn_id, refused)
    else:
        context.connection.disposition(event.channel, SENDER, event.first, event.last, Rejected(refusal))


def _known(context: Context, unsettled: Unsettled, event: DispositionReceived, now_ms: int) -> list[int]:
    """Answer the unknown deliveries of a range, and return the known ones in its order."""
    first, last = event.first, event.last
    if first == last and first in unsettled:
        return [first]
    known = ids_in_range(first, last, unsettled)
    if event.settled:
        return known
    at = first
    for delivery_id in known:
        if delivery_id != at:
            _answer_unknown(context, unsettled, event.channel, at, (delivery_id - 1) & MASK, now_ms)
        at = (delivery_id + 1) & MASK
    if at != (last + 1) & MASK:
        _answer_unknown(context, unsettled, event.channel, at, last, now_ms)
    return known


def _answer_unknown(
    context: Context, unsettled: Unsettled, channel: int, first: int, last: int, now_ms: int
) -> None:
    lost: ServiceBusError
    if unsettled.detached_with is not None:
        lost = unsettled.detached_with
    elif unsettled.of_message_session:
        lost = SessionLockLost(
            "The session lock has expired on the message session, or the message was settled before "
            f"(delivery {first})."
        )
    else:
        lost = MessageLockLost(
            "The lock supplied is invalid. Either the lock expired, or the message has already been removed "
            f"from the queue (delivery {first})."
        )
    refusal = context.reporter.report(lost, "", now_ms)
    context.connection.disposition(channel, SENDER, first, last, Rejected(refusal))


def _echo(state: DeliveryState) -> DeliveryState:
    """Return the outcome that confirms a client's own (wire contract 4.3)."""
    if isinstance(state, Modified):
        return Modified(state.delivery_failed, state.undeliverable_here)
    if isinstance(state, Rejected):
        return Rejected(None)  # with an error it would mean failure
    return state


def _complete(queue_id: int, token: LockToken, state: Any, reply_to: ReplyTo | None) -> Complete:
    return Complete(queue_id, token, reply_to)


def _release(queue_id: int, token: LockToken, state: Any, reply_to: ReplyTo | None) -> Release:
    return Release(queue_id, token, reply_to)


def _modify(queue_id: int, token: LockToken, state: Modified, reply_to: ReplyTo | None) -> Abandon | Defer:
    """`undeliverable-here` alone tells defer from abandon (wire contract 4.2)."""
    kind = Defer if state.undeliverable_here else Abandon
    return kind(queue_id, token, reply_to, _text_keys(state.message_annotations))


def _dead_letter(queue_id: int, token: LockToken, state: Rejected, reply_to: ReplyTo | None) -> DeadLetter:
    reason = description = None
    properties: Mapping[str, Any] | None = None
    if state.error is not None:
        info = _text_keys(state.error.info) or {}
        reason = _take_text(info, REASON)
        description = _take_text(info, DESCRIPTION)
        if DESCRIPTION not in info:
            description = description or state.error.description or None
        properties = info or None
    return DeadLetter(queue_id, token, reply_to, reason, description, properties)


def _text_keys(pairs: Mapping[Any, Any] | None) -> dict[str, Any] | None:
    """Return properties to modify. Keys come as symbols or strings; others are ignored."""
    if not pairs:
        return None
    return {str(key): value for key, value in pairs.items() if isinstance(key, str)}


def _take_text(properties: dict[str, Any], name: str) -> str | None:
    """Take a text out of properties to modify. A null is dropped; any other value stays a property.

    Source: wire contract C31.
    """
    value = properties.get(name)
    if value is not None and not isinstance(value, str):
        return None
    properties.pop(name, None)
    return None if value is None else str(value)


_ENLISTABLE: Final[dict[type, Callable[[int, LockToken, Any, ReplyTo | None], EnlistedSettlement]]] = {
    Accepted: _complete,
    Modified: _modify,
    Rejected: _dead_letter,
}
_SETTLERS: Final[dict[type, Callable[[int, LockToken, Any, ReplyTo | None], Settlement]]] = {
    **_ENLISTABLE,
    Released: _release,
}
