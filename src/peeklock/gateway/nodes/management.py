"""The `$management` node of an entity: one table of operations.

For each operation: what it reads from a request, which right it needs, which command it becomes, and its
answer on the wire. Source: wire contract 1.7, 5.1, 5.2.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from peeklock.amqp.encoding import encode
from peeklock.amqp.messaging import Sections
from peeklock.amqp.types import Array, Encoded, Int, Long, Symbol, Timestamp
from peeklock.auth import AuthorizationError, Right
from peeklock.broker.vocabulary import commands, effects
from peeklock.broker.vocabulary.addresses import LockToken, SequenceNumber
from peeklock.broker.vocabulary.errors import (
    ArgumentInvalid,
    ArgumentOutOfRange,
    InvalidOperation,
    NotSupported,
    ServerBusy,
    ServiceBusError,
)
from peeklock.broker.vocabulary.message import Message
from peeklock.gateway.address import shown
from peeklock.gateway.annotations import encode_for_receiver, without_body
from peeklock.gateway.answers import Answers
from peeklock.gateway.claims import Claims
from peeklock.gateway.context import Backlog, Context, Output, Payloads
from peeklock.gateway.errors import GatewayError
from peeklock.gateway.inspection import BatchReader
from peeklock.gateway.links.settlement import DESCRIPTION, REASON
from peeklock.gateway.nodes import cursors, fields, rules
from peeklock.gateway.nodes.fields import HeldSessions, Scope
from peeklock.gateway.nodes.requests import READ_IN_SLICES, VALUES_MAX, ReplyLinks, Request
from peeklock.gateway.nodes.schedules import iter_scheduled
from peeklock.gateway.transactions import Transactions

DELETE_COUNT_MAX = 4000
"""Messages that one batch-delete removes, on every tier; more is refused. Clients that purge stop at the
first answer that is smaller than they asked for. Source: wire contract 5.2, C9."""

ALL_SESSIONS_FROM_MS = 253_402_300_799_999
"""A last-updated-time at or after the end of the year 9999 means all sessions. Source: wire contract 5.2."""

RULES_BYTES_MAX = 1_048_576
"""Of the answer to an enumeration of rules; a client gets the others by skipping these. Our choice: 100
rules, a page of .NET's, are far smaller, however long their expressions."""

SESSION_NOT_FOUND = Symbol("com.microsoft:session-not-found")
RULES_NOT_FOUND = Symbol("com.microsoft:rules-not-found")

Answer = tuple[int, Symbol | None, dict[str, Any]]
"""Status, condition and body of a response."""


