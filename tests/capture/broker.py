"""A broker process with an event log, and what tests ask of both."""

from __future__ import annotations

import asyncio
import fcntl
import http.client
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from peeklock.capture.folder import LOCK_NAME
from peeklock.demo.broker import BrokerProcess
from tests.capture.stores import rows
from tests.kill.loop import broker_on

WAIT_S = 30


def capturing(folder: Path, *options: str) -> BrokerProcess:
    """Describe a broker that writes `folder/log`; a segment a fifth of a second."""
    return broker_on(folder, f"--capture={folder / 'log'}", "--capture-interval=0.2", *options)


def health(broker: BrokerProcess) -> dict[str, Any]:
    """Ask the broker how it is."""
    connection = http.client.HTTPConnection("127.0.0.1", broker.http_port, timeout=10)
    try:
        connection.request("GET", "/health")
        found: dict[str, Any] = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    return found


async def health_when(
    broker: BrokerProcess, true: Callable[[dict[str, Any]], bool], what: str
) -> dict[str, Any]:
    """Return the health's `capture` as soon as something is true of it."""
    deadline = asyncio.get_running_loop().time() + WAIT_S
    while True:
        found: dict[str, Any] = (await asyncio.to_thread(health, broker))["capture"]
        if true(found):
            return found
        assert asyncio.get_running_loop().time() < deadline, f"not within {WAIT_S} s: {what}; {found}"
        await asyncio.sleep(0.02)


def wait_for_exporter(log: Path) -> None:
    """Wait until no exporter writes there: it lets the lock go at its end."""
    with (log / LOCK_NAME).open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def counts(log: Path) -> Counter[tuple[str, int]]:
    """Count the rows of each (kind of event, sequence number) in the queue `work`."""
    return Counter(
        (row["event_type"], row.get("sequence_number", 0)) for row in rows(log) if row.get("entity") == "work"
    )
