"""Stalls of the broker's loop, as a client of the loop sees them.

Owns: a thread that sends requests to `/health` again and again, over one connection, with a method that is
refused. The refusal needs no disk and waits for nothing but the loop; the figures of `/health` would cost the
loop itself 2 to 5 us an entity.
"""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from collections.abc import Iterator

PAUSE_S = 0.001
"""Pause between an answer and the next request: a stall appears shorter by at most that."""


@contextlib.contextmanager
def answer_times(port: int) -> Iterator[list[float]]:
    """Send requests while the body runs; the list has the seconds that each answer took."""
    times: list[float] = []
    over = threading.Event()

    def ask() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        while not over.wait(PAUSE_S):
            started = time.perf_counter()
            connection.request("DELETE", "/health")
            connection.getresponse().read()
            times.append(time.perf_counter() - started)
        connection.close()

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield times
    finally:
        over.set()
        thread.join()
