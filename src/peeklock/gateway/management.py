"""The `$management` node of an entity: one table of operations.

Owns: what each operation reads from a request, which right it needs, which command it becomes and how the
answer looks on the wire. Must not know: links, or what a command does. Source: wire contract 1.7, 5.1, 5.2.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from peeklock.amqp.types import Array, Int, Long, Timestamp
from peeklock.auth import AuthorizationError, Right
from peeklock.broker.commands import (
    CancelScheduled,
    Command,
    DeleteMessages,
    Disposition,
    Peek,
    ReceiveDeferred,
    ReceiveMode,
    RenewLocks,
    ReplyTo,
    Schedule,
    UpdateDisposition,
)
from peeklock.broker.effects import (
    Effect,
    Failed,
    LocksRenewed,
    MessagesDeleted,
    MessagesFound,
    MessagesScheduled,
)
from peeklock.broker.errors import (
    ArgumentInvalid,
    ArgumentOutOfRange,
    NotSupported,
    ServerBusy,
    ServiceBusError,
)
from peeklock.gateway.annotations import encode_for_receiver
from peeklock.gateway.context import Context, Payloads
from peeklock.gateway.errors import GatewayError
from peeklock.gateway.inspection import take_in
from peeklock.gateway.requests import Request, refuse_management, respond_management

DELETE_COUNT_MAX = 4000
"""Messages a batch-delete removes at most. Source: wire contract 5.2 (the SDKs' limit)."""

Body = Mapping[str, Any]
Answer = tuple[int, dict[str, Any]]
"""Status and body of a response."""


class ManagementNode:
    """Serves the requests of all `$management` nodes on one connection."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def serve(self, request: Request, now_ms: int) -> None:
        """Turn a request into a command, or refuse it."""
        context = self._context
        operation = OPERATIONS.get(request.operation)
        try:
            if operation is None:
                raise NotSupported(f"The operation '{request.operation[:64]}' is not supported.")
            context.claims.require(request.node.path, operation.right, now_ms, context.reporter.host_name)
            if not isinstance(request.body, dict):
                raise ArgumentInvalid("The body of the request is not a map.")
            if request.body.get("session-id") is not None:
                raise NotSupported("Sessions are not supported.")
            read = operation.read(request, context, now_ms)
            finds = operation.answer is _answer_found
            if finds and not self._has_room():
                raise ServerBusy("Too many answers with messages are under way on this connection.")
        except (ServiceBusError, GatewayError, AuthorizationError) as error:
            refuse_management(context, request, error, now_ms)
            return

        def answered(effect: Effect, answered_ms: int) -> bool:
            if isinstance(effect, Failed):
                context.finding -= finds
                refuse_management(context, request, effect.error, answered_ms)
                return True
            answer = operation.answer(effect, context.payloads)
            if answer is None:
                return False
            context.finding -= finds
            status, body = answer
            respond_management(context, request, status, _DESCRIPTIONS[status], None, body)
            return True

        context.finding += finds
        context.commands.append(read(context.ask(answered)))

    def _has_room(self) -> bool:
        """Say whether one more answer with messages may come: a request of 200 bytes asks for 256 KiB."""
        context = self._context
        limits = context.limits
        return context.finding < limits.finding_max and context.output_bytes <= 4 * limits.output_bytes_max


_DESCRIPTIONS = {200: "OK", 204: "No Content"}


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation: its right; its reading, a command but for reply-to; its answer (None: body missing)."""

    right: Right
    read: Callable[[Request, Context, int], Callable[[ReplyTo], Command]]
    answer: Callable[[Any, Payloads | None], Answer | None]


# Reading requests


def _read_renew(request: Request, context: Context, now_ms: int) -> Callable[[ReplyTo], Command]:
    tokens = _tokens(request.body)
    return lambda reply_to: RenewLocks(request.node.address, tokens, reply_to)


def _read_peek(request: Request, context: Context, now_ms: int) -> Callable[[ReplyTo], Command]:
    start = _integer(request.body, "from-sequence-number")
    count = _positive(request.body, "message-count")
    limits = context.limits
    return lambda reply_to: Peek(
        request.node.address,
        max(0, start),
        min(count, limits.reply_count_max),
        limits.reply_bytes_max,
        reply_to,
    )


def _read_schedule(request: Request, context: Context, now_ms: int) -> Callable[[ReplyTo], Command]:
    messages = []
    for item in _sequence(request.body, "messages"):
        payload = item.get("message") if isinstance(item, dict) else None
        if not isinstance(payload, bytes):
            raise ArgumentInvalid("An element of 'messages' holds no binary 'message'.")
        message, payload = take_in(payload, reads_routing=True)
        if message.scheduled_at_ms is None:
            message.scheduled_at_ms = now_ms
        messages.append((message, payload))
    return lambda reply_to: Schedule(request.node.address, messages, reply_to)


def _read_cancel(request: Request, context: Context, now_ms: int) -> Callable[[ReplyTo], Command]:
    numbers = _integers(request.body, "sequence-numbers")
    return lambda reply_to: CancelScheduled(request.node.address, numbers, reply_to)


def _read_deferred(request: Request, context: Context, now_ms: int) -> Callable[[ReplyTo], Command]:
    numbers = _integers(request.body, "sequence-numbers")
    mode = ReceiveMode.PEEK_LOCK
    if request.body.get("receiver-settle-mode") is not None:
        if _integer(request.body, "receiver-settle-mode") == 0:
            mode = ReceiveMode.RECEIVE_AND_DELETE
    return lambda reply_to: ReceiveDeferred(request.node.address, numbers, mode, reply_to)


_DISPOSITIONS = {
    "completed": Disposition.COMPLETED,
    "abandoned": Disposition.ABANDONED,
    "suspended": Disposition.SUSPENDED,
    "defered": Disposition.DEFERRED,
    "deferred": Disposition.DEFERRED,
}


def _read_disposition(request: Request, context: Context, now_ms: int) -> Callable[[ReplyTo], Command]:
    body = request.body
    status = _text(body, "disposition-status")
    disposition = _DISPOSITIONS.get((status or "").lower())
    if disposition is None:
        raise ArgumentInvalid(f"The disposition-status '{(status or '')[:64]}' is not known.")
    tokens = _tokens(body)
    properties = body.get("properties-to-modify")
    if properties is not None and not isinstance(properties, dict):
        raise ArgumentInvalid("'properties-to-modify' is not a map.")
    changed = {str(key): value for key, value in (properties or {}).items()}
    reason = _text(body, "deadletter-reason")
    description = _text(body, "deadletter-description")
    return lambda reply_to: UpdateDisposition(
        request.node.address, tokens, disposition, reply_to, reason, description, changed or None
    )


def _read_delete(request: Request, context: Context, now_ms: int) -> Callable[[ReplyTo], Command]:
    count = _positive(request.body, "message-count")
    before = _integer(request.body, "enqueued-time-utc")
    return lambda reply_to: DeleteMessages(
        request.node.address, min(count, DELETE_COUNT_MAX), before, reply_to
    )


# Answers


def _answer_done(effect: Effect, payloads: Payloads | None) -> Answer:
    return 200, {}


def _answer_renewed(effect: LocksRenewed, payloads: Payloads | None) -> Answer:
    return 200, {"expirations": Array.of(Timestamp, effect.locked_until_ms)}


def _answer_scheduled(effect: MessagesScheduled, payloads: Payloads | None) -> Answer:
    return 200, {"sequence-numbers": Array.of(Long, effect.sequence_numbers)}


def _answer_found(effect: MessagesFound, payloads: Payloads | None) -> Answer | None:
    if not effect.messages:
        return 204, {}
    found = []
    for view in effect.messages:
        payload = None if payloads is None else payloads(view.message)
        if payload is None:
            return None
        item: dict[str, Any] = {"message": encode_for_receiver(view, payload, partitioned=effect.partitioned)}
        if view.lock_token is not None:
            item["lock-token"] = uuid.UUID(bytes_le=view.lock_token)
        found.append(item)
    return 200, {"messages": found}


def _answer_deleted(effect: MessagesDeleted, payloads: Payloads | None) -> Answer:
    return (200 if effect.count else 204), {"message-count": Int(effect.count)}


OPERATIONS: dict[str, Operation] = {
    "com.microsoft:renew-lock": Operation(Right.LISTEN, _read_renew, _answer_renewed),
    "com.microsoft:peek-message": Operation(Right.LISTEN, _read_peek, _answer_found),
    "com.microsoft:schedule-message": Operation(Right.SEND, _read_schedule, _answer_scheduled),
    "com.microsoft:cancel-scheduled-message": Operation(Right.SEND, _read_cancel, _answer_done),
    "com.microsoft:receive-by-sequence-number": Operation(Right.LISTEN, _read_deferred, _answer_found),
    "com.microsoft:update-disposition": Operation(Right.LISTEN, _read_disposition, _answer_done),
    "com.microsoft:batch-delete-messages": Operation(Right.LISTEN, _read_delete, _answer_deleted),
}


# Fields of a request: any integer type for an integer, array or list for a sequence, uuid or string for a
# lock token (wire contract 5.1).


def _integer(body: Body, key: str) -> int:
    value = body.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ArgumentInvalid(f"'{key}' is not an integer.")
    return int(value)


def _positive(body: Body, key: str) -> int:
    value = _integer(body, key)
    if value <= 0:
        raise ArgumentOutOfRange(f"'{key}' is {value}; it must be greater than zero.")
    return value


def _text(body: Body, key: str) -> str | None:
    value = body.get(key)
    if value is not None and not isinstance(value, str):
        raise ArgumentInvalid(f"'{key}' is not a string.")
    return None if value is None else str(value)


def _sequence(body: Body, key: str) -> list[Any]:
    value = body.get(key)
    if not isinstance(value, list) or not value:
        raise ArgumentInvalid(f"'{key}' is not an array, or is empty.")
    return value


def _integers(body: Body, key: str) -> list[int]:
    values = _sequence(body, key)
    if any(not isinstance(value, int) or isinstance(value, bool) for value in values):
        raise ArgumentInvalid(f"An element of '{key}' is not an integer.")
    return [int(value) for value in values]


def _tokens(body: Body) -> list[bytes]:
    """Read lock tokens into .NET's byte order, which is the broker's (and the delivery tag's)."""
    tokens = []
    for value in _sequence(body, "lock-tokens"):
        if isinstance(value, uuid.UUID):
            tokens.append(value.bytes_le)
        elif isinstance(value, str):
            try:
                tokens.append(uuid.UUID(value).bytes_le)
            except ValueError:
                raise ArgumentInvalid("A lock token is not a GUID.") from None
        else:
            raise ArgumentInvalid("A lock token is neither a uuid nor a string.")
    return tokens
