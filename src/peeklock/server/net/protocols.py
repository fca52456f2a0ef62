"""The protocols of connections: AMQP with a gateway, HTTP with what answers its requests."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from peeklock import __version__
from peeklock.broker.record.history import History
from peeklock.broker.vocabulary.quotas import TIERS
from peeklock.config.hosts import HostNames
from peeklock.gateway.bounds import Buffers
from peeklock.gateway.choice import OneNamespace
from peeklock.gateway.connection import Gateway
from peeklock.gateway.context import GatewayLimits
from peeklock.server import log
from peeklock.server.keys.authority_manager import AuthorityManager
from peeklock.server.line_limits import DefectLog, Note, RefusalLog
from peeklock.server.loop.clock import SlewedClock
from peeklock.server.loop.turns import Turns
from peeklock.server.memory import memory_bytes
from peeklock.server.net.amqp import AmqpConnection, Buffered
from peeklock.server.net.auth_throttle import AuthThrottle
from peeklock.server.settings import Settings
from peeklock.server.shard.shard import Shard

if TYPE_CHECKING:
    from peeklock.admin.api import Administration
    from peeklock.auth import Authority
    from peeklock.metrics.pages import Figures
    from peeklock.metrics.table import Metric
    from peeklock.server.net.http_dispatch import HttpContext
    from peeklock.server.net.metrics_pages import MetricsPages
    from peeklock.server.net.operator_pages import OperatorPages

RULE_KEY_BYTES = 32
"""Random bytes in the key of an entity's authorization rule without one. Source: wire contract 7.3."""

STOP_S_MAX = 10.0
"""How long a stop waits for clients to take their last bytes. Our choice: under the usual 30 s of process
managers."""


