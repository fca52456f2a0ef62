"""Request and response over a pair of links, as `$management` and `$cbs` do it.

Owns: the two halves of a node, which reply link an answer takes, and the envelope of requests and responses.
Must not know: what an operation does. Source: wire contract 1.7, 5.1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from peeklock.amqp.codec import DecodeError, TooManyElements, decode, decode_typed
from peeklock.amqp.encoding import encode
from peeklock.amqp.events import DeliveryOversized, DeliveryReceived, LinkFlow
from peeklock.amqp.link import HEAD_BYTES_MAX
from peeklock.amqp.messaging import VALUE, scan, scan_head
from peeklock.amqp.performatives import ACCEPTED, DeliveryState, TransactionalState
from peeklock.amqp.types import Encoded, Int, Symbol
from peeklock.broker.vocabulary.errors import QuotaExceeded
from peeklock.gateway.address import Node, NodeKind, shown
from peeklock.gateway.context import Context
from peeklock.gateway.errors import TABLE, MessageMalformed
from peeklock.gateway.links.incoming_link import IncomingLink

VALUES_MAX = 2_048
"""Values in the body of a request, and in its application properties: a list of 1,000 elements and what is
beside it. Our choice: at 0.4 to 1.6 us each, 3.5 ms."""

READ_IN_SLICES = frozenset(("com.microsoft:schedule-message",))
"""Operations whose body holds many messages: it is not decoded at once."""


Detach = Callable[["RequestLink | ReplyLink", Exception, int], None]
"""Detaches half of a node and says why; with now_ms."""


@dataclass(slots=True)
class Request:
    """One request, taken apart."""

    node: Node
    channel: int
    message_id: Encoded
    """As encoded: the response echoes its type and value."""
    reply_to: str | None
    operation: str
    properties: dict[str, Any]
    """Application properties."""
    body: Any
    """The amqp-value, decoded with its types; None when the body is of another kind, or was not decoded."""
    transaction_id: bytes | None
    """Of the transaction that the request is part of."""
    raw_body: tuple[bytes, int] | None = None
    """An amqp-value of too many values, or one that is `READ_IN_SLICES`: what it is in, where it begins."""


class ReplyLink:
    """The half on which a client receives responses."""

    def __init__(
        self,
        context: Context,
        channel: int,
        handle: int,
        node: Node,
        names: set[str],
        detach: Detach,
    ) -> None:
        """`names` are what a request may call it by: its own name and its target's address."""
        self.context = context
        self.channel = channel
        self.handle = handle
        self.node = node
        self.names = names
        self._detach = detach
        self._tag = 0
        self._waiting: deque[bytes] = deque()

    def flow(self, event: LinkFlow, now_ms: int) -> None:
        """Take the client's credit, and send what waited for it."""
        while self._waiting and self._has_credit():
            payload = self._waiting.popleft()
            self.context.unsent_reply_bytes -= len(payload)
            self._transfer(payload)
        if event.drain:
            self.context.connection.drained(self.channel, self.handle)

    def send(self, payload: bytes, now_ms: int) -> None:
        """Send a response, settled, as soon as there is credit for it.

        One of any size may wait. A peer that lets more wait than `unsent_replies_bytes_max` loses the link,
        and what waits with it: a request gets its answer or a detach.
        """
        context = self.context
        flows = not self._waiting and self._has_credit()
        held = context.connection.held_bytes  # by the peer's window, which credit does not open
        unsent = context.unsent_reply_bytes + held
        blocked = held or not flows
        if blocked and unsent + len(payload) > context.unsent_replies_bytes_max and unsent:
            reason = f"{unsent} bytes of replies wait for credit or for the window of their session"
            self._detach(self, QuotaExceeded(f"{reason}: there is no room for another one."), now_ms)
        elif flows:
            self._transfer(payload)
        else:
            self._waiting.append(payload)
            context.unsent_reply_bytes += len(payload)

    def forget(self) -> None:
        """Drop what waits: the link is gone."""
        self.context.unsent_reply_bytes -= sum(map(len, self._waiting))
        self._waiting.clear()

    def _has_credit(self) -> bool:
        # Not what the last event said: the client may have taken it back in the same read.
        return self.context.connection.credit(self.channel, self.handle) > 0

    def _transfer(self, payload: bytes) -> None:
        self._tag += 1
        tag = self._tag.to_bytes(8, "big")
        self.context.connection.send(self.channel, self.handle, tag, payload, settled=True)