class ManagementNode:
    """Serves the requests of all `$management` nodes on one connection."""

    def __init__(
        self,
        context: Context,
        claims: Claims,
        backlog: Backlog,
        output: Output,
        transactions: Transactions,
        answers: Answers,
        replies: ReplyLinks,
        sessions: HeldSessions,
    ) -> None:
        self._context = context
        self._claims = claims
        self._backlog = backlog
        self._output = output
        self._transactions = transactions
        self._answers = answers
        self._replies = replies
        self._sessions = sessions
        self._finding = 0
        """Requests under way whose answers hold messages or a state."""

    def serve(self, request: Request, now_ms: int) -> None:
        """Turn a request into a command, or refuse it."""
        operation = OPERATIONS.get(request.operation)
        try:
            if operation is None:
                raise NotSupported(f"The operation '{request.operation[:64]}' is not supported.")
            host_name = self._context.reporter.host_name
            self._claims.require(request.node.path, operation.right, now_ms, host_name)
            self._transactions.require_via(request.channel, request.node.address)
            if request.transaction_id is not None and operation.read in _CHANGING:
                # They are done at once and cannot be undone (F-03).
                raise InvalidOperation(
                    f"The operation '{request.operation}' is not possible in a transaction."
                )
            if request.operation in READ_IN_SLICES:
                self._backlog.read(self._read_messages(request, operation, now_ms))
                return
            if request.raw_body is not None:
                raise ArgumentOutOfRange(
                    f"The request holds more than {VALUES_MAX} values: a list in it has "
                    f"{fields.ELEMENTS_MAX} elements at most."
                )
            if not isinstance(request.body, dict):
                raise ArgumentInvalid("The body of the request is not a map.")
            if operation is _PEEK and fields.boolean(request.body, "omit-message-body"):
                operation = _PEEK_WITHOUT_BODIES
            command = operation.read(request, self._scope(now_ms))
            finds = operation.answer in _FINDING
            if finds and not self._has_room():
                raise ServerBusy("Too many large answers are under way on this connection.")
        except (ServiceBusError, GatewayError, AuthorizationError) as error:
            self._replies.refuse(request, error, now_ms)
            return
        self._ask(request, operation, command, finds)

    def _scope(self, now_ms: int) -> Scope:
        reply_to, wall_ms = self._answers.reply_to(), self._claims.wall_ms(now_ms)
        return Scope(self._context.limits, self._sessions, reply_to, now_ms, wall_ms)

    def _read_messages(self, request: Request, operation: Operation, now_ms: int) -> Iterator[None]:
        """Read the messages of a request, then ask; yields where others may have a turn."""
        try:
            if request.raw_body is None:
                raise ArgumentInvalid("The body of the request is not a map.")
            reader = BatchReader(iter_scheduled(*request.raw_body), reads_routing=True)
            while reader.read(self._context.limits.slice_messages):
                yield
        except (ServiceBusError, GatewayError) as error:
            self._replies.refuse(request, error, now_ms)
            return
        request.body = reader.messages
        self._ask(request, operation, operation.read(request, self._scope(now_ms)), finds=False)

    def _ask(self, request: Request, operation: Operation, command: Any, finds: bool) -> None:
        """Hand out the command of a request, and answer it later."""

        def answered(effect: effects.Effect, payloads: Payloads | None, answered_ms: int) -> bool:
            if isinstance(effect, effects.Failed):
                self._finding -= finds
                self._replies.refuse(request, effect.error, answered_ms)
                return True
            answer = operation.answer(effect, payloads)
            if answer is None:
                return False
            self._finding -= finds
            status, condition, body = answer
            self._replies.respond(request, status, _DESCRIPTIONS[status], condition, body, answered_ms)
            return True

        self._finding += finds
        self._answers.expect(command.reply_to, answered)
        if request.transaction_id is not None and isinstance(command, _ENLISTABLE):
            self._transactions.enlist(request.transaction_id, request.channel, command)
        else:
            self._context.commands.append(command)

    def _has_room(self) -> bool:
        """Return whether one more large answer may come: a request of 200 bytes asks for 256 KiB."""
        limits = self._context.limits
        unsent_bytes = self._replies.unsent_bytes + self._context.connection.held_bytes
        return (
            self._finding < limits.finding_max
            and self._output.pending_bytes <= 4 * limits.output_bytes_max
            and unsent_bytes <= limits.unsent_replies_bytes_max
        )


