"""The links of one session: handles, attach and detach, in both roles.

A server has one handle for both ends of a link. Calls of the owner on a link that the peer has just ended do
nothing: the event is on its way.
Source: OASIS AMQP 1.0 sections 2.6.1-2.6.4, 2.7.3 and 2.7.7; wire contract 0.1, 2.2 and 2.3.
"""

from __future__ import annotations

from typing import Any

from .composites import Performative
from .errors import (
    FRAMING_ERROR,
    HANDLE_IN_USE,
    NOT_ALLOWED,
    RESOURCE_LIMIT_EXCEEDED,
    UNATTACHED_HANDLE,
    AmqpError,
    LocalProtocolError,
    RemoteProtocolError,
    Scope,
)
from .events import Event, LinkAttached, LinkDetached
from .frames import Limits
from .incoming import Incoming, Tails
from .link import NULL, Link, ReassemblyBudget
from .outgoing import Outgoing, Output
from .performatives import (
    Source,
    Target,
    Terminus,
    decode_error,
    decode_terminus,
    encode_attach,
    encode_detach,
    encode_terminus,
)
from .states import LinkMove, LinkState
from .types import Encoded, Role


class SessionContext:
    """State that the sessions of one connection share."""

    __slots__ = ("budget", "client", "freed_handles", "limits", "link_count", "output", "tails")

    def __init__(
        self, output: Output, limits: Limits, client: bool, reassembly: ReassemblyBudget | None = None
    ) -> None:
        self.output = output
        self.limits = limits
        self.client = client
        self.tails = Tails()
        self.budget = ReassemblyBudget(limits.reassembly_bytes, reassembly)
        self.link_count = 0
        self.freed_handles: set[tuple[int, int]] = set()
        """Channels and handles freed since the owner last saw events (see `Connection.stalled`)."""


