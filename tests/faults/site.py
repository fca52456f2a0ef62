"""PostgreSQL with a synchronous standby, and nodes on it, all as processes of this machine.

Owns: which server is the primary, how nodes start and reach it. Must not know: what clients do; which fault
comes when.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from urllib.request import Request, urlopen

from peeklock.demo.broker import BrokerFailed, BrokerProcess
from peeklock.server.capture import NAMESPACES_FOLDER
from peeklock.server.check_database import check
from tests.faults.wire import Wire, Wires
from tests.kill.faked_clock import FakedClock
from tests.kill.ledger import Broken
from tests.postgres_server import PostgresServer
from tests.server.cluster.processes import Cluster, gifts, until_let_go

DATABASE = "peeklock"
END_S_MAX = 60.0
OWNED_S_MAX = 60.0
"""Our choice: many times what it takes, also beside other programs. How long it took is in the gaps."""
ANSWER_S_MAX = 5.0
LOOK_S = 0.1


class Site:
    """The servers and the nodes."""

    def __init__(
        self,
        folder: Path,
        namespaces: Sequence[str],
        queues: Mapping[str, Mapping[str, object]],
        *,
        has_wires: bool = False,
        has_clocks: bool = False,
    ) -> None:
        """Start the servers; the nodes come later.

        Args:
            folder: of the nodes and of the event log.
            namespaces: the default one first.
            queues: of each namespace, by name.
            has_wires: each node reaches each server by a wire of its own.
            has_clocks: each node has a wall clock of its own, which needs faketime.
        """
        self._folder = folder
        self._has_clocks = has_clocks
        self.clocks: dict[str, FakedClock] = {}
        """Of each node."""
        self._log = folder / "log"
        self.wires: dict[str, list[Wire]] = {}
        """Of each node, to the primary and to the standby."""
        self._wires = Wires() if has_wires else None
        self.primary = PostgresServer()
        self.standby: PostgresServer | None = None
        self.cluster: Cluster | None = None
        try:
            self.primary.start()
            self.primary.new_database(DATABASE)
            self.add_standby()
            # Not --durability replicated, which refuses a promoted standby that has no standby yet. The
            # server's setting makes each commit wait for the standby as well.
            options = (f"--capture={self._log}", "--capture-interval=1")
            self.cluster = Cluster(self._url(self._ports()), folder, namespaces, queues, options)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Kill the nodes, and remove the servers."""
        if self.cluster is not None:
            self.cluster.kill()
        for server in (self.standby, self.primary):
            if server is not None:
                server.remove()

    @property
    def nodes(self) -> dict[str, BrokerProcess]:
        """The nodes by name."""
        assert self.cluster is not None
        return self.cluster.nodes

    def log_of(self, namespace: str, *, is_default: bool) -> Path:
        """Return the folder of a namespace's event log."""
        return self._log if is_default else self._log / NAMESPACES_FOLDER / namespace

    # The database

    def _ports(self) -> list[int]:
        assert self.standby is not None
        return [self.primary.port, self.standby.port]

    def _url(self, ports: Sequence[int]) -> str:
        """Return where whichever server is the primary is found."""
        own = f"127.0.0.1:{self.primary.port}"
        return self.primary.url(DATABASE).replace(own, ",".join(f"127.0.0.1:{port}" for port in ports))

    def add_standby(self) -> None:
        """Add a standby to the primary, which waits for it from now on."""
        self.standby = self.primary.make_standby()
        self.standby.wait_for_standby("")  # when it is promoted
        self.primary.wait_for_standby()
        for wires in self.wires.values():
            for wire, port in zip(wires, self._ports(), strict=True):
                wire.target = port

    def lose_standby(self) -> None:
        """Kill the standby, for which the primary goes on waiting."""
        assert self.standby is not None
        self.standby.kill()
        self.standby.remove()
        self.standby = None

    def lose_primary(self) -> None:
        """Kill the primary and promote the standby, which has no standby of its own and waits for none."""
        assert self.standby is not None
        self.primary.kill()
        self.primary.remove()
        self.primary, self.standby = self.standby, None
        self.primary.promote()

    def check(self) -> str:
        """Verify all stores as `peeklock check` does; return its last line. Raises: Broken."""
        report = check(self.primary.url(DATABASE))
        if report.exit_status:
            raise Broken("the stores are damaged: " + "; ".join(report.lines))
        return report.lines[-1]

    # The nodes

    def start(self, name: str) -> None:
        """Start a node, for the first time or again."""
        if self._has_clocks and name not in self.clocks:
            folder = self._folder / f"clock-{name}"
            folder.mkdir()
            self.clocks[name] = FakedClock(folder)
        with self.clocks.get(name, nullcontext()):
            self._start(name)

    def _start(self, name: str) -> None:
        assert self.cluster is not None
        if name in self.nodes:
            self.nodes[name].start()
            return
        if self._wires is not None:
            wires = self.wires[name] = [self._wires.lay(port) for port in self._ports()]
            self.cluster.urls[name] = self._url([wire.port for wire in wires])
        self.cluster.start(name)

    def runs(self, name: str) -> bool:
        """Return whether a node runs; one that has ended by itself can start again."""
        node = self.nodes[name]
        if node.pid is None:
            return False
        try:
            node.check()
        except BrokerFailed:
            node.kill()
        return node.pid is not None

    def owner(self, namespace: str, *, asked: str = "") -> str | None:
        """Return the node that owns a namespace, as a node says, or the first one that runs.

        None = it has no owner, or the node does not answer.
        """
        running = [name for name in self.nodes if self.runs(name)]
        if not running:
            return None
        node = self.nodes[asked or running[0]]
        request = Request(
            f"http://127.0.0.1:{node.http_port}/owner", headers={"Host": f"{namespace}.localhost"}
        )
        try:
            with urlopen(request, timeout=ANSWER_S_MAX) as answer:
                return str(json.load(answer)["owner"])
        except OSError:
            return None

    def until_owned(self, namespace: str, *, asked: str = "", besides: str = "") -> str:
        """Wait until a namespace has an owner, other than `besides`; return it."""
        until_s = time.monotonic() + OWNED_S_MAX
        while time.monotonic() < until_s:
            owner = self.owner(namespace, asked=asked)
            if owner is not None and owner != besides:
                return owner
            time.sleep(LOOK_S)
        raise Broken(f"'{namespace}' has no new owner within {OWNED_S_MAX:.0f} s")

    def require_no_defect(self) -> None:
        """Raise Broken if a node has logged a defect."""
        for name, node in self.nodes.items():
            with node.log.open(errors="replace") as lines:
                defects = [line for line in lines if '"event": "defect"' in line]
            if defects:
                raise Broken(f"node {name} has logged {len(defects)} defects: {defects[0]}")

    def gifts(self, name: str) -> int:
        """Return how often a node has given a namespace back."""
        return gifts(self.nodes[name])

    def until_let_go(self, name: str, gifts_before: int) -> None:
        """Wait until a node has ended with status 1, or given its namespace back. Raises: Broken.

        What it has to commit decides: without anything it sees the new owner first.
        """
        try:
            until_let_go(self.nodes[name], gifts_before, END_S_MAX)
        except (AssertionError, BrokerFailed) as failure:
            raise Broken(f"node {name}: {failure}") from failure

    def stop(self, name: str) -> None:
        """Stop a node by SIGTERM. Raises: Broken."""
        if status := self.nodes[name].stop():
            raise Broken(f"node {name} ended with status {status} after SIGTERM: {tail(self.nodes[name])}")

    def stop_all(self) -> None:
        """Stop all nodes that run, by SIGTERM. Raises: Broken."""
        for name, node in self.nodes.items():
            if node.pid is not None:
                self.stop(name)


def tail(node: BrokerProcess) -> str:
    """Return the end of a node's log."""
    return node.log.read_text(errors="replace")[-3000:]
