"""The broker process: wiring, start, signals, stop.

Owns: the order of start and stop, and which parts are joined. Must not know: what any part does inside.
Start: store, recovery, configuration, TLS files, listeners, then one line that says the connection string.
Stop (SIGTERM, SIGINT): no new connections, links told, journal flushed, store closed.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import os
import signal
import ssl
import sys
import time
import uuid
from asyncio import sslproto
from collections.abc import Iterable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from peeklock import __version__
from peeklock.auth import Authority
from peeklock.broker.content.overlay import is_bodiless
from peeklock.broker.namespace import Namespace
from peeklock.broker.record.history import History
from peeklock.broker.vocabulary.changes import Change
from peeklock.broker.vocabulary.commands import AcceptClock, ClockStepped, ListEntities, ListRules
from peeklock.broker.vocabulary.descriptions import EntityKind, RuleDescription
from peeklock.broker.vocabulary.effects import EntityView, Failed
from peeklock.broker.vocabulary.quotas import TIERS
from peeklock.config.hosts import HostNames
from peeklock.engine.bodies import BodyCache
from peeklock.engine.engine import Engine
from peeklock.gateway.bounds import Buffers
from peeklock.gateway.connection import Gateway
from peeklock.gateway.context import GatewayLimits
from peeklock.gateway.namespaces import OneNamespace
from peeklock.server import log
from peeklock.server.defects import DefectLog
from peeklock.server.keys.authority_manager import AuthorityManager, is_loopback
from peeklock.server.keys.keys import KeysRefused
from peeklock.server.loop.clock import SlewedClock
from peeklock.server.loop.tasks import tell_failure
from peeklock.server.loop.ticks import tick_round
from peeklock.server.loop.turns import Turns
from peeklock.server.memory import memory_bytes
from peeklock.server.net.amqp import AmqpConnection, Buffered
from peeklock.server.net.auth_throttle import AuthThrottle
from peeklock.server.net.listener import raise_descriptor_limit
from peeklock.server.net.ports import Ports
from peeklock.server.net.refusal_log import Note, RefusalLog
from peeklock.server.settings import CaptureSettings, Settings, StartFailed
from peeklock.server.shard.definitions import DefinitionLog
from peeklock.server.shard.shard import Shard
from peeklock.store.base import Store, StoreDamaged, StoreError, StoreGone

if TYPE_CHECKING:
    from pathlib import Path

    from peeklock.auth.authority import WebTokens
    from peeklock.config.file import Config
    from peeklock.rest.receives import Receives
    from peeklock.server.capture import Capture
    from peeklock.server.keys.jwt_keys import JwtKeys
    from peeklock.server.net.api_hub import ApiHub
    from peeklock.server.net.http_bodies import BodyBudget
    from peeklock.server.net.hub import Hub

MIN_FREE_BYTES = 1024**3
MIN_FREE_SHARE = 0.05
"""Below the smaller of the two, sends are refused (R-06): 5 % keeps small volumes usable, 1 GiB big ones
full."""

ANSWERS_S_MAX = 3.0
"""How long a stop commits and answers what was begun before it closes connections. Our choice: a thousand
times what a commit takes; a purge that goes on after that is not waited for."""

STOP_S_MAX = 10.0
"""How long a stop waits for clients to take their last bytes. Our choice: under the usual 30 s of process
managers."""

TICK_S = 1.0

TLS_BUFFER_BYTES = 32 * 1024
"""For reading from a TLS connection, where uvloop is not there. Our choice: two records."""

DIGEST_KEY = b"peeklock duplicate detection"
"""Keeps our digests apart from others' use of the same hash. Not a secret: 128 bits stand against collisions
alone."""

RULE_KEY_BYTES = 32
"""Random bytes in the key of an entity's authorization rule that comes without. Source: wire contract 7.3."""

TOKENS_A_DRAW = 256
"""Lock tokens drawn from the operating system at once: one system call for 256 deliveries."""


class _Tokens:
    """Random 16-byte lock tokens, drawn in bulk."""

    def __init__(self) -> None:
        self._pool: list[bytes] = []

    def __call__(self) -> bytes:
        pool = self._pool
        if not pool:
            raw = os.urandom(16 * TOKENS_A_DRAW)
            pool.extend(raw[at : at + 16] for at in range(0, len(raw), 16))
        return pool.pop()


