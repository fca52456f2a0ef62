"""`python -m peeklock.worker FD`: does one work over the connected socket FD, and ends.

A broker starts it, attaches the other end of the socket as a client with the rights of who asked, and holds
its standard input, whose first line is the work as a JSON object, see `peeklock.worker.works`. Further lines
are `{"stop": true}` and, after a checkpoint, `{"saved": true}`. When standard input ends the broker is gone,
or wants no answer, and the process ends at once. Standard output has the answer, see `output`; the status is
0 if it is whole.
"""

from __future__ import annotations

import os
import signal
import socket
import sys

from peeklock.worker.memory import limit_memory
from peeklock.worker.orders import Orders
from peeklock.worker.priority import yield_to_clients
from peeklock.worker.works import run


def main(arguments: list[str]) -> int:
    """Do the work; return the exit status."""
    for number in (signal.SIGTERM, signal.SIGINT):  # may go to the broker and all its processes
        signal.signal(number, signal.SIG_IGN)
    os.umask(0o077)
    yield_to_clients()
    limit_memory()
    orders = Orders(sys.stdin.buffer)
    return run(orders.work, socket.socket(fileno=int(arguments[0])), orders, sys.stdout.buffer)


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))  # an exit in order would wait for the thread that reads orders
