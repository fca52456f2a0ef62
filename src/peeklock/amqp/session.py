"""One session, in both roles: begin and end, flow, transfers; its links are in `attaching`.

Must not know the connection's framing, nor what a delivery means. `incoming` and `outgoing` are the two
directions of the hot path.

`states` has the table of its states. A session is MAPPED once the peer's begin has arrived. In END_SENT
everything but the peer's `end` is dropped ("discarding", AMQP 2.5.5). The connection drops a session that
both ends have ended.
Source: OASIS AMQP 1.0 sections 2.5, 2.6 and 2.7; wire contract 2.3, 2.7 and 2.9 for what clients do.
"""

from __future__ import annotations

from typing import Final

from .attaching import Links, SessionContext
from .composites import Performative
from .errors import AmqpError, LocalProtocolError, RemoteProtocolError, Scope
from .events import Event, LinkDetached, LinkDrained, LinkFlow, SessionEnded
from .link import Link
from .outgoing import Outgoing
from .performatives import DeliveryState, decode_error, encode_end
from .serial import distance
from .states import SESSION_TRANSITIONS, LinkState, SessionMove, SessionState
from .types import SENDER, Role

GONE: Final = -1
"""The delivery-id of a delivery that was not sent, because the peer has ended its link."""

OUTGOING_WINDOW: Final = 65535
"""Frames we announce that we may send. Our choice: no client uses it as a bound."""

_ATTACHED: Final = LinkState.ATTACHED
_DETACH_SENT: Final = LinkState.DETACH_SENT
"""For the hot path, as `types.SENDER` is."""


