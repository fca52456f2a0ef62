"""Leads each connection to the owner of the namespace that it asks for, here or on another node.

Theory of operation: a caller is read until its namespace is known (`door`). If this node owns it, the
connection gets its protocol and is like any other. Else the caller is connected to the owner, over TLS
between nodes; the owner is told who the client is, reads its first bytes again, and answers with one byte
whether it takes the client. From then on bytes are carried both ways, and neither end is read while the
other one's output is full.

While nobody owns the namespace, such as during a takeover, a caller is held: it is not read, and each change
in the database lets it try again. When the process that owns the namespace changes, its sessions end: an
owner that gave it back in order has written all by then. What it has sent is carried until nothing more
comes, and the client reads all of it; what the client sends meanwhile is dropped.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import cast

from peeklock.cluster.hello import AMQP, CONTROL, HTTP, TAKEN, TURNED_AWAY, Hello
from peeklock.config.hosts import host_and_port_of
from peeklock.server.cluster.member import Member
from peeklock.server.line_limits import Note
from peeklock.server.loop.tasks import tell_failure
from peeklock.server.namespaces.lifecycle import Wanted
from peeklock.server.namespaces.served import ServedNamespace
from peeklock.server.net import ending
from peeklock.server.net.door import AmqpDoor, Asked, Door, HttpDoor
from peeklock.server.net.handed_on import HandedOnTransport
from peeklock.server.net.protocols import Protocols
from peeklock.server.net.to_owner import BUFFER_BYTES_HIGH, ToOwner

HOLD_S_MAX = 30.0
"""How long a client is held while nobody owns its namespace. Our choice: several takeovers."""

FIRST_S_MAX = 20.0
"""For a client to say which namespace it asks for, as for its first bytes."""

CONNECT_S_MAX = 5.0
"""For another node to take a client. Our choice: the length of a lease."""

RETRY_S = 0.25
"""Between two tries, without a change in the database."""

OWNER_S_MAX = 0.25
"""After the last byte of a former owner that is frozen or cut off. Our choice: no client waits for it."""

LIVE_OWNER_S_MAX = 2.0
"""After the last byte of a former owner that is live. Our choice: longer than it waits for a busy core."""

CLOSE_S_MAX = 2.0
"""The same when this node stops. Our choice: two round trips on any path."""

CLOSE_LOOK_S = 0.02

OWN_PATHS = ("/live", "/ready", "/health", "/owner", "/metrics", "/connections", "/$api/v1/cluster")
"""Pages of the node itself, and what is below them, where the host names no namespace."""

_OWN_PREFIXES = tuple(f"{path}/" for path in OWN_PATHS)


class Relay:
    """The callers of one node."""

    def __init__(
        self,
        member: Member,
        protocols: Protocols,
        context: ssl.SSLContext,
        now_ms: Callable[[], int],
        note: Note,
    ) -> None:
        """`context`: for connections to other nodes; `note` logs what a peer can cause."""
        self.member = member
        self.protocols = protocols
        self.context = context
        self.now_ms = now_ms
        self.note = note
        self._at_door: dict[Caller, None] = {}
        """Those whose namespace is not known yet."""
        self._closed = False
        self._held: dict[Caller, None] = {}
        self._sessions: dict[str, dict[Caller, None]] = {}
        """By the name of the store."""
        self.ending: dict[Caller, None] = {}
        """Those that read the last that was carried."""
        member.on_view(self._look)
        protocols.local = self._local_http
        protocols.relayed = self._carried

    # As the listener asks

    def amqp(self) -> asyncio.Protocol:
        """Return the protocol of a new AMQP connection."""
        return Caller(self, AMQP, AmqpDoor(self.now_ms()))

    def http(self) -> asyncio.Protocol:
        """Return the protocol of a new HTTP connection."""
        return Caller(self, HTTP, HttpDoor())

    def control(self) -> asyncio.Protocol:
        """Return the protocol of a connection to the control socket."""
        return Caller(self, CONTROL, HttpDoor())

    def figures(self) -> dict[str, int]:
        """Return figures for `GET /health`."""
        return {"relayed": self._carried(), "held": len(self._held)}

    def _carried(self) -> int:
        return sum(map(len, self._sessions.values()))

    def close(self) -> None:
        """Close all callers: the node stops. What they are sent already is left to be read."""
        self._closed = True
        for caller in [*self._at_door, *self._held]:
            caller.cut()
        for caller in [one for some in self._sessions.values() for one in some]:
            caller.end_now()

    async def until_closed(self) -> None:
        """Wait a moment for callers to read what was carried, then cut them."""
        until_s = asyncio.get_running_loop().time() + CLOSE_S_MAX
        while asyncio.get_running_loop().time() < until_s:
            if all(caller.has_ended for caller in self.ending):
                break
            await asyncio.sleep(CLOSE_LOOK_S)
        for caller in list(self.ending):
            caller.cut()

    # From callers

    def came(self, caller: Caller) -> bool:
        """Remember a new caller; return False if the node stops."""
        self._at_door[caller] = None
        return not self._closed

    def wanted(self, asked: Asked) -> Wanted | None:
        """Return the namespace that is asked for; None = a page of this node."""
        directory = self.member.directory
        found = directory.named(asked.host, asked.user)
        if found is None and f"{asked.path}/".startswith(_OWN_PREFIXES):
            return None
        return found or directory.default

    def local(self, kind: str, wanted: Wanted | None) -> asyncio.Protocol | None:
        """Return the protocol of a connection to a namespace that this node owns, None = it does not."""
        protocols = self.protocols
        served = self._served(wanted)
        if served is None:
            return None
        if kind == AMQP:
            return protocols.amqp_of(served)
        return protocols.http_of(served, is_control=kind == CONTROL)

    def _served(self, wanted: Wanted | None) -> ServedNamespace | None:
        return self.protocols.registry.default if wanted is None else self.member.served(wanted)

    def _local_http(self, host: str, path: str) -> ServedNamespace | None:
        return self._served(self.wanted(Asked(host, path=path)))

    def hold(self, caller: Caller) -> None:
        """Hold a caller, which tries again when something changes."""
        self._at_door.pop(caller, None)
        self._held[caller] = None

    def carry(self, caller: Caller, store: str) -> None:
        """Remember a caller that is connected to an owner."""
        self._sessions.setdefault(store, {})[caller] = None

    def is_live(self, name: str) -> bool:
        """Return whether a node has reported lately."""
        node = self.member.view.nodes.get(name)
        return node is not None and node.is_live

    def ends(self, caller: Caller) -> None:
        """Remember a caller that reads the last that was carried."""
        self.left(caller)
        self.ending[caller] = None

    def left(self, caller: Caller) -> None:
        """Forget a caller."""
        self._at_door.pop(caller, None)
        self._held.pop(caller, None)
        self.ending.pop(caller, None)
        sessions = self._sessions.get(caller.store)
        if sessions is not None:
            sessions.pop(caller, None)
            if not sessions:
                del self._sessions[caller.store]

    def _look(self) -> None:
        """Follow the database: end what has another owner now, and let those that are held try again."""
        for store, sessions in list(self._sessions.items()):
            session = self.member.view.lease(store).session
            for caller in [one for one in sessions if one.session != session]:
                caller.end()
        for caller in list(self._held):
            caller.try_again()


class Caller(asyncio.Protocol):
    """One connection that this node has accepted."""

    def __init__(self, relay: Relay, kind: str, door: Door) -> None:
        self._relay = relay
        self._kind = kind
        self._door = door
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._owner: ToOwner | None = None
        self._wanted: Wanted | None = None
        self._node = ""
        """The name of that owner."""
        self._is_over = False
        """Whether its session has ended, so that nothing more is asked."""
        self._ended_s = 0.0
        self._end_of_output: ending.Ending | None = None
        self.store = ""
        self.session: str | None = None
        """The process that it is connected to."""

    # From the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast: uvloop's transports do not derive from asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._timer = self._loop.call_later(FIRST_S_MAX, self.cut)
        if not self._relay.came(self):
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        if transport is None:
            return
        if self._is_over:
            if self._end_of_output is not None:
                self._end_of_output.heard()
            return
        if self._owner is not None:
            self._owner.write(data)
            return
        if self.store:  # it is held: what was under way when reading was paused
            self._door.received += data
            return
        written, asked = self._door.receive(data, self._relay.now_ms())
        if written:
            transport.write(written)
        if asked is not None:
            self._lead(transport, asked)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        if self._owner is not None:
            self._owner.pause_reading()

    def resume_writing(self) -> None:
        if self._owner is not None:
            self._owner.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._end()
        if self._end_of_output is not None:
            self._end_of_output.cancel()
        if self._owner is not None:
            self._owner.close()

    # To the owner

    def _lead(self, transport: asyncio.Transport, asked: Asked) -> None:
        self._wanted = wanted = self._relay.wanted(asked)
        if self._taken_here(transport):
            return
        assert wanted is not None  # the pages of this node are here
        self.store = wanted.store
        transport.pause_reading()
        self._set_timer(HOLD_S_MAX)
        self._relay.hold(self)
        self.try_again()

    def _taken_here(self, transport: asyncio.Transport) -> bool:
        """Hand the connection over to its protocol if this node owns its namespace."""
        protocol = self._relay.local(self._kind, self._wanted)
        if protocol is None:
            return False
        was_held = bool(self.store)
        self._end()
        self._transport = None  # it is another protocol's
        door = self._door
        handed_on = HandedOnTransport(transport, bytes(door.answered)) if door.answered else transport
        transport.set_protocol(protocol)
        protocol.connection_made(handed_on)
        if was_held:
            transport.resume_reading()
        protocol.data_received(bytes(door.received))
        return True

    def try_again(self) -> None:
        """Connect to the owner, if there is one."""
        if self._retry is not None:  # this is that try
            self._retry.cancel()
            self._retry = None
        transport = self._transport
        if transport is None or self._owner is not None or self._connecting is not None:
            return
        if self._taken_here(transport):
            return
        found = self._relay.member.owner_of(self.store)
        if found is not None and found[1].name != self._relay.member.nodes.name:
            self.session, node = found
            self._node = node.name
            self._connecting = self._loop.create_task(self._connect(transport, node.address))
            self._connecting.add_done_callback(tell_failure)

    async def _connect(self, transport: asyncio.Transport, address: str) -> None:
        owner, answer = ToOwner(self), b""
        try:
            async with asyncio.timeout(CONNECT_S_MAX):
                host, port = host_and_port_of(address)
                made, _ = await self._loop.create_connection(
                    lambda: owner, host, port, ssl=self._relay.context
                )
                made.write(self._hello(transport).line() + self._door.received)
                answer = await owner.answer
        except (OSError, TimeoutError) as failure:
            fields = {"node": address, "reason": str(failure) or type(failure).__name__}
            self._relay.note("another node does not answer", fields)
        self._connecting = None
        if self._transport is None or answer != TAKEN:
            owner.close()
            if answer == TURNED_AWAY:
                self.cut()
            elif self._transport is not None:
                self._retry = self._loop.call_later(RETRY_S, self.try_again)
            return
        self._owner = owner
        self._end()
        transport.set_write_buffer_limits(high=BUFFER_BYTES_HIGH)
        self._relay.carry(self, self.store)
        owner.begin(transport)
        transport.resume_reading()

    def _hello(self, transport: asyncio.Transport) -> Hello:
        peer = transport.get_extra_info("peername")
        host, port = (str(peer[0]), int(peer[1])) if isinstance(peer, tuple) else ("", 0)
        has_tls = transport.get_extra_info("sslcontext") is not None
        return Hello(self._kind, self.store, host, port, has_tls, bytes(self._door.answered))

    # The end

    def owner_lost(self) -> None:
        """Close the connection after what the owner has written."""
        transport = self._transport
        if transport is None or self._end_of_output is not None:
            return
        self._is_over = True
        self._relay.ends(self)
        self._set_timer(ending.END_S_MAX)
        if not transport.is_closing():  # asyncio's TLS breaks when closed twice
            self._end_of_output = ending.Ending(transport, ending.LINGER_S)
            transport.resume_reading()

    def end(self) -> None:
        """End the connection: its owner is another one now.

        An owner that has given the namespace back wrote all before others can know of it, so what comes is
        carried. It does not end the connection itself: bytes of the client may be on their way to it.
        """
        if self._transport is not None and not self._is_over:
            self._is_over = True
            self._relay.ends(self)
            self._ended_s = self._loop.time()
            self._set_timer(OWNER_S_MAX, self._end_unless_it_sends)

    def _end_unless_it_sends(self) -> None:
        """End the connection once nothing more comes from the former owner."""
        owner, now_s = self._owner, self._loop.time()
        if owner is None or now_s >= self._ended_s + ending.END_S_MAX:
            self.end_now()
            return
        patience_s = LIVE_OWNER_S_MAX if self._relay.is_live(self._node) else OWNER_S_MAX
        left_s = OWNER_S_MAX if owner.is_paused else owner.heard_s + patience_s - now_s
        if left_s > 0:
            self._set_timer(min(left_s, OWNER_S_MAX), self._end_unless_it_sends)
        else:
            self.end_now()

    @property
    def has_ended(self) -> bool:
        """Whether the system of the client has all that was carried."""
        transport = self._transport
        return transport is None or (self._end_of_output is not None and not ending.unread_bytes(transport))

    def end_now(self) -> None:
        """Carry nothing more, and close the connection after what was carried."""
        if self._owner is not None:
            self._owner.abort()
        self.owner_lost()

    def pause_reading(self) -> None:
        """Read no more from the client for now."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        if self._transport is not None:
            self._transport.resume_reading()

    def cut(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()
        if self._owner is not None:
            self._owner.abort()

    def _set_timer(self, seconds: float, then: Callable[[], None] | None = None) -> None:
        """Cut the connection after some time, or do something else."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, then or self.cut)

    def _end(self) -> None:
        for timer in (self._timer, self._retry):
            if timer is not None:
                timer.cancel()
        self._relay.left(self)
