"""The threads of all stores of a process, and which of these stores may commit on the event loop.

Owns: how many threads there are. Must not know: what they do.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from peeklock.store.sqlite.pace import Committers
from peeklock.store.worker import Pool

WRITERS = 8
"""Commits wait for the disk, so more of them than cores are under way: a disk joins the fsyncs of several
files. So many stores less one may hang before the others wait. Our choice."""

READERS = 2
"""Reads mostly find their pages in memory: one thread for a long read, such as that of a journal at a start,
and one beside it. Our choice."""

CHECKPOINTERS = 2
"""No client waits for a copy: it only keeps the WAL short. Each copies some 100 MB/s. Our choice."""


class StoreThreads:
    """Threads for any number of stores. Call from one event loop; `close` it after the last store."""

    def __init__(
        self,
        *,
        writers: int = WRITERS,
        readers: int = READERS,
        checkpointers: int = CHECKPOINTERS,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the threads.

        Args:
            writers: threads for commits; see `WRITERS`.
            readers: threads for reads.
            checkpointers: threads that copy WALs.
            clock_s: the time in seconds, which never goes back.
        """
        self.writers = Pool("peeklock-store-writer", writers)
        self.readers = Pool("peeklock-store-reader", readers)
        self.checkpointers = Pool("peeklock-store-checkpointer", checkpointers)
        self._committers = Committers()
        self._clock_s = clock_s

    def note_commit(self, store: object) -> bool:
        """Note that a store commits now; return whether it is alone, so that the loop may do it."""
        return self._committers.note(store, self._clock_s())

    def close(self) -> None:
        """End the threads, without waiting; all stores must be closed."""
        for pool in (self.writers, self.readers, self.checkpointers):
            pool.stop()
