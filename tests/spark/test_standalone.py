"""A standalone cluster: executors in processes of their own, over TLS, on loopback alone."""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from peeklock.testing.served import ServedBroker
from tests.spark.processes import Socket, listening, needs_proc, sockets, tree
from tests.spark.standalone import ROOT, Standalone, standalone
from tests.spark.streams import Namespace
from tests.spark.test_key_order import EXPECTED, numbered_queue, numbers_by_session
from tests.spark_session import QUICK_JAVA

pytestmark = pytest.mark.spark

DRIVER = """
import json, sys
from peeklock.spark.session import spark_session

plan = json.loads(sys.argv[1])
spark = spark_session("cluster", plan["master"], **plan["conf"])
rows = spark.readStream.format("servicebus").options(**plan["from"]).load().select("body", "sessionId")
sink = rows.writeStream.format("servicebus").options(**plan["to"])
sink = sink.option("checkpointLocation", plan["checkpoint"])
sink.trigger(availableNow=True).start().awaitTermination()
print("done", flush=True)
sys.stdin.read()
spark.stop()
"""


@pytest.fixture(scope="module")
def namespace(broker: ServedBroker, administration: Any) -> Namespace:
    return Namespace(broker, administration)


@contextmanager
def driver(cluster: Standalone, folder: Path, **plan: Any) -> Iterator[int]:
    """Run a query from queue to queue on a cluster; yield the id of its process when the query has ended."""
    conf = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": QUICK_JAVA,
        "spark.driver.memory": "512m",
        "spark.executor.extraJavaOptions": QUICK_JAVA,
        "spark.executor.memory": "500m",
    }
    plan |= {"master": cluster.url, "conf": conf, "checkpoint": str(folder / "checkpoint")}
    errors = folder / "driver.log"
    with errors.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, json.dumps(plan)],
            cwd=ROOT,
            env=cluster.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "done\n", errors.read_text()
        yield process.pid
    finally:
        process.stdin.close()
        process.wait(60)


@pytest.mark.soak
@pytest.mark.timeout(480)  # six starts of Java, on cores that others use
@needs_proc
def test_executors_read_and_write_over_tls_in_the_order_of_each_session(
    namespace: Namespace, tmp_path: Path
) -> None:
    """The broker has its own authority; no process of Spark listens beyond the loopback interface.

    Req: X-01, X-02
    """
    broker = namespace.broker
    source, target = numbered_queue(namespace), namespace.queue()
    common = {
        "connectionString": broker.connection_string.replace("UseDevelopmentEmulator=true;", ""),
        "caFile": broker.ca_file,
    }
    read = {"partitionBy": "sessionId", "minPartitions": "4", "maxMessagesPerTrigger": "500"}
    with (
        standalone(tmp_path) as cluster,
        driver(
            cluster, tmp_path, to=common | {"entity": target}, **{"from": common | read | {"entity": source}}
        ) as pid,
    ):
        executors = [
            {each.peer_port for below in tree(worker) for each in sockets(below) if each.is_connected}
            for worker in cluster.workers
        ]
        ports = set.union(*map(listening, (pid, cluster.master, *cluster.workers)))
    assert all(broker.port in peers for peers in executors), "an executor has not reached the broker"
    assert len(ports) >= 6, "the master, both workers, the driver and both executors listen"
    assert [each for each in ports if not each.is_on_loopback] == []
    assert numbers_by_session(namespace, target) == EXPECTED


@pytest.mark.parametrize(
    ("address", "is_on_loopback"),
    [("127.0.0.1", True), ("::ffff:127.0.0.1", True), ("0.0.0.0", False), ("::", False), ("10.0.0.1", False)],
)
def test_what_is_on_loopback(address: str, is_on_loopback: bool) -> None:
    assert Socket(ipaddress.ip_address(address), 1, 0, "0A").is_on_loopback is is_on_loopback


@needs_proc
def test_the_sockets_of_a_process_are_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            found = [each for each in sockets(os.getpid()) if port in (each.port, each.peer_port)]
    assert [each.is_listening for each in found].count(True) == 1
    assert [each.is_connected for each in found].count(True) == 1
    assert all(each.is_on_loopback for each in found)


@needs_proc
@pytest.mark.usefixtures("spark")
def test_a_local_session_listens_on_loopback_alone() -> None:
    ports = set.union(*map(listening, tree(os.getpid())[1:]))
    assert ports
    assert [each for each in ports if not each.is_on_loopback] == []
