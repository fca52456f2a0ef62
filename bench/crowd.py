"""Many connections at once, and hostile peers beside a working client."""

from __future__ import annotations

import statistics
import time

from bench.flood import KINDS, flood
from bench.floods import without_pause
from bench.loadgen import Endpoint, idle_connections, offered
from bench.run import MB, Run
from bench.systems import rss_bytes

OFFERED = 500
"""Messages a second of the client that must not be affected."""

AT_ONCE = 500
"""Connections of a flood; each comes back as soon as it is refused."""


def crowd(run: Run) -> None:
    """Hold 5,000 connections with a link each, half of them within TLS, and measure the memory."""
    count = run.scaled(5_000) // 2
    broker = run.fresh_peeklock()
    name = f"{2 * count} connections"
    try:
        broker.start()
        endpoint = broker.endpoint()
        before = rss_bytes(endpoint.pid)
        with idle_connections(endpoint, "bench", count), idle_connections(endpoint, "bench", count, "-E"):
            after = rss_bytes(endpoint.pid)
            p99 = p99_us(endpoint, 2 if run.quick else 8)
        run.results.add(name, "resident memory", "MB", broker.name, after / MB, aim=400)
        run.results.add(name, "a connection", "kB", broker.name, (after - before) / (2 * count) / 1000)
        run.results.add(name, "p99 send to accepted", "us", broker.name, p99)
    finally:
        broker.stop()


def floods(run: Run) -> None:
    """Offer 500 messages a second beside hostile peers that reconnect, or send without a pause."""
    _coming_again(run, 2 if run.quick else 3)
    without_pause(run, 1.5 if run.quick else 4)


def _coming_again(run: Run, seconds: int) -> None:
    for kind in KINDS:
        broker = run.fresh_peeklock()
        try:
            broker.start()
            quiet, flooded = [], []
            for _ in range(run.rounds):
                quiet.append(p99_us(broker.endpoint(), seconds))
                with flood(broker.endpoint(), kind, AT_ONCE) as found:
                    flooded.append(p99_us(broker.endpoint(), seconds))
            name = f"flood of {kind.replace('_', ' ')}"
            run.results.add(name, "connections", "1/s", broker.name, found["connections"] / found["seconds"])
            run.results.add(name, "p99 without it", "us", broker.name, statistics.median(quiet))
            run.results.add(name, "p99 with it", "us", broker.name, statistics.median(flooded))
            run.results.add(
                name,
                "with it to without",
                "",
                broker.name,
                statistics.median(flooded) / statistics.median(quiet),
                aim=3,
            )
        finally:
            broker.stop()


def p99_us(endpoint: Endpoint, seconds: int) -> float:
    """Return the 99th percentile from the intended time of a send to its answer, over so many seconds."""
    with offered(endpoint, "bench", OFFERED, seconds + 5) as offer:
        time.sleep(seconds)
    return offer.load.latency_us["p99"]


SCENARIOS = {"crowd": crowd, "floods": floods}
