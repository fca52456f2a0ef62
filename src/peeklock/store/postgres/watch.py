"""Reports a node to the database, and says what the others do: a thread with its own connection.

It looks when a change is notified, and each second without that: a notification may be lost with its
connection.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import psycopg

from peeklock.cluster.view import View
from peeklock.store.base import StoreDeposed, StoreError
from peeklock.store.postgres.nodes import Nodes, Report, listen, wait

POLL_S = 1.0
"""Our choice: a fifth of a lease."""


class Watch:
    """See the module; `start` begins the thread."""

    def __init__(
        self,
        nodes: Nodes,
        report: Callable[[], Report],
        on_view: Callable[[View], None],
        on_replaced: Callable[[StoreDeposed], None],
    ) -> None:
        """Prepare a watch. All of these are called in its thread.

        Args:
            report: returns what this node reports.
            on_view: takes each view.
            on_replaced: takes the failure once another process is this node.
        """
        self._nodes = nodes
        self._report = report
        self._on_view = on_view
        self._on_replaced = on_replaced
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="peeklock-nodes", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End within `POLL_S`, or with the next notification."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self._follow()
            except StoreDeposed as failure:
                self._on_replaced(failure)
                return
            except (StoreError, psycopg.Error):  # the next connection may succeed
                self._ended.wait(POLL_S)

    def _follow(self) -> None:
        """Follow changes while a connection lasts."""
        with self._nodes.connections.lent() as link:
            try:
                listen(link.db)
                while not self._ended.is_set():
                    self._nodes.report(link.db, self._report())
                    self._on_view(self._nodes.view(link.db))
                    self._nodes.connections.reach.met()
                    wait(link.db, POLL_S)
            finally:
                with contextlib.suppress(psycopg.Error):
                    link.db.close()  # it listens: not for other jobs
