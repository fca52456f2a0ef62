"""Request and response over a pair of links, as `$management` and `$cbs` do it.

Owns: the two halves of a node, which reply link an answer takes, and the envelope of requests and responses.
Must not know: what an operation does. Source: wire contract 1.7, 5.1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from peeklock.amqp.codec import DecodeError, decode, decode_typed
from peeklock.amqp.encoding import encode
from peeklock.amqp.events import DeliveryReceived, LinkFlow
from peeklock.amqp.messaging import VALUE, scan
from peeklock.amqp.performatives import ACCEPTED, TransactionalState
from peeklock.amqp.types import Encoded, Int, Symbol
from peeklock.gateway.address import Node, shown
from peeklock.gateway.context import Context
from peeklock.gateway.errors import TABLE, MessageMalformed
from peeklock.gateway.intake import Intake


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
    """The amqp-value, decoded with its types; None when the body is of another kind."""
    transaction_id: bytes | None
    """Of the transaction that the request is part of."""


class ReplyLink:
    """The half on which a client receives responses."""

    def __init__(
        self, context: Context, channel: int, handle: int, node: Node, name: str, target_address: str | None
    ) -> None:
        self.context = context
        self.channel = channel
        self.handle = handle
        self.node = node
        self.names = {name, target_address} - {None}
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
        """Send a response, settled, as soon as there is credit for it."""
        context = self.context
        if not self._waiting and self._has_credit():
            self._transfer(payload)
        elif context.unsent_reply_bytes + len(payload) > context.limits.unsent_replies_bytes_max:
            waiting = {"node": self.node.path, "waiting": len(self._waiting)}
            context.reporter.note("reply dropped", waiting, now_ms)
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


class RequestLink(Intake):
    """The half on which a client sends requests; each is settled at once, whatever becomes of it."""

    __slots__ = ("_serve",)

    def __init__(
        self,
        context: Context,
        channel: int,
        handle: int,
        node: Node,
        serve: Callable[[Request, int], None],
    ) -> None:
        """`serve` answers through `respond` or `refuse`, now or later; it raises what it refuses at once."""
        super().__init__(context, channel, handle, node)
        self._serve = serve

    def opened(self) -> None:
        """Begin to take requests."""
        self._open(self.context.limits.request_credit)

    def received(self, event: DeliveryReceived, now_ms: int) -> None:
        """Take a request."""
        self._use_credit()
        state = event.state
        transaction_id = state.txn_id if isinstance(state, TransactionalState) else None
        try:
            request = read_request(event.payload, self.node, self.channel, transaction_id)
        except DecodeError as error:
            self._refuse(event, MessageMalformed(str(error)), now_ms)
            return
        # At once, before any other disposition of this session: Python's sender link does not look at the
        # role of dispositions, so that one with an overlapping delivery-id would be taken for it (wire
        # contract 0.6).
        if not event.settled:
            within = None if transaction_id is None else TransactionalState(transaction_id, ACCEPTED)
            self._settle(event.delivery_id, within or ACCEPTED)
        self._serve(request, now_ms)


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
        properties = sections.decode_application_properties()
    body = None
    if sections.body is not None:
        code, start = decode(payload, sections.body[0] + 1)
        if code == VALUE:
            body = decode_typed(payload, start)[0]
    operation = properties.get("operation")
    return Request(
        node,
        channel,
        message_id,
        reply_to if isinstance(reply_to, str) else None,
        operation if isinstance(operation, str) else "",
        properties,
        body,
        transaction_id,
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