@dataclass(eq=False)
class Protocols:
    """Makes the protocol of each connection, and keeps the AMQP connections that are open."""

    settings: Settings
    shard: Shard
    turns: Turns
    clock: SlewedClock
    authority_manager: AuthorityManager
    namespace: str
    """Its name."""
    created_at_ms: int
    """Of the namespace."""
    defects: DefectLog
    refusals: RefusalLog
    history: History | None
    """Messages that left, for the API; None = it is off."""
    gateway_limits: GatewayLimits | None
    """Bounds of each AMQP connection."""
    health: Callable[[], Awaitable[dict[str, Any]]]
    """Returns the figures for `/health`."""
    stops: Callable[[], bool]
    """Whether the broker stops."""
    capture_backlog_bytes: Callable[[], int | None]
    """Returns what waits for the event log; None = there is none."""

    def __post_init__(self) -> None:
        self._make_gateway = self._gateway_maker()
        self._buffers = Buffers.of_memory(memory_bytes(), TIERS[self.settings.tier])
        self._buffered = Buffered()
        self._first_uses: set[str] = set()
        self._throttle = AuthThrottle()
        self._last_id = 0
        self._opened = 0
        """AMQP connections since the start."""
        self._metrics: MetricsPages | None = None
        self._http_context: HttpContext | None = None
        self._control_context: HttpContext | None = None
        self._all_closed = asyncio.Event()
        self.connections: dict[int, AmqpConnection] = {}
        """AMQP connections by id."""

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
        connection_id = self._new_id()
        self._opened += 1
        connection = self.connections[connection_id] = AmqpConnection(
            connection_id, self.shard, self.turns, self._gateway, self._closed, self._buffered
        )
        return connection

    def _gateway_maker(self) -> Callable[..., Gateway]:
        """Return what makes a gateway: one that keeps frames if the settings ask for that."""
        if self.settings.trace_frames is None:
            return Gateway
        from peeklock.gateway.traced import TracedGateway
        from peeklock.server.net.frame_files import FrameFiles

        files = FrameFiles(self.settings.trace_frames, self.clock.wall_ms)
        return partial(TracedGateway, clock=self.clock.now_ms, on_error=files.take)

    def _gateway(self, connection_id: int, now_ms: int) -> Gateway:
        return self._make_gateway(
            connection_id,
            namespaces=OneNamespace(self.authority_manager.authority),
            tracking=lambda: str(uuid.uuid4()),
            log=log.info,
            now_ms=now_ms,
            limits=self.gateway_limits,
            bears_refusal=lambda: self._bears_refusal(self.connections[connection_id].peer),
            peer=lambda: self.connections[connection_id].endpoint,
            on_defect=partial(self._met_defect, connection_id),
            buffers=self._buffers,
            first_uses=self._first_uses,
            ahead_ms=lambda: self.clock.ahead_ms,
        )

    def _met_defect(self, connection_id: int, defect: Exception, tracking_id: str) -> None:
        """Log a defect in the gateway, which has closed this connection."""
        connection = self.connections.get(connection_id)
        peer = "" if connection is None else connection.endpoint
        self.defects.add(defect, {"tracking_id": tracking_id, "connection": connection_id, "peer": peer})

    def _closed(self, connection_id: int) -> None:
        del self.connections[connection_id]
        if not self.connections:
            self._all_closed.set()

    def _new_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _bears_refusal(self, peer: str) -> bool:
        return self._throttle.refused(peer, self.clock.now_ms())

    # HTTP, whose modules are imported with the first connection

    def http(self) -> asyncio.Protocol:
        """Return the protocol of a new HTTP connection."""
        from peeklock.server.net.http import HttpProtocol

        return HttpProtocol(self._context(), self.refusals.of_connection())

    def control(self) -> asyncio.Protocol:
        """Return the protocol of a connection to the control socket: all rights, without a key."""
        from peeklock.auth import OpenAuthority
        from peeklock.server.net.http import HttpProtocol
        from peeklock.server.origins import OriginPolicy

        if self._control_context is None:
            self._control_context = replace(
                self._context(),
                administration=partial(self._administration, OpenAuthority()),
                pages=self._pages(asks_for_keys=False),
                origin_policy=OriginPolicy(),
                bears_refusal=lambda address: True,
            )
        return HttpProtocol(self._control_context, self.refusals.of_connection())

    def _context(self) -> HttpContext:
        if self._http_context is None:
            self._http_context = self._make_http_context()
        return self._http_context

    def _make_http_context(self) -> HttpContext:
        from peeklock.rest.receives import Receives
        from peeklock.server.net.http_bodies import BodyBudget
        from peeklock.server.net.http_dispatch import HttpContext
        from peeklock.server.net.hub import ApiHub, Hub

        origin_policy = self.authority_manager.origin_policy
        return HttpContext(
            submit=self.shard.submit,
            submit_for=self.shard.ask,
            administration=partial(self._administration, self.authority_manager.authority),
            pages=self._pages(asks_for_keys=origin_policy.asks_for_secret),
            now_ms=self.clock.wall_ms,
            origin_policy=origin_policy,
            stops=self.stops,
            amqp=self.amqp,
            turns=self.turns,
            bears_refusal=self._bears_refusal,
            bodies=BodyBudget(self._buffers.known.limit),
            receives=Hub(Receives, self._new_id, self.shard, self.defects.add),
            api=ApiHub(self._new_id, self.shard, self.defects.add),
            history=self.history,
        )

    def _pages(self, *, asks_for_keys: bool) -> OperatorPages:
        """Make the table of the operator's pages: a row for each."""
        from peeklock.api.access import Access
        from peeklock.server.net.config_page import ConfigPage
        from peeklock.server.net.connection_pages import ConnectionPages
        from peeklock.server.net.key_pages import KeyPages
        from peeklock.server.net.operator_pages import OperatorPages, Page
        from peeklock.server.net.probes import ProbePages

        probes = ProbePages(self.health, self.shard.vitals, self.stops)
        pages = ConnectionPages(self.connections, self.namespace, self.shard.now_ms, self.turns)
        metrics = self._metrics_pages()
        authority = self.authority_manager
        keys = KeyPages(authority.key_file, partial(authority.look, at_once=True))
        rows = (
            Page("/live", Access.ANYBODY, probes.live),
            Page("/ready", Access.ANYBODY, probes.ready),
            Page("/health", Access.ANYBODY, probes.health),
            Page("/metrics", Access.FIGURES, metrics.totals),
            Page("/metrics/entities", Access.FIGURES, metrics.entities),
            Page("/connections", Access.MANAGE, pages.show),
            Page("/connections/", Access.MANAGE, pages.close, "DELETE"),
            Page("/$api/v1/config", Access.MANAGE, ConfigPage(self.shard.definitions).show),
            Page("/$api/v1/keys", Access.MANAGE, keys.show),
            Page("/$api/v1/keys/", Access.MANAGE, keys.add, "PUT"),
            Page("/$api/v1/keys/", Access.MANAGE, keys.rotate, "POST"),
            Page("/$api/v1/keys/", Access.MANAGE, keys.remove, "DELETE"),
        )
        return OperatorPages(rows, asks_for_keys=asks_for_keys)

    async def metrics_figures(self) -> Figures:
        """Return the figures that `/metrics` shows."""
        return await self._metrics_pages().figures()

    def _metrics_pages(self) -> MetricsPages:
        from peeklock.server.net.metrics_pages import MetricsPages

        if self._metrics is None:
            settings = self.settings
            build = {"version": __version__, "durability": settings.durability, "tier": settings.tier}
            self._metrics = MetricsPages(
                self.namespace, self.shard, self.turns, self.clock.now_ms, self._gauges, build
            )
        return self._metrics

    def _gauges(self) -> dict[Metric, float | int]:
        from peeklock.metrics import table

        gauges: dict[Metric, float | int] = {
            table.CONNECTIONS: len(self.connections),
            table.OPENED: self._opened,
            table.CLOSED: self._opened - len(self.connections),
            table.BUFFERED: self._buffered.size_bytes,
            table.DEFECTS: self.defects.count,
        }
        if (backlog := self.capture_backlog_bytes()) is not None:
            gauges[table.CAPTURE_BACKLOG] = backlog
        return gauges

    def _administration(self, authority: Authority, note: Note) -> Administration:
        from peeklock.admin.api import Administration
        from peeklock.admin.exchange import AdminContext

        return Administration(
            AdminContext(
                authority,
                tracking=lambda: str(uuid.uuid4()),
                keys=lambda: base64.b64encode(os.urandom(RULE_KEY_BYTES)).decode(),
                owns=HostNames(self.settings.own_names).owns,
                log=note,
                name=self.namespace,
                limits=TIERS[self.settings.tier],
                created_at_ms=self.created_at_ms,
            )
        )

    def _hubs(self) -> list[Any]:
        context = self._http_context
        return [] if context is None else [hub for hub in (context.receives, context.api) if hub is not None]

    # The end

    def stop_taking(self) -> None:
        """Take nothing more from clients, and end their waits for messages."""
        for connection in list(self.connections.values()):
            connection.stop_taking()
        for hub in self._hubs():
            hub.stop()

    async def shut_down(self) -> None:
        """Tell AMQP clients that the broker stops, and wait a moment for them to read it."""
        now_ms = self.clock.now_ms()
        for connection in list(self.connections.values()):
            connection.shut_down(now_ms)
        if self.connections:
            self._all_closed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_closed.wait(), STOP_S_MAX)
        self.abort()

    def abort(self) -> None:
        """Close all AMQP connections at once."""
        for connection in list(self.connections.values()):
            connection.abort()
