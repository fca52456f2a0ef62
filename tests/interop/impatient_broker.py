"""A broker that ends silent connections after a second: `python -m tests.interop.impatient_broker DATA`."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from peeklock.gateway.context import GatewayLimits
from peeklock.server.app import Broker
from peeklock.server.notify import Notifier
from peeklock.server.process import run
from peeklock.server.settings import Settings

IDLE_MS = 1_000


async def main(data: Path) -> int:
    """Run until stopped."""
    settings = Settings(data, None, "127.0.0.1", 0, 0, "os", None, None, "standard", None)
    broker = Broker(settings, gateway_limits=GatewayLimits(idle_timeout_ms=IDLE_MS))
    return await run(broker, settings, time.monotonic(), Notifier())


if __name__ == "__main__":
    sys.exit(asyncio.run(main(Path(sys.argv[1]))))
