"""`python -m bench.cluster URL [relay] [takeover] [move] [churn]`: nodes of a cluster.

The URL names a server with real fsync, on which databases are made. Each part is measured beside what it is
compared with, in turns:

    relay     CPU of both nodes for a message, through the node that owns nothing, and direct
    takeover  from a kill until a client is served: over SQLite by a restart, in a cluster by the other node
    move      from the command until a client is served by the other node
    churn     space of the tables under load, at a constant number of messages
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import psycopg

from bench.run import drive_queue, settle_options, warm_up
from bench.systems import Peeklock

NAMESPACE = "sbemulatorns"
LEASE_S = 5.0
SERVED_S_MAX = 120
PORTION = 50_000
"""Messages between two looks at the tables."""

LIVE = (
    "SELECT (SELECT coalesce(sum(length(data)), 0) FROM peeklock.body) "
    "+ (SELECT coalesce(sum(length(meta)), 0) FROM peeklock.journal)"
)
TABLES = "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relnamespace = 'peeklock'::regnamespace"


class Node(Peeklock):
    """One node."""

    http_port: int | None = None

    def start(self) -> float:
        seconds = Peeklock.start(self)  # a class with slots is made anew, so `super()` would not find it
        while self.http_port is None:  # the log follows the line by which it is known to be ready
            self.http_port = self._logged_port()
        return seconds

    def _logged_port(self) -> int | None:
        """Return the port that it has logged after its start."""
        assert self.process is not None
        for line in reversed((self.folder / "log.txt").read_text().splitlines()):
            if line.endswith("}") and (found := json.loads(line))["event"] == "ready":
                port: int = found["http_port"]
                return port if found["amqp_port"] == self.port else None
        return None

    def kill(self) -> None:
        Peeklock.kill(self)
        self.http_port = None

    def owner(self) -> str | None:
        """Return the node that owns the namespace, as this one says."""
        try:
            with urlopen(f"http://127.0.0.1:{self.http_port}/owner") as answer:
                found: str | None = json.load(answer)["owner"]
                return found
        except HTTPError:
            return None

    def until_owner(self, name: str) -> None:
        """Wait until a node owns the namespace."""
        until_s = time.monotonic() + SERVED_S_MAX
        while self.owner() != name:
            assert time.monotonic() < until_s, f"'{name}' owns nothing"
            time.sleep(0.01)

    def move(self, to: str) -> None:
        """Ask for a move to another node."""
        url = f"http://127.0.0.1:{self.http_port}/$api/v1/cluster/{NAMESPACE}?to={to}"
        urlopen(Request(url, method="POST")).close()


@contextmanager
def two_nodes(url: str, folder: Path) -> Iterator[tuple[Node, Node, str]]:
    """Start nodes a and b on an empty database of a server; a owns the namespace."""
    name = f"bench{uuid.uuid4().hex}"
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(f'CREATE DATABASE "{name}"')
    database = f"{url.rpartition('/')[0]}/{name}"
    folder.mkdir(parents=True, exist_ok=True)
    key = folder / "cluster.key"
    key.write_text("x" * 32)
    nodes = [
        Node(
            folder / each,
            ("bench",),
            options=(f"--store={database}", f"--node={each}", f"--cluster-key={key}"),
        )
        for each in "ab"
    ]
    try:
        for node in nodes:
            node.start()
            node.until_owner("a")
        yield nodes[0], nodes[1], database
    finally:
        for node in nodes:
            node.stop()


def served_s(broker: Peeklock, since_s: float) -> float:
    """Return when a message is accepted, in seconds after a time."""
    drive_queue(broker, "send", 1, timeout_s=SERVED_S_MAX)
    return time.monotonic() - since_s


def relay(url: str, folder: Path, options: argparse.Namespace) -> None:
    """Print the CPU of both nodes for a message."""
    found: dict[str, list[float]] = {"direct": [], "relayed": []}
    with two_nodes(url, folder) as (owner, other, _):
        for entrance in (owner, other):
            warm_up(entrance, entrance.warm_s)
        for _ in range(options.rounds):
            for name, entrance in (("direct", owner), ("relayed", other)):
                before_s = _cpu_s(owner) + _cpu_s(other)
                drive_queue(entrance, "both", options.messages, *settle_options(entrance))
                used_s = _cpu_s(owner) + _cpu_s(other) - before_s
                found[name].append(used_s / options.messages * 1e6)
    direct, relayed = (statistics.median(values) for values in found.values())
    ratio = statistics.median(b / a for a, b in zip(*found.values(), strict=True))
    print(
        f"relay: {direct:.1f} us of CPU a message direct, {relayed:.1f} relayed, ratio {ratio:.2f}",
        flush=True,
    )


def _cpu_s(broker: Peeklock) -> float:
    assert broker.process is not None
    fields = Path(f"/proc/{broker.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime, stime: man 5 proc


def takeover(url: str, folder: Path, options: argparse.Namespace) -> None:
    """Print how long it takes until a client is served after a kill."""
    for backlog in options.backlogs:
        alone = Peeklock(folder / f"sqlite-{backlog}", ("bench",))
        alone.start()
        try:
            drive_queue(alone, "send", backlog, timeout_s=600)
            restarts = []
            for _ in range(options.rounds):
                alone.kill()
                began_s = time.monotonic()
                alone.start()
                restarts.append(served_s(alone, began_s))
        finally:
            alone.stop()
        takeovers = []
        with two_nodes(url, folder / f"nodes-{backlog}") as (owner, other, _):
            drive_queue(owner, "send", backlog, timeout_s=600)
            for _ in range(options.rounds):
                owner.kill()
                takeovers.append(served_s(other, time.monotonic()))
                owner.start()
                owner, other = other, owner
                time.sleep(1)
        restart_s, takeover_s = statistics.median(restarts), statistics.median(takeovers)
        most_s = LEASE_S + 1.5 * restart_s
        print(
            f"takeover: {backlog:,} messages: restart {restart_s:.2f} s, takeover {takeover_s:.2f} s "
            f"(worst {max(takeovers):.2f}), asked {most_s:.2f}",
            flush=True,
        )


def move(url: str, folder: Path, options: argparse.Namespace) -> None:
    """Print how long a move by hand takes, with a backlog and a client that sends meanwhile."""
    took = []
    with two_nodes(url, folder) as (owner, other, _):
        drive_queue(owner, "send", options.backlogs[0], timeout_s=600)
        names = ("a", "b")
        for number in range(2 * options.rounds):
            to = names[(number + 1) % 2]
            began_s = time.monotonic()
            owner.move(to)
            other.until_owner(to)
            took.append(served_s(other, began_s))
            owner, other = other, owner
            time.sleep(0.5)
    print(f"move: {statistics.median(took):.2f} s, worst {max(took):.2f}", flush=True)


def churn(url: str, folder: Path, options: argparse.Namespace) -> None:
    """Print the space of the tables after a while of load, beside that of the messages alone."""
    with two_nodes(url, folder) as (owner, _, database), psycopg.connect(database, autocommit=True) as db:

        def size_mb(query: str) -> float:
            row = db.execute(query).fetchone()
            assert row is not None
            return float(row[0]) / 1e6

        drive_queue(owner, "send", options.backlogs[-1], timeout_s=600)
        worst = 0.0
        until_s, count = time.monotonic() + options.seconds, 0
        while time.monotonic() < until_s:
            drive_queue(owner, "both", PORTION, *settle_options(owner), timeout_s=600)
            count += PORTION
            taken_mb, live_mb = size_mb(TABLES), size_mb(LIVE)
            worst = max(worst, taken_mb / live_mb)
            if options.verbose:
                print(f"{count:,}: {taken_mb:,.0f} MB, of which {live_mb:,.0f} live", flush=True)
        print(
            f"churn: {options.backlogs[-1]:,} messages, {count:,} sent and received in {options.seconds} s: "
            f"{taken_mb:,.0f} MB, of which {live_mb:,.0f} live, at most {worst:.2f} times as much",
            flush=True,
        )


PARTS: dict[str, Callable[[str, Path, argparse.Namespace], None]] = {
    "relay": relay,
    "takeover": takeover,
    "move": move,
    "churn": churn,
}


def main() -> None:
    """Measure, and print a line for each part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="default: all")
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--backlogs", type=int, nargs="+", default=[10_000, 1_000_000])
    parser.add_argument("--seconds", type=int, default=300, help="of churn")
    parser.add_argument("--verbose", action="store_true", help="print each look at the tables")
    options = parser.parse_args()
    for name in options.parts or PARTS:
        with tempfile.TemporaryDirectory() as folder:
            PARTS[name](options.url, Path(folder) / name, options)


if __name__ == "__main__":
    main()
