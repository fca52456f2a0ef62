"""Attaching the request and reply links of `$management` and `$cbs`.

A link of `$cbs` is accepted at once, one of a management node when its entity has been found. What the client
sends on it before is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from peeklock.amqp.events import DeliveryReceived, LinkAttached, LinkFlow
from peeklock.amqp.performatives import Target
from peeklock.broker.vocabulary.commands import LookUp
from peeklock.broker.vocabulary.effects import Effect, EntityFound, Failed
from peeklock.gateway.address import NodeKind, shown
from peeklock.gateway.answers import Answers
from peeklock.gateway.bounds import CBS_REQUEST_BYTES_MAX
from peeklock.gateway.context import Backlog, Context, Payloads
from peeklock.gateway.links.attach import AttachRequest, LinkKind, accepted_source
from peeklock.gateway.links.incoming_link import MESSAGE_OVERHEAD_BYTES
from peeklock.gateway.nodes.cbs import TokenNode
from peeklock.gateway.nodes.management import ManagementNode
from peeklock.gateway.nodes.requests import Detach, ReplyLink, ReplyLinks, RequestLink
from peeklock.gateway.transactions import Transactions

REQUEST_OVERHEAD_BYTES = 65_536
"""How much larger a request may be than the message in it. Source: wire contract C25."""

NodeLink = RequestLink | ReplyLink
Key = tuple[int, int]
"""Channel and handle."""


class RequestNodes:
    """The request nodes of one connection."""

    def __init__(
        self,
        context: Context,
        backlog: Backlog,
        transactions: Transactions,
        answers: Answers,
        replies: ReplyLinks,
        management: ManagementNode,
        *,
        accepted: Callable[[Key, NodeLink], None],
        refused: Callable[[LinkAttached, str, Exception, int], None],
        detach: Detach,
    ) -> None:
        """`accepted` takes each link that opens, `refused` (attach, entity, error, now_ms) the others.

        `detach` ends a link that cannot go on.
        """
        self._context = context
        self._backlog = backlog
        self._transactions = transactions
        self._answers = answers
        self._replies = replies
        self._management = management
        self._accepted = accepted
        self._refused = refused
        self._detach = detach
        self._pending: dict[Key, _Pending] = {}
        self.tokens: TokenNode | None = None
        """Set at `open`, when the namespace is known."""

    def attach(self, event: LinkAttached, asked: AttachRequest) -> None:
        """Accept a link, now or when its entity is found."""
        if asked.node.kind is NodeKind.CBS:
            self._accept(event, asked)
            return
        key = (event.channel, event.handle)
        pending = self._pending[key] = _Pending()

        def answered(effect: Effect, payloads: Payloads | None, now_ms: int) -> bool:
            if self._pending.get(key) is not pending:
                return True  # the client has detached meanwhile
            self.forget(key)
            if isinstance(effect, EntityFound):
                link = self._accept(event, asked, effect.entity.message_size_bytes_max)
                for early in pending.early:
                    _replay(link, early, now_ms)
            elif isinstance(effect, Failed):
                self._refused(event, shown(asked.node.address), effect.error, now_ms)
            return True

        reply_to = self._answers.reply_to()
        self._answers.expect(reply_to, answered)
        self._context.commands.append(LookUp(asked.node.address, reply_to))

    def early(self, event: DeliveryReceived | LinkFlow) -> None:
        """Keep what comes on a link that is not accepted yet; anything else is for a link that is gone."""
        pending = self._pending.get((event.channel, event.handle))
        if pending is None:
            return
        pending.early.append(event)
        if isinstance(event, DeliveryReceived):
            size = len(event.payload) + MESSAGE_OVERHEAD_BYTES
            pending.size_bytes += size
            self._backlog.uncommitted_bytes += size

    def forget(self, key: Key) -> None:
        """Drop a link that waits, if there is one: the client has detached it."""
        pending = self._pending.pop(key, None)
        if pending is not None:
            self._backlog.uncommitted_bytes -= pending.size_bytes

    def forget_all(self) -> None:
        """Break the reference cycles: the connection is over."""
        self._pending.clear()
        self._refused = self._detach = _called_by_none
        self.tokens = None

    def _accept(self, event: LinkAttached, asked: AttachRequest, message_bytes_max: int = 0) -> NodeLink:
        """Accept a link; `message_bytes_max`: the largest message of its entity."""
        context = self._context
        channel, handle = event.channel, event.handle
        if asked.kind is LinkKind.REPLY:
            # Without a size: clients hold what they receive to it (wire contract C24).
            context.connection.accept_link(channel, handle, source=accepted_source(event, None))
            address = event.target.address if isinstance(event.target, Target) else None
            names = {event.name, address} if isinstance(address, str) else {event.name}
            reply = ReplyLink(context, self._replies, channel, handle, asked.node, names, self._detach)
            self._replies.add(reply)
            self._accepted((channel, handle), reply)
            return reply
        serve = self._management.serve
        size_bytes_max = max(context.limits.request_bytes_max, message_bytes_max + REQUEST_OVERHEAD_BYTES)
        if asked.node.kind is NodeKind.CBS:
            assert self.tokens is not None, "no link is attached before open"
            serve = self.tokens.serve
            size_bytes_max = CBS_REQUEST_BYTES_MAX
        context.connection.accept_link(channel, handle, max_message_size=size_bytes_max)
        request = RequestLink(
            context,
            self._backlog,
            self._transactions,
            self._replies,
            channel,
            handle,
            asked.node,
            serve,
            size_bytes_max,
            self._detach,
        )
        self._accepted((channel, handle), request)
        request.opened()
        return request


def _called_by_none(*arguments: object) -> None:
    raise AssertionError("the connection is over")


@dataclass(slots=True)
class _Pending:
    """What the client has sent on a link that waits."""

    early: list[DeliveryReceived | LinkFlow] = field(default_factory=list)
    size_bytes: int = 0


def _replay(link: NodeLink, event: DeliveryReceived | LinkFlow, now_ms: int) -> None:
    if isinstance(link, RequestLink):
        if isinstance(event, DeliveryReceived):
            link.received(event, now_ms)
    elif isinstance(event, LinkFlow):
        link.flow(event, now_ms)
