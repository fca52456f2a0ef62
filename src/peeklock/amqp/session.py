"""One session: its links and their handles, flow, begin and end; transfers are its two halves' work.

Owns: the session's state, both roles. Must not know the connection's framing beyond "write a frame on my
channel", nor what a delivery means. `incoming` and `outgoing` are the two directions.

Its life is a table in `states`. A session is MAPPED once the peer's begin is here. In END_SENT everything but
the peer's `end` is dropped ("discarding", AMQP 2.5.5). A session that both ends have ended is dropped by the
connection.

Calls of the owner on a link or session that the peer has just ended do nothing: its event is on the way.
Source: OASIS AMQP 1.0 sections 2.5, 2.6 and 2.7; wire contract 2.2, 2.3, 2.7 and 2.9 for what clients do.
"""

from __future__ import annotations

from typing import Any, Final

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
from .events import Event, LinkAttached, LinkDetached, LinkDrained, LinkFlow, SessionEnded
from .frames import Limits
from .incoming import Incoming, Tails
from .link import Link, ReassemblyBudget
from .outgoing import Outgoing, Output
from .performatives import (
    DeliveryState,
    Source,
    Target,
    Terminus,
    decode_error,
    decode_terminus,
    encode_attach,
    encode_detach,
    encode_end,
    encode_terminus,
)
from .serial import distance
from .states import SESSION_TRANSITIONS, LinkMove, LinkState, SessionMove, SessionState
from .types import SENDER, Encoded, Role

GONE: Final = -1
"""The delivery-id of a delivery that was not sent, because the peer has ended its link meanwhile."""

OUTGOING_WINDOW: Final = 65535
"""Frames we say we may send. Our choice: no client bounds itself by it."""


_ATTACHED: Final = LinkState.ATTACHED
_DETACH_SENT: Final = LinkState.DETACH_SENT
"""For the hot path, as `types.SENDER` is."""


class SessionContext:
    """What the sessions of one connection share."""

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


