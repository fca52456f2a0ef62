"""The broker process: wiring, start, signals, stop.

Owns: the order of start and stop, and which parts are joined. Must not know: what any part does inside.
Start: store, recovery, configuration, listeners, then one line that says the connection string. Stop
(SIGTERM, SIGINT): no new connections, links told, journal flushed, store closed.
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
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from peeklock import __version__
from peeklock.auth import Authority
from peeklock.broker.changes import Change
from peeklock.broker.commands import ListEntities, ListRules
from peeklock.broker.descriptions import EntityKind, RuleDescription
from peeklock.broker.effects import EntityView, Failed
from peeklock.broker.namespace import Namespace
from peeklock.broker.quotas import TIERS
from peeklock.engine.bodies import BodyCache
from peeklock.engine.engine import Engine
from peeklock.gateway.connection import Gateway
from peeklock.gateway.context import GatewayLimits
from peeklock.gateway.namespaces import OneNamespace
from peeklock.server import log
from peeklock.server.amqp import AmqpConnection
from peeklock.server.clock import SlewedClock
from peeklock.server.definitions import DefinitionLog
from peeklock.server.guard import AuthMode, Guard, is_loopback
from peeklock.server.keys import KeysRefused
from peeklock.server.listener import raise_descriptor_limit
from peeklock.server.peers import Peers
from peeklock.server.ports import Ports, PortsRefused
from peeklock.server.refusals import Note, RefusalLog
from peeklock.server.shard import Shard
from peeklock.server.tasks import tell_failure
from peeklock.server.ticks import tick_round
from peeklock.store.base import Store, StoreDamaged, StoreError

if TYPE_CHECKING:
    from peeklock.auth.authority import WebTokens
    from peeklock.server.capture import Capture, CaptureSettings
    from peeklock.server.config import Config
    from peeklock.server.jwt_keys import JwtKeys

MIN_FREE_BYTES = 1024**3
MIN_FREE_SHARE = 0.05
"""Below the smaller of the two, sends are refused (R-06): 5 % keeps small volumes usable, 1 GiB big ones
full."""

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


class StartFailed(Exception):
    """The broker cannot start; the message says what happened, to what, and what to do."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What `peeklock serve` was asked for."""

    data: Path | None
    config: Path | None
    host: str
    amqp_port: int
    http_port: int
    durability: Literal["fsync", "os", "memory"]
    tls_cert: Path | None
    tls_key: Path | None
    tier: str
    min_free_bytes: int | None
    enforce_quotas: bool = False
    delete_lock: bool = False
    capture: CaptureSettings | None = None
    """None = no event log."""
    auth: frozenset[AuthMode] = frozenset()
    """What is asked of clients; empty = development mode, in which the emulator's well-known key is good for
    everything."""
    jwt: Path | None = None
    """The file that says which JSON web tokens are taken; None = none."""
    allow_plaintext: bool = False
    """Take connections without TLS from other machines too."""
    tls_names: tuple[str, ...] = ()
    """What our certificate has to name beside this machine."""
    usual_ports: bool = False
    """Listen on 5671 and 443 too."""


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
        self._connections: dict[int, AmqpConnection] = {}
        self._connection_ids = 0
        self._stopping = asyncio.Event()
        self._definitions = DefinitionLog()
        self._refusals = RefusalLog(self._clock.now_ms)
        self._deserted = asyncio.Event()  # the last connection is gone
        self._failure: BaseException | None = None
        self._given_authority = authority
        self._peers = Peers()
        self._started_at_ms = self._clock.now_ms()
        self._created_at_ms = self._started_at_ms  # of the namespace; the store may know better
        self._namespace_name = "sbemulatorns"  # as the emulator calls it when nobody says otherwise
        self._capture: Capture | None = None
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
        gc.set_threshold(10_000, 10, 50)  # a collection of so many takes 2 ms, one of ten times as many 5
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.ask_to_stop)
        took = time.monotonic() - process_started
        # With this a client comes without TLS.
        plain = "UseDevelopmentEmulator=true;" if self._ports.plaintext_everywhere else ""
        click.echo(
            f"peeklock ready in {took:.2f} s: Endpoint=sb://{self._shown_host()}:{self.amqp_port};"
            f"{self._guard.connection_string_key}{plain} (administration: port {self.http_port})"
        )
        if self._guard.warning:
            log.warning(self._guard.warning, {"do": "--auth sas gives keys of your own"})
            click.echo(f"peeklock: {self._guard.warning}; --auth sas gives keys of your own")
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
            self._guard = Guard(settings.auth, settings.data, self._given_authority, web_tokens)
        except KeysRefused as failure:
            raise StartFailed(str(failure)) from failure
        store = await self._open_store()
        namespace = Namespace(
            limits=TIERS[settings.tier],
            tokens=_Tokens(),
            digest_key=DIGEST_KEY,
            enforce_quotas=settings.enforce_quotas,
            delete_lock=settings.delete_lock,
            captures_body=None if settings.capture is None else settings.capture.captures_body(),
        )
        engine = Engine(namespace, BodyCache())
        try:
            await engine.recover(store, self._clock.now_ms())
        except StoreError as failure:
            await store.close()
            hint = (
                f"; `peeklock check {settings.data}` says more" if isinstance(failure, StoreDamaged) else ""
            )
            raise StartFailed(f"{failure}{hint}") from failure
        shard = Shard(
            engine,
            namespace,
            store,
            self._clock.now_ms,
            min_free_bytes=self._min_free_bytes,
            on_definitions=self._take_definitions,
            on_failure=self._fail,
        )
        self.shard = shard
        try:
            if config is not None:
                await self._configure(shard, config)
            self._definitions.begin(namespace.entity_views())
            self._guard.begin(namespace.entity_views())
            if settings.capture is not None:
                self._begin_capture(settings.capture, shard)
            self._ports = self._open_ports(shard)
            await self._ports.prepare()
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
        running = [
            asyncio.get_running_loop().create_task(part) for part in (self._tick(), self._ports.follow_tls())
        ]
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
            from peeklock.store.sqlite import SqliteStore

            assert settings.data is not None
            store = SqliteStore(settings.data, durability=settings.durability)
        try:
            await store.open()
        except StoreError as failure:
            raise StartFailed(str(failure)) from failure
        self._created_at_ms = store.created_at_ms or self._started_at_ms
        return store

    def _read_config(self) -> Config | None:
        """Read the file before anything is made, so that a bad one leaves nothing behind."""
        if self._settings.config is None:
            return None
        from peeklock.server.config import read_config
        from peeklock.server.config_form import ConfigError

        try:
            return read_config(self._settings.config)
        except ConfigError as failure:
            raise StartFailed(f"{self._settings.config}: {failure}") from failure

    def _web_tokens(self) -> WebTokens | None:
        """Read whose JSON web tokens are taken. Raises: StartFailed."""
        if self._settings.jwt is None:
            return None
        from peeklock.auth.jwt import JwtVerifier
        from peeklock.server.jwt_keys import JwtFileInvalid, JwtKeys, load_jwt

        try:
            settings = load_jwt(self._settings.jwt)
        except JwtFileInvalid as failure:
            raise StartFailed(f"--jwt: {failure}") from failure
        self._jwt_keys = JwtKeys(settings, self._clock.now_ms)
        return JwtVerifier(settings, self._jwt_keys)

    async def _configure(self, shard: Shard, config: Config) -> None:
        from peeklock.server.config_form import ConfigError
        from peeklock.server.reconcile import counted, reconcile

        self._namespace_name = config.namespace
        try:
            existing: list[EntityView] = []
            for kind in EntityKind:
                found: Any = await shard.submit(partial(ListEntities, kind, 0, sys.maxsize))
                existing += found.entities
            rules = await self._rules_in(shard, config, existing)
            steps = reconcile(config, existing, rules, TIERS[self._settings.tier])
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

    def _open_ports(self, shard: Shard) -> Ports:
        def http() -> asyncio.Protocol:
            from peeklock.server.http import HttpProtocol

            note = self._refusals.of_connection()
            return HttpProtocol(
                shard.submit,
                self._administration(note),
                self._health,
                self._clock.now_ms,
                self._new_amqp,
                note,
                self._bears_refusal,
                self._guard.takes_origin,
            )

        try:
            ports = Ports(
                self._settings,
                self._new_amqp,
                http,
                lambda address: self._peers.wait_s(address, self._clock.now_ms()),
                self._refusals.of_connection(),
            )
        except PortsRefused as failure:
            raise StartFailed(str(failure)) from failure
        self.amqp_port, self.http_port = ports.amqp_port, ports.http_port
        return ports

    def _new_amqp(self) -> asyncio.Protocol:
        self._connection_ids += 1
        connection = AmqpConnection(
            self._connection_ids,
            self.shard,
            self._make_gateway,
            self._connection_closed,
        )
        self._connections[self._connection_ids] = connection
        return connection

    def _connection_closed(self, connection_id: int) -> None:
        del self._connections[connection_id]
        if not self._connections:
            self._deserted.set()

    def _make_gateway(self, connection_id: int, now_ms: int) -> Gateway:
        return Gateway(
            connection_id,
            namespaces=OneNamespace(self._guard.authority),
            tracking=lambda: str(uuid.uuid4()),
            log=log.info,
            now_ms=now_ms,
            limits=self._gateway_limits,
            bears_refusal=lambda: self._bears_refusal(self._connections[connection_id].peer),
            peer=lambda: self._connections[connection_id].endpoint,
        )

    def _bears_refusal(self, peer: str) -> bool:
        return self._peers.refused(peer, self._clock.now_ms())

    def _administration(self, note: Note) -> Any:
        from peeklock.admin.api import Administration

        return Administration(
            self._guard.authority,
            tracking=lambda: str(uuid.uuid4()),
            keys=lambda: base64.b64encode(os.urandom(RULE_KEY_BYTES)).decode(),
            log=note,
            namespace=self._namespace_name,
            limits=TIERS[self._settings.tier],
            created_at_ms=self._created_at_ms,
        )

    # Running

    async def _tick(self) -> None:
        while True:
            await tick_round(self._connections, self._clock.now_ms, asyncio.sleep, TICK_S)
            self._clock.adjust()
            now = self._clock.now_ms()
            self._definitions.tick(now)
            self._guard.tick(now)
            self._refusals.tick(now)

    async def _health(self) -> dict[str, Any]:
        """Figures for `GET /health`."""
        return {
            "version": __version__,
            "durability": self._settings.durability,
            "up_ms": self._clock.now_ms() - self._started_at_ms,
            "connections": len(self._connections),
            **self._ports.health(),
            **self.shard.health(),
            **({} if self._capture is None else {"capture": self._capture.health()}),
        }

    def _take_definitions(self, facts: Iterable[Change], now_ms: int) -> None:
        self._definitions.take(facts, now_ms)
        self._guard.take(facts)

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

    def _bug(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A defect of ours: say it and stop; recovery from facts is safer than going on."""
        failure = context.get("exception")
        if failure is not None and failure is self._failure:
            return  # said already
        if isinstance(failure, (ConnectionError, ssl.SSLError)):
            return  # a peer that vanished in mid-write
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
