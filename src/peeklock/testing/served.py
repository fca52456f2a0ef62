"""A broker on a port of this machine, in a thread of this process, whose clock can be moved.

Owns: the thread and its event loop, and the order of what comes due while the clock moves. Must not know: who
connects. For tests of programs whose timers take minutes to months, through any client.

Theory of operation: this is the broker of `peeklock serve`, with a store in memory. Its clock runs with the
machine's until `advance` moves it. A move goes from one due instant to the next, and what is due at each is
done and stored before the next: timers fire in their order and at their own times, as if the time had passed.
Clients' clocks are not moved. So tokens are held against the machine's time, and no connection is ever too
old or too silent.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from concurrent.futures import Future
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from peeklock.auth import Authority, Grant, SasRule
from peeklock.auth.authority import DEVELOPMENT_KEY, DEVELOPMENT_KEY_NAME, SAS_TOKEN_TYPE
from peeklock.gateway.context import GatewayLimits
from peeklock.server.app import Broker
from peeklock.server.loop.clock import SlewedClock
from peeklock.server.settings import Settings
from peeklock.server.tls.certificates import make_pair
from peeklock.server.tls.contexts import CERTIFICATE_FILE, KEY_FILE

START_S_MAX = 30.0
"""How long a start may take. Our choice: hundreds of times what one takes."""


class ServedBroker:
    """See the module.

    with ServedBroker() as broker:
        client = ServiceBusClient.from_connection_string(broker.connection_string)
        ...
        broker.advance(timedelta(days=30))
    """

    def __init__(self, *, tier: str = "standard") -> None:
        """Make a broker that `with` starts, with no entities; `tier` as of `peeklock serve`."""
        self._folder = tempfile.TemporaryDirectory(prefix="peeklock-tls-")
        certificate, key = (Path(self._folder.name, name) for name in (CERTIFICATE_FILE, KEY_FILE))
        self.ca_file = str(certificate)
        """What clients have to trust for TLS."""
        for file, pem in zip((certificate, key), make_pair(["localhost"], datetime.now(UTC)), strict=True):
            file.touch(0o600)  # the broker says so where others can read a key
            file.write_bytes(pem)
        self._settings = Settings(None, None, "127.0.0.1", 0, 0, "memory", certificate, key, tier, None)
        self._clock = _MovedClock()
        self._thread = threading.Thread(target=self._run, name="peeklock", daemon=True)
        self._started: Future[tuple[Broker, asyncio.AbstractEventLoop]] = Future()
        self.connection_string = ""
        self.port = 0
        """Takes AMQP, HTTP and TLS."""

    def __enter__(self) -> ServedBroker:
        self._thread.start()
        broker, _ = self._started.result(START_S_MAX)
        self.port = broker.amqp_port
        self.connection_string = (
            f"Endpoint=sb://localhost:{self.port};SharedAccessKeyName={DEVELOPMENT_KEY_NAME};"
            f"SharedAccessKey={DEVELOPMENT_KEY};UseDevelopmentEmulator=true;"
        )
        return self

    def __exit__(self, *error: object) -> None:
        broker, loop = self._started.result()
        if self._thread.is_alive():
            loop.call_soon_threadsafe(broker.ask_to_stop)
        self._thread.join()
        self._folder.cleanup()

    def now_ms(self) -> int:
        """Return the broker's time, UTC ms."""
        return self._clock.now_ms()

    def advance(self, span: timedelta) -> None:
        """Move the clock forward and let happen what is due meanwhile, each thing at its own instant.

        Clients are given what became due, and nobody waits until they have done something with it.
        """
        if span < timedelta():
            raise ValueError(f"a clock does not go back ({span})")
        broker, loop = self._started.result()
        moving = self._advance(broker, span // timedelta(milliseconds=1))
        asyncio.run_coroutine_threadsafe(moving, loop).result()

    async def _advance(self, broker: Broker, ms: int) -> None:
        end = self._clock.now_ms() + ms
        while (due := broker.shard.timers.next_ms) is not None and due <= end:
            self._clock.move_to(due)
            await broker.shard.catch_up()
        self._clock.move_to(end)
        await broker.shard.catch_up()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        broker = Broker(
            self._settings,
            _UnmovedAuthority([SasRule(DEVELOPMENT_KEY_NAME, DEVELOPMENT_KEY)]),
            clock=self._clock,
            gateway_limits=GatewayLimits(idle_timeout_ms=None),
        )
        try:
            await broker.start()
        except BaseException as failure:
            self._started.set_exception(failure)
            raise
        self._started.set_result((broker, asyncio.get_running_loop()))
        await broker.stopped()


class _MovedClock(SlewedClock):
    """The machine's time and what it was moved by."""

    def __init__(self) -> None:
        super().__init__()
        self._moved_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self._moved_ms

    def move_to(self, instant_ms: int) -> None:
        """Move forward; an instant that is over already changes nothing."""
        self._moved_ms += max(0, instant_ms - self.now_ms())


class _UnmovedAuthority(Authority):
    """Holds tokens against the time of those who made them, and never takes a grant back."""

    def authorize(self, token: str, audience: str, now_ms: int, token_type: str = SAS_TOKEN_TYPE) -> Grant:
        grant = super().authorize(token, audience, round(time.time() * 1000), token_type)
        return replace(grant, expires_at_ms=None)