class Session:
    """One end of a session; `channel` is ours, `remote_channel` the peer's."""

    __slots__ = (
        "channel",
        "handle_max",
        "incoming",
        "links",
        "outgoing",
        "remote_channel",
        "remote_links",
        "shared",
        "state",
    )

    def __init__(self, channel: int, shared: SessionContext, state: SessionState) -> None:
        self.channel = channel
        self.remote_channel = channel
        self.shared = shared
        self.state = state
        self.handle_max = shared.limits.handle_max
        """The highest handle of our own: the lower of both ends' limits."""
        self.links: dict[int, Link] = {}
        self.remote_links: dict[int, Link] = {}
        self.outgoing = Outgoing(channel, shared.output, OUTGOING_WINDOW)
        self.incoming = Incoming(
            channel, self.remote_links, self.outgoing, shared.tails, shared.limits.incoming_window, 0
        )
        self.outgoing.send_drained_flow = self._send_drained_flow

    def on_begin(self, performative: Performative) -> None:
        """Take the peer's begin: its first transfer-id and its window."""
        _, next_outgoing_id, incoming_window, _, handle_max, _, _, _ = performative.fields
        self.incoming.begun(next_outgoing_id)
        self.outgoing.peer_flow(None, incoming_window)
        if handle_max is not None:
            self.handle_max = min(self.handle_max, handle_max)
        self.move(SessionMove.BEGUN)

    def move(self, move: SessionMove) -> None:
        """Go to the next state. Raises: KeyError for a move that the state does not have, a bug of ours."""
        self.state = SESSION_TRANSITIONS[self.state][move]

    def on_attach(self, performative: Performative, body: bytes, events: list[Event]) -> None:
        """Take an attach: a request in the server role, an answer to ours in the client role.

        Raises:
            RemoteProtocolError: framing-error (connection) for a handle out of range, handle-in-use
            (session).
        """
        fields = performative.fields
        name, handle = fields[0], fields[1]
        peer_role = Role.RECEIVER if fields[2] else Role.SENDER
        if handle > self.shared.limits.handle_max:
            # "MUST close the connection with the framing-error" AMQP 2.7.2
            raise RemoteProtocolError(
                FRAMING_ERROR, f"handle {handle} exceeds {self.shared.limits.handle_max}"
            )
        old = self.remote_links.get(handle)
        if old is not None:
            if old.state is not LinkState.DETACH_SENT:
                raise RemoteProtocolError(HANDLE_IN_USE, f"handle {handle} is in use", Scope.SESSION)
            self._forget(old)
        elif self.shared.link_count >= 2 * self.shared.limits.links and not self.shared.client:
            raise RemoteProtocolError(
                RESOURCE_LIMIT_EXCEEDED,
                f"more than {2 * self.shared.limits.links} links, refused ones not yet detached among them",
            )
        source, target = decode_terminus(fields[5]), decode_terminus(fields[6])
        if isinstance(source, Target) or isinstance(target, Source):
            raise RemoteProtocolError(NOT_ALLOWED, "source and target are exchanged", Scope.SESSION)
        link = self._link_for(name, handle, peer_role, fields[3], fields[4])
        link.remote_handle = handle
        link.source_raw = performative.raw(body, 5)
        link.target_raw = performative.raw(body, 6)
        if link.role is Role.RECEIVER:
            link.initial_delivery_count = fields[9] or 0
        if self.shared.client:
            link.move(LinkMove.ANSWERED)
        self.remote_links[handle] = link
        refusal = None if self.shared.client else self._over_limit(performative, name, source, target)
        if refusal is not None:
            self.refuse_link(handle, refusal)
            return
        events.append(
            LinkAttached(
                self.channel,
                link.handle,
                name,
                peer_role,
                source,
                target,
                link.snd_settle_mode,
                link.rcv_settle_mode,
                link.initial_delivery_count,
                fields[10],
                fields[13] or {},
                link.source_raw,
                link.target_raw,
            )
        )

    def _link_for(
        self,
        name: str,
        handle: int,
        peer_role: Role,
        snd_settle_mode: int | None,
        rcv_settle_mode: int | None,
    ) -> Link:
        """Give the link an attach is about: our own by its name in the client role, else a new one."""
        snd = 2 if snd_settle_mode is None else snd_settle_mode  # default "mixed" AMQP 2.7.3
        rcv = rcv_settle_mode or 0
        role = Role.SENDER if peer_role is Role.RECEIVER else Role.RECEIVER
        if not self.shared.client:
            link = Link(name, handle, role, LinkState.PENDING, snd, rcv, self.shared.budget)
            link.size_bytes_max = self.shared.limits.message_bytes
            self.links[handle] = link
            self.shared.link_count += 1
            return link
        for link in self.links.values():
            if link.name == name and link.role is role and link.remote_handle < 0:
                link.snd_settle_mode, link.rcv_settle_mode = snd, rcv
                return link
        raise RemoteProtocolError(NOT_ALLOWED, f"attach of the unknown link {name[:64]!r}", Scope.SESSION)

    def _over_limit(
        self, performative: Performative, name: str, source: Any, target: Any
    ) -> AmqpError | None:
        """Say which limit an attach exceeds (R-05): the link is refused, its session lives on."""
        limits = self.shared.limits
        texts = [name, *(getattr(terminus, "address", None) for terminus in (source, target))]
        if any(isinstance(text, (str, bytes)) and len(text) > limits.name_length for text in texts):
            reason = f"a link name or address has more than {limits.name_length} characters"
        elif max(map(performative.size_of, (5, 6, 13))) > limits.properties_bytes:
            reason = f"the link's properties, source or target have more than {limits.properties_bytes} bytes"
        elif self.shared.link_count > limits.links:
            reason = f"the connection has more than {limits.links} links"
        else:
            return None
        return AmqpError(RESOURCE_LIMIT_EXCEEDED, reason)

    def on_flow(self, performative: Performative, events: list[Event]) -> None:
        """Take a flow: the session's window first, then a link's credit or its end of a drain.

        Raises:
            RemoteProtocolError: unattached-handle (session).
        """
        next_incoming_id, incoming_window, _, _, handle, delivery_count, credit, _, drain, echo, _ = (
            performative.fields
        )
        self.outgoing.peer_flow(next_incoming_id, incoming_window)
        if handle is None:
            if echo:
                self.incoming.flow()
            return
        link = self._attached(handle)
        if link is None:
            return
        if link.role is Role.SENDER:
            link.granted_by_peer(delivery_count, credit or 0)
            link.draining = bool(drain)
            events.append(LinkFlow(self.channel, link.handle, link.credit, link.draining))
            if drain:
                return  # the owner answers with `drained`, at once
        elif link.drains and delivery_count is not None:
            ahead = distance(link.delivery_count, delivery_count)
            drained = link.draining and ahead >= link.credit
            # Credit that the sender gave back, perhaps for a drain that we took back meanwhile.
            link.counted += max(0, ahead)
            if drained:
                link.draining = False
                link.granted = link.counted
                events.append(LinkDrained(self.channel, link.handle))
        if echo:
            self._echo(link)

    def _echo(self, link: Link) -> None:
        if link.state is LinkState.PENDING:
            link.echo_wanted = True  # a flow before our attach would name an unknown handle
        else:
            self.incoming.flow(link)

    def on_transfer(self, performative: Performative, payload: bytes, events: list[Event]) -> None:
        """Take a transfer the fast path left.

        Raises:
            RemoteProtocolError: unattached-handle (session), or one of the connection.
        """
        link = self._attached(performative.fields[0])
        if link is None:
            self.incoming.count_frame()
            return
        try:
            self.incoming.on_transfer(link, performative, payload, events)
        except RemoteProtocolError as error:
            if error.scope is not Scope.LINK:
                raise
            self._end_link(link, error.error)
            events.append(LinkDetached(self.channel, link.handle, True, error.error, clean=False))

    def _attached(self, handle: int) -> Link | None:
        """Give the link a frame is for; None if we have detached it and the peer does not know yet."""
        link = self.remote_links.get(handle)
        if link is None:
            raise RemoteProtocolError(UNATTACHED_HANDLE, f"handle {handle} is not attached", Scope.SESSION)
        return None if link.state is LinkState.DETACH_SENT else link

    def on_detach(self, performative: Performative, events: list[Event]) -> None:
        """Take a detach, and answer it unless it is the answer to ours.

        Raises:
            RemoteProtocolError: unattached-handle (session).
        """
        handle, closed, error = performative.fields
        link = self.remote_links.get(handle)
        if link is None:
            raise RemoteProtocolError(UNATTACHED_HANDLE, f"handle {handle} is not attached", Scope.SESSION)
        amqp_error = decode_error(error)
        if link.state is not LinkState.DETACH_SENT:
            if link.state is LinkState.PENDING:
                self._send_attach(link, null_terminus=True)
            self._end_link(link, None, closed=bool(closed))
        elif not self.shared.client:
            self._forget(link)
            return  # the answer to ours
        self._forget(link)
        self.shared.freed_handles.add((self.channel, handle))
        events.append(LinkDetached(self.channel, link.handle, bool(closed), amqp_error))

    def on_end(self, performative: Performative, events: list[Event]) -> None:
        """Take the peer's end and answer it, unless it is the answer to ours."""
        error = decode_error(performative.fields[0])
        if self.state is not SessionState.END_SENT:
            self._drop_links(None, events, clean=True)
            self.shared.output.frame(self.channel, encode_end(None))
        elif not self.shared.client:
            return
        events.append(SessionEnded(self.channel, error))

    def fail(self, error: AmqpError, events: list[Event]) -> None:
        """End the session because the peer broke the protocol on it."""
        self._drop_links(error, events, clean=False)
        self.shared.output.frame(self.channel, encode_end(error))
        self.move(SessionMove.END)
        events.append(SessionEnded(self.channel, error, clean=False))

    def _drop_links(self, error: AmqpError | None, events: list[Event], *, clean: bool) -> None:
        self.outgoing.flush_disposition()
        self.outgoing.drop_all()
        for link in list(self.links.values()):
            if link.state is not LinkState.DETACH_SENT:
                link.begin_detach()
                events.append(LinkDetached(self.channel, link.handle, True, error, clean=clean))
            self._forget(link)

    def end(self, error: AmqpError | None) -> None:
        """End the session; its links go with it."""
        if self.state is SessionState.END_SENT:
            return
        self._drop_links(None, [], clean=True)
        self.shared.output.frame(self.channel, encode_end(error))
        self.move(SessionMove.END)

    def attach(
        self,
        name: str,
        role: Role,
        source: Terminus | Encoded | None,
        target: Terminus | Encoded | None,
        snd_settle_mode: int,
        rcv_settle_mode: int,
        max_message_size: int | None,
        properties: dict[Any, Any] | None,
        initial_delivery_count: int,
    ) -> int:
        """Ask for a link; give our handle, the lowest that is free.

        Raises:
            LocalProtocolError: no handle is free.
        """
        handle = next((number for number in range(self.handle_max + 1) if number not in self.links), None)
        if handle is None:
            raise LocalProtocolError(f"all handles up to {self.handle_max} of the session are in use")
        link = Link(
            name, handle, role, LinkState.ATTACH_SENT, snd_settle_mode, rcv_settle_mode, self.shared.budget
        )
        link.size_bytes_max = max_message_size or self.shared.limits.message_bytes
        link.source_raw, link.target_raw = _raw(source), _raw(target)
        if role is Role.SENDER:
            link.initial_delivery_count = initial_delivery_count
        self.links[handle] = link
        self.shared.link_count += 1
        self._send_attach(link, max_message_size=max_message_size, properties=properties)
        return handle

    def accept_link(
        self,
        handle: int,
        source: Terminus | Encoded | None,
        target: Terminus | Encoded | None,
        max_message_size: int | None,
        properties: dict[Any, Any] | None,
        offered_capabilities: Any,
    ) -> None:
        """Answer an attach; a terminus of None is echoed byte for byte (wire contract 0.1).

        Raises:
            LocalProtocolError: the link was answered before.
        """
        link = self._pending(handle)
        if link is None:
            return
        if source is not None:
            link.source_raw = _raw(source)
        if target is not None:
            link.target_raw = _raw(target)
        if max_message_size is not None and link.role is Role.RECEIVER:
            link.size_bytes_max = max_message_size
        self._send_attach(
            link,
            max_message_size=max_message_size,
            properties=properties,
            offered_capabilities=offered_capabilities,
        )
        link.move(LinkMove.ACCEPT)
        link.drop_termini()
        if link.echo_wanted:
            link.echo_wanted = False
            self.incoming.flow(link)

    def refuse_link(self, handle: int, error: AmqpError) -> None:
        """Answer an attach with a null terminus and a detach that says why (wire contract 2.2).

        Raises:
            LocalProtocolError: the link was answered before.
        """
        link = self._pending(handle)
        if link is not None:
            self._send_attach(link, null_terminus=True)
            self._end_link(link, error)

    def _pending(self, handle: int) -> Link | None:
        link = self.links.get(handle)
        if link is None or link.state is LinkState.DETACH_SENT:
            return None
        if link.state is not LinkState.PENDING:
            raise LocalProtocolError(f"link {link.name!r} was answered before")
        return link

    def detach(self, handle: int, error: AmqpError | None, closed: bool) -> None:
        """Detach a link; what waits for the session's window on it is dropped."""
        link = self.links.get(handle)
        if link is None or link.state is LinkState.DETACH_SENT:
            return
        if link.state is LinkState.PENDING:
            self._send_attach(link, null_terminus=True)
        self._end_link(link, error, closed=closed)

    def _end_link(self, link: Link, error: AmqpError | None, *, closed: bool = True) -> None:
        link.begin_detach()
        if not self.shared.client:
            link.name = ""  # nothing asks for it any more, and the peer may never answer
        self.outgoing.drop_link(link)
        self.outgoing.flush_disposition()
        self.shared.output.frame(self.channel, encode_detach(link.handle, closed, error))

    def forget(self) -> None:
        """Drop everything and every reference in a circle: the session is over for the connection."""
        self.outgoing.drop_all()
        self.outgoing.send_drained_flow = None
        for link in self.links.values():
            link.drop_partial()
        self.shared.link_count -= len(self.links)
        self.links.clear()
        self.remote_links.clear()

    def _forget(self, link: Link) -> None:
        if self.links.pop(link.handle, None) is not None:
            self.shared.link_count -= 1
        if self.remote_links.get(link.remote_handle) is link:
            del self.remote_links[link.remote_handle]

    def _send_attach(
        self,
        link: Link,
        *,
        null_terminus: bool = False,
        max_message_size: int | None = None,
        properties: dict[Any, Any] | None = None,
        offered_capabilities: Any = None,
    ) -> None:
        source: Encoded | None = link.source_raw
        target: Encoded | None = link.target_raw
        if null_terminus:
            # The terminus at our end is the one that does not exist.
            if link.role is Role.SENDER:
                source = None
            else:
                target = None
        self.shared.output.frame(
            self.channel,
            encode_attach(
                link.name,
                link.handle,
                link.role,
                link.snd_settle_mode,
                link.rcv_settle_mode,
                source,
                target,
                link.initial_delivery_count if link.role is Role.SENDER else None,
                max_message_size,
                offered_capabilities,
                properties,
            ),
        )

    def flow(self, handle: int, credit: int, drain: bool, echo: bool) -> None:
        """Grant the peer `credit` deliveries from now on, in place of what is left.

        Raises:
            LocalProtocolError: we send on this link.
        """
        link = self._usable(handle, Role.RECEIVER)
        if link is None:
            return
        link.granted = link.counted + credit
        link.draining = drain
        link.drains |= drain
        self.incoming.flow(link, drain=drain, echo=echo)

    def drained(self, handle: int) -> None:
        """Give back the rest of the credit and say so (AMQP 2.6.7, wire contract 2.7).

        Raises:
            LocalProtocolError: we receive on this link.
        """
        link = self._usable(handle, Role.SENDER)
        if link is None:
            return
        # Without anything given back there is no echo: two ends that echo every drain would never stop.
        echo = link.credit > 0
        link.counted += link.credit
        link.draining = False
        if self.outgoing.held:
            self.outgoing.hold_drained_flow(link, echo)
        else:
            self._send_drained_flow(link, echo)

    def _send_drained_flow(self, link: Link, echo: bool) -> None:
        self.incoming.flow(link, drain=True, echo=echo)

    def credit(self, handle: int) -> int:
        """Give the deliveries that may still be sent on a link, by whichever end sends; 0 if it is gone."""
        link = self.links.get(handle)
        return 0 if link is None or link.state is LinkState.DETACH_SENT else link.credit

    def send(
        self,
        handle: int,
        tag: bytes,
        payload: bytes,
        settled: bool,
        message_format: int,
        state: DeliveryState | None,
    ) -> int:
        """Send a delivery; give its delivery-id, or GONE.

        Raises:
            LocalProtocolError: no credit, we receive on this link, or it was not accepted yet.
        """
        link = self.links.get(handle)
        if link is None or link.state is _DETACH_SENT:
            return GONE
        if link.role is not SENDER or link.state is not _ATTACHED:
            raise LocalProtocolError(
                f"cannot send on link {link.name!r}: {link.role.name}, {link.state.name}"
            )
        return self.outgoing.send(link, tag, payload, settled, message_format, state)

    def _usable(self, handle: int, role: Role) -> Link | None:
        link = self.links.get(handle)
        if link is None or link.state is LinkState.DETACH_SENT:
            return None
        if link.role is not role or link.state is LinkState.PENDING:
            raise LocalProtocolError(
                f"no {role.name} to use: link {link.name!r} is {link.role.name}, {link.state.name}"
            )
        return link


def _raw(terminus: Terminus | Encoded | None) -> Encoded:
    return Encoded(encode_terminus(terminus))
