"""The programs in examples/ run, and show what they say they show."""

from __future__ import annotations

import datetime as dt
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.delay import delayed_path
from peeklock.demo.broker import BrokerProcess

EXAMPLES = Path(__file__).parents[2] / "examples"
ROUND_TRIP_S = 0.07
LINE = re.compile(r"^([a-z ]+): (\d+) sends in ([\d.]+) s, at most (\d+) in flight$", re.MULTILINE)


def _run(name: str, connection_string: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, EXAMPLES / name, *arguments],
        env={**os.environ, "SERVICEBUS_CONNECTION_STRING": connection_string},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _finish(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    return output


@pytest.mark.parametrize("form", ["aio", "sync"])
def test_three_loops_over_a_slow_path(broker: BrokerProcess, queue: str, form: str) -> None:
    """10 sends one by one take at least 10 round trips; 100 together well under a second; with a bound of 10,
    there are never more than 10 unsettled, and it takes at least 10 round trips for 100.

    Req: T-05, T-04
    """
    with delayed_path(broker.amqp_port, ROUND_TRIP_S / 2) as port:
        far = broker.connection_string.replace(f":{broker.amqp_port};", f":{port};")
        output = _finish(_run("three_loops.py", far, queue, "--api", form))
    found = {loop: (int(n), float(s), int(most)) for loop, n, s, most in LINE.findall(output)}
    count, seconds, most = found["one by one"]
    assert (count, most) == (10, 1)
    assert seconds >= 10 * ROUND_TRIP_S
    count, seconds, most = found["together"]
    assert count == 100
    assert (
        most > 50
    )  # threads start one after the other, and the first outcome may be there before the last send
    assert seconds < 1
    count, seconds, most = found["bounded"]
    assert (count, most) == (100, 10)
    assert seconds >= 10 * ROUND_TRIP_S


def test_a_job_that_comes_again_is_ignored_or_done_again(
    broker: BrokerProcess, make_queue: Callable[..., str]
) -> None:
    """The slow job outlasts its lock; both answers to its second delivery run side by side.

    Req: L-15, L-11
    """
    queues = [make_queue(lock_duration=dt.timedelta(seconds=5)) for _ in range(2)]
    ways = ("ignore", "redo")
    running = [
        _run("job_scheduler.py", broker.connection_string, queue, "--second-delivery", way)
        for queue, way in zip(queues, ways, strict=True)
    ]
    ignored, redone = map(_finish, running)
    for output in (ignored, redone):
        assert "invoice-1: the lock was lost, it will come again" in output
        assert "invoice-2: done 1 times" in output
        assert "invoice-3: done 1 times" in output
    assert "invoice-1: done already, only completed (delivery 2)" in ignored
    assert "invoice-1: done 1 times" in ignored
    assert "invoice-1: done 2 times" in redone
