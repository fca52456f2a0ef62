"""Attaching to `$management` and `$cbs`, half by half.

Owns: when half of a node is accepted, and what the client sends on it before. Must not know: operations.
A `$cbs` half is accepted at once; a half of a management node when its entity has been found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from peeklock.amqp.events import DeliveryReceived, LinkAttached, LinkFlow
from peeklock.amqp.performatives import Target
from peeklock.broker.commands import LookUp
from peeklock.broker.effects import Effect, EntityFound, Failed
from peeklock.gateway.address import NodeKind, shown
from peeklock.gateway.attach import LinkKind, Wish
from peeklock.gateway.cbs import TokenNode
from peeklock.gateway.context import Context
from peeklock.gateway.management import ManagementNode
from peeklock.gateway.requests import ReplyLink, RequestLink

Half = RequestLink | ReplyLink
Key = tuple[int, int]
"""Channel and handle."""


class RequestNodes:
    """The request nodes of one connection."""

    def __init__(
        self,
        context: Context,
        accepted: Callable[[Key, Half], None],
        refused: Callable[[LinkAttached, str, Exception, int], None],
    ) -> None:
        """`accepted` is told of each half that opens, `refused` (attach, entity, error, now_ms) of others."""
        self._context = context
        self._accepted = accepted
        self._refused = refused
        self._management = ManagementNode(context)
        self._pending: dict[Key, _Pending] = {}
        self.tokens: TokenNode | None = None
        """Set at `open`, when the namespace is known."""

    def attach(self, event: LinkAttached, wish: Wish) -> None:
        """Accept half of a node, now or when its entity is found."""
        if wish.node.kind is NodeKind.CBS:
            self._accept(event, wish)
            return
        key = (event.channel, event.handle)
        pending = self._pending[key] = _Pending()

        def answered(effect: Effect, now_ms: int) -> bool:
            if self._pending.get(key) is not pending:
                return True  # the client has detached meanwhile
            self.forget(key)
            if isinstance(effect, EntityFound):
                half = self._accept(event, wish)
                for early in pending.early:
                    _replay(half, early, now_ms)
            elif isinstance(effect, Failed):
                self._refused(event, shown(wish.node.address), effect.error, now_ms)
            return True

        self._context.commands.append(LookUp(wish.node.address, self._context.ask(answered)))

    def early(self, event: DeliveryReceived | LinkFlow) -> None:
        """Keep what comes on a half that is not accepted yet; anything else is for a link that is gone."""
        pending = self._pending.get((event.channel, event.handle))
        if pending is None:
            return
        pending.early.append(event)
        if isinstance(event, DeliveryReceived):
            pending.size_bytes += len(event.payload)
            self._context.uncommitted_bytes += len(event.payload)

    def forget(self, key: Key) -> None:
        """Drop a half that waits, if there is one: the client has detached it."""
        pending = self._pending.pop(key, None)
        if pending is not None:
            self._context.uncommitted_bytes -= pending.size_bytes

    def _accept(self, event: LinkAttached, wish: Wish) -> Half:
        context = self._context
        channel, handle = event.channel, event.handle
        context.connection.accept_link(channel, handle, max_message_size=context.limits.request_bytes_max)
        if wish.kind is LinkKind.REPLY:
            address = event.target.address if isinstance(event.target, Target) else None
            text = address if isinstance(address, str) else None
            reply = ReplyLink(context, channel, handle, wish.node, event.name, text)
            context.reply_links.append(reply)
            self._accepted((channel, handle), reply)
            return reply
        serve = self._management.serve
        if wish.node.kind is NodeKind.CBS:
            assert self.tokens is not None, "no link is attached before open"
            serve = self.tokens.serve
        request = RequestLink(context, channel, handle, wish.node, serve)
        self._accepted((channel, handle), request)
        request.opened()
        return request


@dataclass(slots=True)
class _Pending:
    """A half that waits, and what the client has sent on it already."""

    early: list[DeliveryReceived | LinkFlow] = field(default_factory=list)
    size_bytes: int = 0


def _replay(half: Half, event: DeliveryReceived | LinkFlow, now_ms: int) -> None:
    if isinstance(half, RequestLink):
        if isinstance(event, DeliveryReceived):
            half.received(event, now_ms)
    elif isinstance(event, LinkFlow):
        half.flow(event, now_ms)
