"""Commands that are run in this process or as one of their own, and what they print."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import termios
from collections.abc import Callable
from typing import IO, Any

from click.testing import Result

from peeklock.client import BlockingConnection, Properties, encode_message
from peeklock.testing.served import ServedBroker

PIPE_BYTES = 60_000
"""A pipe with this much is full: it has 16 pages of 4096 bytes, and the last ones may not fit."""

Run = Callable[..., Result]
Make = Callable[..., str]


def put(connection: BlockingConnection, name: str, *bodies: str | bytes, sessions: bool = False) -> None:
    sender = connection.sender(name)
    for body in bodies:
        data = body.encode() if isinstance(body, str) else body
        session = data.decode().partition(":")[0] if sessions else None
        sender.send(encode_message(properties=Properties(group_id=session), data=data))
    sender.flush()
    sender.close()


def bodies(result: Result) -> list[str]:
    assert result.exit_code == 0, result.output
    return [json.loads(each)["body"] for each in result.stdout.splitlines()]


def there(run: Run, *place: str) -> list[dict[str, Any]]:
    result = run("search", *place, "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(each) for each in result.stdout.splitlines()]


def started(
    served: ServedBroker, *arguments: str, unbuffered: str = "", stdout: int | IO[str] = subprocess.PIPE
) -> subprocess.Popen[str]:
    further = {
        "SERVICEBUS_CONNECTION_STRING": served.connection_string,
        "COLUMNS": "80",
        "PYTHONUNBUFFERED": unbuffered,
    }
    return subprocess.Popen(
        [sys.executable, "-m", "peeklock", *arguments],
        env={**os.environ, **further},
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    )


def fill(process: subprocess.Popen[str]) -> None:
    """Wait until a process has filled its pipe, so that it waits in a write."""
    assert process.stdout is not None
    pipe = process.stdout.fileno()
    while int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder) < PIPE_BYTES:
        assert process.poll() is None
