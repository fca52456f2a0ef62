"""The works by name. A work is a JSON object with its name as `work`; the module of each says what else."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, Final

from peeklock.client.connection import BlockingConnection
from peeklock.client.errors import ServiceBusError
from peeklock.client.given import GivenConnection
from peeklock.search import SearchError
from peeklock.worker.orders import Orders, Work
from peeklock.worker.output import Output, WorkFailed
from peeklock.worker.searching import search

WORKS: Final[Mapping[str, Callable[[Work, BlockingConnection, Output], Any]]] = {"search": search}


def run(work: Work, sock: socket.socket, orders: Orders, file: BinaryIO) -> int:
    """Do a work; return the exit status."""
    connection = GivenConnection(sock, work["namespace"])
    output = Output(file, work.get("form", "events"))
    try:
        WORKS[work["work"]](work, connection, output)
    except (ServiceBusError, SearchError, WorkFailed) as failure:
        output.problem(failure)
    file.flush()
    return 0
