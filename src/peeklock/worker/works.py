"""The works by name. A work is a JSON object with its name as `work`; the module of each says what else."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import BinaryIO, Final

from peeklock.client.connection import BlockingConnection
from peeklock.client.errors import ServiceBusError
from peeklock.client.given import GivenConnection
from peeklock.jobs.checkpoint import CheckpointError
from peeklock.search import SearchError
from peeklock.worker.grouping import group
from peeklock.worker.job_runs import preview, run_job
from peeklock.worker.life import show_life
from peeklock.worker.memory import out_of_memory
from peeklock.worker.orders import Orders, Work
from peeklock.worker.output import Output, WorkFailed, problem_json
from peeklock.worker.rescheduling import reschedule
from peeklock.worker.searching import search

STREAMS: Final[Mapping[str, Callable[[Work, BlockingConnection, Output], None]]] = {
    "search": search,
    "group": group,
    "preview": preview,
    "life": show_life,
}
"""Works whose output is passed on to a client."""

JOBS: Final[Mapping[str, Callable[[Work, BlockingConnection, Output, Orders], None]]] = {
    "job": run_job,
    "reschedule": reschedule,
}
"""Works that the broker follows."""


def run(work: Work, sock: socket.socket, orders: Orders, file: BinaryIO) -> int:
    """Do a work; return the exit status."""
    output = Output(file, work.get("form", "events"))
    failure = _do(work, GivenConnection(sock, work["namespace"]), orders, output)
    if failure is not None and work["work"] in STREAMS:
        output.problem(failure)
    elif failure is not None:
        output.line({"problem": problem_json(failure)})
    file.flush()
    return 0


def _do(work: Work, connection: BlockingConnection, orders: Orders, output: Output) -> Exception | None:
    """Do a work; return why it has failed, None = it has not."""
    stream = STREAMS.get(work["work"])
    try:
        if stream is None:
            JOBS[work["work"]](work, connection, output, orders)
        else:
            stream(work, connection, output)
    except (ServiceBusError, SearchError, WorkFailed, CheckpointError) as failure:
        return failure
    except MemoryError:
        return out_of_memory()  # the error itself would keep what needs the memory
    return None
