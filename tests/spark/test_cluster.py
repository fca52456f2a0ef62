"""A streaming query at a cluster whose owner is killed while a batch is under way."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from peeklock.client.connection import BlockingConnection
from peeklock.client.connection_string import ConnectionString
from tests.kill.loop import PROPERTIES
from tests.kill.spark_driver import Plan
from tests.kill.spark_loop import NEVER, Driver, Feed, lane_of, last, messages_of, require_once
from tests.kill.spark_targets import Table
from tests.postgres_server import PostgresServer
from tests.server.cluster.processes import Cluster

KILLS = 2
LANE = lane_of("cursor", Table)


@pytest.fixture
def cluster(postgres: PostgresServer, tmp_path: Path) -> Iterator[Cluster]:
    url = postgres.new_database(f"spark{uuid.uuid4().hex}")
    made = Cluster(url, tmp_path, ("main",), {LANE.name: PROPERTIES})
    try:
        for name in "abc":
            made.start(name)
            made.until(lambda: made.shown("a")["main"] == "a")  # the first one, so that c owns nothing
        yield made
    finally:
        made.kill()


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.timeout(480)  # two starts of Java, on cores that others use
def test_every_message_comes_once_when_the_owner_dies_in_mid_batch(cluster: Cluster, tmp_path: Path) -> None:
    """The query goes on at the next owner; the driver is killed too, before it ends. Req: X-02."""
    text = cluster.nodes["c"].connection_string
    settings = ConnectionString.parse(text)
    feed = Feed()
    feeding = threading.Thread(target=feed.run, args=(settings, [LANE.name]))
    feeding.start()
    drivers = [Driver(tmp_path, Plan(text, [LANE], finish=False), sys.executable)]
    try:
        drivers[0].wait_until_ready()
        for _ in range(KILLS):
            kill_owner_in_mid_batch(cluster, tmp_path)
        feed.stopped = True
        feeding.join()
        if feed.failure is not None:
            raise feed.failure
        drivers[0].kill()
        drivers.append(Driver(tmp_path, Plan(text, [LANE], finish=True), sys.executable))
        drivers[1].wait_until_done()
    finally:
        feed.stopped = True
        feeding.join()
        for driver in drivers:
            driver.kill_all()
    for driver in drivers:
        again = [line for line in driver.said() if line.startswith("again ")]
        assert not [line for line in again if any(name in line for name in NEVER)]
    bodies = json.loads((tmp_path / f"rows-{LANE.name}.json").read_text())
    assert feed.count >= 100
    require_once("the table", {f"uid={number:08d}" for number in range(feed.count)}, bodies)
    with contextlib.closing(BlockingConnection(settings)) as connected:
        assert not messages_of(connected, LANE.name)


def kill_owner_in_mid_batch(cluster: Cluster, folder: Path) -> None:
    """Kill the owner while a batch is planned and not committed; wait until later batches are committed."""
    checkpoint = folder / f"checkpoint-{LANE.name}"

    def last_of(log: str) -> int:
        return last(checkpoint / log)

    def later_than(batch: int) -> bool:
        return last_of("commits") > batch

    is_in_mid_batch = False
    while not is_in_mid_batch:  # a batch may have ended before the kill
        owner = cluster.shown("c")["main"]
        assert owner is not None
        cluster.until(lambda: last_of("offsets") > last_of("commits"))
        cluster.nodes[owner].kill()
        time.sleep(0.2)  # longer than the end of a batch takes whose rows are all there
        is_in_mid_batch = last_of("offsets") > last_of("commits")
        cluster.nodes[owner].start()
        cluster.until(partial(later_than, last_of("offsets")))
