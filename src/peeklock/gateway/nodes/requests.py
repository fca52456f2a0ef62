"""Request and response over a pair of links, as `$management` and `$cbs` use it.

A client sends on a request link and receives on a reply link. Source: wire contract 1.7, 5.1.
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
from peeklock.gateway.bounds import STRANGER_REPLIES_BYTES_MAX
from peeklock.gateway.claims import Claims
from peeklock.gateway.context import Backlog, Context
from peeklock.gateway.errors import TABLE, MessageMalformed
from peeklock.gateway.links.attach import LinkKind
from peeklock.gateway.links.incoming_link import IncomingLink
from peeklock.gateway.transactions import Transactions

VALUES_MAX = 2_048
"""Values in the body of a request, and in its application properties: a list of 1,000 elements and as much
beside it. Our choice: at 0.4 to 1.6 us each, 3.5 ms."""

READ_IN_SLICES = frozenset(("com.microsoft:schedule-message",))
"""Operations whose body holds many messages: it is not decoded at once."""

Detach = Callable[["RequestLink | ReplyLink", Exception, int], None]
"""Detaches a request or reply link with a reason; with now_ms."""


@dataclass(slots=True)
class Request:
    """One request, taken apart."""

    node: Node
    channel: int
    message_id: Encoded
    """As encoded: the response echoes it."""
    reply_to: str | None
    operation: str
    properties: dict[str, Any]
    """Application properties."""
    body: Any
    """The amqp-value, decoded with its types; None where the body is of another kind, or not decoded."""
    transaction_id: bytes | None
    """Of the transaction that the request is part of."""
    raw_body: tuple[bytes, int] | None = None
    """Payload and offset of an amqp-value with too many values, or of one that is `READ_IN_SLICES`."""


class ReplyLink:
    """A link on which a client receives responses."""

    kind = LinkKind.REPLY

    def __init__(
        self,
        context: Context,
        replies: ReplyLinks,
        channel: int,
        handle: int,
        node: Node,
        names: set[str],
        detach: Detach,
    ) -> None:
        """`names` are what a request may call it by: its own name and its target's address."""
        self._context = context
        self._replies = replies
        self.channel = channel
        self.handle = handle
        self.node = node
        self.names = names
        self._detach = detach
        self._tag = 0
        self._waiting: deque[bytes] = deque()

    def flow(self, event: LinkFlow, now_ms: int) -> None:
        """Take the client's credit, and send the responses that waited for it."""
        while self._waiting and self._has_credit():
            payload = self._waiting.popleft()
            self._replies.unsent_bytes -= len(payload)
            self._transfer(payload)
        if event.drain:
            self._context.connection.drained(self.channel, self.handle)

    def send(self, payload: bytes, now_ms: int) -> None:
        """Send a response, settled, as soon as there is credit for it.

        One of any size may wait. A peer that lets more wait than it may loses the link, and the responses
        that wait on it: a request gets its answer or a detach.
        """
        flows = not self._waiting and self._has_credit()
        held = self._context.connection.held_bytes  # by the peer's window, which credit does not open
        unsent = self._replies.unsent_bytes + held
        blocked = held or not flows
        if blocked and unsent + len(payload) > self._replies.unsent_bytes_max and unsent:
            reason = f"{unsent} bytes of replies wait for credit or for the window of their session"
            self._detach(self, QuotaExceeded(f"{reason}, the maximum."), now_ms)
        elif flows:
            self._transfer(payload)
        else:
            self._waiting.append(payload)
            self._replies.unsent_bytes += len(payload)

    def forget(self) -> None:
        """Drop the responses that wait: the link is gone."""
        self._replies.unsent_bytes -= sum(map(len, self._waiting))
        self._waiting.clear()

    def _has_credit(self) -> bool:
        # As of now, not of the last event: the client may have taken it back in the same read.
        return self._context.connection.credit(self.channel, self.handle) > 0

    def _transfer(self, payload: bytes) -> None:
        self._tag += 1
        tag = self._tag.to_bytes(8, "big")
        self._context.connection.send(self.channel, self.handle, tag, payload, settled=True)


