"""Many entities: how the administration copes, and what they cost a start.

Owns: which requests are made, and how many. Must not know: HTTP (`administration`), how a broker is started.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from bench.administration import Administration
from bench.loadgen import Endpoint
from bench.run import Run

ENTITIES = 10_000
PAGE = 100
CONNECTIONS = 4
REQUESTS = 2_000
"""Of each kind, over all connections."""

Step = Callable[[Administration, int], object]


def administration(run: Run) -> None:
    """10,000 queues: start, pages of their list, and requests a second."""
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
    finally:
        broker.stop()


def _pages(endpoint: Endpoint, count: int) -> Iterator[float]:
    """Go through the list, and give how long each page took, in ms."""
    with Administration(endpoint) as client:
        for skip in range(0, count, PAGE):
            started = time.perf_counter()
            client.get("$Resources/queues", f"&$skip={skip}&$top={PAGE}")
            yield (time.perf_counter() - started) * 1e3


def _seconds(endpoint: Endpoint, step: Step, requests: int) -> float:
    """Make numbered requests over some connections at once, and give how long that took."""

    def some(connection: int) -> None:
        with Administration(endpoint) as client:
            for number in range(connection, requests, CONNECTIONS):
                step(client, number)

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        started = time.perf_counter()
        list(pool.map(some, range(CONNECTIONS)))
        return time.perf_counter() - started


ADMINISTRATION: dict[str, Callable[[Run], None]] = {"administration": administration}