class Session:
    """One end of a session; `channel` is ours, `remote_channel` the peer's."""

    __slots__ = ("channel", "incoming", "links", "outgoing", "remote_channel", "shared", "state")

    def __init__(self, channel: int, shared: SessionContext, state: SessionState) -> None:
        self.channel = channel
        self.remote_channel = channel
        self.shared = shared
        self.state = state
        self.outgoing = Outgoing(channel, shared.output, OUTGOING_WINDOW)
        self.links = Links(channel, shared, self.outgoing)
        self.incoming = self.links.incoming
        self.outgoing.send_drained_flow = self._send_drained_flow

    def on_begin(self, performative: Performative) -> None:
        """Handle the peer's begin: its first transfer-id and its window."""
        _, next_outgoing_id, incoming_window, _, handle_max, _, _, _ = performative.fields
        self.incoming.begun(next_outgoing_id)
        self.outgoing.peer_flow(None, incoming_window)
        if handle_max is not None:
            self.links.handle_max = min(self.links.handle_max, handle_max)
        self.move(SessionMove.BEGUN)

    def move(self, move: SessionMove) -> None:
        """Go to the next state. Raises: KeyError for an illegal move, a defect of ours."""
        self.state = SESSION_TRANSITIONS[self.state][move]

    def on_flow(self, performative: Performative, events: list[Event]) -> None:
        """Handle a flow: the session's window, then a link's credit or the end of a drain.

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
        link = self.links.of_peer(handle)
        if link.state is _DETACH_SENT:
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
            # Credit that the sender returned, perhaps for a drain that we took back meanwhile.
            link.counted += max(0, ahead)
            if drained:
                link.draining = False
                link.granted = link.counted
                events.append(LinkDrained(self.channel, link.handle))
        if echo:
            if link.state is LinkState.PENDING:
                link.echo_wanted = True  # a flow before our attach would name an unknown handle
            else:
                self.incoming.flow(link)

    def on_transfer(self, performative: Performative, payload: bytes, events: list[Event]) -> None:
        """Handle a transfer that the fast path left.

        Raises:
            RemoteProtocolError: unattached-handle (session), or one of the connection.
        """
        link = self.links.of_peer(performative.fields[0])
        if link.state is _DETACH_SENT:
            self.incoming.count_frame()
            return
        try:
            self.incoming.on_transfer(link, performative, payload, events)
        except RemoteProtocolError as error:
            if error.scope is not Scope.LINK:
                raise
            self.links.end(link, error.error)
            events.append(LinkDetached(self.channel, link.handle, True, error.error, clean=False))

    def on_end(self, performative: Performative, events: list[Event]) -> None:
        """Handle the peer's end, and answer it unless it answers ours."""
        error = decode_error(performative.fields[0])
        if self.state is not SessionState.END_SENT:
            self._send_end(None, None, events, clean=True)
        elif not self.shared.client:
            return
        events.append(SessionEnded(self.channel, error))

    def fail(self, error: AmqpError, events: list[Event]) -> None:
        """End the session because the peer broke the protocol on it."""
        self._send_end(error, error, events, clean=False)
        self.move(SessionMove.END)
        events.append(SessionEnded(self.channel, error, clean=False))

    def end(self, error: AmqpError | None) -> None:
        """End the session and its links."""
        if self.state is not SessionState.END_SENT:
            self._send_end(error, None, [], clean=True)
            self.move(SessionMove.END)

    def _send_end(
        self, error: AmqpError | None, link_error: AmqpError | None, events: list[Event], *, clean: bool
    ) -> None:
        self.outgoing.flush_disposition()
        self.outgoing.drop_all()
        self.links.drop(link_error, events, clean=clean)
        self.shared.output.frame(self.channel, encode_end(error))

    def forget(self) -> None:
        """Drop everything and every reference cycle: the session is over for the connection."""
        self.outgoing.drop_all()
        self.outgoing.send_drained_flow = None
        self.links.clear()

    def flow(self, handle: int, credit: int, drain: bool, echo: bool) -> None:
        """Grant credit to the peer; see `Connection.flow`."""
        link = self._usable(handle, Role.RECEIVER)
        if link is None:
            return
        link.granted = link.counted + credit
        link.draining = drain
        link.drains |= drain
        self.incoming.flow(link, drain=drain, echo=echo)

    def drained(self, handle: int) -> None:
        """Return the rest of the credit (AMQP 2.6.7, wire contract 2.7); see `Connection.drained`."""
        link = self._usable(handle, Role.SENDER)
        if link is None:
            return
        # No echo if nothing is returned: two ends that echo every drain would never stop.
        echo = link.credit > 0
        link.counted += link.credit
        link.draining = False
        if self.outgoing.held:
            self.outgoing.hold_drained_flow(link, echo)
        else:
            self._send_drained_flow(link, echo)

    def _send_drained_flow(self, link: Link, echo: bool) -> None:
        self.incoming.flow(link, drain=True, echo=echo)

    def counts(self, handle: int) -> tuple[int, int]:
        """Return credit and deliveries of a link; see `Connection.counts`."""
        link = self.links.by_handle.get(handle)
        return (0, 0) if link is None or link.state is _DETACH_SENT else (link.credit, link.counted)

    def send(
        self,
        handle: int,
        tag: bytes,
        payload: bytes,
        settled: bool,
        message_format: int,
        state: DeliveryState | None,
    ) -> int:
        """Send a delivery; see `Connection.send`."""
        link = self.links.by_handle.get(handle)
        if link is None or link.state is _DETACH_SENT:
            return GONE
        if link.role is not SENDER or link.state is not _ATTACHED:
            raise LocalProtocolError(
                f"cannot send on link {link.name!r}: {link.role.name}, {link.state.name}"
            )
        return self.outgoing.send(link, tag, payload, settled, message_format, state)

    def _usable(self, handle: int, role: Role) -> Link | None:
        link = self.links.by_handle.get(handle)
        if link is None or link.state is LinkState.DETACH_SENT:
            return None
        if link.role is not role or link.state is LinkState.PENDING:
            raise LocalProtocolError(
                f"link {link.name!r} is not an attached {role.name}: {link.role.name}, {link.state.name}"
            )
        return link
