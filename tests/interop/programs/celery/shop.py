"""A Celery application as anybody would write it: nothing in it knows which broker it talks to.

Owns: the tasks and the settings. Must not know: what is tried with them.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from celery import Celery, Task

app = Celery("shop", broker=os.environ["BROKER_URL"], backend="rpc://")
app.conf.update(
    task_acks_late=True,  # a message is completed when its task has run
    worker_prefetch_multiplier=2,
    broker_connection_retry_on_startup=True,
    broker_transport_options={
        "queue_name_prefix": "celery-",
        "peek_lock_seconds": 5,  # the shortest lock there is, so that little time is spent waiting for it
        "use_lock_renewal": True,
        "wait_time_seconds": 1,
        "retry_total": 1,
    },
)
RUNS = Path(os.environ["SHOP_RUNS"])
"""A line is added to this file each time a task begins that says so."""


def runs(order: str) -> int:
    """Count how often an order's task has begun."""
    return RUNS.read_text(encoding="utf-8").splitlines().count(order) if RUNS.exists() else 0


def _begin(order: str) -> None:
    with RUNS.open("a", encoding="utf-8") as file:
        file.write(f"{order}\n")


@app.task
def price(amount: int, each: int) -> int:
    """Answer at once."""
    return amount * each


@app.task
def now() -> float:
    """Answer when it ran, in seconds since 1970."""
    return time.time()


@app.task
def pack(order: str, seconds: float) -> tuple[str, float, float]:
    """Take some time; answer which thread it was, and from when to when."""
    _begin(order)
    begun = time.time()
    time.sleep(seconds)
    return threading.current_thread().name, begun, time.time()


@app.task(bind=True, max_retries=2)
def fetch(self: Task, order: str) -> int:
    """Fail the first time; answer at which attempt it went well."""
    _begin(order)
    if self.request.retries == 0:
        raise self.retry(countdown=0)
    attempt: int = self.request.retries + 1
    return attempt
