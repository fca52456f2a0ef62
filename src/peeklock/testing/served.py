"""A broker on a port of this machine, in a thread of this process, with a clock to move.

For tests of programs whose timers take minutes to months, through any client. It is the broker of `peeklock
serve` with a store in memory. Its clock runs with the machine's until `advance` moves it, from one due time
to the next: each timer fires in its order and at its own time, and is stored before the next. The clocks of
clients are not moved, so tokens are checked against the machine's time, and no connection times out.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from pathlib import Path

from peeklock.auth import DEVELOPMENT_KEY, DEVELOPMENT_KEY_NAME
from peeklock.server.app import Broker
from peeklock.server.namespaces.for_tests import advance
from peeklock.server.settings import Settings
from peeklock.server.tls.certificates import make_pair
from peeklock.server.tls.contexts import CERTIFICATE_FILE, KEY_FILE

START_S_MAX = 30.0
"""Longest start. Our choice: hundreds of times the usual."""


class ServedBroker:
    """A broker that runs inside `with`:

    with ServedBroker() as broker:
        client = ServiceBusClient.from_connection_string(broker.connection_string)
        ...
        broker.advance(timedelta(days=30))
    """

    def __init__(self, *, tier: str = "standard") -> None:
        """Prepare a broker without entities; `with` starts it. `tier`: as of `peeklock serve`."""
        self._folder = tempfile.TemporaryDirectory(prefix="peeklock-tls-")
        certificate, key = (Path(self._folder.name, name) for name in (CERTIFICATE_FILE, KEY_FILE))
        self.ca_file = str(certificate)
        """PEM file that clients must trust for TLS."""
        for file, pem in zip((certificate, key), make_pair(["localhost"], datetime.now(UTC)), strict=True):
            file.touch(0o600)  # the broker warns if others can read a key
            file.write_bytes(pem)
        self._settings = Settings(None, None, "127.0.0.1", 0, 0, "memory", certificate, key, tier, None)
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
        broker, _ = self._started.result()
        return broker.registry.default.now_ms()

    def advance(self, span: timedelta) -> None:
        """Move the clock forward; each timer fires at its own time. Return before clients have reacted."""
        if span < timedelta():
            raise ValueError(f"a clock cannot go back ({span})")
        broker, loop = self._started.result()
        moving = advance(broker.registry.default, span // timedelta(milliseconds=1))
        asyncio.run_coroutine_threadsafe(moving, loop).result()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        broker = Broker(self._settings)
        try:
            await broker.start()
        except BaseException as failure:
            self._started.set_exception(failure)
            raise
        self._started.set_result((broker, asyncio.get_running_loop()))
        await broker.stopped()
