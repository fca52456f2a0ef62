"""The protocols of connections: AMQP with a gateway, HTTP with what answers its requests."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from peeklock import __version__
from peeklock.auth import AnotherNamespace, Grant
from peeklock.broker.vocabulary.quotas import TIERS
from peeklock.gateway.bounds import Buffers
from peeklock.gateway.choice import Only
from peeklock.gateway.connection import Gateway
from peeklock.gateway.context import GatewayLimits
from peeklock.server import log
from peeklock.server.line_limits import DefectLog, RefusalLog
from peeklock.server.loop.clock import SlewedClock
from peeklock.server.loop.turns import Turns
from peeklock.server.memory import memory_bytes
from peeklock.server.namespaces.lifecycle import Lifecycle
from peeklock.server.namespaces.registry import Registry
from peeklock.server.namespaces.served import Process, ServedNamespace
from peeklock.server.namespaces.throw_away import ThrowAway
from peeklock.server.net.amqp import AmqpConnection, Buffered
from peeklock.server.net.auth_throttle import AuthThrottle
from peeklock.server.net.http_bodies import BodyBudget
from peeklock.server.origins import OriginPolicy
from peeklock.server.settings import Settings
from peeklock.server.workers.children import Children

if TYPE_CHECKING:
    from peeklock.metrics.pages import Figures
    from peeklock.metrics.table import Metric
    from peeklock.server.cluster.member import Member
    from peeklock.server.net.endpoint import HttpEndpoint
    from peeklock.server.net.http_dispatch import HttpContext
    from peeklock.server.net.http_heads import Head
    from peeklock.server.net.metrics_pages import MetricsPages

STOP_S_MAX = 10.0
"""How long a stop waits for clients to take their last bytes. Our choice: under the usual 30 s of process
managers."""


@dataclass(eq=False)
class Protocols:
    """Makes the protocol of each connection, and keeps the AMQP connections that are open."""

    settings: Settings
    registry: Registry
    lifecycle: Lifecycle
    process: Process
    turns: Turns
    clock: SlewedClock
    origin_policy: OriginPolicy
    defects: DefectLog
    refusals: RefusalLog
    gateway_limits: GatewayLimits | None
    """Bounds of each AMQP connection."""
    health: Callable[[ServedNamespace], Awaitable[dict[str, Any]]]
    """Returns the figures for `/health`."""
    stops: Callable[[], bool]
    """Whether the broker stops."""
    endpoint_of: Callable[[str], str]
    """Returns the endpoint of a connection string for a host, and what follows its key."""
    member: Member | None = None
    """This process as a node; None = it is in no cluster."""

    def __post_init__(self) -> None:
        self._make_gateway = self._gateway_maker()
        tiers = [TIERS[served.settings.tier] for served in self.registry]
        largest = max(tiers, key=lambda tier: tier.message_size_kb_max)
        self.buffers = Buffers.of_memory(memory_bytes(), largest)
        self.bodies = BodyBudget(self.buffers.known.limit)
        """For messages that are not complete yet, of all HTTP connections."""
        self._buffered = Buffered()
        self._first_uses: set[str] = set()
        self._throttle = AuthThrottle()
        self._last_id = 0
        self._endpoints: dict[ServedNamespace, HttpEndpoint] = {}
        self._metrics: dict[ServedNamespace, MetricsPages] = {}
        self._all_closed = asyncio.Event()
        self.connections: dict[int, AmqpConnection] = {}
        """AMQP connections by id."""
        self._of: dict[int, ServedNamespace] = {}
        """The namespaces of these."""
        self.children = Children()
        """Processes that work for clients."""
        self.throw_away = ThrowAway(self.registry, self.process, self.end)
        self.local: Callable[[str, str], ServedNamespace | None] | None = None
        """Returns the namespace of a host and a path, of those that this node owns; None = it is no node."""
        self.relayed: Callable[[], int] = int
        """Returns how many connections are carried to other nodes."""
        self.lifecycle.close = self.end

    def wait_s(self, address: str) -> float | None:
        """Return how long a new connection from an address must wait, s; None = it is turned away."""
        return self._throttle.wait_s(address, self.clock.now_ms())

    def figures(self) -> dict[str, int]:
        """Return figures for `GET /health`."""
        return {
            "buffered_bytes": self._buffered.size_bytes,
            "connections": len(self.connections),  # the core knows only those that have opened a link
            "http_receives": sum(len(hub) for hub in self._hubs()),
        }

    # AMQP

    def amqp(self) -> asyncio.Protocol:
        """Return the protocol of a new AMQP connection."""
        return self._amqp(self.registry.default, self._gateway)

    def amqp_of(self, served: ServedNamespace) -> asyncio.Protocol:
        """Return the protocol of a new AMQP connection, whose peer has named its namespace."""
        return self._amqp(served, partial(self._gateway, namespaces=Only(served)))

    def _amqp(self, served: ServedNamespace, make_gateway: Callable[[int, int], Gateway]) -> asyncio.Protocol:
        if served.retires or self.stops():  # it would never be told, and keep the namespace open
            return _Refused()
        connection_id = self.new_id()
        connection = AmqpConnection(
            connection_id,
            served.shard,
            self.turns,
            make_gateway,
            self._closed,
            self._buffered,
            self.clock.now_ms,
        )
        self._join(connection, served)
        self.connections[connection_id] = connection
        return connection

    def amqp_in(self, served: ServedNamespace) -> asyncio.Protocol:
        """Return that of AMQP within HTTP, whose request was for this namespace."""
        return self.amqp() if self.local is None else self.amqp_of(served)

    async def attach(self, served: ServedNamespace, sock: socket.socket, grants: Sequence[Grant]) -> None:
        """Serve a socket that a child process has the other end of, as a client with these grants.

        Grants that are not upheld any more count for nothing.
        """
        upheld = [grant for grant in grants if served.authority.upholds(grant)]

        self.buffers.make_room(TIERS[served.settings.tier])

        def gateway(connection_id: int, now_ms: int) -> Gateway:
            made = self._gateway(
                connection_id,
                now_ms,
                namespaces=Only(served),
                on_chosen=lambda hosted: None,  # it takes no place of a client
            )
            made.grant(upheld)
            return made

        connection = self._amqp(served, gateway)
        await asyncio.get_running_loop().create_unix_connection(lambda: connection, sock=sock)

    def _join(self, connection: AmqpConnection, served: ServedNamespace) -> None:
        served.join(connection.connection_id, connection)
        self._of[connection.connection_id] = served

    def _chosen(self, connection_id: int, served: ServedNamespace) -> None:
        """Hand a connection over to the namespace that its peer has chosen. Raises: NamespaceFull."""
        served.require_place()
        served.admitted.add(connection_id)
        self.buffers.make_room(TIERS[served.settings.tier])
        if served is self._of[connection_id]:
            return
        connection = self.connections[connection_id]
        self._of[connection_id].leave(connection_id)
        self._join(connection, served)
        connection.join(served.shard)

    def namespace_of(self, connection_id: int) -> str:
        """Return the name of the namespace that an open connection uses."""
        return self._of[connection_id].name

    def _gateway_maker(self) -> Callable[..., Gateway]:
        """Return what makes a gateway: one that keeps frames if the settings ask for that."""
        if self.settings.trace_frames is None:
            return Gateway
        from peeklock.gateway.traced import TracedGateway
        from peeklock.server.net.frame_files import FrameFiles

        files = FrameFiles(self.settings.trace_frames, self.clock.wall_ms)
        return partial(TracedGateway, clock=self.clock.now_ms, on_error=files.take)

    def _gateway(self, connection_id: int, now_ms: int, **given: Any) -> Gateway:
        """Make a gateway; `given` replaces what that of any client has."""
        of_any = {"namespaces": self.registry, "on_chosen": partial(self._chosen, connection_id)}
        return self._make_gateway(
            connection_id,
            tracking=lambda: str(uuid.uuid4()),
            log=log.info,
            now_ms=now_ms,
            limits=self.gateway_limits,
            bears_refusal=lambda: self.bears_refusal(self.connections[connection_id].peer),
            peer=lambda: self.connections[connection_id].endpoint,
            on_defect=partial(self._met_defect, connection_id),
            buffers=self.buffers,
            first_uses=self._first_uses,
            ahead_ms=lambda: self.clock.ahead_ms,
            **{**of_any, **given},
        )

    def _met_defect(self, connection_id: int, defect: Exception, tracking_id: str) -> None:
        """Log a defect in the gateway, which has closed this connection."""
        connection = self.connections.get(connection_id)
        peer = "" if connection is None else connection.endpoint
        self.defects.add(defect, {"tracking_id": tracking_id, "connection": connection_id, "peer": peer})

    def _closed(self, connection_id: int) -> None:
        del self.connections[connection_id]
        self._of.pop(connection_id).leave(connection_id)
        if not self.connections:
            self._all_closed.set()

    def new_id(self) -> int:
        """Return the id of a new connection."""
        self._last_id += 1
        return self._last_id

    def bears_refusal(self, peer: str) -> bool:
        """Count a refused token or key of an address; return whether it may go on."""
        return self._throttle.refused(peer, self.clock.now_ms())

    # HTTP, whose modules are imported with the first connection

    def http(self) -> asyncio.Protocol:
        """Return the protocol of a new HTTP connection."""
        from peeklock.server.net.http import HttpProtocol

        context = self._endpoint(self.registry.default).context
        return HttpProtocol(context, self.refusals.of_connection(), self._context_for)

    def control(self) -> asyncio.Protocol:
        """Return the protocol of a connection to the control socket: all rights, without a key."""
        from peeklock.server.net.http import HttpProtocol

        context = self._endpoint(self.registry.default).control
        return HttpProtocol(context, self.refusals.of_connection(), self._control_for)

    def http_of(self, served: ServedNamespace, *, is_control: bool) -> asyncio.Protocol:
        """Return the protocol of a new HTTP connection, whose first request is for a namespace."""
        from peeklock.server.net.http import HttpProtocol

        def context_of(served: ServedNamespace) -> HttpContext:
            endpoint = self._endpoint(served)
            return endpoint.control if is_control else endpoint.context

        def context_for(head: Head) -> HttpContext:
            assert self.local is not None
            found = self.local(head.headers.get("host", ""), head.path)
            if found is None:
                raise AnotherNamespace("Another node serves this namespace: use another connection for it.")
            found.used = True
            return context_of(found)

        return HttpProtocol(context_of(served), self.refusals.of_connection(), context_for)

    def _context_for(self, head: Head) -> HttpContext:
        """Return the context of the namespace that a request is for. Raises: NamespaceFull."""
        registry = self.registry
        served = registry.by_host(head.headers.get("host", ""))
        if served is None:
            served = registry.by_token(head.headers.get("authorization", "").strip())
        served = served or registry.default
        served.used = True
        return self._endpoint(served).context

    def _control_for(self, head: Head) -> HttpContext:
        served = self.registry.by_host(head.headers.get("host", ""))
        return self._endpoint(served or self.registry.default).control

    def _endpoint(self, served: ServedNamespace) -> HttpEndpoint:
        found = self._endpoints.get(served)
        if found is None:
            from peeklock.server.net.endpoint import HttpEndpoint

            found = self._endpoints[served] = HttpEndpoint(served, self, self._metrics_of(served))
        return found

    async def metrics_figures(self) -> Figures:
        """Return the figures that `/metrics` shows of the default namespace."""
        return await self._metrics_of(self.registry.default).figures()

    def _metrics_of(self, served: ServedNamespace) -> MetricsPages:
        found = self._metrics.get(served)
        if found is None:
            from peeklock.server.net.metrics_pages import MetricsPages

            settings = served.settings
            build = {"version": __version__, "durability": settings.durability, "tier": settings.tier}
            found = self._metrics[served] = MetricsPages(
                served.name,
                served.shard,
                self.turns,
                self.clock.now_ms,
                partial(self._gauges, served),
                build,
                self._others if served.is_default else None,
                served.stands_in,
            )
        return found

    def _others(self) -> list[MetricsPages]:
        return [self._metrics_of(served) for served in self.registry if not served.is_default]

    def _gauges(self, served: ServedNamespace) -> dict[Metric, float | int]:
        from peeklock.metrics import table

        gauges: dict[Metric, float | int] = {}
        if not served.stands_in:
            gauges[table.CONNECTIONS] = len(served.connections)
            gauges[table.OPENED] = served.opened
            gauges[table.CLOSED] = served.opened - len(served.connections)
        elif self.member is not None:
            gauges[table.READY] = int(self.member.unreached_s() is None)
        if served.is_default:
            gauges[table.BUFFERED] = self._buffered.size_bytes
            gauges[table.DEFECTS] = self.defects.count
            if self.member is not None:
                gauges[table.OWNED] = len(self.member.owned())
                gauges[table.RELAYED] = self.relayed()
        if (backlog := served.capture_backlog_bytes) is not None:
            gauges[table.CAPTURE_BACKLOG] = backlog
        return gauges

    def _hubs(self) -> list[Any]:
        return [hub for endpoint in self._endpoints.values() for hub in endpoint.hubs]

    # The end of one namespace

    def end(self, served: ServedNamespace, why: str) -> None:
        """Close the connections of a namespace that ends, and answer its requests that wait."""
        now_ms = self.clock.now_ms()
        for connection in list(served.connections.values()):
            connection.close(why, now_ms)
        endpoint = self._endpoints.pop(served, None)
        if endpoint is not None:
            endpoint.stop()
        self._metrics.pop(served, None)

    # The end of all

    def stop_taking(self) -> None:
        """Take nothing more from clients, and end their waits for messages."""
        for connection in list(self.connections.values()):
            connection.stop_taking()
        for endpoint in self._endpoints.values():
            endpoint.stop()

    def shut_down(self) -> None:
        """Tell AMQP clients that the broker stops."""
        now_ms = self.clock.now_ms()
        for connection in list(self.connections.values()):
            connection.shut_down(now_ms)

    async def until_closed(self) -> None:
        """Wait a moment for AMQP clients to read what they were sent."""
        if self.connections:
            self._all_closed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_closed.wait(), STOP_S_MAX)
        self.abort()

    def abort(self) -> None:
        """Close all AMQP connections at once."""
        for connection in list(self.connections.values()):
            connection.abort()


class _Refused(asyncio.Protocol):
    """A connection that came too late."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Later: who handed it on still uses it in this turn.
        asyncio.get_running_loop().call_soon(cast(asyncio.Transport, transport).abort)
