"""The real broker process while the machine's clock is set, with `faketime`.

Steps only: a suspended machine needs no process, only a simulated clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from peeklock.demo.broker import BrokerProcess
from tests.kill.clock_loop import ClockLoop
from tests.kill.faked_clock import LIBRARY, FakedClock

pytestmark = pytest.mark.kill

without_faketime = pytest.mark.skipif(LIBRARY is None, reason="faketime is not installed")


def clock_of(broker: BrokerProcess) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.http_port}/health", timeout=10) as answer:
        found: dict[str, Any] = json.load(answer)["clock"]
    return found


def wait_for(broker: BrokerProcess, **wanted: Any) -> None:
    """Wait, at most 30 s, until /health reports this clock."""
    deadline = time.monotonic() + 30
    while not wanted.items() <= clock_of(broker).items():
        assert time.monotonic() < deadline, (wanted, clock_of(broker))
        time.sleep(0.1)


@without_faketime
def test_a_clock_that_is_set_is_followed(tmp_path: Path) -> None:
    """Req: S-04"""
    clock = FakedClock(tmp_path)
    broker = BrokerProcess(tmp_path, ["--durability=os"])
    with clock:
        broker.start()
    with contextlib.ExitStack() as ends:
        ends.callback(broker.kill)
        assert clock_of(broker) == {"stepped_ms": 0, "state": "ok", "not_believed_ms": 0}
        for seconds in (1800, -1800):
            clock.set(seconds)
            wait_for(broker, stepped_ms=seconds * 1000, state="ok")
        clock.set(200_000)
        wait_for(broker, stepped_ms=200_000_000, state="doubted", not_believed_ms=201_800_000)
        assert broker._process is not None  # no other connection asks for its number
        os.kill(broker._process.pid, signal.SIGUSR1)
        wait_for(broker, stepped_ms=200_000_000, state="ok", not_believed_ms=0)
        assert broker.stop() == 0
    events = [json.loads(line)["event"] for line in broker.log.read_text().splitlines()]
    assert events.count("the wall clock was set") == 2
    assert "the wall clock jumped so far forwards that nothing expires by it" in events
    assert "the wall clock is trusted again" in events


@without_faketime
def test_nothing_acknowledged_is_lost_under_a_clock_that_is_set(tmp_path: Path) -> None:
    """Forwards and back, in each life and between two; clients make progress. Req: R-01, R-02, S-04"""
    figures = asyncio.run(ClockLoop(tmp_path, seed=3, options=("--durability=os",)).run(2))
    assert figures["completed"] > 100
    assert figures["steps"] >= 1  # each life begins with the present clock
