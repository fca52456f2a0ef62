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
from peeklock.amqp.events import DeliveryOversized, DeliveryReceived, LinkFlow
from peeklock.amqp.messaging import VALUE, scan
from peeklock.amqp.performatives import ACCEPTED, Rejected
from peeklock.amqp.types import Encoded, Int, Role, Symbol
from peeklock.broker.errors import MessageSizeExceeded
from peeklock.gateway.address import Node, shown
from peeklock.gateway.context import Context
from peeklock.gateway.errors import TABLE, MessageMalformed


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

    def send(self, payload: bytes) -> None:
        """Send a response, settled, as soon as there is credit for it."""
        context = self.context
        if not self._waiting and self._has_credit():
            self._transfer(payload)
        elif context.unsent_reply_bytes + len(payload) > context.limits.unsent_replies_bytes_max:
            context.reporter.note("reply dropped", {"node": self.node.path, "waiting": len(self._waiting)})
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


class RequestLink:
    """The half on which a client sends requests; each is settled at once, whatever becomes of it."""

    def __init__(
        self,
        context: Context,
        channel: int,
        handle: int,
        node: Node,
        serve: Callable[[Request, int], None],
    ) -> None:
        """`serve` answers through `respond` or `refuse`, now or later; it raises what it refuses at once."""
        self.context = context
        self.channel = channel
        self.handle = handle
        self.node = node
        self._serve = serve
        self._credit = 0

    def grant_credit(self) -> None:
        """Allow requests up to the limit, when half of what was allowed is used."""
        most = self.context.limits.request_credit
        if self._credit <= most // 2:
            self._credit = most
            self.context.connection.flow(self.channel, self.handle, most)

    def received(self, event: DeliveryReceived, now_ms: int) -> None:
        """Take a request."""
        connection = self.context.connection
        self._credit -= 1
        self.grant_credit()
        try:
            request = read_request(event.payload, self.node, self.channel)
        except DecodeError as error:
            if not event.settled:
                refusal = self.context.reporter.report(
                    MessageMalformed(str(error)), shown(self.node.address), now_ms
                )
                connection.disposition(
                    self.channel, Role.RECEIVER, event.delivery_id, event.delivery_id, Rejected(refusal)
                )
            return
        # At once, before any other disposition of this session: Python's sender link does not look at the
        # role of dispositions, so that one with an overlapping delivery-id would be taken for it (wire
        # contract 0.6).
        if not event.settled:
            connection.disposition(
                self.channel, Role.RECEIVER, event.delivery_id, event.delivery_id, ACCEPTED
            )
        self._serve(request, now_ms)

    def oversized(self, event: DeliveryOversized, now_ms: int) -> None:
        """Refuse a request that the engine discarded for its size."""
        self._credit -= 1
        self.grant_credit()
        if not event.settled:
            error = MessageSizeExceeded(f"The request exceeds the limit of {event.size_bytes_max} bytes.")
            refusal = self.context.reporter.report(error, shown(self.node.address), now_ms)
            self.context.connection.disposition(
                self.channel, Role.RECEIVER, event.delivery_id, event.delivery_id, Rejected(refusal)
            )


def read_request(payload: bytes, node: Node, channel: int) -> Request:
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
    context: Context, request: Request, status: int, description: str, condition: Symbol | None, body: Any
) -> None:
    """Answer a management request."""
    properties: dict[str, Any] = {"statusCode": Int(status), "statusDescription": description}
    if condition is not None:
        properties["errorCondition"] = condition
    tracking_id = request.properties.get("com.microsoft:tracking-id")
    if isinstance(tracking_id, str):
        properties["com.microsoft:tracking-id"] = tracking_id
    _reply(context, request, properties, body)


def refuse_management(context: Context, request: Request, error: Exception, now_ms: int) -> None:
    """Answer a management request with a refusal; the link lives on."""
    refusal = context.reporter.report(error, shown(request.node.address), now_ms)
    respond_management(
        context, request, TABLE[type(error)].status, refusal.description, refusal.condition, {}
    )


def respond_cbs(context: Context, request: Request, status: int, description: str) -> None:
    """Answer a put-token.

    Without an error condition, which may be left out: the official Python client drops status and text when
    there is one (azure-servicebus 7.15), and the others derive the same condition from the status (wire
    contract 4.6).
    """
    properties: dict[str, Any] = {"status-code": Int(status), "status-description": description}
    _reply(context, request, properties, None)


def _reply(context: Context, request: Request, properties: dict[str, Any], body: Any) -> None:
    link = choose_reply_link(context, request)
    if link is None:
        context.reporter.note(
            "reply without a link", {"node": request.node.path, "operation": request.operation}
        )
        return
    link.send(encode_response(request.message_id, properties, body))
