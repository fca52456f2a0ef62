"""`peeklock move` and `dead-letters resubmit` as processes: they and the broker are killed at random."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from peeklock.client import (
    Administration,
    BlockingConnection,
    ConnectionString,
    Properties,
    ReceiveMode,
    encode_message,
    scan,
)
from peeklock.client.browsing import Browser
from peeklock.client.links import dead_letter
from peeklock.demo.broker import BrokerProcess

COUNT = 6000
FILTER = ("--filter", "n % 3 <> 0")
WANTED = {f"id-{number}" for number in range(COUNT) if number % 3}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with started_broker(tmp_path / "data") as process:
        yield process


def started_broker(folder: Path) -> BrokerProcess:
    folder.mkdir()
    return BrokerProcess(folder)


def administration_of(process: BrokerProcess) -> Administration:
    text = process.connection_string.replace(f":{process.amqp_port};", f":{process.http_port};")
    return Administration.of(ConnectionString.parse(text))


def command(process: BrokerProcess, folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "peeklock", *words],
        env={
            **os.environ,
            "SERVICEBUS_CONNECTION_STRING": process.connection_string,
            "XDG_STATE_HOME": str(folder / "state"),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def fill(process: BrokerProcess, path: str, count: int = COUNT) -> BlockingConnection:
    connection = BlockingConnection(ConnectionString.parse(process.connection_string))
    sender = connection.sender(path, in_flight_max=4000)
    for number in range(count):
        properties = Properties(message_id=f"id-{number}")
        sender.send(encode_message(properties=properties, application_properties={"n": number}, data=b"x"))
    sender.flush()
    return connection


def ids(connection: BlockingConnection, path: str) -> Counter[str]:
    """Return how often each message is in an entity; the parts of new ids are cut off."""
    return Counter(
        str(scan(payload).decode_properties().message_id).split("+")[0]
        for page in Browser(connection, path).read()
        for payload in page
    )


def wait_for_some(connection: BlockingConnection, path: str) -> None:
    """Return when there is a message."""
    browser = Browser(connection, path)
    while not browser.peek(0, 1):
        time.sleep(0.02)


def go_on_until_done(
    process: BrokerProcess, folder: Path, words: tuple[str, ...], seed: int
) -> tuple[int, str]:
    """Run a command, kill it after a while, and go on from its checkpoint; return how often, and the end."""
    draw = random.Random(seed)
    again = words
    for kills in range(60):
        started = command(process, folder, *again)
        try:
            out, err = started.communicate(timeout=draw.uniform(0.35, 1.2) if kills < 5 else 60)
            assert started.returncode == 0, err
            return kills, out
        except subprocess.TimeoutExpired:
            started.send_signal(signal.SIGKILL)
            started.communicate()
        files = [*folder.rglob("state/**/*.json")]
        if files:
            [file] = files
            stem = words[:1] if words[0] == "move" else words[:2]
            there = [w for w in words if w == "--to-connection-string"]
            tail = words[words.index(there[0]) :][:2] if there else ()
            again = (*stem, "--resume", str(file), *tail)
    raise AssertionError("it does not end")


def test_a_move_killed_again_and_again_moves_each_message_once(broker: BrokerProcess, tmp_path: Path) -> None:
    """Req: R-02, F-03."""
    ours = administration_of(broker)
    ours.create("queue", "here", {"LockDuration": timedelta(seconds=5)})
    ours.create("queue", "there", {})
    connection = fill(broker, "here")
    kills, out = go_on_until_done(broker, tmp_path, ("move", "here", "there", *FILTER), seed=1)
    assert kills, "never killed"
    assert out.splitlines()[-1].endswith("messages moved to there")
    arrived = ids(connection, "there")
    assert ({*arrived}, {*arrived.values()}) == (WANTED, {1})
    assert len(ids(connection, "here")) == COUNT - len(WANTED)
    assert not [*tmp_path.rglob("state/**/*.json")]
    connection.close()


@pytest.mark.parametrize("detects", [True, False])
def test_a_move_to_another_namespace_loses_nothing(
    broker: BrokerProcess, tmp_path: Path, detects: bool
) -> None:
    """Req: R-02, D-01."""
    administration_of(broker).create("queue", "here", {"LockDuration": timedelta(seconds=5)})
    connection = fill(broker, "here")
    with started_broker(tmp_path / "other") as other:
        administration_of(other).create("queue", "there", {"RequiresDuplicateDetection": detects})
        words = ("move", "here", "there", *FILTER, "--to-connection-string", other.connection_string)
        go_on_until_done(broker, tmp_path, words, seed=2)
        there = BlockingConnection(ConnectionString.parse(other.connection_string))
        arrived = ids(there, "there")
        assert {*arrived} == WANTED
        if detects:
            assert {*arrived.values()} == {1}
        assert len(ids(connection, "here")) == COUNT - len(WANTED)
        there.close()
    connection.close()


def test_a_resubmission_survives_the_broker(broker: BrokerProcess, tmp_path: Path) -> None:
    """Req: R-02."""
    ours = administration_of(broker)
    ours.create("queue", "here", {"LockDuration": timedelta(seconds=5)})
    connection = fill(broker, "here", 4000)
    receiver = connection.receiver("here", ReceiveMode.PEEK_LOCK)
    while deliveries := receiver.receive(500, 0.5):
        for delivery in deliveries:
            receiver.settle(delivery, dead_letter("bad"))
        receiver.flush()
    started = command(broker, tmp_path, "dead-letters", "resubmit", "here", "--rate", "2000")
    wait_for_some(connection, "here")
    connection.close()
    broker.kill()
    broker.start()
    out, err = started.communicate(timeout=60)
    assert started.returncode == 0, err
    assert out.endswith("4,000 messages sent to here\n")
    connection = BlockingConnection(ConnectionString.parse(broker.connection_string))
    assert ids(connection, "here") == Counter({f"id-{number}": 1 for number in range(4000)})
    assert not ids(connection, "here/$DeadLetterQueue")
    connection.close()


def test_a_broker_that_is_gone_is_told_and_how_to_go_on(broker: BrokerProcess, tmp_path: Path) -> None:
    ours = administration_of(broker)
    for name in ("here", "there"):
        ours.create("queue", name, {})
    connection = fill(broker, "here")
    started = command(broker, tmp_path, "move", "here", "there", "--rate", "1500")
    wait_for_some(connection, "there")
    connection.close()
    broker.kill()
    _, err = started.communicate(timeout=60)
    assert started.returncode == 1
    first, second = err.splitlines()
    assert first.startswith("peeklock: sb://localhost")
    found = re.fullmatch(r"([0-9,]+) messages? moved\. Go on with: peeklock move --resume (\S+)", second)
    assert found, err
    broker.start()
    again = command(broker, tmp_path, "move", "--resume", found[2])
    _, err = again.communicate(timeout=60)
    assert again.returncode == 0, err
    connection = BlockingConnection(ConnectionString.parse(broker.connection_string))
    assert ids(connection, "there") == Counter({f"id-{number}": 1 for number in range(COUNT)})
    connection.close()


def test_ctrl_c_ends_it_in_order(broker: BrokerProcess, tmp_path: Path) -> None:
    ours = administration_of(broker)
    for name in ("here", "there"):
        ours.create("queue", name, {})
    connection = fill(broker, "here")
    started = command(broker, tmp_path, "move", "here", "there", *FILTER, "--rate", "500")
    wait_for_some(connection, "there")
    started.send_signal(signal.SIGINT)
    _, err = started.communicate(timeout=20)
    assert started.returncode == 130, err
    found = re.fullmatch(r"([0-9,]+) messages moved\. Go on with: peeklock move --resume (\S+)\n", err)
    assert found, err
    moved = int(found[1].replace(",", ""))
    assert ids(connection, "there").total() == moved
    receiver = connection.receiver("here", ReceiveMode.PEEK_LOCK)
    [first] = receiver.receive(1, 1)
    assert scan(first.payload).decode_properties().message_id == "id-0", "released"
    assert scan(first.payload).decode_header().delivery_count == 0
    receiver.close()
    again = command(broker, tmp_path, "move", "--resume", found[2])
    out, err = again.communicate(timeout=60)
    assert (again.returncode, err) == (0, "")
    assert out.endswith(f"{len(WANTED):,} messages moved to there\n")
    connection.close()
