"""The event log of a namespace that moves between nodes: by hand, by a kill, and from a frozen owner."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from peeklock.capture.folder import LOCK_NAME
from peeklock.capture.manifest import MANIFEST_NAME, digest_of, parse
from peeklock.cli import main
from peeklock.demo.broker import BrokerFailed, BrokerProcess
from peeklock.store.postgres.leases import TTL_S
from tests.capture.stores import rows
from tests.kill.test_cluster import owner_of
from tests.kill.test_postgres import Sender, drained
from tests.postgres_server import PostgresServer
from tests.server.cluster.processes import Cluster

pytestmark = pytest.mark.kill


@pytest.fixture
def cluster(postgres: PostgresServer, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(postgres.new_database(f"log{uuid.uuid4().hex}"), tmp_path, ("main",))
    made.options = (*made.options, f"--capture={tmp_path / 'log'}", "--capture-interval=0.2")
    try:
        yield made
    finally:
        made.kill()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def under_load(cluster: Cluster) -> tuple[BrokerProcess, Sender]:
    """Start three nodes, and a client of the third one; the first owns the namespace."""
    for name in "abc":
        cluster.start(name)
        cluster.until(lambda: cluster.shown("a")["main"] == "a")
    entrance = cluster.nodes["c"]
    sender = Sender(entrance)
    sender.start()
    sender.wait_for_more()
    return entrance, sender


def check(cluster: Cluster, sender: Sender, log: Path) -> None:
    """Receive all, stop all nodes, and hold the log against what the client was told."""
    sender.ends.set()
    sender.join(60)
    entrance = cluster.nodes["c"]
    found = drained(entrance)
    assert not [number for number in sender.acknowledged if found[number] != 1]
    for node in cluster.nodes.values():
        with contextlib.suppress(BrokerFailed):  # it has stopped by itself
            node.check()
            node.stop()
    cluster.until(lambda: not exporters_of(log))
    kinds = Counter(row["event_type"] for row in rows(log))
    events = Counter((row["event_type"], row.get("sequence_number")) for row in rows(log))
    assert not kinds["gap"]
    assert kinds["enqueued"] == kinds["completed"] == len(found)
    assert all(
        count == 1 for (kind, number), count in events.items() if kind in ("enqueued", "completed") and number
    )
    manifest = parse((log / MANIFEST_NAME).read_text())
    files = sorted(log.glob("event_date=*/*/*.parquet"), key=lambda path: path.name)
    assert [path.relative_to(log).as_posix() for path in files] == list(manifest.entries)
    entries = list(manifest.entries.values())
    assert entries[0].first_no == 1
    assert all(after.first_no == before.last_no + 1 for before, after in pairwise(entries))
    assert [digest_of(path) for path in files] == [entry.sha256 for entry in entries]


def exporters_of(log: Path) -> list[int]:
    """Return the processes that have the lock file of a log open."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(
                os.readlink(descriptor) == str(log / LOCK_NAME) for descriptor in (process / "fd").iterdir()
            ):
                found.append(int(process.name))
    return found


def children(pid: int) -> list[int]:
    return [
        int(child)
        for text in Path(f"/proc/{pid}/task").glob("*/children")
        for child in text.read_text().split()
    ]


def choose(cluster: Cluster, *node: str) -> None:
    arguments = ["cluster", "move", "main", *node, f"--data={cluster.nodes['c'].data}"]
    assert CliRunner().invoke(main, arguments).exit_code == 0


def move(cluster: Cluster, target: str) -> None:
    choose(cluster, target)
    cluster.until(lambda: cluster.shown("c")["main"] == target)


def test_a_log_goes_on_when_its_namespace_moves_or_its_owner_is_killed(cluster: Cluster, log: Path) -> None:
    """Req: X-03"""
    _, sender = under_load(cluster)
    for target in "baba":
        move(cluster, target)
        sender.wait_for_more()
    choose(cluster)  # else the namespace goes back to a node that starts again, while all is received
    for _ in range(2):
        owner = cluster.nodes[owner_of(cluster)]
        owner.kill()
        sender.wait_for_more()
        owner.start()
    check(cluster, sender, log)


def test_an_owner_that_was_frozen_adds_nothing_to_the_log(cluster: Cluster, log: Path) -> None:
    """Its exporter is frozen too, with the lock of the folder. Req: X-03"""
    _, sender = under_load(cluster)
    owner = cluster.nodes[owner_of(cluster)]
    assert owner.pid is not None
    frozen = [owner.pid, *children(owner.pid)]
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    sender.wait_for_more()
    time.sleep(3 * TTL_S)
    exporting = cluster.get("c", "/health", "main.localhost")[1]["capture"]
    assert isinstance(exporting, dict)
    assert exporting["state"] == "running"
    assert exporting["lag_s"] < 2 * TTL_S
    for pid in frozen:
        os.kill(pid, signal.SIGCONT)
    sender.wait_for_more()
    check(cluster, sender, log)


def test_a_namespace_moves_while_its_exporter_is_frozen(cluster: Cluster, log: Path) -> None:
    """The exporter is to write the rest, and leaves it to that of the next owner. Req: X-03"""
    _, sender = under_load(cluster)
    owner = cluster.nodes["a"]
    assert owner.pid is not None
    frozen = children(owner.pid)
    assert len(frozen) == 1
    os.kill(frozen[0], signal.SIGSTOP)
    move(cluster, "b")

    def is_exporting() -> bool:
        exporting = cluster.get("b", "/health", "main.localhost")[1].get("capture")
        return isinstance(exporting, dict) and exporting["state"] == "running"

    cluster.until(is_exporting)
    os.kill(frozen[0], signal.SIGCONT)
    sender.wait_for_more()
    cluster.until(lambda: "another exporter has taken the event log" in owner.log.read_text())
    for name in "ab":
        lines = cluster.nodes[name].log.read_text().splitlines()
        failures = [line for line in lines if "the event log cannot be written" in line]
        # Of the former owner, whose exporter may be frozen before it reads that it is to finish.
        assert all(name == "a" and "another exporter has taken the event log" in line for line in failures)
    check(cluster, sender, log)
