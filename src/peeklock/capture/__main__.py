"""`python -m peeklock.capture --data DIR --to DIR`: the process that writes the event log.

A broker with `--capture` starts it and holds its standard input. When that ends, the broker is gone: the
process exports the rest of the store and ends. So with `</dev/null` it exports what a broker left behind.
Standard output is for the broker: `exported N` (all up to batch N is in the log) and, before an end with
status 1, `failed WHY`. Standard error has log lines like the broker's, one JSON object each.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

from peeklock.store.base import StoreError

NICENESS = 10
"""The broker comes first; rows wait in the store."""


class _Broker:
    """The broker that started this process."""

    def exported(self, no: int) -> None:
        """Report that all batches up to this one are in the log."""
        _tell(f"exported {no}")

    def note(self, level: str, event: str, **fields: object) -> None:
        """Write a log line."""
        now = datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds")
        line = {"time": now, "level": level, "event": event, **fields}
        with contextlib.suppress(OSError):  # nothing reads it any more
            os.write(2, (json.dumps(line, ensure_ascii=False) + "\n").encode("utf-8", "replace"))


def _tell(line: str) -> None:
    with contextlib.suppress(OSError):  # the broker was killed
        os.write(1, (line + "\n").encode("utf-8", "replace"))


def main(arguments: list[str]) -> int:
    """Export until standard input ends; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m peeklock.capture", description="Write the event log.")
    parser.add_argument("--data", type=Path, required=True, help="the broker's data folder")
    parser.add_argument("--to", type=Path, required=True, help="the event log's folder")
    parser.add_argument("--namespace", default="sbemulatorns", help="default: %(default)s")
    parser.add_argument(
        "--interval", type=float, default=10.0, help="seconds until a segment ends; default: %(default)s"
    )
    parser.add_argument("--segment-events", type=int, default=500_000, help="default: %(default)s")
    parser.add_argument("--segment-bytes", type=int, default=128 * 1024 * 1024, help="default: %(default)s")
    parser.add_argument("--keep-days", type=float, help="remove older segments")
    parser.add_argument("--keep-bytes", type=int, help="remove the oldest segments beyond this size")
    options = parser.parse_args(arguments)
    # A signal may go to the broker and all its processes. This one must outlive the broker by a moment.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    os.umask(0o077)
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    broker = _Broker()
    try:
        import pyarrow as pa

        from peeklock.capture.exporter import Exporter, ExportOptions
        from peeklock.capture.folder import LogRefused
    except ImportError as missing:
        return _fail(broker, f"{missing}: the event log needs more packages: pip install 'peeklock[capture]'")
    pa.set_cpu_count(1)  # the other one is the broker's
    pa.set_io_thread_count(1)
    exporter = Exporter(
        ExportOptions(
            options.data,
            options.to,
            options.namespace,
            options.interval,
            options.segment_events,
            options.segment_bytes,
            options.keep_days,
            options.keep_bytes,
        ),
        broker,
    )
    ending = threading.Event()
    threading.Thread(target=_wait_for_end, args=(ending,), daemon=True).start()
    try:
        exporter.run(ending)
    except (LogRefused, StoreError) as failure:
        return _fail(broker, str(failure))
    except OSError as failure:
        where = failure.filename or options.to
        return _fail(
            broker,
            f"cannot write the event log at {where}: {failure.strerror or failure}; "
            "free some space or repair the folder",
        )
    return 0


def _fail(broker: _Broker, why: str) -> int:
    broker.note("error", "the event log cannot be written", reason=why)
    _tell("failed " + " ".join(why.split()))
    return 1


def _wait_for_end(ending: threading.Event) -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    ending.set()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
