"""The command line and the client with a broker that is not Service Bus: Apache ActiveMQ Artemis."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bench.artemis import Artemis, artemis_missing
from peeklock.cli import main
from peeklock.client import (
    ABANDON,
    COMPLETE,
    RELEASE,
    BlockingConnection,
    ConnectionString,
    ReceiveMode,
    encode_message,
    scan,
)

pytestmark = [pytest.mark.clients, pytest.mark.long]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if reason := artemis_missing():
        pytest.skip(f"no Artemis: {reason}")  # it needs Java, and Maven to fetch it
    broker = Artemis(tmp_path_factory.mktemp("artemis") / "broker", ("orders",))
    broker.start()
    try:
        yield f"amqp://guest:guest@127.0.0.1:{broker.port}"
    finally:
        broker.stop()


def run(url: str, *words: str, status: int = 0, given: str | None = None) -> Result:
    result = CliRunner().invoke(main, words, input=given, env={"SERVICEBUS_CONNECTION_STRING": url})
    assert result.exit_code == status, f"{words}: {result.output} {result.exception!r}"
    return result


def test_the_client_sends_receives_and_settles(url: str) -> None:
    made = BlockingConnection(ConnectionString.parse(url))
    sender = made.sender("orders")
    sender.send_batch([encode_message(data=b"%d" % n) for n in range(4)])
    sender.flush()
    receiver = made.receiver("orders", ReceiveMode.PEEK_LOCK)
    left = {b"0": COMPLETE, b"1": ABANDON, b"2": RELEASE, b"3": COMPLETE}
    while left:
        for delivery in receiver.receive(10, 10):
            body = scan(delivery.payload).decode_body()[0][1]
            outcome = left.pop(body, COMPLETE)
            receiver.settle(delivery, outcome)
            if outcome is not COMPLETE:
                left[body] = COMPLETE
    receiver.flush()
    assert receiver.receive(10, 0.5) == []
    made.close()


def test_the_commands_send_receive_and_measure(url: str) -> None:
    run(url, "send", "orders", "1 pizza", "--subject", "pizza", "--property", "n:=1")
    lines = "".join(json.dumps({"body": f"{n} cake"}) + "\n" for n in range(3))
    assert run(url, "send", "orders", given=lines).output == "3 messages sent to orders\n"
    found = run(url, "receive", "orders", "--count", "4", "--json").stdout.splitlines()
    rows = [json.loads(each) for each in found]
    assert [each["body"] for each in rows] == ["1 pizza", "0 cake", "1 cake", "2 cake"]
    assert (rows[0]["subject"], rows[0]["properties"]) == ("pizza", {"n": 1})
    run(url, "receive", "orders", "--wait", "0s", status=3)
    measured = json.loads(run(url, "bench", "orders", "--messages", "200", "--json").stdout)
    assert measured["endToEnd"]["messages"] == 200
    assert "only sends and receives" in run(url, "peek", "orders", status=1).stderr


def test_a_login_keeps_the_url(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    run("", "logins", "add", "artemis", "--connection-string", url)
    assert "guest" not in run("", "logins", "list").output
    run("", "send", "orders", "x", "--connection", "artemis")
    assert "x" in run("", "receive", "orders", "--connection", "artemis").output