class RequestLink(IncomingLink):
    """The half on which a client sends requests; each is settled at once, whatever becomes of it."""

    __slots__ = ("_detach", "_serve", "_size_bytes_max")

    def __init__(
        self,
        context: Context,
        channel: int,
        handle: int,
        node: Node,
        serve: Callable[[Request, int], None],
        size_bytes_max: int,
        detach: Detach,
    ) -> None:
        """`serve` answers through `respond` or `refuse`, now or later; it raises what it refuses at once."""
        super().__init__(context, channel, handle, node)
        self._detach = detach
        self._serve = serve
        self._size_bytes_max = size_bytes_max

    def opened(self) -> None:
        """Begin to take requests."""
        self._open(self.context.limits.request_credit)

    def received(self, event: DeliveryReceived, now_ms: int) -> None:
        """Take a request."""
        if len(event.payload) > self._size_bytes_max:  # it came whole before the link was accepted
            self._answer_oversized(event, event.payload[:HEAD_BYTES_MAX], now_ms)
            return
        self._use_credit()
        state = event.state
        transaction_id = state.txn_id if isinstance(state, TransactionalState) else None
        try:
            request = read_request(event.payload, self.node, self.channel, transaction_id)
        except DecodeError as error:
            self._refuse(event, MessageMalformed(str(error)), now_ms)
            return
        self._settle_request(event)
        self._serve(request, now_ms)

    def oversized(self, event: DeliveryOversized, now_ms: int) -> None:
        """Refuse a request that the engine discarded for its size."""
        self._answer_oversized(event, event.head, now_ms)

    def _answer_oversized(
        self, event: DeliveryReceived | DeliveryOversized, head: bytes, now_ms: int
    ) -> None:
        """Answer a request that is too large where its head tells who asks, else detach.

        Clients send requests settled and wait for an answer alone. An answer is our choice; a detach is the
        specification's (AMQP 2.7.3, max-message-size). Source: wire contract C25.
        """
        error = self._too_large(self._size_bytes_max)
        request = None
        if self.node.kind is not NodeKind.CBS:
            request = read_request_head(head, self.node, self.channel)
        if request is None or choose_reply_link(self.context, request) is None:
            if isinstance(event.state, TransactionalState):
                self.context.spoil(event.state.txn_id, error)
            self._detach(self, error, now_ms)
            return
        self._use_credit()
        self._settle_request(event)
        refuse_management(self.context, request, error, now_ms)

    def _settle_request(self, event: DeliveryReceived | DeliveryOversized) -> None:
        # At once, before any other disposition of this session: Python's sender link does not look at the
        # role of dispositions, so that one with an overlapping delivery-id would be taken for it (wire
        # contract 0.6).
        if not event.settled:
            state: DeliveryState = ACCEPTED
            if isinstance(event.state, TransactionalState):
                state = TransactionalState(event.state.txn_id, ACCEPTED)
            self._settle(event.delivery_id, state)


def read_request_head(head: bytes, node: Node, channel: int) -> Request | None:
    """Read from the first bytes of a request who asks; None where they do not tell."""
    sections = scan_head(head)
    try:
        message_id = sections.property_raw(0)
        reply_to = sections.decode_properties().reply_to
        properties = sections.decode_application_properties(elements_max=VALUES_MAX)
    except (DecodeError, TooManyElements):
        return None
    if message_id is None or not isinstance(reply_to, str):
        return None
    return Request(node, channel, Encoded(message_id), reply_to, "", properties, None, None)


