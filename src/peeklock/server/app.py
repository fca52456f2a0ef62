"""A broker: the order in which its parts are made, started and stopped.

Start: configuration file, system store, keys, store, recovery, entities of the file, listeners.
Stop: no new connections, answers to what was begun, clients told, journal flushed, store closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from peeklock import FORM, __version__
from peeklock.auth import Authority
from peeklock.broker.vocabulary.commands import AcceptClock, ClockStepped
from peeklock.gateway.context import GatewayLimits
from peeklock.server import configuration, log
from peeklock.server.disk import Stores, open_stores
from peeklock.server.exporter_process import ExporterProcess
from peeklock.server.followed_files import followed_files
from peeklock.server.keys.authority_manager import is_loopback
from peeklock.server.keys.rules import KeysRefused
from peeklock.server.line_limits import DefectLog, RefusalLog
from peeklock.server.loop.clock import SlewedClock
from peeklock.server.loop.tasks import tell_failure
from peeklock.server.loop.timers import tick_round
from peeklock.server.loop.turns import Turns
from peeklock.server.namespaces.lifecycle import Lifecycle
from peeklock.server.namespaces.registry import Registry
from peeklock.server.namespaces.served import Process, ServedNamespace, Tokens
from peeklock.server.net.control import ControlSocket
from peeklock.server.net.ports import Ports
from peeklock.server.net.protocols import Protocols
from peeklock.server.notify import Notifier
from peeklock.server.origins import OriginPolicy
from peeklock.server.settings import Settings, StartFailed
from peeklock.server.shard.housekeeping import Housekeeping
from peeklock.server.shard.shard import Shard
from peeklock.server.system.authority import SystemAuthority
from peeklock.server.system.opening import open_system
from peeklock.store.base import StoreDeposed, StoreError

if TYPE_CHECKING:
    from peeklock.config.file import Config
    from peeklock.server.keys.token_issuer import TokenIssuer
    from peeklock.server.net.relay import Relay
    from peeklock.server.node import NodeParts
    from peeklock.server.otel.export import Telemetry

ANSWERS_S_MAX = 3.0
"""How long a stop commits and answers what was begun before it closes connections. Our choice: a thousand
times what a commit takes; a purge that takes longer is not waited for."""

TICK_S = 1.0

DEFAULT_NAMESPACE = "sbemulatorns"
"""Without a configuration, as the emulator's."""


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
        self._refusals = RefusalLog(self._clock.now_ms)
        self._token_issuer: TokenIssuer | None = None
        self._telemetry: Telemetry | None = None
        self.defects = DefectLog(self._clock.now_ms)
        self.node: NodeParts | None = None
        """This process as a node; None = it is in no cluster."""
        self.amqp_port = 0
        self.http_port = 0

    async def start(self) -> None:
        """Recover, configure and listen: the ports are known then. Raises: StartFailed."""
        settings, loop = self._settings, asyncio.get_running_loop()
        loop.set_exception_handler(self._handle_failure)
        configs = configuration.read_configuration(settings)
        self._refuse_known_key()
        self._token_issuer = self._make_token_issuer()
        self._turns = Turns(loop.call_soon, loop.call_later, on_defect=self._take_defect)
        name = configs[0].namespace if configs else DEFAULT_NAMESPACE
        self._telemetry = self._make_telemetry(name)
        stores = open_stores(settings)
        if stores is not None:
            try:
                self.node = _make_node(settings)
                address = "" if self.node is None else self.node.address
                await asyncio.to_thread(stores.join, address)
            except StartFailed:
                stores.close()
                raise
        self._system = await open_system(settings, name, stores)
        try:
            await self._start(name, configs, stores)
        except StartFailed:
            await self._system.close()
            raise

    async def _start(self, name: str, configs: Sequence[Config], stores: Stores | None) -> None:
        """Start the namespaces and listen. Raises: StartFailed."""
        settings = self._settings
        process = self._process = Process(
            settings,
            self._system,
            self._clock,
            self._turns,
            Housekeeping(self._turns),
            Tokens(),
            self._fail,
            ExporterProcess(),
            stores,
            self._given_authority,
            None if self._token_issuer is None else self._token_issuer.verifier,
            self._telemetry,
        )
        node = self.node
        try:
            limits = configs[0].limits if configs else None
            if node is None:
                default = ServedNamespace(name, process, settings, "default", limits=limits)
            else:
                default = node.stand_in(name, process)
        except KeysRefused as failure:
            raise StartFailed(str(failure)) from failure
        self.registry = Registry(default, settings.own_names)
        self.lifecycle = Lifecycle(process, self.registry)
        await default.open()
        try:
            if node is None:
                await default.configure(configs[0] if configs else None)
                default.make_capture()
                await self.lifecycle.start(configs[1:])
            else:
                await default.configure(None)
                node.join(process, self.registry, self.lifecycle, configs)
            await self._listen()
            self.reload = followed_files(
                settings,
                self.registry,
                self.lifecycle,
                ports=self.ports,
                token_issuer=self._token_issuer,
                notifier=self._notifier,
                member=None if node is None else node.member,
            )
        except StartFailed:
            for served in self.registry:
                await served.shard.stop()
            raise
        if node is not None:
            node.member.start()

    @property
    def shard(self) -> Shard:
        """The default namespace at work."""
        return self.registry.default.shard

    def endpoint(self, host: str) -> str:
        """Return a connection string for a host, without a key."""
        plain = "UseDevelopmentEmulator=true;" if self.ports.plaintext_everywhere else ""  # without TLS
        return f"Endpoint=sb://{host}:{self.amqp_port};{plain}"

    def ask_to_stop(self) -> None:
        """Make `stopped` end."""
        self._stopping.set()

    async def stopped(self) -> int:
        """Serve until asked to stop or unable to continue, then stop; return the exit status."""
        self.lifecycle.run_event_logs()  # not before: it would delay the start
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
        if self.node is not None:
            parts.append(self.node.probe(self.amqp_port))
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
        if self.node is not None:
            self.node.close()
        if self._failure is not None:
            # Memory is ahead of the disk: nothing may be acknowledged any more, and recovery starts from
            # facts.
            self.protocols.abort()
            return 1
        await self._stop()
        for limited in (self._refusals, self.defects):
            limited.finish()
        log.info("stopped", {})
        return 0

    # Start

    def _refuse_known_key(self) -> None:
        """Raise StartFailed where everybody who reaches this machine would have all rights unasked."""
        settings = self._settings
        if not settings.auth and self._given_authority is None and not is_loopback(settings.host):
            raise StartFailed(
                f"--host {settings.host} can be reached by other machines, and without --auth everybody "
                "knows the key: use --auth sas for keys of your own, --auth development if everybody may "
                "know it, or --auth off for no authentication"
            )

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

    async def _listen(self) -> None:
        settings, default = self._settings, self.registry.default
        self.protocols = Protocols(
            settings=settings,
            registry=self.registry,
            lifecycle=self.lifecycle,
            process=self._process,
            endpoint_of=lambda host: self.endpoint(host),
            turns=self._turns,
            clock=self._clock,
            origin_policy=OriginPolicy(
                None if default.authority_manager.asks_for_secret else settings.own_names,
                short_names=settings.emulator,
                is_namespace=self.registry.by_host,
            ),
            defects=self.defects,
            refusals=self._refusals,
            gateway_limits=self._gateway_limits,
            health=self._health,
            stops=self._stopping.is_set,
            member=None if self.node is None else self.node.member,
        )
        protocols, note = self.protocols, self._refusals.of_connection()
        kept = None if settings.data is None else SystemAuthority(self._system, settings.data)
        led: Protocols | Relay = protocols
        if self.node is not None:
            led = await self.node.open(protocols, self._clock.now_ms, note)
        self.ports = Ports(settings, led.amqp, led.http, protocols.wait_s, note, kept)
        await self.ports.open()
        self.control = ControlSocket(self._settings, led.control)
        try:
            await self.control.open()
        except StartFailed:
            self.ports.close()
            raise
        self.amqp_port, self.http_port = self.ports.amqp_port, self.ports.http_port

    # Running

    async def _tick(self) -> None:
        while True:
            await tick_round(self.protocols.connections, self._clock.now_ms, asyncio.sleep, TICK_S)
            self._follow_clock(self._clock.adjust())
            for served in self.registry:
                served.tick()
            self.protocols.throw_away.tick()
            now_ms = self._clock.now_ms()
            for part in (self._refusals, self.defects):
                part.tick(now_ms)

    def _follow_clock(self, step_ms: int) -> None:
        if not step_ms:
            return
        for served in self.registry:
            served.shard.offer((ClockStepped(step_ms),))
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
            for served in self.registry:
                served.shard.offer((AcceptClock(),))
            log.info("the wall clock is trusted again", {"clock": self._clock_state()})

    def _clock_state(self) -> dict[str, object]:
        wall = self.shard.wall
        return {
            "stepped_ms": wall.ahead_ms,
            "state": "doubted" if wall.is_doubted else "ok",
            "not_believed_ms": wall.ahead_ms - wall.due_ahead_ms,
        }

    async def _health(self, served: ServedNamespace) -> dict[str, Any]:
        """Return figures for `GET /health`; those of the process to the default namespace alone."""
        of_process = {
            "up_ms": self._clock.now_ms() - self._started_at_ms,
            "clock": self._clock_state(),
            "defects": self.defects.count,
            "namespaces": len(self.registry),
            **self.ports.health(),
            **self.protocols.figures(),
            **({} if self.node is None else self.node.relay.figures()),
        }
        return {
            "version": __version__,
            "core": FORM,
            "namespace": served.name,
            "durability": served.settings.durability,
            **await served.shard.health(),
            **(of_process if served.is_default else {"connections": len(served.connections)}),
            **({} if served.capture is None else {"capture": served.capture.health()}),
        }

    # Failures

    def _fail(self, failure: BaseException) -> None:
        if self._failure is None:
            self._failure = failure
            if isinstance(failure, StoreDeposed):
                event = "another process owns the store; the broker stops, since it may not answer any more"
                do = "start again: a node joins its cluster, another broker waits until the owner ends"
            elif isinstance(failure, StoreError):
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
        if self.node is not None:
            await self.node.member.stop()
        self.protocols.stop_taking()
        with contextlib.suppress(TimeoutError):
            answers = (served.shard.answer() for served in self.registry)
            await asyncio.wait_for(asyncio.gather(*answers), ANSWERS_S_MAX)
        self.protocols.shut_down()
        if self.node is None:
            await self.protocols.until_closed()
        if self._telemetry is not None:
            await self._telemetry.stop()
        await self.protocols.throw_away.stop()
        await self.lifecycle.stop()
        if self.node is None:
            await asyncio.gather(*(served.stop() for served in self.registry))
        else:
            await self.node.give_back()
            await self.protocols.until_closed()
        await self._process.exporter.stop()
        await self._system.close()
        if self.node is not None:
            await self.node.member.leave()
        if self._process.stores is not None:
            self._process.stores.close()


def _make_node(settings: Settings) -> NodeParts | None:
    """Return this process as a node, None = it is to be none. Raises: StartFailed."""
    if settings.node is None:
        return None
    from peeklock.server.node import NodeParts

    return NodeParts(settings)


async def _load_protocols() -> None:
    """Import what HTTP and WebSocket need in a thread: the first upgrade took 30 ms of a turn."""
    for name in ("peeklock.server.net.http", "peeklock.server.net.websocket"):
        await asyncio.to_thread(import_module, name)