class Broker:
    """One broker process."""

    def __init__(
        self,
        settings: Settings,
        authority: Authority | None = None,
        *,
        clock: SlewedClock | None = None,
        gateway_limits: GatewayLimits | None = None,
    ) -> None:
        """Make a broker that `run` or `start` starts.

        Args:
            settings: what `peeklock serve` was asked for.
            authority: holds the keys and their rights; None = the emulator's one well-known key.
            clock: the time of all that the broker does; None = this machine's.
            gateway_limits: bounds of each connection.
        """
        self._settings = settings
        self._clock = clock or SlewedClock()
        self._gateway_limits = gateway_limits
        self._buffers = Buffers.of_memory(memory_bytes(), TIERS[settings.tier])
        self._first_uses: set[str] = set()
        self._buffered = Buffered()
        self._connections: dict[int, AmqpConnection] = {}
        self._connection_ids = 0
        self._stopping = asyncio.Event()
        self._definitions = DefinitionLog()
        self._refusals = RefusalLog(self._clock.now_ms)
        self._deserted = asyncio.Event()  # the last connection is gone
        self._failure: BaseException | None = None
        self._given_authority = authority
        self._throttle = AuthThrottle()
        self._defects = DefectLog(self._clock.now_ms)
        self._started_at_ms = self._clock.now_ms()
        self._created_at_ms = self._started_at_ms  # of the namespace; the store may know better
        self._namespace_name = "sbemulatorns"  # as the emulator calls it when nobody says otherwise
        self._capture: Capture | None = None
        self._receives: Hub[Receives] | None = None
        self._api_hub: ApiHub | None = None
        self._history = History(settings.history_size) if settings.history_size else None
        self._jwt_keys: JwtKeys | None = None
        self.amqp_port = 0
        self.http_port = 0

    async def run(self, process_started: float) -> int:
        """Serve until told to stop; answer the exit status. Raises: StartFailed."""
        settings = self._settings
        loop = asyncio.get_running_loop()
        await self.start()
        # A million messages are a few million objects that live long: never look through them again.
        gc.collect()
        gc.freeze()
        # 15,000 objects of messages, which are far apart in memory, take 5 ms in the second generation;
        # 110,000 took 40, in one turn of the loop.
        gc.set_threshold(5_000, 2, 500)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.ask_to_stop)
        loop.add_signal_handler(signal.SIGUSR1, self._accept_clock)
        took = time.monotonic() - process_started
        # With this a client comes without TLS.
        plain = "UseDevelopmentEmulator=true;" if self._ports.plaintext_everywhere else ""
        click.echo(
            f"peeklock ready in {took:.2f} s: Endpoint=sb://{self._shown_host()}:{self.amqp_port};"
            f"{self._authority_manager.connection_string_key}{plain} (administration: port {self.http_port})"
        )
        if self._authority_manager.warning:
            log.warning(self._authority_manager.warning, {"do": "--auth sas gives keys of your own"})
            click.echo(f"peeklock: {self._authority_manager.warning}; --auth sas gives keys of your own")
        if "sas" in settings.auth:
            click.echo(f"peeklock: the keys are shown by: peeklock keys list {settings.data}")
        log.info(
            "ready",
            {
                "version": __version__,
                "durability": settings.durability,
                "data": str(settings.data) if settings.data else None,
                "amqp_port": self.amqp_port,
                "http_port": self.http_port,
                "ports": self._ports.opened,
                "start_ms": round(took * 1000),
            },
        )
        return await self.stopped()

    async def start(self) -> None:
        """Recover, configure and listen: the ports are known then. Raises: StartFailed."""
        settings = self._settings
        asyncio.get_running_loop().set_exception_handler(self._bug)
        config = self._read_config()
        if not settings.auth and self._given_authority is None and not is_loopback(settings.host):
            raise StartFailed(
                f"--host {settings.host} can be reached by others, and without --auth everybody knows the "
                "key: say --auth sas for keys of your own, or --auth off to let everybody in"
            )
        try:
            web_tokens = self._web_tokens()
            names = (*settings.host_names, *settings.tls_names, settings.host)
            self._host_names = HostNames(names)
            self._authority_manager = AuthorityManager(
                settings.auth, settings.data, self._given_authority, web_tokens, names
            )
        except KeysRefused as failure:
            raise StartFailed(str(failure)) from failure
        store = await self._open_store()
        namespace = Namespace(
            limits=TIERS[settings.tier],
            tokens=_Tokens(),
            digest_key=DIGEST_KEY,
            enforce_quotas=settings.enforce_quotas,
            delete_lock=settings.delete_lock,
            lock_grace_ms=settings.lock_grace_ms,
            clock_step_limit_ms=settings.clock_step_limit_ms,
            captures_body=None if settings.capture is None else settings.capture.captures_body(),
            history=self._history,
        )
        engine = Engine(namespace, BodyCache())
        try:
            await engine.recover(store, self._clock.now_ms())
        except StoreError as failure:
            await store.close()
            raise StartFailed(f"{failure}{self._advice(failure)}") from failure
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
        loop = asyncio.get_running_loop()
        self._turns = Turns(loop.call_soon, loop.call_later, on_defect=self._take_defect)
        shard = Shard(
            engine,
            namespace,
            store,
            self._clock.now_ms,
            min_free_bytes=self._min_free_bytes,
            on_definitions=self._take_definitions,
            on_failure=self._fail,
            turns=self._turns,
        )
        self.shard = shard
        try:
            if config is not None:
                await self._configure(shard, config)
            self._definitions.begin(namespace.entity_views())
            self._authority_manager.begin(namespace.entity_views())
            if settings.capture is not None:
                self._begin_capture(settings.capture, shard)
            self._ports = await self._open_ports(shard)
        except StartFailed:
            await shard.stop()
            raise

    def ask_to_stop(self) -> None:
        """Let `stopped` go on to its end."""
        self._stopping.set()

    async def stopped(self) -> int:
        """Serve until asked to stop or unable to go on, then stop; answer the exit status."""
        if self._capture is not None:
            self._capture.start()  # not before: it would take the start's time
        if self._jwt_keys is not None:
            await self._jwt_keys.start()
        parts = (self._tick(), self._ports.follow_tls(), _load_protocols())
        running = [asyncio.get_running_loop().create_task(part) for part in parts]
        for task in running:
            task.add_done_callback(tell_failure)
        await self._stopping.wait()
        for task in running:
            task.cancel()
        if self._jwt_keys is not None:
            await self._jwt_keys.stop()
        self._ports.close()
        if self._failure is not None:
            # Memory is ahead of the disk: nothing may be acknowledged any more, and recovery starts from
            # facts.
            for connection in list(self._connections.values()):
                connection.abort()
            return 1
        await self._stop(self.shard)
        self._definitions.finish()
        self._refusals.finish()
        self._defects.finish()
        log.info("stopped", {})
        return 0

    # Start

    async def _open_store(self) -> Store:
        settings = self._settings
        store: Store
        if settings.durability == "memory":
            from peeklock.store.memory import MemoryStore

            store = MemoryStore()
        else:
            from peeklock.store.sqlite.store import SqliteStore

            assert settings.data is not None
            if settings.accept_loss:
                self._rescue(settings.data)
            store = SqliteStore(settings.data, durability=settings.durability, keeps_ballast=True)
        try:
            await store.open()
        except StoreError as failure:
            raise StartFailed(f"{failure}{self._advice(failure)}") from failure
        self._created_at_ms = store.created_at_ms or self._started_at_ms
        return store

    def _rescue(self, data: Path) -> None:
        """Replace a damaged store by what can be read of it. Raises: StartFailed."""
        from peeklock.store.check import check
        from peeklock.store.rescue import accept_loss

        report = check(data, is_bodiless)
        if not report.stops:
            return
        try:
            said = accept_loss(data, is_bodiless)
        except StoreError as failure:
            raise StartFailed(str(failure)) from failure
        for line in report.damages:
            log.error("damage in the store, behind which --accept-loss reads on", {"damage": line})
        for line in said:
            log.warning("going on with what can be read of the store", {"detail": line})

    def _advice(self, failure: StoreError) -> str:
        if not isinstance(failure, StoreDamaged) or isinstance(failure, StoreGone):
            return ""
        return (
            f"; `peeklock check {self._settings.data}` says more. Put back a copy of the folder, or start "
            "with --accept-loss to go on with what can be read"
        )

    def _read_config(self) -> Config | None:
        """Read the file before anything is made, so that a bad one leaves nothing behind."""
        if self._settings.config is None:
            return None
        from peeklock.config.file import read_config
        from peeklock.config.form import ConfigError

        try:
            return read_config(self._settings.config)
        except ConfigError as failure:
            raise StartFailed(f"{self._settings.config}: {failure}") from failure

    def _web_tokens(self) -> WebTokens | None:
        """Read whose JSON web tokens are taken. Raises: StartFailed."""
        if self._settings.jwt is None:
            return None
        from peeklock.auth.jwt import JwtVerifier
        from peeklock.server.keys.jwt_keys import JwtFileInvalid, JwtKeys, load_jwt

        try:
            settings = load_jwt(self._settings.jwt)
        except JwtFileInvalid as failure:
            raise StartFailed(f"--jwt: {failure}") from failure
        self._jwt_keys = JwtKeys(settings, self._clock.now_ms)
        return JwtVerifier(settings, self._jwt_keys)

    async def _configure(self, shard: Shard, config: Config) -> None:
        from peeklock.config.form import ConfigError
        from peeklock.config.reconcile import counted, reconcile

        self._namespace_name = config.namespace
        if shard.is_deleting:
            await shard.catch_up()  # the file may name what a stop left half deleted
        try:
            existing: list[EntityView] = []
            for kind in EntityKind:
                found: Any = await shard.submit(partial(ListEntities, kind, 0, sys.maxsize))
                existing += found.entities
            rules = await self._rules_in(shard, config, existing)
            steps = reconcile(config, existing, rules, TIERS[self._settings.tier], self._host_names)
            # All at once, so in one commit: a crash leaves all of it or nothing.
            answers = await asyncio.gather(*(shard.submit(step) for step in steps))
            refused = [
                f"{step.path}: {answer.error}"
                for step, answer in zip(steps, answers, strict=True)
                if isinstance(answer, Failed)
            ]
            if refused:
                raise ConfigError(*refused)
        except ConfigError as failure:
            raise StartFailed(f"{self._settings.config}: {failure}") from failure
        done = counted(steps)
        for name, count in config.counts().items():
            figures = {"created": done[name, False], "changed": done[name, True]}
            log.info("configuration followed", {"kind": name, "in_file": count, **figures})

    async def _rules_in(
        self, shard: Shard, config: Config, existing: list[EntityView]
    ) -> dict[str, list[RuleDescription]]:
        """Give the rules of the subscriptions for which the file has some, by path in lower case."""
        known = {view.description.name.lower() for view in existing}
        rules = {}
        for entity in config.entities:
            path = entity.name.lower()
            if entity.rules and path in known:
                found: Any = await shard.submit(partial(ListRules, path, 0, sys.maxsize))
                rules[path] = found.rules
        return rules

    def _begin_capture(self, capture: CaptureSettings, shard: Shard) -> None:
        from peeklock.server.capture import Capture

        assert self._settings.data is not None
        self._capture = Capture(capture, self._settings.data, self._namespace_name, shard, self._clock.now_ms)
        shard.watch_capture(self._capture.look)

    async def _open_ports(self, shard: Shard) -> Ports:
        bodies: BodyBudget | None = None

        def http() -> asyncio.Protocol:
            nonlocal bodies
            from peeklock.server.net.api_requests import ApiRequests
            from peeklock.server.net.http import HttpProtocol
            from peeklock.server.net.http_bodies import BodyBudget
            from peeklock.server.net.http_dispatch import Dispatch

            if self._receives is None or self._api_hub is None or bodies is None:
                from peeklock.rest.receives import Receives
                from peeklock.server.net.api_hub import ApiHub
                from peeklock.server.net.hub import Hub

                self._receives = Hub(Receives, self._new_connection_id, shard, self._defects.tell)
                self._api_hub = ApiHub(self._new_connection_id, shard, self._defects.tell)
                bodies = BodyBudget(self._buffers.known.limit)
            note = self._refusals.of_connection()
            administration = self._administration(note)
            return HttpProtocol(
                Dispatch(
                    shard.submit,
                    shard.ask,
                    administration,
                    self._health,
                    self._clock.wall_ms,
                    note,
                    self._authority_manager.origin_policy,
                    self._stopping.is_set,
                    ApiRequests(
                        administration.admin_context, self._api_hub, self._clock.wall_ms, self._history
                    ),
                ),
                self._clock.wall_ms,
                self._new_amqp,
                self._turns,
                note,
                self._bears_refusal,
                self._receives,
                bodies,
                self._api_hub,
            )

        ports = Ports(
            self._settings,
            self._new_amqp,
            http,
            lambda address: self._throttle.wait_s(address, self._clock.now_ms()),
            self._refusals.of_connection(),
        )
        await ports.open()
        self.amqp_port, self.http_port = ports.amqp_port, ports.http_port
        return ports

    def _new_connection_id(self) -> int:
        self._connection_ids += 1
        return self._connection_ids

    def _new_amqp(self) -> asyncio.Protocol:
        connection_id = self._new_connection_id()
        connection = AmqpConnection(
            connection_id,
            self.shard,
            self._turns,
            self._make_gateway,
            self._connection_closed,
            self._buffered,
        )
        self._connections[connection_id] = connection
        return connection

    def _connection_closed(self, connection_id: int) -> None:
        del self._connections[connection_id]
        if not self._connections:
            self._deserted.set()

    def _make_gateway(self, connection_id: int, now_ms: int) -> Gateway:
        return Gateway(
            connection_id,
            namespaces=OneNamespace(self._authority_manager.authority),
            tracking=lambda: str(uuid.uuid4()),
            log=log.info,
            now_ms=now_ms,
            limits=self._gateway_limits,
            bears_refusal=lambda: self._bears_refusal(self._connections[connection_id].peer),
            peer=lambda: self._connections[connection_id].endpoint,
            on_defect=partial(self._connection_met_defect, connection_id),
            buffers=self._buffers,
            first_uses=self._first_uses,
            ahead_ms=lambda: self._clock.ahead_ms,
        )

    def _connection_met_defect(self, connection_id: int, defect: Exception, tracking_id: str) -> None:
        """Tell of a defect in the gateway, which has ended this connection."""
        connection = self._connections.get(connection_id)
        peer = "" if connection is None else connection.endpoint
        fields = {"tracking_id": tracking_id, "connection": connection_id, "peer": peer}
        self._defects.tell(defect, fields)

    def _bears_refusal(self, peer: str) -> bool:
        return self._throttle.refused(peer, self._clock.now_ms())

    def _administration(self, note: Note) -> Any:
        from peeklock.admin.api import Administration

        return Administration(
            self._authority_manager.authority,
            tracking=lambda: str(uuid.uuid4()),
            keys=lambda: base64.b64encode(os.urandom(RULE_KEY_BYTES)).decode(),
            owns=self._host_names.owns,
            log=note,
            namespace=self._namespace_name,
            limits=TIERS[self._settings.tier],
            created_at_ms=self._created_at_ms,
        )

    # Running

    async def _tick(self) -> None:
        while True:
            await tick_round(self._connections, self._clock.now_ms, asyncio.sleep, TICK_S)
            self._follow_clock(self._clock.adjust())
            now = self._clock.now_ms()
            self.shard.tick(now)
            self._definitions.tick(now)
            self._authority_manager.tick(now)
            self._refusals.tick(now)
            self._defects.tick(now)

    def _follow_clock(self, step_ms: int) -> None:
        if not step_ms:
            return
        self.shard.offer((ClockStepped(step_ms),))
        fields: dict[str, object] = {"step_ms": step_ms, "clock": self._clock_state()}
        if self.shard.wall.is_doubted:
            fields["do"] = f"set it right; if it is right: kill -USR1 {os.getpid()}, and what is due expires"
            log.warning("the wall clock went so far forwards that nothing expires by it", fields)
        else:
            log.warning("the wall clock was set", fields)

    def _accept_clock(self) -> None:
        """Believe the wall clock: an operator says so."""
        if self.shard.wall.is_doubted:
            self.shard.offer((AcceptClock(),))
            log.info("the wall clock is believed now", {"clock": self._clock_state()})

    def _clock_state(self) -> dict[str, object]:
        wall = self.shard.wall
        return {
            "stepped_ms": wall.ahead_ms,
            "state": "doubted" if wall.is_doubted else "ok",
            "not_believed_ms": wall.ahead_ms - wall.due_ahead_ms,
        }

    async def _health(self) -> dict[str, Any]:
        """Figures for `GET /health`."""
        return {
            "version": __version__,
            "durability": self._settings.durability,
            "up_ms": self._clock.now_ms() - self._started_at_ms,
            "clock": self._clock_state(),
            "defects": self._defects.count,
            "buffered_bytes": self._buffered.size_bytes,
            **self._ports.health(),
            **await self.shard.health(),
            # The core knows those that have opened a link.
            "connections": len(self._connections),
            "http_receives": sum(len(hub) for hub in (self._receives, self._api_hub) if hub is not None),
            **({} if self._capture is None else {"capture": self._capture.health()}),
        }

    def _take_definitions(self, facts: Iterable[Change], now_ms: int) -> None:
        self._definitions.take(facts, now_ms)
        self._authority_manager.take(facts)

    def _fail(self, failure: BaseException) -> None:
        if self._failure is None:
            self._failure = failure
            if isinstance(failure, StoreError):
                event = "the store failed; the broker stops so that nothing unsaved is acknowledged"
                do = "mend the disk, then start again"
            else:
                event = "a defect; the broker stops so that nothing is built upon it"
                do = "start again, and report what the log says"
            log.error(event, {"reason": str(failure) or type(failure).__name__, "do": do})
            self._stopping.set()

    def _take_defect(self, defect: Exception) -> None:
        if defect is not self._failure:  # else it is said already
            self._defects.tell(defect, {})

    def _bug(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Tell of a defect of ours. One that a transport met ends that transport.

        Any other ends the broker: recovery from facts is safer than going on.
        """
        failure = context.get("exception")
        if failure is not None and failure is self._failure:
            return  # said already
        if isinstance(failure, (ConnectionError, ssl.SSLError)):
            return  # a peer that vanished in mid-write
        transport = context.get("transport")
        if transport is not None and isinstance(failure, Exception):
            name = transport.get_extra_info("peername")
            self._defects.tell(failure, {"peer": f"{name[0]}:{name[1]}" if name else ""})
            transport.abort()  # the loop has not in each case; `connection_lost` follows
            return
        log.error("defect", {"message": context.get("message"), "exception": repr(failure)})
        loop.default_exception_handler(context)
        if self._failure is None:
            self._failure = failure or RuntimeError(str(context.get("message")))
            self._stopping.set()

    def _min_free_bytes(self) -> int:
        if self._settings.min_free_bytes is not None or self._settings.data is None:
            return self._settings.min_free_bytes or 0
        volume = os.statvfs(self._settings.data)
        return min(MIN_FREE_BYTES, int(volume.f_blocks * volume.f_frsize * MIN_FREE_SHARE))

    # Stop

    async def _stop(self, shard: Shard) -> None:
        """Answer what was begun, then close connections and store. Source: wire contract C46."""
        for connection in list(self._connections.values()):
            connection.stop_taking()
        if self._receives is not None:
            self._receives.stop()
        if self._api_hub is not None:
            self._api_hub.stop()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(shard.answer(), ANSWERS_S_MAX)
        now = self._clock.now_ms()
        for connection in list(self._connections.values()):
            connection.shut_down(now)
        if self._connections:
            self._deserted.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._deserted.wait(), STOP_S_MAX)
        for connection in list(self._connections.values()):
            connection.abort()
        if self._capture is not None:
            await shard.rest()
            await self._capture.stop()
        await shard.stop()

    def _shown_host(self) -> str:
        host = self._settings.host
        if host in ("127.0.0.1", "::1", "0.0.0.0", "::"):
            return "localhost"
        return f"[{host}]" if ":" in host else host


async def _load_protocols() -> None:
    """Import what HTTP and WebSocket need, beside the loop: the first upgrade took 30 ms of a turn."""
    for name in ("peeklock.server.net.http", "peeklock.server.net.websocket"):
        await asyncio.to_thread(import_module, name)


def serve(settings: Settings, process_started: float, authority: Authority | None = None) -> int:
    """Run a broker until it is told to stop; answer the exit status.

    `authority` holds the keys and their rights; None = the emulator's one well-known key.

    Raises: StartFailed.
    """
    log.configure()
    os.umask(0o077)  # messages are nobody else's to read
    raise_descriptor_limit()
    # The writer thread takes the interpreter back several times a commit; at the default 5 ms each a busy
    # event loop would stretch every commit by tens of milliseconds.
    sys.setswitchinterval(0.0005)

    async def main() -> int:
        return await Broker(settings, authority).run(process_started)

    try:
        import uvloop
    except ImportError:
        # asyncio sets 256 KiB aside for each TLS connection; the largest record has 16 KiB.
        sslproto.SSLProtocol.max_size = TLS_BUFFER_BYTES
        return asyncio.run(main())
    return uvloop.run(main())
