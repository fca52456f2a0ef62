"""`peeklock bench` against a broker: figures, messages of others, Ctrl-C, and what it refuses."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from array import array
from collections.abc import Callable, Iterator
from typing import Any
from urllib.request import urlopen

import pytest
from click.testing import CliRunner, Result

from peeklock.cli import main
from peeklock.client import Administration, BlockingConnection, ConnectionString, ReceiveMode, load
from peeklock.testing.served import ServedBroker
from tests.cli.commands import put

ELSEWHERE = "Endpoint=sb://192.0.2.1;SharedAccessKeyName=k;SharedAccessKey=s"
"""An address that no machine has. Source: RFC 5737."""


@pytest.fixture(scope="module")
def served() -> Iterator[ServedBroker]:
    with ServedBroker() as broker:
        administration = Administration.of(ConnectionString.parse(broker.connection_string))
        for name in ("orders", "shared", "full"):
            administration.create("queue", name, {})
        administration.create("topic", "news", {})
        administration.create("subscription", "news/Subscriptions/sport", {})
        yield broker


@pytest.fixture
def run(served: ServedBroker) -> Callable[..., Result]:
    def invoke(*arguments: str) -> Result:
        environment = {"SERVICEBUS_CONNECTION_STRING": served.connection_string}
        return CliRunner().invoke(main, arguments, env=environment)

    return invoke


def started(served: ServedBroker, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "peeklock", "bench", *arguments],
        env={**os.environ, "SERVICEBUS_CONNECTION_STRING": served.connection_string},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def there(run: Callable[..., Result], entity: str) -> list[dict[str, Any]]:
    return [json.loads(each) for each in run("search", entity, "--json").stdout.splitlines()]


def received(served: ServedBroker) -> float:
    """Return how many messages the broker has accepted."""
    with urlopen(f"http://localhost:{served.port}/metrics") as page:
        found = re.search(rb"\npeeklock_messages_received_total\{namespace=.* (.*)", page.read())
    assert found is not None
    return float(found[1])


def test_it_measures_and_leaves_nothing(run: Callable[..., Result]) -> None:
    result = run("bench", "orders", "--messages", "500", "--size", "100", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    found = json.loads(result.stdout)
    assert (found["entity"], found["sizeBytes"], found["missing"], found["released"]) == ("orders", 100, 0, 0)
    for row in (found["send"], found["endToEnd"]):
        assert row["messages"] == 500
        assert row["rate"] == pytest.approx(500 / row["seconds"], rel=0.1)
        assert 0 < row["latencyMs"]["p50"] <= row["latencyMs"]["p90"] <= row["latencyMs"]["p99"]
        assert row["latencyMs"]["p99"] <= row["latencyMs"]["max"]
    assert found["send"]["latencyMs"]["p50"] < found["endToEnd"]["latencyMs"]["max"]
    assert there(run, "orders") == []


@pytest.mark.parametrize("only", ["send", "receive"])
def test_one_half_is_measured_alone(run: Callable[..., Result], only: str) -> None:
    result = run("bench", "orders", "--messages", "300", "--only", only)
    assert (result.exit_code, result.stderr) == (0, "")
    head, row = result.stdout.splitlines()
    assert head.split() == ["MESSAGES", "RATE/S", "P50", "MS", "P90", "MS", "P99", "MS", "MAX", "MS"]
    assert row.split()[:2] == [only, "300"]
    assert (row.split()[3:] == ["-"] * 4) is (only == "receive")
    assert there(run, "orders") == []


def test_a_rate_is_kept(run: Callable[..., Result]) -> None:
    found = json.loads(run("bench", "orders", "--rate", "100", "--seconds", "1", "--json").stdout)
    assert found["wantedRate"] == 100
    assert 50 <= found["send"]["messages"] <= 100
    assert found["send"]["rate"] < 110


def test_messages_of_others_are_released(served: ServedBroker, run: Callable[..., Result]) -> None:
    connection = BlockingConnection(ConnectionString.parse(served.connection_string))
    before = received(served)
    with started(served, "shared", "--rate", "50", "--seconds", "3", "--json") as process:
        while received(served) == before:
            assert process.poll() is None
        put(connection, "shared", *["of another"] * 20)
        out, err = process.communicate(timeout=60)
    connection.close()
    assert process.returncode == 0, err
    assert json.loads(out)["missing"] == 0
    assert "released messages of others" in err
    assert [(each["body"], each["deliveryCount"]) for each in there(run, "shared")] == [
        ("of another", 0)
    ] * 20


def test_ctrl_c_shows_what_was_measured_and_clears_the_queue(
    served: ServedBroker, run: Callable[..., Result]
) -> None:
    with started(served, "orders", "--seconds", "600", "--json") as process:
        while not there(run, "orders"):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    found = json.loads(out)
    assert found["send"]["messages"] == found["endToEnd"]["messages"] > 0
    assert there(run, "orders") == []


def test_what_another_receiver_takes_is_missing(
    served: ServedBroker, run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "PATIENCE_S", 0.5)
    connection = BlockingConnection(ConnectionString.parse(served.connection_string))
    receiver = connection.receiver("orders", ReceiveMode.RECEIVE_AND_DELETE)
    taken: list[object] = []
    thread = threading.Thread(target=lambda: taken.extend(receiver.receive(1, 30)))
    thread.start()
    result = run("bench", "orders", "--messages", "2000", "--json")
    thread.join()
    connection.close()
    assert result.exit_code == 1
    assert json.loads(result.stdout)["missing"] == len(taken) > 0
    assert "did not arrive" in result.stderr


def test_a_queue_with_messages_is_refused(run: Callable[..., Result]) -> None:
    assert run("send", "full", "of another").exit_code == 0
    result = run("bench", "full")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "peeklock: 'full' has messages: measure an empty queue, made for it.\n"
    assert [each["deliveryCount"] for each in there(run, "full")] == [0]


def test_a_topic_is_refused_before_anything_is_sent(run: Callable[..., Result]) -> None:
    result = run("bench", "news", "--messages", "10")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("peeklock: ")
    assert there(run, "news/Subscriptions/sport") == []


def test_a_message_above_the_limit_is_refused(run: Callable[..., Result]) -> None:
    result = run("bench", "orders", "--size", "300000", "--messages", "1")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "the limit is 262144" in result.stderr


def test_another_machine_is_asked_for() -> None:
    environment = {"SERVICEBUS_CONNECTION_STRING": ELSEWHERE}
    result = CliRunner().invoke(main, ["bench", "orders"], env=environment)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "peeklock: 10 s of messages of 1,024 bytes to 'orders' of 192.0.2.1, another machine, are not sent "
        "without --yes.\n"
    )
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "peeklock", "bench", "orders", "--messages", "5", "--rate", "2"],
        env={**os.environ, **environment},
        stdin=theirs,
        stdout=subprocess.PIPE,
        text=True,
    )
    os.write(ours, b"n\n")
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 1
    assert out.startswith(
        "Send 5 messages of 1,024 bytes at 2 a second to 'orders' of 192.0.2.1? It may cost"
    )
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize("further", [("--rate", "1"), ("--seconds", "1")])
def test_options_of_sending_are_not_of_receiving(
    run: Callable[..., Result], further: tuple[str, str]
) -> None:
    result = run("bench", "orders", "--only", "receive", *further)
    assert result.exit_code == 2
    assert "--only receive takes --messages" in result.stderr


@pytest.mark.parametrize("further", [("--rate", "nan"), ("--seconds", "inf")])
def test_what_is_no_number_is_refused(run: Callable[..., Result], further: tuple[str, str]) -> None:
    result = run("bench", "orders", *further)
    assert result.exit_code == 2
    assert "are numbers" in result.stderr


def test_percentiles() -> None:
    assert load.percentiles_ms(array("q")) == {}
    assert load.percentiles_ms(array("q", [5_000_000])) == dict.fromkeys(("p50", "p90", "p99", "max"), 5.0)
    ordered = array("q", range(1_000_000, 102_000_000, 1_000_000))
    assert load.percentiles_ms(ordered) == {"p50": 51.0, "p90": 91.0, "p99": 100.0, "max": 101.0}
