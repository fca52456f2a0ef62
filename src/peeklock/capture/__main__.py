"""`python -m peeklock.capture`: the process that writes the event logs of a broker.

A broker with `--capture` starts it and holds its standard input, which has requests, one JSON object a line:

    {"add": {"id": 3, "source": {"data": DIR}, "to": DIR, "namespace": NAME, "interval_s": 10, ...}}
    {"remove": {"id": 3}}

The source of a store in a database is `{"url": URL, "name": NAME, "durability": "fsync"}`.

Standard output answers, a line each: `exported 3 N` (all up to batch N is in the log), `failed 3 WHY` (this
log is given up until it is added again, under another id; the others go on), `removed 3` (all is exported).
Standard error has log lines like the broker's, one JSON object each. When standard input ends, the broker is
gone: the process exports the rest of all stores and ends.

With `--data DIR --to DIR` it exports one store and takes no requests, so with `</dev/null` it exports what a
broker left behind. The answers have no id then, and after `failed WHY` it ends with status 1.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import sys
import time
from datetime import UTC, datetime
from typing import Any

from peeklock.capture.logs import Logs

NICENESS = 10
"""The broker comes first; rows wait in the store."""


def main(arguments: list[str]) -> int:
    """Export until standard input ends; return the exit status."""
    options = _parse(arguments)
    # A signal may go to the broker and all its processes. This one must outlive the broker by a moment.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    os.umask(0o077)
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    if "data" not in options:
        logs = Logs(lambda word, log_id, text: _tell(f"{word} {log_id} {text}"), _note)
        _run(logs, takes_requests=True)
        return 0
    failures: list[str] = []

    def say(word: str, log_id: int, text: str) -> None:
        if word == "failed":
            failures.append(text)
        if word != "removed":
            _tell(f"{word} {text}")

    logs = Logs(say, _note)
    logs.add(0, {"data": options.pop("data")}, **options)
    _run(logs, takes_requests=False)
    return 1 if failures else 0


def _parse(arguments: list[str]) -> dict[str, Any]:
    """Return what was given, without `data` if there are to be requests."""
    parser = argparse.ArgumentParser(
        prog="python -m peeklock.capture",
        description="Write the event log. Without options, requests are read from standard input.",
    )
    parser.add_argument("--data", help="the broker's data folder")
    parser.add_argument("--to", help="the event log's folder")
    parser.add_argument("--namespace", help="default: sbemulatorns")
    parser.add_argument(
        "--interval", dest="interval_s", type=float, help="seconds until a segment ends; default: 10"
    )
    parser.add_argument("--segment-events", type=int, help="default: 500000")
    parser.add_argument("--segment-bytes", type=int, help="default: 128 MiB")
    parser.add_argument("--keep-days", type=float, help="remove older segments")
    parser.add_argument("--keep-bytes", type=int, help="remove the oldest segments beyond this size")
    options = {name: value for name, value in vars(parser.parse_args(arguments)).items() if value is not None}
    if not options:
        return {}
    if "data" not in options or "to" not in options:
        parser.error("--data and --to go together, and the other options with them")
    return {"namespace": "sbemulatorns"} | options


def _run(logs: Logs, *, takes_requests: bool) -> None:
    """Serve the logs until standard input ends, and then until all is exported.

    It returns as soon as there is no log and none can be added.
    """
    given = _Input()
    wait_s: float | None = 0.0
    while not given.ended and (takes_requests or wait_s is not None):
        for line in given.lines(wait_s):
            if takes_requests:
                _take(logs, line)
        wait_s = logs.serve()
    logs.finish()
    while (wait_s := logs.serve()) is not None:
        select.select([], [], [], wait_s)  # `time.sleep` fails with EINVAL where `faketime` steps the clock


def _take(logs: Logs, line: bytes) -> None:
    """Do what a request asks for."""
    [(verb, request)] = json.loads(line).items()
    if verb == "add":
        logs.add(request.pop("id"), **request)
    elif verb == "remove":
        logs.remove(request["id"])
    else:
        raise ValueError(f"there is no request {verb!r}")


class _Input:
    """Lines of standard input, as they come."""

    def __init__(self) -> None:
        self._begun = b""
        self.ended = False

    def lines(self, wait_s: float | None) -> list[bytes]:
        """Return whole lines as soon as something comes, at most after `wait_s`; None = wait for it."""
        try:
            if not select.select([0], [], [], wait_s)[0]:
                return []
            data = os.read(0, 65_536)
        except OSError:
            data = b""
        self.ended = not data
        *lines, self._begun = (self._begun + data).split(b"\n")
        return lines


def _tell(line: str) -> None:
    with contextlib.suppress(OSError):  # the broker was killed
        os.write(1, (line.rstrip() + "\n").encode("utf-8", "replace"))


def _note(level: str, event: str, **fields: object) -> None:
    now = datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds")
    line = {"time": now, "level": level, "event": event, **fields}
    with contextlib.suppress(OSError):  # nothing reads it any more
        os.write(2, (json.dumps(line, ensure_ascii=False) + "\n").encode("utf-8", "replace"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
