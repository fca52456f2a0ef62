"""The protocols of connections: AMQP with a gateway, HTTP with what answers its requests."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from peeklock.broker.record.history import History
from peeklock.broker.vocabulary.quotas import TIERS
from peeklock.config.hosts import HostNames
from peeklock.gateway.bounds import Buffers
from peeklock.gateway.connection import Gateway
from peeklock.gateway.context import GatewayLimits
from peeklock.gateway.namespaces import OneNamespace
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
    from peeklock.server.net.http_dispatch import HttpContext

RULE_KEY_BYTES = 32
"""Random bytes in the key of an entity's authorization rule without one. Source: wire contract 7.3."""

STOP_S_MAX = 10.0
"""How long a stop waits for clients to take their last bytes. Our choice: under the usual 30 s of process
managers."""


class Protocols:
    """Makes the protocol of each connection, and keeps the AMQP connections that are open."""

    def __init__(
        self,
        settings: Settings,
        shard: Shard,
        turns: Turns,
        clock: SlewedClock,
        authority_manager: AuthorityManager,
        *,
        namespace: str,
        created_at_ms: int,
        defects: DefectLog,
        refusals: RefusalLog,
        history: History | None,
        gateway_limits: GatewayLimits | None,
        health: Callable[[], Awaitable[dict[str, Any]]],
        stops: Callable[[], bool],
    ) -> None:
        """Make no protocol yet.

        Args:
            settings: of the broker.
            shard: applies commands.
            turns: shares the loop's time among the connections.
            clock: of the broker.
            authority_manager: has the authority and the policy for web pages.
            namespace: the name of the namespace.
            created_at_ms: when the namespace was created.
            defects: logs defects that end a connection.
            refusals: logs what is refused over HTTP.
            history: messages that left, for the API; None = it is off.
            gateway_limits: bounds of each AMQP connection.
            health: returns the figures for `/health`.
            stops: whether the broker stops.
        """
        self._settings = settings
        self._shard = shard
        self._turns = turns
        self._clock = clock
        self._authority_manager = authority_manager
        self._namespace = namespace
        self._created_at_ms = created_at_ms
        self._defects = defects
        self._refusals = refusals
        self._history = history
        self._gateway_limits = gateway_limits
        self._health = health
        self._stops = stops
        self._limits = TIERS[settings.tier]
        self._buffers = Buffers.of_memory(memory_bytes(), self._limits)
        self._buffered = Buffered()
        self._first_uses: set[str] = set()
        self._throttle = AuthThrottle()
        self._last_id = 0
        self._http_context: HttpContext | None = None
        self._all_closed = asyncio.Event()
        self.connections: dict[int, AmqpConnection] = {}
        """AMQP connections by id."""

    def wait_s(self, address: str) -> float | None:
        """Return how long a new connection from an address must wait, s; None = it is turned away."""
        return self._throttle.wait_s(address, self._clock.now_ms())

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
        connection = self.connections[connection_id] = AmqpConnection(
            connection_id, self._shard, self._turns, self._gateway, self._closed, self._buffered
        )
        return connection

    def _gateway(self, connection_id: int, now_ms: int) -> Gateway:
        return Gateway(
            connection_id,
            namespaces=OneNamespace(self._authority_manager.authority),
            tracking=lambda: str(uuid.uuid4()),
            log=log.info,
            now_ms=now_ms,
            limits=self._gateway_limits,
            bears_refusal=lambda: self._bears_refusal(self.connections[connection_id].peer),
            peer=lambda: self.connections[connection_id].endpoint,
            on_defect=partial(self._met_defect, connection_id),
            buffers=self._buffers,
            first_uses=self._first_uses,
            ahead_ms=lambda: self._clock.ahead_ms,
        )

    def _met_defect(self, connection_id: int, defect: Exception, tracking_id: str) -> None:
        """Log a defect in the gateway, which has closed this connection."""
        connection = self.connections.get(connection_id)
        peer = "" if connection is None else connection.endpoint
        self._defects.add(defect, {"tracking_id": tracking_id, "connection": connection_id, "peer": peer})

    def _closed(self, connection_id: int) -> None:
        del self.connections[connection_id]
        if not self.connections:
            self._all_closed.set()

    def _new_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _bears_refusal(self, peer: str) -> bool:
        return self._throttle.refused(peer, self._clock.now_ms())

    # HTTP, whose modules are imported with the first connection

    def http(self) -> asyncio.Protocol:
        """Return the protocol of a new HTTP connection."""
        from peeklock.server.net.http import HttpProtocol

        if self._http_context is None:
            self._http_context = self._make_http_context()
        return HttpProtocol(self._http_context, self._refusals.of_connection())

    def _make_http_context(self) -> HttpContext:
        from peeklock.rest.receives import Receives
        from peeklock.server.net.http_bodies import BodyBudget
        from peeklock.server.net.http_dispatch import HttpContext
        from peeklock.server.net.hub import ApiHub, Hub

        shard = self._shard
        return HttpContext(
            submit=shard.submit,
            submit_for=shard.ask,
            administration=self._administration,
            health=self._health,
            now_ms=self._clock.wall_ms,
            origin_policy=self._authority_manager.origin_policy,
            stops=self._stops,
            amqp=self.amqp,
            turns=self._turns,
            bears_refusal=self._bears_refusal,
            bodies=BodyBudget(self._buffers.known.limit),
            receives=Hub(Receives, self._new_id, shard, self._defects.add),
            api=ApiHub(self._new_id, shard, self._defects.add),
            history=self._history,
        )

    def _administration(self, note: Note) -> Administration:
        from peeklock.admin.api import Administration

        return Administration(
            self._authority_manager.authority,
            tracking=lambda: str(uuid.uuid4()),
            keys=lambda: base64.b64encode(os.urandom(RULE_KEY_BYTES)).decode(),
            owns=HostNames(self._settings.own_names).owns,
            log=note,
            namespace=self._namespace,
            limits=self._limits,
            created_at_ms=self._created_at_ms,
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
        now_ms = self._clock.now_ms()
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
