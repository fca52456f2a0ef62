"""What the durable stores of a process share: threads, and the reserve for a full disk."""

from __future__ import annotations

from pathlib import Path


class Disk:
    """The threads and the reserve of all stores."""

    def __init__(self, data: Path) -> None:
        """Start the threads. `data`: the folder of the process."""
        from peeklock.store.sqlite.space import Ballast
        from peeklock.store.sqlite.threads import StoreThreads

        self.threads = StoreThreads()
        self.ballast = Ballast(data)

    def close(self) -> None:
        """End the threads; all stores are closed."""
        self.threads.close()
