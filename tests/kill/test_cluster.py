"""Owners in a cluster are killed and frozen under load; what clients were promised is compared with what is
there. The clients use a node that owns nothing."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from peeklock.demo.broker import BrokerProcess
from peeklock.store.postgres.leases import TTL_S
from tests.kill.test_postgres import Sender, check_all
from tests.postgres_server import PostgresServer, require_postgres
from tests.server.cluster.processes import Cluster, gifts, until_let_go

SECONDS = 2.0
"""Of load between two faults."""


@pytest.fixture
def cluster(postgres: PostgresServer, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(postgres.new_database(f"cluster{uuid.uuid4().hex}"), tmp_path, ("main",))
    try:
        yield made
    finally:
        made.kill()


def owner_of(cluster: Cluster) -> str:
    cluster.until(lambda: cluster.shown("c")["main"] in ("a", "b"))
    found = cluster.shown("c")["main"]
    assert found is not None
    return found


def test_nothing_acknowledged_is_lost_when_owners_are_killed_and_frozen(cluster: Cluster) -> None:
    """A frozen owner lets go of its namespace when it goes on. Req: R-01, R-02."""
    for name in "abc":
        cluster.start(name)
        cluster.until(lambda: cluster.shown(next(iter(cluster.nodes)))["main"] is not None)
    entrance = cluster.nodes["c"]
    sender = Sender(entrance)
    sender.start()
    for fault in (kill, freeze, kill, freeze):
        sender.wait_for_more()
        time.sleep(SECONDS)
        owner = cluster.nodes[owner_of(cluster)]
        fault(cluster, owner)
        sender.wait_for_more()
        owner.start()
        entrance.check()
    check_all(entrance, sender)


def kill(cluster: Cluster, owner: BrokerProcess) -> None:
    owner.kill()


def freeze(cluster: Cluster, owner: BrokerProcess) -> None:
    """Freeze a node until another one owns its namespace; before, it could renew its lease and go on."""
    assert owner.pid is not None
    frozen, before = owner_of(cluster), gifts(owner)
    os.kill(owner.pid, signal.SIGSTOP)
    cluster.until(lambda: cluster.shown("c")["main"] not in (None, frozen))
    os.kill(owner.pid, signal.SIGCONT)
    until_let_go(owner, before)
    owner.kill()


def test_an_outage_of_the_database_moves_nothing(tmp_path: Path) -> None:
    """It is longer than a lease: when the database is back, each owner renews before another node takes.
    Req: R-02"""
    require_postgres()
    server = PostgresServer()
    cluster = Cluster(server.url(), tmp_path, ("main", "one", "two"))
    try:
        server.start()
        for name in "abc":
            cluster.start(name)
        cluster.until(lambda: sorted(map(str, cluster.shown("a").values())) == ["a", "b", "c"])
        leases = "SELECT name, epoch, session FROM peeklock.lease WHERE name <> 'system' ORDER BY name"
        before = server.execute(leases)
        for _ in range(2):
            server.stop("immediate")
            time.sleep(1.5 * TTL_S)
            server.start()
            time.sleep(1.5 * TTL_S)
            assert server.execute(leases) == before
        for node in cluster.nodes.values():
            node.check()
    finally:
        cluster.kill()
        server.remove()
