"""`python -m tests.faults.demo`: a cluster loses its owner and its database while clients work.

Owns: the order of events and the verdict. Must not know: how clients work (`official`), what must hold
(`book`).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from peeklock.demo.broker import BrokerFailed, program
from tests.faults.book import COMPLETED, SENT, Book
from tests.faults.official import JavaScriptClient, PythonClient
from tests.faults.site import Site, tail
from tests.interop.builds import BuildFailed
from tests.kill.ledger import Broken
from tests.postgres_server import binaries

NAMESPACE = "main"
QUEUE = "orders"
PROPERTIES = {"LockDuration": "PT5S", "MaxDeliveryCount": 2000}
"""The shortest lock, so that it lapses soon; no message is dead-lettered, however often it comes back."""

LOAD_S = 4.0
"""Of load before each fault and after the last one."""
WAIT_S_MAX = 60.0
MORE = 20
"""So many sends and completions say that clients are served again."""

Client = PythonClient | JavaScriptClient


class Demo:
    """One run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._began_s = time.monotonic()
        self._site = Site(folder, (NAMESPACE,), {QUEUE: PROPERTIES})
        self._book = Book(QUEUE)
        self._clients: list[Client] = []

    def run(self) -> list[str]:
        """Run; return what is wrong. Raises: Broken, BrokerFailed."""
        try:
            self._start()
            self._fault("kill -9 of the owner", self._kill_owner)
            self._fault("kill -9 of the primary, and its standby is promoted", self._site.lose_primary)
            self._finish()
        except Broken as failure:
            logs = (f"node {name}: {tail(node)}" for name, node in self._site.nodes.items())
            raise Broken("\n".join((str(failure), *logs))) from failure
        finally:
            for client in self._clients:
                client.end()
            self._clients = []
            self._site.close()
        return self._prove()

    def say(self, text: str) -> None:
        """Print a line, with the time since the start."""
        print(f"{time.monotonic() - self._began_s:5.1f} s  {text}", flush=True)

    def _start(self) -> None:
        site = self._site
        assert site.standby is not None
        self.say(
            f"PostgreSQL: a primary on port {site.primary.port}, a standby on port {site.standby.port}; "
            "a commit waits for both disks"
        )
        for name in "abc":
            site.start(name)
        owner = site.until_owned(NAMESPACE)
        nodes = ", ".join(f"{name} on port {node.amqp_port}" for name, node in site.nodes.items())
        self.say(f"three nodes: {nodes}; the owner of the namespace '{NAMESPACE}' is {owner}")
        entrances = [name for name in "abc" if name != owner]
        kinds: tuple[type[Client], ...] = (PythonClient, JavaScriptClient)
        for kind, name in zip(kinds, entrances, strict=True):
            client = kind(site.nodes[name].connection_string, self._book)
            self._clients.append(client)
            client.start()
            self.say(
                f"{kind.name}: Microsoft's client sends and completes at node {name}, which owns nothing"
            )
        self._wait_for_more()

    def _fault(self, title: str, cause: Callable[[], object]) -> None:
        """Cause a fault after some load, and tell what clients saw of it."""
        time.sleep(LOAD_S)
        self.say(f"{self._book.count():,} sends and completions are acknowledged; now: {title}")
        at_s = time.monotonic()
        cause()
        self._wait_for_more()
        gap_s = self._book.gap_s(at_s)
        owner = self._site.owner(NAMESPACE)
        self.say(f"clients are served again, by {owner}; longest gap between answers: {gap_s:.1f} s")

    def _kill_owner(self) -> None:
        owner = self._site.owner(NAMESPACE)
        assert owner is not None
        self._site.nodes[owner].kill()

    def _wait_for_more(self) -> None:
        """Wait until each client has a send and a completion, and all together have some more."""
        before, until_s = self._book.count(), time.monotonic() + WAIT_S_MAX
        counts = self._book.by_client.copy()
        while self._book.count() < before + MORE or not all(
            self._book.by_client[client.name, action] > counts[client.name, action]
            for client in self._clients
            for action in (SENT, COMPLETED)
        ):
            if time.monotonic() > until_s:
                raise Broken(f"not all clients are served within {WAIT_S_MAX:.0f} s")
            time.sleep(0.05)

    def _finish(self) -> None:
        time.sleep(LOAD_S)
        for client in self._clients:
            client.quiet()
        until_s = time.monotonic() + WAIT_S_MAX
        while not self._book.is_drained() and time.monotonic() < until_s:
            time.sleep(0.1)
        time.sleep(2 * LOAD_S)  # locks that lapsed: what would come twice comes now
        for client in self._clients:
            client.end()
        self._clients = []
        self._site.stop_all()
        self.say("all messages are received; the nodes stopped by SIGTERM, with status 0")

    def _prove(self) -> list[str]:
        for client in (PythonClient, JavaScriptClient):
            sent, completed = (self._book.by_client[client.name, action] for action in (SENT, COMPLETED))
            self.say(f"{client.name}: {sent:,} sends and {completed:,} completions were acknowledged")
        return self._book.judge() + self._audit()

    def _audit(self) -> list[str]:
        """Audit the event log of the cluster against what clients report; return what is wrong."""
        ledger = self._folder / "ledger.jsonl"
        self._book.write(ledger, NAMESPACE)
        log = self._site.log_of(NAMESPACE, is_default=True)
        command = ("pipeline", "audit", "--from", str(log), "--ledger", str(ledger), "--drained")
        self.say(f"peeklock {' '.join(command)}")
        done = subprocess.run([program(), *command], check=False)
        return [f"the audit ended with status {done.returncode}"] if done.returncode else []


def missing() -> list[str]:
    """Return what this machine lacks."""
    found = [JavaScriptClient.missing()]
    if binaries() is None:
        found.append("PostgreSQL is not installed: apt-get install postgresql")
    return [text for text in found if text]


def main(arguments: Sequence[str]) -> int:
    """Run the demo; return 0 only if nothing was lost or came twice, and the audit agrees."""
    argparse.ArgumentParser(
        prog="./run cluster-demo",
        description="PostgreSQL with a synchronous standby, three nodes and clients in two languages: the "
        "owner and the primary are killed, and an audit of the event log says what became of each message.",
    ).parse_args(arguments)
    if lacks := missing():
        print("\n".join(f"cluster-demo: {text}" for text in lacks), file=sys.stderr)
        return 2
    try:
        JavaScriptClient.build()
        with tempfile.TemporaryDirectory(prefix="peeklock-cluster-") as folder:
            faults = Demo(Path(folder)).run()
    except (Broken, BrokerFailed, BuildFailed) as failure:
        faults = [str(failure)]
    for fault in faults:
        print(f"FAILED: {fault}")
    if not faults:
        print("Nothing that was acknowledged is lost, and nothing came twice: clients and event log agree.")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