def read_request(payload: bytes, node: Node, channel: int, transaction_id: bytes | None) -> Request:
    """Take a request apart.

    Raises:
        DecodeError: it is no message.
    """
    sections = scan(payload)
    message_id = Encoded(sections.property_raw(0) or b"\x40")
    reply_to = None
    if sections.properties is not None:
        reply_to = sections.decode_properties().reply_to
    properties: dict[str, Any] = {}
    if sections.application_properties is not None:
        properties = sections.decode_application_properties(elements_max=VALUES_MAX)
    operation = properties.get("operation")
    body = raw_body = None
    if sections.body is not None:
        code, start = decode(payload, sections.body[0] + 1, elements_max=0)
        if code == VALUE:
            raw_body = payload, start
            with suppress(TooManyElements):
                if operation not in READ_IN_SLICES:
                    body = decode_typed(payload, start, elements_max=VALUES_MAX)[0]
                    raw_body = None
    return Request(
        node,
        channel,
        message_id,
        reply_to if isinstance(reply_to, str) else None,
        operation if isinstance(operation, str) else "",
        properties,
        body,
        transaction_id,
        raw_body,
    )


def encode_response(
    correlation_id: Encoded, properties: Mapping[str, Any], body: Any, *, to: str | None = None
) -> bytes:
    """Encode a response: properties, application-properties, amqp-value."""
    fields = [None, None, to, None, None, correlation_id]
    return b"".join(
        (
            b"\x00\x53\x73",
            encode(fields),
            b"\x00\x53\x74",
            encode(dict(properties)),
            b"\x00\x53\x77",
            encode(body),
        )
    )


def choose_reply_link(context: Context, request: Request) -> ReplyLink | None:
    """Find the link that a response takes.

    First by name or target address, where several fit the request's own session and the latest win; else the
    latest of the request's session. Source: wire contract 5.1; JavaScript has each link on a session of its
    own.
    """
    links = [link for link in context.reply_links if link.node.path == request.node.path]
    own = [link for link in links if link.channel == request.channel]
    for candidates in (own, links):
        named = [link for link in candidates if request.reply_to in link.names]
        if named:
            return named[-1]
    return own[-1] if own else None


def respond_management(
    context: Context,
    request: Request,
    status: int,
    description: str,
    condition: Symbol | None,
    body: Any,
    now_ms: int,
) -> None:
    """Answer a management request."""
    properties: dict[str, Any] = {"statusCode": Int(status), "statusDescription": description}
    if condition is not None:
        properties["errorCondition"] = condition
    tracking_id = request.properties.get("com.microsoft:tracking-id")
    if isinstance(tracking_id, str):
        properties["com.microsoft:tracking-id"] = tracking_id
    _reply(context, request, properties, body, now_ms)


def refuse_management(context: Context, request: Request, error: Exception, now_ms: int) -> None:
    """Answer a management request with a refusal; the link lives on."""
    refusal = context.reporter.report(error, shown(request.node.address), now_ms)
    respond_management(
        context, request, TABLE[type(error)].status, refusal.description, refusal.condition, {}, now_ms
    )


def respond_cbs(context: Context, request: Request, status: int, description: str, now_ms: int) -> None:
    """Answer a put-token.

    Without an error condition, which may be left out: the official Python client drops status and text when
    there is one (azure-servicebus 7.15), and the others derive the same condition from the status (wire
    contract 4.6).
    """
    properties: dict[str, Any] = {"status-code": Int(status), "status-description": description}
    _reply(context, request, properties, None, now_ms)


def _reply(context: Context, request: Request, properties: dict[str, Any], body: Any, now_ms: int) -> None:
    link = choose_reply_link(context, request)
    if link is None:
        asked = {"node": request.node.path, "operation": request.operation}
        context.reporter.note("reply without a link", asked, now_ms)
        return
    link.send(encode_response(request.message_id, properties, body), now_ms)
