"""A stream over a broker that accepts web tokens alone, for longer than a token lives."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from peeklock.amqp.message_writing import encode_message
from peeklock.client.connection import connection
from peeklock.client.connection_string import ConnectionString
from tests.client.test_token_file import QUEUE, TokenBroker, token_broker

pytestmark = [pytest.mark.spark, pytest.mark.soak]

__all__ = ["token_broker"]

TOKEN_S = 4.0
"""Lifetime of a token. A stream asks more often than each tenth of it."""


def until(found: Callable[[], object]) -> None:
    """Wait for what Spark does, which may have to start processes for it."""
    deadline = time.monotonic() + 90
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_stream_outlives_its_tokens_and_names_a_file_that_is_gone(
    spark: Any, token_broker: TokenBroker, tmp_path: Path
) -> None:
    """The tokens expire by the machine's clock. Req: R-04, X-01"""
    file = tmp_path / "token"
    options = {"connectionString": token_broker.connection_string, "tokenFile": str(file), "entity": QUEUE}
    token_broker.put_token(file, TOKEN_S)
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(TOKEN_S / 4):
            token_broker.put_token(file, TOKEN_S)

    renewing = threading.Thread(target=renew, daemon=True)
    renewing.start()
    rows = spark.readStream.format("servicebus").options(**options, consumerName="tokens").load()
    query = (
        rows.select("body")
        .writeStream.format("memory")
        .queryName("by_tokens")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        settings = ConnectionString.parse(token_broker.connection_string, token_file=str(file))
        sender = connection(settings).sender(QUEUE)
        for number in range(3):
            sender.send(encode_message(data=str(number).encode()))
            sender.flush()
            until(lambda: query.exception() or len(spark.table("by_tokens").collect()) > number)  # noqa: B023  # at once
            ended.wait(TOKEN_S)
        assert query.exception() is None
        spark.createDataFrame([("by the sink",)], "body string").write.format("servicebus").options(
            **options
        ).mode("append").save()
        until(lambda: len(spark.table("by_tokens").collect()) == 4)
        ended.set()
        renewing.join()
        file.unlink()
        until(query.exception)
        text = str(query.exception())
        assert f"option tokenFile is '{file}': on host {socket.gethostname()} the file cannot be read" in text
        bodies = {bytes(row.body) for row in spark.table("by_tokens").collect()}
        assert bodies == {b"0", b"1", b"2", b"by the sink"}
    finally:
        ended.set()
        query.stop()
