"""`python -m tests.fuzz.wired`: play sequences of valid performatives against processes with each durability.

Owns: a process that writes to a disk and an event log, and takes premium-tier batches from a healthy client
in between. Must not know: the content of a sequence; see `performatives`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final

from peeklock.amqp import composites
from peeklock.amqp.composites import composite
from peeklock.amqp.frames import frame
from peeklock.auth import generate
from peeklock.demo.broker import BrokerProcess
from peeklock.store.check import SOUND, check
from tests.failing import failed_line
from tests.fuzz.performatives import Author
from tests.gateway.harness import KEY, KEY_NAME
from tests.gateway.history import AUDIENCE
from tests.kill.clients import LARGE_BODY_BYTES, LARGE_MEMBERS, Sender
from tests.kill.ledger import Ledger
from tests.server.test_process import health
from tests.server.wires import KINDS, Kind, open_wire

QUEUE: Final = {"LockDuration": "PT30S", "MaxDeliveryCount": 3}
LARGE: Final = {**QUEUE, "MaxMessageSizeInKilobytes": 2048}
CONFIG: Final = {
    "UserConfig": {
        "Namespaces": [
            {
                "Name": "sbemulatorns",
                "Queues": [
                    {"Name": "orders", "Properties": QUEUE},
                    {"Name": "sessions", "Properties": {**QUEUE, "RequiresSession": True}},
                ],
                "Topics": [{"Name": "news", "Subscriptions": [{"Name": "all"}]}],
            }
        ],
        "Logging": {"Type": "File"},
    }
}

BATCH_EVERY: Final = 25
"""Sequences between two batches of the healthy client."""


def play(kind: Kind, port: int, number: int, token: str) -> None:
    """Play one sequence over a wire, to its end."""
    random = Random(number)
    # Bad tokens would make later connections wait for their turn.
    author = Author(random, (token,), claimed=random.random() < 0.7)
    wire = open_wire(kind, port)
    for data in author.reads():
        wire.send(data)
    wire.send(frame(0, composite(composites.CLOSE, [])))
    while wire.receive():
        pass
    wire.close()


def fresh_token() -> str:
    """Return a token that is valid for an hour."""
    return generate(AUDIENCE, KEY_NAME, KEY, round(time.time() * 1000) + 3_600_000)


def run(folder: Path, durability: str, sequences: int, seed: int) -> str:
    """Play sequences over each wire in turn; return what went wrong, or an empty string."""
    config: dict[str, Any] = json.loads(json.dumps(CONFIG))
    config["UserConfig"]["Namespaces"][0]["Queues"].append({"Name": "large", "Properties": LARGE})
    file = folder / "config.json"
    file.write_text(json.dumps(config))
    options = [
        f"--durability={durability}", f"--config={file}", f"--capture={folder / 'log'}",
        "--capture-interval=1", "--tier=premium",
    ]  # fmt: skip
    kinds = list(KINDS)
    token = fresh_token()
    batches = 0
    with BrokerProcess(folder, options) as broker:
        for number in range(sequences):
            play(kinds[number % len(kinds)], broker.amqp_port, seed + number, token)
            if number % BATCH_EVERY == 0:
                asyncio.run(_send_large(broker.amqp_port))
                batches += 1
                print(".", end="", flush=True)
        figures: dict[str, Any] = health(broker)
        status = broker.stop()
        log = broker.log.read_text()
    if (figures["status"], figures["defects"], status) != ("ok", 0, 0):
        return f"{figures['status']}, {figures['defects']} defects, exit status {status}\n{log[-4000:]}"
    if "Traceback" in log or '"level": "error"' in log:
        return f"the log has an error\n{log[-4000:]}"
    if figures["active_messages"] < batches * LARGE_MEMBERS:
        return f"{batches} batches were accepted, and {figures['active_messages']} messages are there"
    report = check(broker.data)
    return "" if report.exit_status == SOUND else "; ".join(report.lines)


async def _send_large(port: int) -> None:
    """Send a batch that only the premium tier takes."""
    sender = Sender("sound", Ledger(), Random(0), "large", sends_max=0)
    await sender.connect(port)
    await _until(lambda: sender.can_send)
    sender.send_batch(LARGE_MEMBERS, LARGE_BODY_BYTES)
    await _until(lambda: bool(sender.outcomes))
    assert sender.ledger.fates[1].accepted, sender.ledger.fates[1]
    sender.close()
    await asyncio.wait_for(sender.over.wait(), 10)


async def _until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline, "the healthy client gets no answer"
        await asyncio.sleep(0.01)


def main(arguments: list[str]) -> int:
    """Play the requested number of sequences, half of them on each durability; exit status 1 for a defect."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz.wired", description="Play valid performatives against broker processes."
    )
    parser.add_argument(
        "--sequences", type=int, default=200, help="number of sequences (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default: %(default)s)")
    options = parser.parse_args(arguments)
    failures = 0
    for durability in ("fsync", "os"):
        started = time.monotonic()
        count = options.sequences // 2
        with tempfile.TemporaryDirectory(prefix="peeklock-fuzz-") as folder:
            failure = run(Path(folder), durability, count, options.seed)
        failures += bool(failure)
        took_s = time.monotonic() - started
        print(f"\n{durability}: {count} sequences in {took_s:.1f} s: {failure or 'no defect'}", flush=True)
        if failure:
            print(failed_line(f"valid performatives, a process, {durability}", failure), flush=True)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
