"""Many namespaces of one process: their start, namespaces for tests, and a flood beside a good client.

Owns: which namespaces there are, and what they are asked. Must not know: frames, how a broker is started.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import statistics
import time
from pathlib import Path

from bench.crowd import p99_us
from bench.floods import ATTACKS, FLOODED, flooded
from bench.loadgen import Endpoint
from bench.run import MB, Run
from bench.systems import KEY, Peeklock, rss_bytes, threads

EXISTING = 500
THROW_AWAY = 1_000

PEERS = 6
"""Of the flood, each sending without a pause."""

PATH = "/$api/v1/namespaces"


def namespaces(run: Run) -> None:
    """500 namespaces at a start; 1,000 for tests made and ended; one flooded beside another one's client."""
    _existing(run)
    _throw_away(run)
    _beside_a_flood(run)


def _existing(run: Run) -> None:
    count = run.scaled(EXISTING)
    empty, broker = run.fresh_peeklock(), _broker(run, [f"team-{number}" for number in range(count)])
    name, add = f"{count} namespaces", run.results.add
    try:
        empty.start()
        alone_bytes, alone_threads = _used(empty)
        empty.stop()
        add(name, "spawn to ready, all to be made", "s", broker.name, broker.start())
        broker.stop()
        for _ in range(run.rounds):
            add(name, "spawn to ready, all there", "s", broker.name, broker.start(), aim=5)
            used_bytes, used_threads = _used(broker)
            more = (used_bytes - alone_bytes) / MB
            add(name, "resident memory beyond one namespace", "MB", broker.name, more, aim=300)
            add(name, "threads beyond one namespace", "", broker.name, used_threads - alone_threads, aim=20)
            broker.stop()
    finally:
        empty.stop()
        broker.stop()


def _used(broker: Peeklock) -> tuple[int, int]:
    """Return resident memory and threads of a broker that has just started."""
    pid = broker.endpoint().pid
    return rss_bytes(pid), threads(pid)


def _throw_away(run: Run) -> None:
    count = run.scaled(THROW_AWAY)
    broker = run.fresh_peeklock()
    name, add = f"{count:,} throw-away namespaces", run.results.add
    try:
        broker.start()
        pid = broker.endpoint().pid
        _make_and_end(broker, count)  # what the first ones take stays
        before_bytes = rss_bytes(pid)
        for _ in range(run.rounds):
            made_s, spent_s = _make_and_end(broker, count)
            add(name, "made and ended", "s", broker.name, spent_s, aim=10)
            add(name, "made, median", "ms", broker.name, statistics.median(made_s) * 1e3, aim=5)
        grown = (rss_bytes(pid) - before_bytes) / MB
        add(name, f"memory after {run.rounds} more rounds", "MB", broker.name, grown, aim=5)
    finally:
        broker.stop()


def _make_and_end(broker: Peeklock, count: int) -> tuple[list[float], float]:
    """Make so many, then end them; return the seconds of each making, and of all."""
    connection = http.client.HTTPConnection("127.0.0.1", broker.port, timeout=60)
    body = json.dumps(_config(["test"]))
    made_s, names = [], []

    def ask(method: str, path: str, body: str | None = None) -> bytes:
        connection.request(method, path, body)
        return connection.getresponse().read()

    with contextlib.closing(connection):
        started = time.perf_counter()
        for _ in range(count):
            asked = time.perf_counter()
            names.append(json.loads(ask("POST", PATH, body))["name"])
            made_s.append(time.perf_counter() - asked)
        for name in names:
            ask("DELETE", f"{PATH}/{name}")
        return made_s, time.perf_counter() - started


def _beside_a_flood(run: Run) -> None:
    """Offer messages to one namespace while peers send without a pause to another one."""
    broker = _broker(run, ["good", "other"])
    name, add = "a namespace beside a flooded one", run.results.add
    seconds = 2 if run.quick else 6
    try:
        broker.start()
        good = broker.endpoint()
        other = Endpoint(good.port, "other", KEY, good.pid)  # the key of this name means the namespace
        p99_us(good, seconds)
        for kind in ("sends", "missing-attaches"):
            quiet, beside = [], []
            for _ in range(run.rounds):
                quiet.append(p99_us(good, seconds))
                with flooded(other, ATTACKS[kind], PEERS):
                    beside.append(p99_us(good, seconds))
            add(name, f"p99 beside {kind}", "us", broker.name, statistics.median(beside))
            ratio = statistics.median(beside) / statistics.median(quiet)
            add(name, f"p99 beside {kind} to p99 without", "", broker.name, ratio, aim=3)
    finally:
        broker.stop()


def _broker(run: Run, names: list[str]) -> Peeklock:
    """Return a broker with these namespaces, the first of them the default one."""
    file = Path(run.folder, f"namespaces-{len(names)}.json")
    file.write_text(json.dumps(_config(names)))
    return run.fresh_peeklock(options=("--config", str(file)))


def _config(names: list[str]) -> dict[str, object]:
    queues = [{"Name": "bench"}, {"Name": FLOODED}]
    return {"UserConfig": {"Namespaces": [{"Name": name, "Queues": queues} for name in names]}}


SCENARIOS = {"namespaces": namespaces}
