"""The sessions of one connection by channel, ours and the peer's (equal in the server role).

Source: OASIS AMQP 1.0 sections 2.5.1-2.5.3 and 2.7.2.
"""

from __future__ import annotations

from .attaching import SessionContext
from .composites import ATTACH, BEGIN, DETACH, DISPOSITION, END, FLOW, NAMES, TRANSFER, Performative
from .errors import (
    FRAMING_ERROR,
    ILLEGAL_STATE,
    INVALID_FIELD,
    NOT_ALLOWED,
    RESOURCE_LIMIT_EXCEEDED,
    AmqpError,
    LocalProtocolError,
    RemoteProtocolError,
    Scope,
)
from .events import Event, SessionBegun
from .incoming import Incoming
from .performatives import encode_begin
from .session import Session
from .states import SessionState


class Sessions:
    """Begin, end and dispatch frames to sessions."""

    __slots__ = (
        "_by_remote_channel",
        "_ended",
        "_shared",
        "by_channel",
        "channel_max",
        "freed_channels",
        "peer_channel_max",
        "receiving",
    )

    def __init__(self, shared: SessionContext, channel_max: int) -> None:
        self._shared = shared
        self.by_channel: dict[int, Session] = {}
        """By our channel."""
        self._by_remote_channel: dict[int, Session] = {}
        self._ended: set[int] = set()
        """Channels whose last session the peer has ended."""
        self.channel_max = channel_max
        """The highest channel the peer may use."""
        self.peer_channel_max = 65535
        """The highest channel we may use."""
        self.receiving: dict[int, Incoming] = {}
        """By the peer's channel: sessions whose transfers and dispositions may take the fast path."""
        self.freed_channels: set[int] = set()
        """Channels of the peer freed since the owner last saw events (see `Connection.stalled`)."""

    def clear(self) -> list[tuple[int, int]]:
        """Forget all sessions: the connection is over. Return `ConnectionClosed.unsent`."""
        unsent: list[tuple[int, int]] = []
        for session in dict.fromkeys((*self.by_channel.values(), *self._by_remote_channel.values())):
            unsent += [(session.channel, delivery_id) for delivery_id in session.outgoing.unsent()]
            session.forget()
        self._shared.output.merging.clear()
        self.by_channel.clear()
        self._by_remote_channel.clear()
        self.receiving.clear()
        return unsent

    def on_frame(self, channel: int, performative: Performative, body: bytes, events: list[Event]) -> bool:
        """Pass a frame to its session; return False if it must wait until the owner has seen the events.

        Raises:
            RemoteProtocolError: an error of the connection; one of a session ends that session.
        """
        code = performative.code
        if code == BEGIN:
            return self._on_begin(channel, performative, events)
        session = self._by_remote_channel.get(channel)
        if session is None:
            # After their end, the Python client detaches links and .NET attaches them: wire contract C43.
            if code == DETACH or channel in self._ended:
                return True
            reason = f"{NAMES[code]} on channel {channel}, which has no session"
            raise RemoteProtocolError(ILLEGAL_STATE, reason)
        if code == END:
            session.on_end(performative, events)
            self._drop(session)
            self._ended.add(channel)
            self.freed_channels.add(channel)
            return True
        if session.state is SessionState.END_SENT:
            return True
        if code == ATTACH and (session.channel, performative.fields[1]) in self._shared.freed_handles:
            return False
        try:
            if code == TRANSFER:
                session.on_transfer(performative, body[performative.payload_start :], events)
            elif code == FLOW:
                session.on_flow(performative, events)
            elif code == DISPOSITION:
                session.incoming.on_disposition(performative, events)
            elif code == ATTACH:
                session.links.on_attach(performative, body, events)
            else:
                session.links.on_detach(performative, events)
        except RemoteProtocolError as error:
            if error.scope is not Scope.SESSION:
                raise
            session.fail(error.error, events)
            self.receiving.pop(channel, None)
        return True

    def _on_begin(self, channel: int, performative: Performative, events: list[Event]) -> bool:
        if channel in self.freed_channels:
            return False
        if channel > self.channel_max:
            # "MUST close the connection with the framing-error" AMQP 2.7.1
            raise RemoteProtocolError(FRAMING_ERROR, f"channel {channel} exceeds {self.channel_max}")
        old = self._by_remote_channel.get(channel)
        if old is not None:
            if old.state is not SessionState.END_SENT:
                raise RemoteProtocolError(ILLEGAL_STATE, f"channel {channel} has a session already")
            self._drop(old)  # the peer has dropped the session without an end
        elif len(self._by_remote_channel) >= self._shared.limits.sessions:
            reason = f"the connection has more than {self._shared.limits.sessions} sessions"
            raise RemoteProtocolError(RESOURCE_LIMIT_EXCEEDED, reason)
        if performative.size_of(7) > self._shared.limits.properties_bytes:
            reason = f"the session's properties have more than {self._shared.limits.properties_bytes} bytes"
            raise RemoteProtocolError(RESOURCE_LIMIT_EXCEEDED, reason)
        remote_channel = performative.fields[0]
        if self._shared.client:
            session = self.by_channel.get(-1 if remote_channel is None else remote_channel)
            if session is None or session.state is not SessionState.BEGIN_SENT:
                raise RemoteProtocolError(NOT_ALLOWED, f"begin for channel {remote_channel}: not requested")
        elif remote_channel is not None:
            raise RemoteProtocolError(INVALID_FIELD, f"begin answers channel {remote_channel}, not in use")
        else:
            session = Session(channel, self._shared, SessionState.BEGIN_SENT)
            self.by_channel[channel] = session
        session.remote_channel = channel
        self._by_remote_channel[channel] = session
        self._ended.discard(channel)
        session.on_begin(performative)
        self.receiving[channel] = session.incoming
        if not self._shared.client:
            self._send_begin(channel, channel)
        events.append(SessionBegun(session.channel))
        return True

    def _drop(self, session: Session) -> None:
        self.by_channel.pop(session.channel, None)
        self._by_remote_channel.pop(session.remote_channel, None)
        self.receiving.pop(session.remote_channel, None)
        session.forget()

    def begin(self) -> int:
        """Begin a session; see `Connection.begin`."""
        if not self._shared.client:
            raise LocalProtocolError("a server does not begin sessions")
        highest = min(self.channel_max, self.peer_channel_max)
        channel = next((number for number in range(highest + 1) if number not in self.by_channel), None)
        if channel is None:
            raise LocalProtocolError(f"all channels up to {highest} are in use")
        session = Session(channel, self._shared, SessionState.BEGIN_SENT)
        session.remote_channel = -1
        self.by_channel[channel] = session
        self._send_begin(channel, None)
        return channel

    def _send_begin(self, channel: int, remote_channel: int | None) -> None:
        limits = self._shared.limits
        body = encode_begin(remote_channel, 0, limits.incoming_window, limits.handle_max)
        self._shared.output.frame(channel, body)

    def end(self, channel: int, error: AmqpError | None = None) -> None:
        """End a session and its links; see `Connection.end`."""
        session = self.by_channel.get(channel)
        if session is not None:
            session.end(error)
            self.receiving.pop(session.remote_channel, None)