class ReplyLinks:
    """The reply links of one connection: which one a response takes, and the bytes that wait on all."""

    def __init__(self, context: Context, claims: Claims) -> None:
        self._context = context
        self._claims = claims
        self._links: list[ReplyLink] = []  # in order of their attachment
        self.unsent_bytes = 0
        """Of responses on all links that wait for the client's credit."""

    @property
    def unsent_bytes_max(self) -> int:
        """Most bytes of replies that may wait for this peer."""
        return (
            self._context.limits.unsent_replies_bytes_max
            if self._claims.shown
            else STRANGER_REPLIES_BYTES_MAX
        )

    def add(self, link: ReplyLink) -> None:
        """Add a link that is attached."""
        self._links.append(link)

    def remove(self, link: ReplyLink) -> None:
        """Remove a link that is gone."""
        self._links.remove(link)
        link.forget()

    def forget_all(self) -> None:
        """Remove all links: the connection is over."""
        for link in self._links:
            link.forget()
        self._links.clear()

    def choose(self, request: Request) -> ReplyLink | None:
        """Return the link that a response takes.

        First by name or target address, where several fit the request's own session and the latest win;
        else the latest of the request's session. Source: wire contract 5.1; JavaScript has each link on
        its own session.
        """
        links = [link for link in self._links if link.node.path == request.node.path]
        own = [link for link in links if link.channel == request.channel]
        for candidates in (own, links):
            named = [link for link in candidates if request.reply_to in link.names]
            if named:
                return named[-1]
        return own[-1] if own else None

    def respond(
        self,
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
        self._reply(request, properties, body, now_ms)

    def refuse(self, request: Request, error: Exception, now_ms: int) -> None:
        """Answer a management request with a refusal; the link stays open."""
        refusal = self._context.reporter.report(error, shown(request.node.address), now_ms)
        status = TABLE[type(error)].status
        self.respond(request, status, refusal.description, refusal.condition, {}, now_ms)

    def respond_cbs(self, request: Request, status: int, description: str, now_ms: int) -> None:
        """Answer a put-token.

        Without an error condition, which is optional: the official Python client drops status and text
        when there is one (azure-servicebus 7.15), and the others derive the same condition from the status
        (wire contract 4.6).
        """
        properties = {"status-code": Int(status), "status-description": description}
        self._reply(request, properties, None, now_ms)

    def _reply(self, request: Request, properties: dict[str, Any], body: Any, now_ms: int) -> None:
        link = self.choose(request)
        if link is None:
            asked = {"node": request.node.path, "operation": request.operation}
            self._context.reporter.note("reply without a link", asked, now_ms)
            return
        link.send(encode_response(request.message_id, properties, body), now_ms)


class RequestLink(IncomingLink):
    """A link on which a client sends requests; each is settled at once, whatever its answer."""

    kind = LinkKind.REQUEST
    __slots__ = ("_detach", "_replies", "_serve", "_size_bytes_max")

    def __init__(
        self,
        context: Context,
        backlog: Backlog,
        transactions: Transactions,
        replies: ReplyLinks,
        channel: int,
        handle: int,
        node: Node,
        serve: Callable[[Request, int], None],
        size_bytes_max: int,
        detach: Detach,
    ) -> None:
        """`serve` answers by `replies`, now or later."""
        super().__init__(context, backlog, transactions, channel, handle, node)
        self._replies = replies
        self._detach = detach
        self._serve = serve
        self._size_bytes_max = size_bytes_max

    def opened(self) -> None:
        """Begin to take requests."""
        self._open(self.context.limits.request_credit)

    def received(self, event: DeliveryReceived, now_ms: int) -> None:
        """Take a request."""
        if len(event.payload) > self._size_bytes_max:  # it came before the link was accepted
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
        """Answer a request that is too large where its first bytes name the reply link, else detach.

        Clients send requests settled, and wait only for an answer. An answer is our choice; a detach is the
        specification's (AMQP 2.7.3, max-message-size). Source: wire contract C25.
        """
        error = self._too_large(self._size_bytes_max)
        request = None
        if self.node.kind is not NodeKind.CBS:
            request = read_request_head(head, self.node, self.channel)
        if request is None or self._replies.choose(request) is None:
            if isinstance(event.state, TransactionalState):
                self._transactions.spoil(event.state.txn_id, error)
            self._detach(self, error, now_ms)
            return
        self._use_credit()
        self._settle_request(event)
        self._replies.refuse(request, error, now_ms)

    def _settle_request(self, event: DeliveryReceived | DeliveryOversized) -> None:
        # At once, before any other disposition of this session: Python's sender link ignores the role of
        # dispositions, and takes one with an overlapping delivery-id for its own (wire contract 0.6).
        if not event.settled:
            state: DeliveryState = ACCEPTED
            if isinstance(event.state, TransactionalState):
                state = TransactionalState(event.state.txn_id, ACCEPTED)
            self._settle(event.delivery_id, state)


def read_request_head(head: bytes, node: Node, channel: int) -> Request | None:
    """Read message id and reply-to from the first bytes of a request; None where they are not there."""
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
    """Decode a request. Raises: DecodeError: it is no message."""
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
