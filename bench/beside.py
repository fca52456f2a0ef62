"""`python -m bench.beside`: what a broker's other clients wait while commands read and move its messages.

Owns: a broker process, a queue with dead letters, and clients of another queue, which `peeklock bench` is. It
sends and receives 1,000 messages a second alone, beside a search that reads all dead letters again and again,
and beside a resubmission of all of them at full speed. The rounds alternate, so that what else the machine
does hits each of them; the best round counts. The aim is a p99 of at most twice that of the quiet broker.
Must not know: how a command reads or moves.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from peeklock.demo.broker import BrokerProcess, program

RATIO_MAX = 2.0
ROUNDS = 3
SECONDS = 8
RATE = 1000
BODY_BYTES = 1000
READ, USED = "orders", "others"
"""The queue that the commands read, and that of the other clients."""

KINDS: dict[str, list[str]] = {
    "quiet": [],
    "search": ["search", READ, "--dead-letter", "--filter", "n < 0"],
    "resubmit": ["dead-letters", "resubmit", READ],
}


class Beside:
    """The commands, against one broker."""

    def __init__(self, connection_string: str, count: int) -> None:
        """`count`: dead letters of the queue that is read."""
        self._environment = {**os.environ, "SERVICEBUS_CONNECTION_STRING": connection_string}
        self._count = count
        self._program = program()

    def fill(self) -> None:
        """Send the messages."""
        rows = (
            json.dumps({"body": "x" * BODY_BYTES, "properties": {"n": n}}) + "\n" for n in range(self._count)
        )
        self._run("send", READ, text="".join(rows))

    def dead_letter(self) -> None:
        """Make dead letters of all messages, also of those that were sent again."""
        count = str(self._count)
        self._run("receive", READ, "--count", count, "--wait", "1s", "--then", "dead-letter", "--json")

    def measure(self, command: list[str]) -> tuple[float, float]:
        """Return the p99 of sends, ms, and how many messages a second the command took."""

        def rates() -> Iterator[float]:
            while command:
                began = time.perf_counter()
                self._run(*command)
                yield self._count / (time.perf_counter() - began)
                if "resubmit" in command:
                    return

        p99_ms, found = self.measure_with(rates())
        return p99_ms, max(found, default=0.0)

    def measure_with(self, works: Iterator[float]) -> tuple[float, list[float]]:
        """Return the p99 of sends, ms, beside works one after the other, and what these return."""
        used = ["bench", USED, f"--rate={RATE}", f"--seconds={SECONDS}", "--json"]
        bench = subprocess.Popen(
            [self._program, *used], stdout=subprocess.PIPE, text=True, env=self._environment
        )
        time.sleep(1)  # the other clients have begun
        found: list[float] = []
        while bench.poll() is None and (rate := next(works, None)) is not None:
            found.append(rate)
        said: dict[str, Any] = json.loads(bench.communicate()[0])
        return said["send"]["latencyMs"]["p99"], found

    def _run(self, *arguments: str, text: str = "") -> None:
        subprocess.run(
            [self._program, *arguments],
            input=text,
            stdout=subprocess.DEVNULL,
            text=True,
            env=self._environment,
            check=True,
        )


def main() -> None:
    """Print p99 and ratio beside each command; fail if one is above the aim."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.beside", description="What other clients wait while commands work."
    )
    parser.add_argument("--messages", type=int, default=40_000, metavar="N", help="dead letters")
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N")
    parser.add_argument("--folder", type=Path, help="folder of the broker's data (default: a temporary one)")
    given = parser.parse_args()
    best = dict.fromkeys(KINDS, float("inf"))
    rates = dict.fromkeys(KINDS, 0.0)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        config = Path(folder, "Config.json")
        namespace = {"Name": "sbemulatorns", "Queues": [{"Name": READ}, {"Name": USED}], "Topics": []}
        config.write_text(json.dumps({"UserConfig": {"Namespaces": [namespace]}}))
        with BrokerProcess(Path(folder), [f"--config={config}"]) as broker:
            beside = Beside(broker.connection_string, given.messages)
            beside.fill()
            for _ in range(given.rounds):
                beside.dead_letter()
                for name, command in KINDS.items():
                    p99_ms, rate = beside.measure(command)
                    best[name], rates[name] = min(best[name], p99_ms), max(rates[name], rate)
    ratios = {name: p99_ms / best["quiet"] for name, p99_ms in best.items()}
    for name, p99_ms in best.items():
        print(f"{name:10} p99 {p99_ms:6.1f} ms  {ratios[name]:5.2f}  {rates[name]:10,.0f} messages/s")
    sys.exit(max(ratios.values()) > RATIO_MAX)


if __name__ == "__main__":
    main()
