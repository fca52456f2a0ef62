"""The nodes of a cluster, and which of them owns which store: rows that every node reads and writes.

A node is a process with a unique name. Its row says where others reach it, and when it has reported last.
Who owns a store is in `lease`: it belongs to a node if the same data folder has taken it. All times are of
the database's clock. What another node should see at once is notified.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from peeklock.cluster.view import LIVE_S, ClusterNode, StoreLease, View
from peeklock.store.base import StoreDeposed, StoreFailed
from peeklock.store.postgres.connections import Connections
from peeklock.store.postgres.errors import store_errors
from peeklock.store.postgres.leases import Owner
from peeklock.store.postgres.refusals import Db

CHANNEL = "peeklock"

KEY = "cluster-key"
"""In `meta`: a digest of the key that all nodes have."""

LOG_KEY = "event-log-folder"
"""In `meta`: the id of the folder to which all nodes write their event logs, empty = they write none."""

ADMISSION = 0x706B6E64
"""The advisory lock under which a node is admitted: `pknd`."""

LOOK_S = 0.5
"""Between two looks at the row of a node of the same name."""

_NOTIFY = f"SELECT pg_notify('{CHANNEL}', '')"
_SAME_KEY = "INSERT INTO peeklock.meta VALUES (%s, %s) ON CONFLICT DO NOTHING"
_ADMIT = (
    "INSERT INTO peeklock.node AS n VALUES (%s, %s, %s, %s, %s, clock_timestamp(), clock_timestamp(), "
    "false, true, '{}') ON CONFLICT (name) DO UPDATE SET instance = excluded.instance, "
    "session = excluded.session, address = excluded.address, version = excluded.version, "
    "started = excluded.started, seen = excluded.seen, is_leaving = false, is_sound = true, unreached = '{}' "
    "WHERE n.session = excluded.session OR n.instance = excluded.instance "
    "OR n.seen < clock_timestamp() - make_interval(secs => %s) RETURNING 1"
)
_FORGET_EARLIER_NAME = "DELETE FROM peeklock.node WHERE instance = %s AND name <> %s"
_KEEP_LOG = "INSERT INTO peeklock.meta VALUES (%s, %s) ON CONFLICT (k) DO UPDATE SET v = excluded.v"
_OTHER = "SELECT instance, seen::text FROM peeklock.node WHERE name = %s"
_LIVE_OTHERS = (
    "SELECT name FROM peeklock.node WHERE name <> %s AND seen >= clock_timestamp() "
    "- make_interval(secs => %s) ORDER BY name"
)
_REPORT = (
    "UPDATE peeklock.node SET seen = clock_timestamp(), is_sound = %s, unreached = %s, is_leaving = %s "
    "WHERE name = %s AND session = %s"
)
_NODES = (
    "SELECT name, address, extract(epoch FROM clock_timestamp() - seen)::float, is_leaving, is_sound, "
    "unreached, extract(epoch FROM clock_timestamp() - started)::float, version FROM peeklock.node"
)
_LEASES = (
    "SELECT l.name, CASE WHEN l.session IS NULL THEN NULL ELSE n.name END, "
    "extract(epoch FROM l.expires - clock_timestamp())::float, l.epoch, l.session, l.place, l.batch_no "
    "FROM peeklock.lease l LEFT JOIN peeklock.node n ON n.instance = l.instance WHERE l.is_whole"
)


class NodeRefused(StoreFailed):
    """A node may not join the cluster; the text says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a node says of itself and of others."""

    is_sound: bool = True
    unreached: frozenset[str] = frozenset()
    is_leaving: bool = False


class Nodes:
    """The rows; blocking calls, from any thread."""

    def __init__(self, connections: Connections, owner: Owner, name: str) -> None:
        """Name this node; nothing is written before `admit`."""
        self.connections = connections
        self.name = name
        self._owner = owner

    def admit(self, address: str, version: str, key_digest: str, log_folder: str) -> None:
        """Add this node, and wait until a dead one of the same name is forgotten; forget its earlier name.

        `log_folder`: the id of the folder of its event logs, which all nodes have; empty = it writes none.
        Raises: NodeRefused, StoreError.
        """
        shown = self.connections.shown
        with self.connections.lent() as link, store_errors(f"join the cluster in {shown}"):
            link.db.execute(_SAME_KEY, (KEY, key_digest))
            [(kept,)] = link.db.execute("SELECT v FROM peeklock.meta WHERE k = %s", (KEY,)).fetchall()
            if kept != key_digest:
                raise NodeRefused(
                    f"the nodes of {shown} have another cluster key: give all of them the same --cluster-key"
                )
            owner, seen = self._owner, ""
            row = (self.name, owner.instance, owner.session, address, version)
            while not self._add(link.db, row, log_folder):
                found = link.db.execute(_OTHER, (self.name,)).fetchone()
                if found is not None:
                    if seen and found[1] != seen:
                        place = str(found[0]).partition("@")[2]
                        raise NodeRefused(
                            f"a node '{self.name}' of {shown} runs already, on {place}: choose another --node"
                        )
                    seen = found[1]
                time.sleep(LOOK_S)

    def _add(self, db: Db, row: tuple[str, ...], log_folder: str) -> bool:
        """Add this node if no other one has its name. Raises: NodeRefused, psycopg.Error."""
        with db.transaction():
            # One at a time: of nodes that start together, each finds those before it.
            db.execute("SELECT pg_advisory_xact_lock(%s)", (ADMISSION,))
            if db.execute(_ADMIT, (*row, LIVE_S)).fetchone() is None:
                return False
            db.execute(_FORGET_EARLIER_NAME, (self._owner.instance, self.name))
            self._require_common_log(db, log_folder)
            db.execute(_NOTIFY)
        return True

    def _require_common_log(self, db: Db, log_folder: str) -> None:
        """Require that the live nodes write their event logs to this folder.

        If there are none, it becomes the folder of all; one that was only slow is no node then.
        Raises: NodeRefused, psycopg.Error.
        """
        found = db.execute("SELECT v FROM peeklock.meta WHERE k = %s", (LOG_KEY,)).fetchone()
        if found == (log_folder,):
            return
        others = ", ".join(name for (name,) in db.execute(_LIVE_OTHERS, (self.name, LIVE_S)).fetchall())
        if not others:
            db.execute(_KEEP_LOG, (LOG_KEY, log_folder))
            db.execute("DELETE FROM peeklock.node WHERE name <> %s", (self.name,))
        elif not log_folder:
            raise NodeRefused(
                f"the other nodes ({others}) write an event log, and this one would leave gaps in it: give "
                "it --capture with their folder, or stop all nodes and start them without"
            )
        elif found is None or not found[0]:
            raise NodeRefused(
                f"the other nodes ({others}) write no event log: stop all nodes, and start them with "
                "--capture and one folder"
            )
        else:
            raise NodeRefused(
                f"the folder of --capture is not the one to which the other nodes ({others}) write: give all "
                "nodes the same one, such as a shared file system; to change it, stop all nodes first"
            )

    def report(self, db: Db, report: Report) -> None:
        """Report that this node lives. Raises: StoreDeposed, psycopg.Error."""
        row = (report.is_sound, sorted(report.unreached), report.is_leaving)
        if not db.execute(_REPORT, (*row, self.name, self._owner.session)).rowcount:
            raise StoreDeposed(
                f"another process is the node '{self.name}' of {self.connections.shown} now, or the nodes "
                "write their event logs elsewhere: this one had not reported for too long"
            )

    def view(self, db: Db) -> View:
        """Return what the database says now. Raises: psycopg.Error."""
        # The leases first: a lease that was given back meanwhile has no owner, and one that is older is valid
        # for longer than it is.
        leases = db.execute(_LEASES).fetchall()
        nodes = [
            ClusterNode(name, address, seen_s, is_leaving, is_sound, frozenset(unreached), started_s, version)
            for name, address, seen_s, is_leaving, is_sound, unreached, started_s, version in db.execute(
                _NODES
            ).fetchall()
        ]
        return View({node.name: node for node in nodes}, {row[0]: StoreLease(*row[1:]) for row in leases})

    def session(self) -> str:
        """Return the session by which this node has leases."""
        return self._owner.session

    def choose(self, stores: Iterable[str], name: str | None) -> None:
        """Choose the node that owns these stores from now on; None = any node. Raises: StoreError."""
        with self.connections.lent() as link, store_errors(f"move stores in {self.connections.shown}"):
            link.db.execute("UPDATE peeklock.lease SET place = %s WHERE name = ANY(%s)", (name, list(stores)))
            link.db.execute(_NOTIFY)

    def notify(self) -> None:
        """Notify all nodes, so that they look now. Raises: StoreError."""
        with self.connections.lent() as link, store_errors(f"notify the nodes of {self.connections.shown}"):
            link.db.execute(_NOTIFY)

    def leave(self) -> None:
        """Remove this node, which owns nothing any more. Raises: StoreError."""
        with self.connections.lent() as link, store_errors(f"leave the cluster in {self.connections.shown}"):
            query = "DELETE FROM peeklock.node WHERE name = %s AND session = %s"
            link.db.execute(query, (self.name, self._owner.session))
            link.db.execute(_NOTIFY)


def is_cluster(connections: Connections) -> bool:
    """Return whether the stores of a database belong to a cluster. Raises: StoreError."""
    with connections.lent() as link, store_errors(f"look for nodes in {connections.shown}"):
        return link.db.execute("SELECT 1 FROM peeklock.meta WHERE k = %s", (KEY,)).fetchone() is not None


def listen(db: Db) -> None:
    """Hear of changes over this connection. Raises: psycopg.Error."""
    db.execute(f"LISTEN {CHANNEL}")


def wait(db: Db, seconds: float) -> None:
    """Wait for a change, at most so long. Raises: psycopg.Error."""
    for _ in db.notifies(timeout=seconds, stop_after=1):
        pass
