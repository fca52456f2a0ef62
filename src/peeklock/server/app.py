"""A broker: the order in which its parts are made, started and stopped.

Start: configuration file, keys, store, recovery, entities of the file, listeners.
Stop: no new connections, answers to what was begun, clients told, journal flushed, store closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import struct
from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from peeklock import __version__
from peeklock.auth import Authority
from peeklock.broker.namespace import Namespace
from peeklock.broker.record.history import History
from peeklock.broker.vocabulary.changes import Change
from peeklock.broker.vocabulary.commands import AcceptClock, ClockStepped, LockToken
from peeklock.broker.vocabulary.quotas import TIERS
from peeklock.engine.bodies import BodyCache
from peeklock.engine.engine import Engine
from peeklock.gateway.context import GatewayLimits
from peeklock.server import configuration, log, storage
from peeklock.server.followed_files import followed_files
from peeklock.server.keys.authority_manager import AuthorityManager, is_loopback
from peeklock.server.keys.keys import KeysRefused
from peeklock.server.line_limits import DefectLog, RefusalLog
from peeklock.server.loop.clock import SlewedClock
from peeklock.server.loop.tasks import tell_failure
from peeklock.server.loop.timers import tick_round
from peeklock.server.loop.turns import Turns
from peeklock.server.net.control import ControlSocket
from peeklock.server.net.ports import Ports
from peeklock.server.net.protocols import Protocols
from peeklock.server.notify import Notifier
from peeklock.server.settings import Settings, StartFailed
from peeklock.server.shard.definitions import DefinitionLog
from peeklock.server.shard.shard import Shard
from peeklock.store.base import Store, StoreError

if TYPE_CHECKING:
    from peeklock.server.capture import Capture
    from peeklock.server.keys.token_issuer import TokenIssuer
    from peeklock.server.otel.export import Telemetry
    from peeklock.server.otel.spans import MessageSpans

ANSWERS_S_MAX = 3.0
"""How long a stop commits and answers what was begun before it closes connections. Our choice: a thousand
times what a commit takes; a purge that takes longer is not waited for."""

TICK_S = 1.0

DIGEST_KEY = b"peeklock duplicate detection"
"""Separates our digests from other uses of the hash. Not a secret: 128 bits suffice against collisions."""

TOKENS_A_DRAW = 256
"""Lock tokens drawn from the operating system at once: one system call for 256 deliveries."""
_DRAW = struct.Struct("16s" * TOKENS_A_DRAW)


class _Tokens:
    """Random 16-byte lock tokens, drawn in bulk."""

    def __init__(self) -> None:
        self._pool: list[LockToken] = []

    def __call__(self) -> LockToken:
        pool = self._pool
        if not pool:
            pool.extend(_DRAW.unpack(os.urandom(_DRAW.size)))
        return pool.pop()


class Broker:
    """One broker."""

    def __init__(
        self,
        settings: Settings,
        authority: Authority | None = None,
        *,
        clock: SlewedClock | None = None,
        gateway_limits: GatewayLimits | None = None,
        notifier: Notifier | None = None,
    ) -> None:
        """Make a broker that `start` starts.

        Args:
            settings: the options of `peeklock serve`.
            authority: has the keys and their rights; None = as the settings say.
            clock: the broker's time; None = this machine's.
            gateway_limits: bounds of each AMQP connection.
            notifier: tells the service manager what the broker does; None = there is none.
        """
        self._settings = settings
        self._given_authority = authority
        self._clock = clock or SlewedClock()
        self._gateway_limits = gateway_limits
        self._notifier = notifier or Notifier()
        self._started_at_ms = self._clock.now_ms()
        self._stopping = asyncio.Event()
        self._failure: BaseException | None = None
        self._definitions = DefinitionLog()
        self._refusals = RefusalLog(self._clock.now_ms)
        self._history = History(settings.history_size) if settings.history_size else None
        self._capture: Capture | None = None
        self._token_issuer: TokenIssuer | None = None
        self._telemetry: Telemetry | None = None
        self.defects = DefectLog(self._clock.now_ms)
        self.amqp_port = 0
        self.http_port = 0

    async def start(self) -> None:
        """Recover, configure and listen: the ports are known then. Raises: StartFailed."""
        settings, loop = self._settings, asyncio.get_running_loop()
        loop.set_exception_handler(self._handle_failure)
        config = configuration.read_configuration(settings)
        self.authority_manager = self._make_authority()
        store = await storage.open_store(settings)
        namespace = self._make_namespace()
        engine = Engine(namespace, BodyCache())
        await storage.recover(engine, store, settings, self._clock.now_ms())
        self._warn_of_replaced_states(namespace)
        self._turns = Turns(loop.call_soon, loop.call_later, on_defect=self._take_defect)
        name = "sbemulatorns" if config is None else config.namespace  # as the emulator's
        self._telemetry = self._make_telemetry(name)
        self.shard = Shard(
            engine,
            namespace,
            store,
            self._clock.now_ms,
            min_free_bytes=storage.min_free_bytes(settings),
            on_definitions=self._take_definitions,
            on_failure=self._fail,
            turns=self._turns,
            spans=self._make_spans(engine, namespace),
        )
        try:
            if config is not None:
                await configuration.apply(config, self.shard, settings)
            self._definitions.begin(namespace.entity_views())
            self.authority_manager.begin(namespace.entity_views())
            self._make_capture(name)
            await self._listen(name, store)
            self.reload = followed_files(
                settings,
                self.shard,
                authority_manager=self.authority_manager,
                ports=self.ports,
                token_issuer=self._token_issuer,
                namespace=name,
                notifier=self._notifier,
            )
        except StartFailed:
            await self.shard.stop()
            raise

    def ask_to_stop(self) -> None:
        """Make `stopped` end."""
        self._stopping.set()

    async def stopped(self) -> int:
        """Serve until asked to stop or unable to continue, then stop; return the exit status."""
        if self._capture is not None:
            self._capture.start()  # not before: it would delay the start
        if self._token_issuer is not None:
            await self._token_issuer.start()
        parts = [
            self._tick(),
            self.ports.follow_tls(),
            self.reload.run(),
            self._notifier.run(),
            _load_protocols(),
        ]
        if self._telemetry is not None:
            parts.append(self._telemetry.run())
        running = [asyncio.get_running_loop().create_task(part) for part in parts]
        for task in running:
            task.add_done_callback(tell_failure)
        await self._stopping.wait()
        self._notifier.stopping()
        for task in running:
            task.cancel()
        if self._token_issuer is not None:
            await self._token_issuer.stop()
        self.ports.close()
        self.control.close()
        if self._failure is not None:
            # Memory is ahead of the disk: nothing may be acknowledged any more, and recovery starts from
            # facts.
            self.protocols.abort()
            return 1
        await self._stop()
        for limited in (self._definitions, self._refusals, self.defects):
            limited.finish()
        log.info("stopped", {})
        return 0

    # Start

    def _make_authority(self) -> AuthorityManager:
        settings = self._settings
        if not settings.auth and self._given_authority is None and not is_loopback(settings.host):
            raise StartFailed(
                f"--host {settings.host} can be reached by other machines, and without --auth everybody "
                "knows the key: use --auth sas for keys of your own, --auth development if everybody may "
                "know it, or --auth off for no authentication"
            )
        try:
            self._token_issuer = issuer = self._make_token_issuer()
            web_tokens = None if issuer is None else issuer.verifier
            return AuthorityManager(
                settings.auth,
                settings.data,
                self._given_authority,
                web_tokens,
                settings.own_names,
                settings.keys,
                short_names=settings.emulator,
            )
        except KeysRefused as failure:
            raise StartFailed(str(failure)) from failure

    def _make_token_issuer(self) -> TokenIssuer | None:
        if self._settings.jwt is None:
            return None
        from peeklock.server.keys.jwt_keys import JwtFileInvalid
        from peeklock.server.keys.token_issuer import TokenIssuer

        try:
            return TokenIssuer(self._settings.jwt, self._clock.now_ms)
        except JwtFileInvalid as failure:
            raise StartFailed(f"--jwt: {failure}") from failure

    def _make_telemetry(self, namespace: str) -> Telemetry | None:
        if self._settings.otlp is None:
            return None
        try:
            from peeklock.server.otel.export import Telemetry
        except ImportError as failure:
            raise StartFailed(
                f"--otlp needs OpenTelemetry, which is not installed ({failure.name}): "
                "pip install 'peeklock[otel]'"
            ) from failure
        return Telemetry(self._settings.otlp, namespace, lambda: self.protocols.metrics_figures())

    def _make_spans(self, engine: Engine, namespace: Namespace) -> MessageSpans | None:
        if self._telemetry is None:
            return None
        from peeklock.server.otel.spans import MessageSpans

        bodies = engine.bodies
        return MessageSpans(
            self._telemetry.tracer,
            namespace.name_of,
            lambda message: bodies.get(message.body_row, message.body_slot),
        )

    def _make_namespace(self) -> Namespace:
        settings = self._settings
        return Namespace(
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

    def _make_capture(self, namespace: str) -> None:
        settings = self._settings
        if settings.capture is not None:
            from peeklock.server.capture import Capture, folder_of
            from peeklock.server.exporter_process import ExporterProcess

            assert settings.data is not None
            self._exporter = ExporterProcess()
            self._capture = Capture(
                settings.capture,
                folder_of(settings.capture, namespace, is_default=True),
                settings.data,
                namespace,
                self.shard,
                self._clock.now_ms,
                self._exporter,
            )
            self.shard.watch_capture(self._capture.is_full)

    async def _listen(self, namespace: str, store: Store) -> None:
        self.protocols = Protocols(
            settings=self._settings,
            shard=self.shard,
            turns=self._turns,
            clock=self._clock,
            authority_manager=self.authority_manager,
            namespace=namespace,
            created_at_ms=store.created_at_ms or self._started_at_ms,
            defects=self.defects,
            refusals=self._refusals,
            history=self._history,
            gateway_limits=self._gateway_limits,
            health=self._health,
            stops=self._stopping.is_set,
            capture_backlog_bytes=lambda: None if self._capture is None else self._capture.backlog_bytes,
        )
        protocols, note = self.protocols, self._refusals.of_connection()
        self.ports = Ports(self._settings, protocols.amqp, protocols.http, protocols.wait_s, note)
        await self.ports.open()
        self.control = ControlSocket(self._settings, protocols.control)
        try:
            await self.control.open()
        except StartFailed:
            self.ports.close()
            raise
        self.amqp_port, self.http_port = self.ports.amqp_port, self.ports.http_port

    # Running

    async def _tick(self) -> None:
        parts = (self.shard, self._definitions, self._refusals, self.defects)
        while True:
            await tick_round(self.protocols.connections, self._clock.now_ms, asyncio.sleep, TICK_S)
            self._follow_clock(self._clock.adjust())
            now_ms = self._clock.now_ms()
            for part in parts:
                part.tick(now_ms)

    def _follow_clock(self, step_ms: int) -> None:
        if not step_ms:
            return
        self.shard.offer((ClockStepped(step_ms),))
        fields: dict[str, object] = {"step_ms": step_ms, "clock": self._clock_state()}
        if self.shard.wall.is_doubted:
            fields["do"] = (
                f"correct it; if it is right, run kill -USR1 {os.getpid()}, and what is due expires"
            )
            log.warning("the wall clock jumped so far forwards that nothing expires by it", fields)
        else:
            log.warning("the wall clock was set", fields)

    def accept_clock(self) -> None:
        """Trust the wall clock again, as an operator says."""
        if self.shard.wall.is_doubted:
            self.shard.offer((AcceptClock(),))
            log.info("the wall clock is trusted again", {"clock": self._clock_state()})

    def _clock_state(self) -> dict[str, object]:
        wall = self.shard.wall
        return {
            "stepped_ms": wall.ahead_ms,
            "state": "doubted" if wall.is_doubted else "ok",
            "not_believed_ms": wall.ahead_ms - wall.due_ahead_ms,
        }

    async def _health(self) -> dict[str, Any]:
        """Return figures for `GET /health`."""
        return {
            "version": __version__,
            "namespace": self.protocols.namespace,
            "durability": self._settings.durability,
            "up_ms": self._clock.now_ms() - self._started_at_ms,
            "clock": self._clock_state(),
            "defects": self.defects.count,
            **self.ports.health(),
            **await self.shard.health(),
            **self.protocols.figures(),
            **({} if self._capture is None else {"capture": self._capture.health()}),
        }

    def _take_definitions(self, changes: Iterable[Change], now_ms: int) -> None:
        self._definitions.take(changes, now_ms)
        self.authority_manager.take(changes)

    # Failures

    def _fail(self, failure: BaseException) -> None:
        if self._failure is None:
            self._failure = failure
            if isinstance(failure, StoreError):
                event = "the store failed; the broker stops so that nothing unsaved is acknowledged"
                do = "repair the disk, then start again"
            else:
                event = "a defect; the broker stops so that nothing is built on a wrong state"
                do = "start again, and report what the log says"
            log.error(event, {"reason": str(failure) or type(failure).__name__, "do": do})
            self._stopping.set()

    def _take_defect(self, defect: Exception) -> None:
        if defect is not self._failure:  # else it is logged already
            self.defects.add(defect, {})

    def _handle_failure(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle what a callback or task raised: a defect on a transport closes that transport.

        Any other defect ends the broker: recovery from facts is safer than continuing.
        """
        failure = context.get("exception")
        if failure is not None and failure is self._failure:
            return  # logged already
        if isinstance(failure, (ConnectionError, ssl.SSLError)):
            return  # a peer that vanished during a write
        transport = context.get("transport")
        if transport is not None and isinstance(failure, Exception):
            name = transport.get_extra_info("peername")
            self.defects.add(failure, {"peer": f"{name[0]}:{name[1]}" if name else ""})
            transport.abort()  # the loop does not always; `connection_lost` follows
            return
        log.error("defect", {"message": context.get("message"), "exception": repr(failure)})
        loop.default_exception_handler(context)
        if self._failure is None:
            self._failure = failure or RuntimeError(str(context.get("message")))
            self._stopping.set()

    # Stop

    async def _stop(self) -> None:
        """Answer what was begun, then close connections and store. Source: wire contract C46."""
        self.protocols.stop_taking()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.shard.answer(), ANSWERS_S_MAX)
        await self.protocols.shut_down()
        if self._capture is not None:
            await self.shard.rest()
            await self._capture.stop()
            await self._exporter.stop()
        if self._telemetry is not None:
            await self._telemetry.stop()
        await self.shard.stop()


async def _load_protocols() -> None:
    """Import what HTTP and WebSocket need in a thread: the first upgrade took 30 ms of a turn."""
    for name in ("peeklock.server.net.http", "peeklock.server.net.websocket"):
        await asyncio.to_thread(import_module, name)
