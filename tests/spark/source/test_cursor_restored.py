"""A query whose checkpoint is newer than the back-up that the broker was restored from."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from peeklock.client import BlockingConnection, ConnectionString, encode_message
from peeklock.demo.broker import BrokerProcess, program
from peeklock.spark.options import Options, Use, read_options
from peeklock.spark.source.cursor import CursorStreamReader
from peeklock.spark.source.offsets import DataLoss
from tests.spark.engine import SCHEMA, Checkpoint, Query
from tests.spark.streams import numbered

pytestmark = pytest.mark.spark


@pytest.fixture
def before(tmp_path: Path) -> Iterator[BrokerProcess]:
    config = tmp_path / "Config.json"
    queues = [{"Name": "orders"}, {"Name": "later"}]
    config.write_text(json.dumps({"UserConfig": {"Namespaces": [{"Name": "bank", "Queues": queues}]}}))
    folder = tmp_path / "before"
    folder.mkdir()
    with BrokerProcess(folder, [f"--config={config}"]) as broker:
        yield broker


def send(broker: BrokerProcess, queue: str, bodies: list[str]) -> None:
    connection = BlockingConnection(ConnectionString.parse(broker.connection_string, timeout_s=10))
    sender = connection.sender(queue)
    for body in bodies:
        sender.send(encode_message(data=body.encode()))
    sender.flush()
    connection.close()


def options_for(broker: BrokerProcess, queue: str, **more: str) -> Options:
    given = {"connectionString": broker.connection_string, "entity": queue, "consumerName": "lake"}
    return read_options({**given, "maxMessagesPerTrigger": "10", **more}, Use.STREAM_READ)


def drain(options: Options, checkpoint: Checkpoint) -> Checkpoint:
    Query(lambda: CursorStreamReader(options, SCHEMA), checkpoint, available_now=True).run()
    return checkpoint


def run(*arguments: object) -> None:
    subprocess.run([program(), *map(str, arguments)], check=True, capture_output=True, timeout=60)


@pytest.fixture
def restored(tmp_path: Path, before: BrokerProcess) -> Iterator[Callable[[], BrokerProcess]]:
    """Back up; the value stops the broker, and returns one on the restored folder at the same ports."""
    folder = tmp_path / "after"
    folder.mkdir()
    after = BrokerProcess(folder)

    def restore() -> BrokerProcess:
        before.stop()
        run("restore", tmp_path / "file.backup", "--data", after.data)
        after.amqp_port, after.http_port = before.amqp_port, before.http_port
        after.start()
        return after

    try:
        yield restore
    finally:
        after.kill()


def test_a_newer_checkpoint_names_the_restore_and_the_option_that_goes_on(
    tmp_path: Path, before: BrokerProcess, restored: Callable[[], BrokerProcess]
) -> None:
    """Req: X-02."""
    options = options_for(before, "orders")
    send(before, "orders", numbered(20))
    checkpoint = drain(options, Checkpoint())
    send(before, "orders", numbered(15, 20))
    run("backup", "--data", before.data, "--to", tmp_path / "file.backup")
    drain(options, checkpoint)
    assert checkpoint.bodies == numbered(35)
    after = restored()
    with pytest.raises(DataLoss) as refusal:
        drain(options, checkpoint)
    said = str(refusal.value)
    assert "Entity 'orders' no longer has the claims of the checkpoint" in said
    assert "the broker was restored from a back-up that ends with claim 2 of cursor 'lake'" in said
    assert "What the query has read since then comes again" in said
    assert "option failOnDataLoss=false to continue without" in said
    drain(options_for(after, "orders", failOnDataLoss="false"), checkpoint)
    send(after, "orders", numbered(5, 35))
    drain(options, checkpoint)
    assert sorted(checkpoint.bodies) == sorted(numbered(40) + numbered(15, 20)), "15 came again, none is lost"


def test_a_cursor_that_the_back_up_does_not_have_is_named_too(
    tmp_path: Path, before: BrokerProcess, restored: Callable[[], BrokerProcess]
) -> None:
    """Req: X-02."""
    run("backup", "--data", before.data, "--to", tmp_path / "file.backup")
    send(before, "later", numbered(5))
    options = options_for(before, "later")
    checkpoint = drain(options, Checkpoint())
    restored()
    with pytest.raises(DataLoss, match="restored from a back-up without the cursor"):
        drain(options, checkpoint)
