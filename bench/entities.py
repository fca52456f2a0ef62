"""Many entities: the rates of the administration, and the cost of a start.

Owns: which requests are made, and how many. Must not know: HTTP (`administration`), how a broker is started.
"""

from __future__ import annotations

import contextlib
import http.client
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from bench.administration import Administration
from bench.client import Client
from bench.loadgen import Endpoint
from bench.run import Run, drive_queue
from bench.stalls import answer_times
from peeklock.amqp.types import Int, Long

ENTITIES = 10_000
PAGE = 100
CONNECTIONS = 4
REQUESTS = 2_000
"""Requests of each kind, over all connections."""

CLAIMS, CLAIM_MESSAGES = 5, 2_000
"""Claims made, read and committed; each of as many messages as Spark's have at most."""

Step = Callable[[Administration, int], object]


def administration(run: Run) -> None:
    """10,000 queues: start, pages of their list, requests a second, and how long others wait meanwhile."""
    count, requests = run.scaled(ENTITIES), run.scaled(REQUESTS)
    names = [f"queue-{number:05}" for number in range(count)]
    name, add = f"{count:,} queues", run.results.add
    broker = run.fresh_peeklock({name: {} for name in names})
    try:
        add(name, "spawn to ready, all to be created from Config.json", "s", broker.name, broker.start())
        broker.stop()
        broker.queues, broker.settings = (), {}  # what the file does not name stays
        add(name, "spawn to ready, all there", "s", broker.name, broker.start(), aim=3)
        endpoint = broker.endpoint()
        first_ms = next(_pages(endpoint, count))
        add(name, "first page after the start, which loads the code", "ms", broker.name, first_ms)
        for _ in range(run.rounds):
            pages_ms = list(_pages(endpoint, count))
            add(name, "page of 100, median", "ms", broker.name, statistics.median(pages_ms), aim=50)
            add(name, "page of 100, longest", "ms", broker.name, max(pages_ms), aim=50)
            steps: dict[str, Step] = {
                "look-ups": lambda client, number: client.get(names[number % count]),
                "creations": lambda client, number: client.put_queue(f"new-{number}", "x", exists=False),
                "updates": lambda client, number: client.put_queue(f"new-{number}", "y", exists=True),
                "deletions": lambda client, number: client.delete(f"new-{number}"),
            }
            for kind, step in steps.items():
                rate = requests / _seconds(endpoint, step, requests)
                add(name, kind, "requests/s", broker.name, rate, better="higher", aim=500)
            drive_queue(broker, "send", CLAIMS * CLAIM_MESSAGES, queue=names[0])
            for kind, ask in (
                ("nothing", lambda: time.sleep(1)),
                ("pages", lambda: list(_pages(endpoint, count))),
                ("/health", lambda: _health(endpoint)),
                ("claims", lambda: _claims(endpoint, names[0])),
            ):
                with answer_times(endpoint.port) as times:
                    ask()
                add(name, f"longest wait for an answer beside {kind}", "ms", broker.name, max(times) * 1e3)
    finally:
        broker.stop()


def _pages(endpoint: Endpoint, count: int) -> Iterator[float]:
    """Read the list, and return how long each page took, in ms."""
    with Administration(endpoint) as client:
        for skip in range(0, count, PAGE):
            started = time.perf_counter()
            client.get("$Resources/queues", f"&$skip={skip}&$top={PAGE}")
            yield (time.perf_counter() - started) * 1e3


def _health(endpoint: Endpoint) -> None:
    """Request the figures of all entities again and again."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=60)) as connection:
        for _ in range(20):
            connection.request("GET", "/health")
            connection.getresponse().read()


def _claims(endpoint: Endpoint, queue: str) -> None:
    """Claim all messages of a queue, read them, and commit the claims."""
    claim = {"cursor": "bench", "max-messages": Int(CLAIM_MESSAGES), "max-bytes": Long(1 << 30)}
    with Client(endpoint) as client:
        for _ in range(CLAIMS):
            no = client.request(queue, "peeklock:cursor-claim", claim)["claim"]
            read = 0
            while read < CLAIM_MESSAGES:
                part = {
                    "cursor": "bench",
                    "claim": no,
                    "skip": Int(read),
                    "max-messages": Int(CLAIM_MESSAGES),
                }
                part["max-bytes"] = Long(1 << 18)
                read += len(client.request(queue, "peeklock:cursor-read", part)["messages"])
            client.request(queue, "peeklock:cursor-commit", {"cursor": "bench", "claim": no})


def _seconds(endpoint: Endpoint, step: Step, requests: int) -> float:
    """Make numbered requests over some connections at once, and return how long that took."""

    def some(connection: int) -> None:
        with Administration(endpoint) as client:
            for number in range(connection, requests, CONNECTIONS):
                step(client, number)

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        started = time.perf_counter()
        list(pool.map(some, range(CONNECTIONS)))
        return time.perf_counter() - started


ADMINISTRATION: dict[str, Callable[[Run], None]] = {"administration": administration}
