"""What the stores of a process share: threads, connections, leases, and the reclaiming of space."""

from __future__ import annotations

from peeklock.store.postgres.address import Address
from peeklock.store.postgres.connections import Connections
from peeklock.store.postgres.errors import store_errors
from peeklock.store.postgres.event_reader import forget_heads
from peeklock.store.postgres.leases import TTL_S, Leases, Owner
from peeklock.store.postgres.refusals import Durability
from peeklock.store.postgres.vacuum import Vacuum
from peeklock.store.worker import Pool

CONNECTIONS = 50
"""To the database. Our choice: half of what PostgreSQL allows by default."""

CONNECTIONS_MIN = 8

READERS = 4
"""Threads that read, each with a connection."""

OTHERS = 3
"""Connections for renewals, for vacuuming, and for a reader of a whole store."""

OF_NODE = 2
"""Further ones of a node of a cluster: for its watch, and for what it says."""


class Database:
    """One database; call it on one event loop."""

    def __init__(
        self,
        address: Address,
        owner: Owner,
        *,
        durability: Durability = "fsync",
        connections: int = CONNECTIONS,
        ttl_s: float = TTL_S,
        is_node: bool = False,
    ) -> None:
        """Connect to nothing yet.

        Args:
            address: where it is.
            owner: this process.
            durability: what a commit survives.
            connections: so many at a time, `CONNECTIONS_MIN` at least, `OF_NODE` more for a node. A commit
                has a connection while it is under way, so any number of stores share them.
            ttl_s: how long a lease lasts.
            is_node: whether this process is a node of a cluster.
        """
        self.connections = Connections(address, owner.application_name, durability, connections)
        self.leases = Leases(self.connections, owner, ttl_s)
        self.vacuum = Vacuum(self.connections)
        others = OTHERS + OF_NODE if is_node else OTHERS
        assert connections >= READERS + others + 1
        self.writers = Pool("peeklock-store-writer", connections - READERS - others)
        self.readers = Pool("peeklock-store-reader", READERS)

    @property
    def shown(self) -> str:
        """Where it is, without user and password."""
        return self.connections.shown

    def names(self) -> list[str]:
        """Return the names of all stores, sorted. Raises: StoreError."""
        return store_names(self.connections)

    def has(self, name: str) -> bool:
        """Return whether there is a store of this name. Raises: StoreError."""
        with self.connections.lent() as link, store_errors(f"look for the store '{name}' in {self.shown}"):
            query = "SELECT 1 FROM peeklock.lease WHERE name = %s"
            return link.db.execute(query, (name,)).fetchone() is not None

    def remove(self, name: str) -> None:
        """Remove a store that is closed; what is interrupted is done by the next call. Raises: StoreError."""
        with self.connections.lent() as link, store_errors(f"remove the store '{name}' in {self.shown}"):
            found = link.db.execute(
                "UPDATE peeklock.lease SET is_whole = false, epoch = epoch + 1 WHERE name = %s "
                "RETURNING shard",
                (name,),
            ).fetchone()
        if found is None:
            return
        forget_heads(self.connections, found[0])
        with self.connections.lent() as link, store_errors(f"remove the store '{name}' in {self.shown}"):
            link.db.execute("SET statement_timeout = 0")
            for table in ("body", "journal", "kv", "event", "lease"):
                link.db.execute(f"DELETE FROM peeklock.{table} WHERE shard = %s", found)
            link.db.close()  # its settings are its own

    def close(self) -> None:
        """End threads and connections; all stores are closed."""
        self.leases.stop()
        self.vacuum.stop()
        for pool in (self.writers, self.readers):
            pool.stop()
        self.connections.close()


def store_names(connections: Connections) -> list[str]:
    """Return the names of all stores of a database, sorted. Raises: StoreError."""
    with connections.lent() as link, store_errors(f"list the stores in {connections.shown}"):
        rows = link.db.execute("SELECT name FROM peeklock.lease ORDER BY name").fetchall()
        return [name for (name,) in rows]