_DESCRIPTIONS = {200: "OK", 204: "No Content"}


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation: its right, its reading and its answer (None: a body is missing)."""

    right: Right
    read: Callable[[Request, Scope], commands.Command]
    answer: Callable[[Any, Payloads | None], Answer | None]


# Reading requests


def _read_renew(request: Request, scope: Scope) -> commands.Command:
    return commands.RenewLocks(request.node.address, fields.tokens(request.body), scope.reply_to)


def _session_id(request: Request, scope: Scope) -> str | None:
    """Return the session that a request names, else that of the receiver it is associated with.

    The Go client names the receiver alone. Source: wire contract 5.1.
    """
    session_id = fields.session_id(request.body)
    name = request.properties.get("associated-link-name")
    if session_id is None and isinstance(name, str):
        path, held = scope.sessions.get(name, ("", None))
        return held if path == request.node.address.path else None
    return session_id


def _read_peek(request: Request, scope: Scope) -> commands.Command:
    first = SequenceNumber(max(0, fields.integer(request.body, "from-sequence-number")))
    count = min(fields.positive(request.body, "message-count"), scope.limits.reply_count_max)
    session_id = _session_id(request, scope)
    bytes_max = scope.limits.reply_bytes_max
    return commands.Peek(request.node.address, first, count, bytes_max, scope.reply_to, session_id)


def _read_schedule(request: Request, scope: Scope) -> commands.Command:
    messages: list[tuple[Message, Sections]] = request.body  # see `_read_messages`
    for message, _ in messages:
        if message.scheduled_at_ms is None:
            message.scheduled_at_ms = min(scope.now_ms, scope.wall_ms)  # past in either case
    return commands.Schedule(request.node.address, messages, scope.reply_to)


def _read_cancel(request: Request, scope: Scope) -> commands.Command:
    numbers = fields.sequence_numbers(request.body)
    return commands.CancelScheduled(request.node.address, numbers, scope.reply_to)


def _read_deferred(request: Request, scope: Scope) -> commands.Command:
    numbers = fields.sequence_numbers(request.body)
    session_id = _session_id(request, scope)
    mode = commands.ReceiveMode.PEEK_LOCK
    if request.body.get("receiver-settle-mode") is not None:
        if fields.integer(request.body, "receiver-settle-mode") == 0:
            mode = commands.ReceiveMode.RECEIVE_AND_DELETE
    return commands.ReceiveDeferred(request.node.address, numbers, mode, scope.reply_to, session_id)


_DISPOSITIONS = {
    "completed": commands.Disposition.COMPLETED,
    "abandoned": commands.Disposition.ABANDONED,
    "suspended": commands.Disposition.SUSPENDED,
    "defered": commands.Disposition.DEFERRED,
    "deferred": commands.Disposition.DEFERRED,
}


def _read_disposition(request: Request, scope: Scope) -> commands.Command:
    body = request.body
    status = fields.text(body, "disposition-status")
    disposition = _DISPOSITIONS.get((status or "").lower())
    if disposition is None:
        raise ArgumentInvalid(f"The disposition-status '{(status or '')[:64]}' is not known.")
    tokens = fields.tokens(body)
    properties = body.get("properties-to-modify")
    if properties is not None and not isinstance(properties, dict):
        raise ArgumentInvalid("'properties-to-modify' is not a map.")
    changed = {str(key): value for key, value in (properties or {}).items()}
    reason = description = None
    if disposition is commands.Disposition.SUSPENDED:
        reason = _dead_letter_text(body, "deadletter-reason", REASON, changed)
        description = _dead_letter_text(body, "deadletter-description", DESCRIPTION, changed)
    session_id = _session_id(request, scope)
    return commands.UpdateDisposition(
        request.node.address,
        tokens,
        disposition,
        scope.reply_to,
        reason,
        description,
        changed or None,
        session_id,
    )


def _dead_letter_text(body: fields.Body, key: str, name: str, changed: dict[str, Any]) -> str | None:
    """Read a text about a dead letter; any other value becomes a property of its type (wire contract C31)."""
    value = body.get(key)
    if value is None or isinstance(value, str):
        return None if value is None else str(value)
    changed[name] = value
    return None


def _read_delete(request: Request, scope: Scope) -> commands.Command:
    count = fields.positive(request.body, "message-count")
    if count > DELETE_COUNT_MAX:
        raise ArgumentOutOfRange(f"'message-count' is {count}; the limit is {DELETE_COUNT_MAX}.")
    before = fields.integer(request.body, "enqueued-time-utc")
    session_id = fields.session_id(request.body)
    return commands.DeleteMessages(request.node.address, count, before, scope.reply_to, session_id)


def _read_purge(request: Request, scope: Scope) -> commands.Command:
    before = max(scope.now_ms, scope.wall_ms)
    # Other operations ignore unknown keys; here a misspelt one would empty the queue.
    unknown = sorted(str(key)[:64] for key in request.body if key != "enqueued-time-utc")
    if unknown:
        raise ArgumentInvalid(f"A purge takes no '{unknown[0]}', only 'enqueued-time-utc'.")
    if request.body.get("enqueued-time-utc") is not None:
        before = fields.integer(request.body, "enqueued-time-utc")
    return commands.PurgeMessages(request.node.address, before, scope.reply_to)


def _read_renew_session(request: Request, scope: Scope) -> commands.Command:
    return commands.RenewSessionLock(
        request.node.address, fields.named_session_id(request.body), scope.reply_to
    )


def _read_get_state(request: Request, scope: Scope) -> commands.Command:
    return commands.GetSessionState(
        request.node.address, fields.named_session_id(request.body), scope.reply_to
    )


def _read_set_state(request: Request, scope: Scope) -> commands.Command:
    session_id = fields.named_session_id(request.body)
    if "session-state" not in request.body:
        raise ArgumentInvalid("'session-state' is missing; null clears the state.")
    state = request.body["session-state"]
    if state is not None and type(state) is not bytes:
        raise ArgumentInvalid("'session-state' is not binary.")
    kept = state or None  # the Go client has no null for a state: its nil is the empty binary
    return commands.SetSessionState(request.node.address, session_id, kept, scope.reply_to)


def _read_sessions(request: Request, scope: Scope) -> commands.Command:
    since: int | None = fields.integer(request.body, "last-updated-time")
    if since is not None and since >= ALL_SESSIONS_FROM_MS:
        since = None
    skip = fields.not_negative(request.body, "skip")
    top = min(fields.positive(request.body, "top"), scope.limits.reply_count_max)
    return commands.ListSessions(request.node.address, since, skip, top, scope.reply_to)


def _read_add_rule(request: Request, scope: Scope) -> commands.Command:
    return commands.AddRule(_ruled(request.node.address), rules.read_rule(request.body), scope.reply_to)


def _read_remove_rule(request: Request, scope: Scope) -> commands.Command:
    return commands.RemoveRule(_ruled(request.node.address), rules.read_name(request.body), scope.reply_to)


def _read_rules(request: Request, scope: Scope) -> commands.Command:
    path = _ruled(request.node.address)
    skip = fields.not_negative(request.body, "skip")
    top = min(fields.positive(request.body, "top"), scope.limits.reply_count_max)
    return commands.ListRules(path, skip, top, scope.reply_to)


def _ruled(address: commands.Address) -> str:
    """Return the path of an entity that may have rules: the broker checks that it is a subscription."""
    if address.sub_queue is not commands.SubQueue.MAIN:
        raise InvalidOperation(f"'{shown(address)}' has no rules; its subscription has.")
    return address.path


# Answers


def _answer_done(effect: effects.Effect, payloads: Payloads | None) -> Answer:
    return 200, None, {}


def _answer_renewed(effect: effects.LocksRenewed, payloads: Payloads | None) -> Answer:
    return 200, None, {"expirations": Array.of(Timestamp, effect.locked_until_ms)}


def _answer_scheduled(effect: effects.MessagesScheduled, payloads: Payloads | None) -> Answer:
    return 200, None, {"sequence-numbers": Array.of(Long, effect.sequence_numbers)}


def _answer_found(
    effect: effects.MessagesFound, payloads: Payloads | None, *, with_bodies: bool = True
) -> Answer | None:
    if not effect.messages:
        return 204, None, {}
    found = []
    for view in effect.messages:
        payload = None if payloads is None else payloads(view.message)
        if payload is None:
            return None
        message = encode_for_receiver(view, payload, partitioned=effect.partitioned)
        found.append(encode_found(message if with_bodies else without_body(message), view.lock_token))
    return 200, None, {"messages": found}


_LONG_FOUND = struct.Struct(">BII9sBI").pack
_LONG_FOUND_BYTES = 4 + 9 + 5
"""What the size of a map counts beside the message: the count of elements, the key, and a head."""


def encode_found(message: bytes, lock_token: LockToken | None) -> Encoded:
    """Return `{message [, lock-token]}`, encoded: long messages without a token are most of what is read."""
    size = len(message)
    if lock_token is None and size > 255:
        head = _LONG_FOUND(0xD1, _LONG_FOUND_BYTES + size, 2, b"\xa1\x07message", 0xB0, size)
        return Encoded(head + message)
    item: dict[str, Any] = {"message": message}
    if lock_token is not None:
        item["lock-token"] = uuid.UUID(bytes_le=lock_token)
    return Encoded(encode(item))


def _answer_found_without_bodies(effect: effects.MessagesFound, payloads: Payloads | None) -> Answer | None:
    """Answer with all sections but the bodies. Source: wire contract C8."""
    return _answer_found(effect, payloads, with_bodies=False)


def _answer_deleted(effect: effects.MessagesDeleted, payloads: Payloads | None) -> Answer:
    return (200 if effect.count else 204), None, {"message-count": Int(effect.count)}


def _answer_purged(effect: effects.MessagesDeleted, payloads: Payloads | None) -> Answer:
    return 200, None, {"message-count": Int(effect.count)}


def _answer_session_renewed(effect: effects.SessionLockRenewed, payloads: Payloads | None) -> Answer:
    return 200, None, {"expiration": Timestamp(effect.locked_until_ms)}


def _answer_state(effect: effects.MessagesFound, payloads: Payloads | None) -> Answer | None:
    """Answer with the state, null where none is set: Python needs the key in either case."""
    if not effect.messages:
        return 200, None, {"session-state": None}
    [view] = effect.messages
    state = None if payloads is None else payloads(view.message)
    return None if state is None else (200, None, {"session-state": state})


def _answer_sessions(effect: effects.SessionsFound, payloads: Payloads | None) -> Answer:
    if not effect.session_ids:
        return 204, SESSION_NOT_FOUND, {}
    # Spelt like this on the wire (wire contract 5.2).
    return 200, None, {"skip": Int(effect.next_skip), "sessions-ids": Array.of(str, effect.session_ids)}


def _answer_rules(effect: effects.RulesFound, payloads: Payloads | None) -> Answer:
    if not effect.rules:
        return 204, RULES_NOT_FOUND, {}
    return 200, None, {"rules": rules.encode_rules(effect.rules, RULES_BYTES_MAX)}


_FINDING = frozenset(
    (_answer_found, _answer_found_without_bodies, _answer_state, _answer_rules, cursors.answer_cursors)
)
"""Answers that may be large."""


_PEEK = Operation(Right.LISTEN, _read_peek, _answer_found)
_PEEK_WITHOUT_BODIES = Operation(Right.LISTEN, _read_peek, _answer_found_without_bodies)

OPERATIONS: dict[str, Operation] = {
    "com.microsoft:renew-lock": Operation(Right.LISTEN, _read_renew, _answer_renewed),
    "com.microsoft:peek-message": _PEEK,
    "com.microsoft:schedule-message": Operation(Right.SEND, _read_schedule, _answer_scheduled),
    "com.microsoft:cancel-scheduled-message": Operation(Right.SEND, _read_cancel, _answer_done),
    "com.microsoft:receive-by-sequence-number": Operation(Right.LISTEN, _read_deferred, _answer_found),
    "com.microsoft:update-disposition": Operation(Right.LISTEN, _read_disposition, _answer_done),
    "com.microsoft:batch-delete-messages": Operation(Right.LISTEN, _read_delete, _answer_deleted),
    "com.microsoft:renew-session-lock": Operation(Right.LISTEN, _read_renew_session, _answer_session_renewed),
    "com.microsoft:get-session-state": Operation(Right.LISTEN, _read_get_state, _answer_state),
    "com.microsoft:set-session-state": Operation(Right.LISTEN, _read_set_state, _answer_done),
    "com.microsoft:get-message-sessions": Operation(Right.LISTEN, _read_sessions, _answer_sessions),
    "com.microsoft:add-rule": Operation(Right.LISTEN, _read_add_rule, _answer_done),
    "com.microsoft:remove-rule": Operation(Right.LISTEN, _read_remove_rule, _answer_done),
    "com.microsoft:enumerate-rules": Operation(Right.LISTEN, _read_rules, _answer_rules),
    "peeklock:purge-messages": Operation(Right.LISTEN, _read_purge, _answer_purged),
    "peeklock:cursor-take": Operation(Right.LISTEN, cursors.read_take, cursors.answer_cursors),
    "peeklock:cursor-claim": Operation(Right.LISTEN, cursors.read_claim, cursors.answer_claimed),
    "peeklock:cursor-read": Operation(Right.LISTEN, cursors.read_read, _answer_found),
    "peeklock:cursor-commit": Operation(Right.LISTEN, cursors.read_commit, cursors.answer_left),
    "peeklock:cursor-release": Operation(Right.LISTEN, cursors.read_release, cursors.answer_left),
    "peeklock:cursor-list": Operation(Right.LISTEN, cursors.read_list, cursors.answer_cursors),
}
_CHANGING = frozenset(
    (
        _read_purge,
        _read_add_rule,
        _read_remove_rule,
        cursors.read_take,
        cursors.read_claim,
        cursors.read_commit,
        cursors.read_release,
    )
)
"""Requests that are refused in a transaction: the service has none of them, or not there."""

_ENLISTABLE = (
    commands.UpdateDisposition,
    commands.Schedule,
    commands.CancelScheduled,
    commands.SetSessionState,
)
"""Commands that a transaction can hold. Others are done at once, even in one. Source: wire
contract 6, C30."""
