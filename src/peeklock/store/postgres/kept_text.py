"""A text that a database keeps beside its stores, and that changes only from what is known.

So of two processes that change it at a time one succeeds, and the other one learns that.
"""

from __future__ import annotations

from peeklock.store.base import StoreFailed
from peeklock.store.postgres.connections import Connections
from peeklock.store.postgres.errors import store_errors

_READ = "SELECT v FROM peeklock.meta WHERE k = %s"
_FIRST = "INSERT INTO peeklock.meta VALUES (%s, %s) ON CONFLICT DO NOTHING"
_REPLACE = "UPDATE peeklock.meta SET v = %s WHERE k = %s AND v = %s"
_FORGET = "DELETE FROM peeklock.meta WHERE starts_with(k, %s)"


class KeptText:
    """One text, by its key in `meta`; blocking calls, from any thread."""

    def __init__(self, connections: Connections, key: str) -> None:
        """Touch nothing yet."""
        self._connections = connections
        self._key = key

    def read(self) -> str | None:
        """Return it, None = there is none yet. Raises: StoreError."""
        with self._connections.lent() as link, store_errors(f"read '{self._key}' in {self._shown}"):
            found = link.db.execute(_READ, (self._key,)).fetchone()
        return None if found is None else str(found[0])

    def replace(self, old: str | None, new: str) -> bool:
        """Make it durable in the place of `old`, None = of none; return False if it is another one now.

        After an error it may be either. Raises: StoreError.
        """
        doing = f"write '{self._key}' in {self._shown}"
        with self._connections.lent() as link, store_errors(doing):
            if old is None:
                changed = link.db.execute(_FIRST, (self._key, new))
            else:
                changed = link.db.execute(_REPLACE, (new, self._key, old))
            if link.warnings:
                raise StoreFailed(f"could not {doing}: {link.warnings[-1]}")
        return changed.rowcount == 1

    @property
    def _shown(self) -> str:
        return self._connections.shown


def forget_texts(connections: Connections, prefix: str) -> None:
    """Remove the texts whose keys begin so. Raises: StoreError."""
    with connections.lent() as link, store_errors(f"remove '{prefix}' in {connections.shown}"):
        link.db.execute(_FORGET, (prefix,))