class Links:
    """The links of a session, by our handle and by the peer's."""

    __slots__ = ("_channel", "_shared", "by_handle", "by_remote_handle", "handle_max", "incoming")

    def __init__(self, channel: int, shared: SessionContext, outgoing: Outgoing) -> None:
        self._channel = channel
        self._shared = shared
        self.by_handle: dict[int, Link] = {}
        self.by_remote_handle: dict[int, Link] = {}
        self.incoming = Incoming(
            channel, self.by_remote_handle, outgoing, shared.tails, shared.limits.incoming_window, 0
        )
        self.handle_max = shared.limits.handle_max
        """The highest of our own handles: the lower of both ends' limits."""

    def on_attach(self, performative: Performative, body: bytes, events: list[Event]) -> None:
        """Handle an attach: a request in the server role, an answer to ours in the client role.

        Raises:
            RemoteProtocolError: framing-error (connection) for a handle out of range; handle-in-use or
            not-allowed (session).
        """
        fields = performative.fields
        name, handle = fields[0], fields[1]
        peer_role = Role.RECEIVER if fields[2] else Role.SENDER
        self._free(handle)
        source, target = decode_terminus(fields[5]), decode_terminus(fields[6])
        if isinstance(source, Target) or isinstance(target, Source):
            raise RemoteProtocolError(NOT_ALLOWED, "source and target are swapped", Scope.SESSION)
        link = self._link_for(name, handle, peer_role, fields[3], fields[4])
        link.remote_handle = handle
        link.source_raw = performative.raw(body, 5)
        link.target_raw = performative.raw(body, 6)
        if link.role is Role.RECEIVER:
            link.initial_delivery_count = fields[9] or 0
        if self._shared.client:
            link.move(LinkMove.ANSWERED)
        self.by_remote_handle[handle] = link
        refusal = None if self._shared.client else self._over_limit(performative, name, source, target)
        if refusal is not None:
            self.refuse(handle, refusal)
            return
        events.append(
            LinkAttached(
                self._channel,
                link.handle,
                name,
                peer_role,
                source,
                target,
                link.snd_settle_mode,
                link.rcv_settle_mode,
                link.initial_delivery_count,
                max_message_size=fields[10],
                properties=fields[13] or {},
                source_raw=link.source_raw,
                target_raw=link.target_raw,
            )
        )

    def _free(self, handle: int) -> None:
        """Check that the peer may attach on a handle; forget the link it has detached there."""
        limits = self._shared.limits
        if handle > limits.handle_max:
            # "MUST close the connection with the framing-error" AMQP 2.7.2
            raise RemoteProtocolError(FRAMING_ERROR, f"handle {handle} exceeds {limits.handle_max}")
        old = self.by_remote_handle.get(handle)
        if old is not None:
            if old.state is not LinkState.DETACH_SENT:
                raise RemoteProtocolError(HANDLE_IN_USE, f"handle {handle} is in use", Scope.SESSION)
            self.forget(old)
        elif self._shared.link_count >= 2 * limits.links and not self._shared.client:
            reason = f"more than {2 * limits.links} links, including refused ones not yet detached"
            raise RemoteProtocolError(RESOURCE_LIMIT_EXCEEDED, reason)

    def _link_for(
        self, name: str, handle: int, peer_role: Role, snd_mode: int | None, rcv_mode: int | None
    ) -> Link:
        """Return the link of an attach: our own of that name in the client role, else a new one."""
        snd = 2 if snd_mode is None else snd_mode  # default "mixed" AMQP 2.7.3
        rcv = rcv_mode or 0
        role = Role.SENDER if peer_role is Role.RECEIVER else Role.RECEIVER
        if not self._shared.client:
            link = Link(name, handle, role, LinkState.PENDING, snd, rcv, self._shared.budget)
            link.size_bytes_max = self._shared.limits.message_bytes
            self._add(link)
            return link
        for link in self.by_handle.values():
            if link.name == name and link.role is role and link.remote_handle < 0:
                link.snd_settle_mode, link.rcv_settle_mode = snd, rcv
                return link
        raise RemoteProtocolError(NOT_ALLOWED, f"attach of the unknown link {name[:64]!r}", Scope.SESSION)

    def _over_limit(
        self, performative: Performative, name: str, source: Any, target: Any
    ) -> AmqpError | None:
        """Return the error of an attach that exceeds a limit (R-05): its link alone is refused."""
        limits = self._shared.limits
        texts = [name, *(getattr(terminus, "address", None) for terminus in (source, target))]
        if any(isinstance(text, (str, bytes)) and len(text) > limits.name_length for text in texts):
            reason = f"a link name or address has more than {limits.name_length} characters"
        elif max(map(performative.size_of, (5, 6, 13))) > limits.properties_bytes:
            reason = f"the link's properties, source or target have more than {limits.properties_bytes} bytes"
        elif self._shared.link_count > limits.links:
            reason = f"the connection has more than {limits.links} links"
        else:
            return None
        return AmqpError(RESOURCE_LIMIT_EXCEEDED, reason)

    def on_detach(self, performative: Performative, events: list[Event]) -> None:
        """Handle a detach, and answer it unless it answers ours.

        Raises:
            RemoteProtocolError: unattached-handle (session).
        """
        handle, closed, error = performative.fields
        link = self.of_peer(handle)
        amqp_error = decode_error(error)
        if link.state is not LinkState.DETACH_SENT:
            self._detach(link, None, bool(closed))
        elif not self._shared.client:
            self.forget(link)
            return  # the answer to ours
        self.forget(link)
        self._shared.freed_handles.add((self._channel, handle))
        events.append(LinkDetached(self._channel, link.handle, bool(closed), amqp_error))

    def of_peer(self, handle: int) -> Link:
        """Return the link that the peer calls `handle`.

        Raises:
            RemoteProtocolError: unattached-handle (session).
        """
        link = self.by_remote_handle.get(handle)
        if link is None:
            raise RemoteProtocolError(UNATTACHED_HANDLE, f"handle {handle} is not attached", Scope.SESSION)
        return link

    def attach(
        self,
        name: str,
        role: Role,
        source: Terminus | Encoded | None,
        target: Terminus | Encoded | None,
        modes: tuple[int, int],
        max_message_size: int | None,
        properties: dict[Any, Any] | None,
        initial_delivery_count: int,
    ) -> int:
        """Request a link; see `Connection.attach`. `modes` are the settle modes of sender and receiver."""
        handle = 0
        while handle in self.by_handle:
            handle += 1
        if handle > self.handle_max:
            raise LocalProtocolError(f"all handles up to {self.handle_max} of the session are in use")
        link = Link(name, handle, role, LinkState.ATTACH_SENT, *modes, self._shared.budget)
        link.size_bytes_max = max_message_size or self._shared.limits.message_bytes
        link.source_raw = Encoded(encode_terminus(source))
        link.target_raw = Encoded(encode_terminus(target))
        if role is Role.SENDER:
            link.initial_delivery_count = initial_delivery_count
        self._add(link)
        self._send_attach(link, max_message_size, properties, None)
        return handle

    def accept(
        self,
        handle: int,
        source: Terminus | Encoded | None,
        target: Terminus | Encoded | None,
        max_message_size: int | None,
        properties: dict[Any, Any] | None,
        offered_capabilities: Any,
    ) -> None:
        """Answer an attach; see `Connection.accept_link`."""
        link = self._pending(handle)
        if link is None:
            return
        if source is not None:
            link.source_raw = Encoded(encode_terminus(source))
        if target is not None:
            link.target_raw = Encoded(encode_terminus(target))
        if max_message_size is not None and link.role is Role.RECEIVER:
            link.size_bytes_max = max_message_size
        self._send_attach(link, max_message_size, properties, offered_capabilities)
        link.move(LinkMove.ACCEPT)
        link.drop_termini()
        if link.echo_wanted:
            link.echo_wanted = False
            self.incoming.flow(link)

    def refuse(self, handle: int, error: AmqpError) -> None:
        """Answer an attach with a null terminus and a detach with the reason (wire contract 2.2)."""
        link = self._pending(handle)
        if link is not None:
            self._detach(link, error, True)

    def _pending(self, handle: int) -> Link | None:
        link = self.by_handle.get(handle)
        if link is None or link.state is LinkState.DETACH_SENT:
            return None
        if link.state is not LinkState.PENDING:
            raise LocalProtocolError(f"link {link.name!r} was answered before")
        return link

    def detach(self, handle: int, error: AmqpError | None, closed: bool) -> None:
        """Detach a link; see `Connection.detach`."""
        link = self.by_handle.get(handle)
        if link is not None and link.state is not LinkState.DETACH_SENT:
            self._detach(link, error, closed)

    def _detach(self, link: Link, error: AmqpError | None, closed: bool) -> None:
        """End a link; one that waits for an answer is refused first, with no terminus at our end."""
        if link.state is LinkState.PENDING:
            if link.role is Role.SENDER:
                link.source_raw = NULL
            else:
                link.target_raw = NULL
            self._send_attach(link, None, None, None)
        self.end(link, error, closed)

    def end(self, link: Link, error: AmqpError | None, closed: bool = True) -> None:
        """Send a detach and stop the link."""
        link.begin_detach()
        if not self._shared.client:
            link.name = ""  # not needed any more, and the peer may never answer
        self.incoming.outgoing.drop_link(link)
        self.incoming.outgoing.flush_disposition()
        self._shared.output.frame(self._channel, encode_detach(link.handle, closed, error))

    def drop(self, error: AmqpError | None, events: list[Event], *, clean: bool) -> None:
        """Detach all links without a frame: their session ends."""
        for link in list(self.by_handle.values()):
            if link.state is not LinkState.DETACH_SENT:
                link.begin_detach()
                events.append(LinkDetached(self._channel, link.handle, True, error, clean=clean))
            self.forget(link)

    def clear(self) -> None:
        """Drop all links and every reference cycle: the session is over for the connection."""
        for link in self.by_handle.values():
            link.drop_partial()
        self._shared.link_count -= len(self.by_handle)
        self.by_handle.clear()
        self.by_remote_handle.clear()

    def _add(self, link: Link) -> None:
        self.by_handle[link.handle] = link
        self._shared.link_count += 1

    def forget(self, link: Link) -> None:
        """Free the handles of a link."""
        if self.by_handle.pop(link.handle, None) is not None:
            self._shared.link_count -= 1
        if self.by_remote_handle.get(link.remote_handle) is link:
            del self.by_remote_handle[link.remote_handle]

    def _send_attach(
        self, link: Link, size_max: int | None, properties: dict[Any, Any] | None, capabilities: Any
    ) -> None:
        body = encode_attach(
            link.name,
            link.handle,
            link.role,
            link.snd_settle_mode,
            link.rcv_settle_mode,
            link.source_raw,
            link.target_raw,
            link.initial_delivery_count if link.role is Role.SENDER else None,
            size_max,
            capabilities,
            properties,
        )
        self._shared.output.frame(self._channel, body)
