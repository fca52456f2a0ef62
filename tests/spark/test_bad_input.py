"""A stream that starts again with what does not fit: it is refused by name, and skips nothing afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from peeklock.amqp.message_writing import encode_message
from peeklock.client.connection import BlockingConnection
from peeklock.testing.served import ServedBroker
from tests.spark.sink.test_sink import arrived, failure

pytestmark = pytest.mark.spark


class Copy:
    """A stream from one queue to another, over one checkpoint."""

    def __init__(self, spark: Any, broker: ServedBroker, source: str, target: str, checkpoint: Path) -> None:
        self._spark = spark
        self._target = {"connectionString": broker.connection_string, "entity": target}
        self._source = {**self._target, "entity": source, "consumerName": "copy"}
        self._checkpoint = checkpoint

    def run(self, *columns: str, schema: str = "body binary") -> None:
        """Copy what is there."""
        rows = self._spark.readStream.format("servicebus").options(**self._source)
        query = (
            rows.schema(schema)
            .load()
            .selectExpr("body", *columns)
            .writeStream.format("servicebus")
            .options(**self._target, checkpointLocation=str(self._checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)
        if query.exception() is not None:
            raise query.exception()

    def set_version(self, version: int) -> None:
        """Have the newest offset say that a release with another format wrote it."""
        log = max((self._checkpoint / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
        lines = log.read_text().splitlines()
        offset = json.loads(lines[-1])
        offset["version"] = version
        log.write_text("\n".join([*lines[:-1], json.dumps(offset)]))
        (log.parent / f".{log.name}.crc").unlink(missing_ok=True)


def test_what_does_not_fit_is_refused_by_name_and_nothing_is_skipped(
    spark: Any,
    broker: ServedBroker,
    client: Any,
    own: BlockingConnection,
    make_queue: Callable[..., str],
    tmp_path: Path,
) -> None:
    """Req: X-01, X-02"""
    source, target = make_queue(), make_queue()
    copy = Copy(spark, broker, source, target, tmp_path / "checkpoint")
    sender = own.sender(source)
    sender.send(encode_message(data=b"1"))
    sender.flush()
    copy.run()
    sender.send(encode_message(data=b"2"))
    sender.flush()
    # The rows get a column, then another type; Spark itself checks neither.
    text = failure(lambda: copy.run("'red' AS colour"))
    assert "Column 'colour' cannot be sent" in text
    text = failure(lambda: copy.run(schema="body int"))
    assert "column body is int in the schema, and binary in messages: correct .schema(...)" in text
    copy.set_version(99)
    text = failure(copy.run)
    assert f"The checkpoint of the entities {source} is of a newer release of peeklock" in text
    assert "has version 99" in text
    assert "Install that release, or set option checkpointLocation to a new folder" in text
    copy.set_version(2)
    copy.run()
    assert [str(message) for message in arrived(client, target, 2)] == ["1", "2"]
    arrived(client, source, 0)
