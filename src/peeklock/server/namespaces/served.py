"""One namespace at work: its store, shard, keys, history and event log, made and stopped as one.

It knows no socket, and no other namespace.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from peeklock.auth import DEVELOPMENT_KEY, Authority, NamespaceFull
from peeklock.broker.namespace import Namespace
from peeklock.broker.record.history import History
from peeklock.broker.vocabulary.changes import Change
from peeklock.broker.vocabulary.commands import LockToken
from peeklock.broker.vocabulary.quotas import TIERS
from peeklock.config.namespace_limits import NO_LIMITS, NamespaceLimits
from peeklock.engine.bodies import BodyCache
from peeklock.engine.engine import Engine
from peeklock.server import configuration, log, storage
from peeklock.server.disk import Stores, store_name
from peeklock.server.exporter_process import ExporterProcess
from peeklock.server.keys.authority_manager import AuthorityManager
from peeklock.server.keys.keys import GivenKeyFile
from peeklock.server.keys.rules import ROOT_RULE
from peeklock.server.loop.clock import MovableClock, SlewedClock
from peeklock.server.loop.turns import Turns
from peeklock.server.settings import Settings, StartFailed
from peeklock.server.shard.definitions import DefinitionLog
from peeklock.server.shard.housekeeping import Housekeeping
from peeklock.server.shard.shard import Shard
from peeklock.server.system.keys import NamespaceKeys
from peeklock.server.system.opening import take_over_files
from peeklock.server.system.store import SystemStore
from peeklock.store.base import StoreError

if TYPE_CHECKING:
    from peeklock.auth.authority import WebTokens
    from peeklock.config.file import Config
    from peeklock.server.capture import Capture
    from peeklock.server.otel.export import Telemetry
    from peeklock.server.otel.spans import MessageSpans

T = TypeVar("T")

Kind = Literal["default", "configured", "dropped", "created", "throw-away"]
"""Whether the configuration names a namespace, has ceased to, or a command has made it."""

DIGEST_KEY = b"peeklock duplicate detection"
"""Separates our digests from other uses of the hash. Not a secret: 128 bits suffice against collisions."""

TOKENS_A_DRAW = 256
"""Lock tokens drawn from the operating system at once: one system call for 256 deliveries."""
_DRAW = struct.Struct("16s" * TOKENS_A_DRAW)

FURTHER_CACHE_BYTES = 8 * 1024 * 1024
"""Bodies in memory of each namespace but the default one. Our choice: 500 of them have 4 GB at most, and
what they do not use they do not take."""

CLIENTS_S_MAX = 5.0
"""How long clients may take to read that their namespace has ended. Our choice, as for one connection."""


ABORT_S_MAX = 5.0
"""For connections that were aborted to end. Our choice: they do so within a turn or two."""

ABORT_LOOK_S = 0.005
"""Between two looks whether connections that were aborted have ended."""


class Tokens:
    """Random 16-byte lock tokens, drawn in bulk."""

    def __init__(self) -> None:
        self._pool: list[LockToken] = []

    def __call__(self) -> LockToken:
        pool = self._pool
        if not pool:
            pool.extend(_DRAW.unpack(os.urandom(_DRAW.size)))
        return pool.pop()


@dataclass(slots=True)
class Process:
    """What the namespaces of a process share."""

    settings: Settings
    system: SystemStore
    clock: SlewedClock
    turns: Turns
    housekeeping: Housekeeping
    tokens: Tokens
    on_failure: Callable[[BaseException], None]
    """Is called when the store or the core of one has failed."""
    exporter: ExporterProcess
    """Writes the event logs; it runs with the first one."""
    stores: Stores | None = None
    """None = all is in memory."""
    authority: Authority | None = None
    """One made elsewhere, for the default namespace."""
    web_tokens: WebTokens | None = None
    telemetry: Telemetry | None = None


class ServedNamespace:
    """One namespace."""

    def __init__(
        self,
        name: str,
        process: Process,
        settings: Settings,
        kind: Kind,
        *,
        authority: Authority | None = None,
        limits: NamespaceLimits | None = None,
    ) -> None:
        """Read its keys, if a file has them. Raises: KeysRefused.

        Args:
            settings: of the process, with what is its own.
            limits: its own; None = it has none.
            authority: one made elsewhere; None = as the settings say.
        """
        self.name = name
        self.limits = NO_LIMITS if limits is None else limits
        self.settings = settings = replace(settings, tier=self.limits.tier or settings.tier)
        self.kind = kind
        self.is_default = kind == "default"
        self.stands_in = False
        """Whether another node serves it, and this one stands in for the pages of the process."""
        self._process = process
        is_for_tests = settings.is_development or authority is not None
        self.clock = MovableClock(process.clock.now_ms) if is_for_tests else None
        """None = its time cannot be moved."""
        self.now_ms = process.clock.now_ms if self.clock is None else self.clock.now_ms
        """Return its time, UTC ms."""
        self.moving = asyncio.Lock()
        """Held while its clock is moved."""
        self.definitions = DefinitionLog()
        self.history = History(settings.history_size) if settings.history_size else None
        self.authority_manager = AuthorityManager(
            settings.auth,
            process.authority if self.is_default else authority,
            process.web_tokens,
            settings.keys,
            names=(name,),
        )
        self.keys = self._make_keys()
        """Its shared access keys; None = it has none."""
        self.capture: Capture | None = None
        self.connections: dict[int, Any] = {}
        """Its AMQP connections, by id."""
        self.admitted: set[int] = set()
        """Those that have chosen it, and not only come."""
        self.deserted = asyncio.Event()
        """Set while it has none."""
        self.deserted.set()
        self.retires = False
        """Whether it takes no connection any more."""
        self.opened = 0
        """Connections that have joined it."""
        self.used = False
        """Whether a connection or a request has come since this was cleared."""
        asks_for_none = settings.is_development or "off" in settings.auth
        self.first_key = DEVELOPMENT_KEY if asks_for_none else None
        """The key that is named as it, which its maker gets; None = it has none, but web tokens."""

    @property
    def authority(self) -> Authority:
        """What checks its tokens and keys."""
        return self.authority_manager.authority

    async def open(self) -> None:
        """Open the store, make its first key, recover, and begin to serve. Raises: StartFailed."""
        process, settings = self._process, self.settings
        store = await storage.open_store(
            settings, process.stores, store_name(self.name, is_default=self.is_default)
        )
        try:
            if self.is_default:
                await take_over_files(process.system, settings, self.name)
            await self._open_keys()
        except StartFailed:
            await store.close()
            raise
        namespace = self._make_namespace()
        engine = Engine(namespace, BodyCache() if self.is_default else BodyCache(FURTHER_CACHE_BYTES))
        await storage.recover(engine, store, settings, self.now_ms())
        self._warn_of_replaced_states(namespace)
        self.shard = Shard(
            engine,
            namespace,
            store,
            self.now_ms,
            min_free_bytes=storage.min_free_bytes(settings),
            on_definitions=self._take_definitions,
            on_failure=process.on_failure,
            turns=process.turns,
            spans=self._make_spans(engine, namespace),
            housekeeping=process.housekeeping,
            limits=self.limits,
        )
        self.created_at_ms = store.created_at_ms or self.now_ms()

    async def configure(self, config: Config | None) -> None:
        """Make it agree with the configuration, and follow its definitions. Raises: StartFailed."""
        if config is not None:
            await configuration.apply(config, self.shard, self.settings)
        self.follow_definitions()

    def follow_definitions(self) -> None:
        """Log what changes from now on, and follow the authorization rules of its entities."""
        self.made_with = self.shard.definitions() if self.clock is not None else ([], {})
        """Its entities and rules now, to which a reset returns; empty where none is offered."""
        views = self.shard.entity_views()
        self.definitions.begin(views)
        self.authority_manager.begin(views)

    def make_capture(self) -> None:
        """Make the event log, if the settings ask for one; it does not run yet."""
        if self.settings.capture is not None:
            from peeklock.server.capture import Capture, folder_of

            data, stores = self.settings.data, self._process.stores
            assert data is not None
            assert stores is not None
            self.capture = Capture(
                self.settings.capture,
                folder_of(self.settings.capture, self.name.lower(), is_default=self.is_default),
                stores.source(data, store_name(self.name, is_default=self.is_default)),
                self.name,
                self.shard,
                self.now_ms,
                self._process.exporter,
            )
            self.shard.watch_capture(self.capture.is_full)

    def join(self, connection_id: int, connection: Any) -> None:
        """Count a connection."""
        self.connections[connection_id] = connection
        self.opened += 1
        self.used = True
        self.deserted.clear()

    def require_place(self) -> None:
        """Raise NamespaceFull if it may have no further connection."""
        most = self.limits.connections_max
        if most is not None and len(self.admitted) >= most:
            raise NamespaceFull(
                f"The namespace '{self.name}' has {most} connections, the most its MaxConnections allows."
            )

    def leave(self, connection_id: int) -> None:
        """Forget a connection."""
        del self.connections[connection_id]
        self.admitted.discard(connection_id)
        if not self.connections:
            self.deserted.set()

    @property
    def capture_backlog_bytes(self) -> int | None:
        """Bytes that wait for the event log; None = there is none."""
        return None if self.capture is None else self.capture.backlog_bytes

    def tick(self) -> None:
        """Do what is due each second."""
        now_ms = self.now_ms()
        self.shard.tick(now_ms)
        self.definitions.tick(now_ms)

    async def stop(self, *, moves: bool = False) -> None:
        """Commit what was offered, complete the event log, close the store.

        `moves`: another node goes on with the store and with the log, which `end_log` ends here.
        """
        if self.capture is not None:
            if moves:
                self.capture.leave_store()
            else:
                await self.shard.rest()
                await self.capture.stop()
        await self.shard.stop()
        self.definitions.finish()

    async def end_log(self) -> None:
        """Have the exporter write what is left in a store that another node has by now, and end."""
        if self.capture is not None:
            await self.capture.stop()

    async def retire(self, clients_s: float = CLIENTS_S_MAX, *, moves: bool = False) -> None:
        """Stop while other namespaces go on; its clients were told, and have a moment to read it.

        `moves`: as of `stop`; what was sent to clients that take longer is left to be read meanwhile.
        """
        self.retires = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.deserted.wait(), clients_s)
        aborted = {
            connection_id: connection
            for connection_id, connection in self.connections.items()
            if not (moves and connection.part())
        }
        for connection in aborted.values():
            connection.abort()
        until_s = asyncio.get_running_loop().time() + ABORT_S_MAX
        while not aborted.keys().isdisjoint(self.connections):
            if asyncio.get_running_loop().time() >= until_s:
                break
            await asyncio.sleep(ABORT_LOOK_S)
        await self.stop(moves=moves)

    def _make_keys(self) -> NamespaceKeys | GivenKeyFile | None:
        manager = self.authority_manager
        if not manager.has_keys:
            return None
        if self.settings.keys is not None:
            # Not the one that is followed: that one remembers the state that was followed last.
            return GivenKeyFile(self.settings.keys)
        keys = NamespaceKeys(self._process.system, self.name)
        keys.on_change = manager.set_rules
        return keys

    async def _open_keys(self) -> None:
        if isinstance(self.keys, NamespaceKeys):
            try:
                rules = await self.keys.load_or_make(ROOT_RULE if self.is_default else self.name)
            except StoreError as failure:
                raise StartFailed(str(failure)) from failure
            self.authority_manager.set_rules(rules)
            self.first_key = rules[0].primary_key if rules else None

    def _make_namespace(self) -> Namespace:
        settings = self.settings
        return Namespace(
            limits=TIERS[settings.tier],
            tokens=self._process.tokens,
            digest_key=DIGEST_KEY,
            enforce_quotas=settings.enforce_quotas,
            delete_lock=settings.delete_lock,
            lock_grace_ms=settings.lock_grace_ms,
            clock_step_limit_ms=settings.clock_step_limit_ms,
            captures_body=None if settings.capture is None else settings.capture.captures_body(),
            history=self.history,
        )

    def _make_spans(self, engine: Engine, namespace: Namespace) -> MessageSpans | None:
        telemetry = self._process.telemetry
        if telemetry is None:
            return None
        from peeklock.server.otel.spans import MessageSpans

        bodies = engine.bodies
        return MessageSpans(
            telemetry.tracer,
            namespace.name_of,
            lambda message: bodies.get(message.body_row, message.body_slot),
        )

    def _warn_of_replaced_states(self, namespace: Namespace) -> None:
        for name, sessions in namespace.replaced_states():
            log.warning(
                "session states replaced",
                {
                    "entity": name,
                    "count": len(sessions),
                    "first": sessions[0],
                    "why": "session ids differ in case alone; the state that was set last counts",
                },
            )

    def _take_definitions(self, changes: Iterable[Change], now_ms: int) -> None:
        self.definitions.take(changes, now_ms)
        self.authority_manager.take(changes)


def run_now(work: Coroutine[Any, Any, T]) -> T:
    """Run what never suspends, as a store in memory does, to its end. Raises: RuntimeError if it suspends."""
    try:
        work.send(None)
    except StopIteration as finished:
        value: T = finished.value
        return value
    work.close()
    raise RuntimeError("a store in memory suspended")
