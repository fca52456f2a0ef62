"""`peeklock scheduled` against a broker: nothing is lost, and what comes twice is told."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from peeklock.amqp.messaging import Header
from peeklock.amqp.types import Int, Long, Symbol, Timestamp, ULong
from peeklock.cli import main, places, schedule_runs
from peeklock.client import (
    NEXT,
    Administration,
    BlockingConnection,
    ConnectionString,
    Properties,
    ReceiveMode,
    ServiceBusError,
    encode_message,
    scan,
)
from peeklock.client import scheduling as client_scheduling
from peeklock.client.browsing import Browser, sequence_number
from peeklock.client.scheduling import AT, Moved, Schedules, copy_at, due_ms, origin_of
from peeklock.demo.broker import BrokerProcess
from peeklock.testing.served import ServedBroker
from tests.spark.relay import Relay

HOUR_MS = 3_600_000
_names = count(1)
Run = Callable[..., Result]


@pytest.fixture(scope="module")
def served() -> Iterator[ServedBroker]:
    with ServedBroker() as broker:
        yield broker


@pytest.fixture(scope="module")
def administration(served: ServedBroker) -> Administration:
    return Administration.of(ConnectionString.parse(served.connection_string))


@pytest.fixture(scope="module")
def connection(served: ServedBroker) -> Iterator[BlockingConnection]:
    made = BlockingConnection(ConnectionString.parse(served.connection_string, timeout_s=10))
    yield made
    made.close()


@pytest.fixture
def queue(administration: Administration) -> str:
    name = f"queue-{next(_names)}"
    administration.create("queue", name, {})
    return name


@pytest.fixture
def run(served: ServedBroker) -> Run:
    def invoke(*words: str, **further: Any) -> Result:
        environment = {"SERVICEBUS_CONNECTION_STRING": served.connection_string, "COLUMNS": "120"}
        return CliRunner().invoke(main, ["scheduled", *words], env=environment, **further)

    return invoke


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()


def message(body: str, at_ms: int | None, **properties: Any) -> bytes:
    return encode_message(
        message_annotations=None if at_ms is None else {Symbol(AT): Timestamp(at_ms)},
        properties=Properties(**properties) if properties else None,
        data=body.encode(),
    )


def put(connection: BlockingConnection, path: str, *payloads: bytes) -> None:
    sender = connection.sender(path)
    for payload in payloads:
        sender.send(payload)
    sender.flush()
    sender.close()


def there(connection: BlockingConnection, path: str) -> list[tuple[str, int | None]]:
    """Return bodies and times of the scheduled messages."""
    return [
        (body_of(payload), due_ms(payload))
        for messages in Schedules(connection, path, may_drop=False).read()
        for payload in messages
    ]


def body_of(payload: bytes) -> str:
    return bytes(scan(payload).decode_body()[0][1]).decode()


def received(connection: BlockingConnection, path: str, wanted: int = 1) -> list[str]:
    receiver = connection.receiver(path, ReceiveMode.RECEIVE_AND_DELETE)
    deliveries = receiver.receive(100, 5 if wanted else 0)
    receiver.close()
    return sorted(body_of(delivery.payload) for delivery in deliveries)


# Listing


def test_a_list_shows_when_messages_are_due(run: Run, connection: BlockingConnection, queue: str) -> None:
    at = now_ms() + HOUR_MS
    put(
        connection, queue, message("now", None), message("banana", at), message("apple\x1b[31m", at + HOUR_MS)
    )
    result = run("list", queue)
    head, first, second = result.stdout.splitlines()
    assert (result.exit_code, result.stderr) == (0, "")
    assert head.split()[:3] == ["SEQUENCE", "DUE", "(UTC)"]
    assert (first.split()[0], iso(at)[:19].replace("T", " ") in first) == ("2", True)
    assert "apple\\x1b[31m" in second
    found = [
        json.loads(line) for line in run("list", queue, "--json", "--text", "banana").stdout.splitlines()
    ]
    assert [(each["sequenceNumber"], each["state"]) for each in found] == [(2, "scheduled")]
    assert round(datetime.fromisoformat(found[0]["scheduledEnqueueTime"]).timestamp() * 1000) == at
    due = run("list", queue, "--json", "--due-since", iso(at + 1)).stdout
    assert [json.loads(line)["sequenceNumber"] for line in due.splitlines()] == [3]
    assert len(run("list", queue, "--count", "1", "--due-until", iso(at + 1)).stdout.splitlines()) == 2


# Cancelling


def test_messages_are_cancelled_by_number(run: Run, connection: BlockingConnection, queue: str) -> None:
    at = now_ms() + HOUR_MS
    put(connection, queue, *(message(body, at) for body in "abc"))
    result = run("cancel", queue, "1", "3")
    assert (result.exit_code, result.stdout) == (0, "2 messages cancelled\n")
    assert there(connection, queue) == [("b", at)]
    result = run("cancel", queue, "1", "2")
    assert (result.exit_code, result.stdout) == (1, "1 message cancelled\n")
    assert result.stderr == f"peeklock: no message 1 is scheduled in {queue}\n"


def test_messages_are_cancelled_by_criteria_after_a_question(
    run: Run, connection: BlockingConnection, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = now_ms() + HOUR_MS
    put(connection, queue, *(message(body, at) for body in ("ripe banana", "apple", "banana")))
    refused = run("cancel", queue, "--text", "banana")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr == f"peeklock: refused to cancel 2 messages of {queue} without --yes\n"
    dry = run("cancel", queue, "--text", "banana", "--dry-run")
    assert (dry.exit_code, dry.stdout.splitlines()[-1]) == (0, "would cancel 2 messages")
    assert "ripe banana" in dry.stdout
    assert len(there(connection, queue)) == 3
    done = run("cancel", queue, "--text", "banana", "--yes")
    assert (done.exit_code, done.stdout) == (0, "2 messages cancelled\n")
    assert there(connection, queue) == [("apple", at)]
    nothing = run("cancel", queue, "--text", "banana")
    assert (nothing.exit_code, nothing.stdout) == (0, "0 messages cancelled\n")


def test_a_terminal_is_asked(served: ServedBroker, connection: BlockingConnection, queue: str) -> None:
    at = now_ms() + HOUR_MS
    put(connection, queue, message("a", at), message("b", at))
    for answer, left in ((b"n\n", 2), (b"y\n", 0)):
        ours, theirs = pty.openpty()
        os.write(ours, answer)
        asked = subprocess.run(
            [sys.executable, "-m", "peeklock", "scheduled", "cancel", queue, "--all"],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
                "SERVICEBUS_CONNECTION_STRING": served.connection_string,
            },
            stdin=theirs,
            capture_output=True,
            text=True,
            timeout=60,
        )
        os.close(ours)
        os.close(theirs)
        assert (asked.returncode, asked.stderr) == (0, "")
        assert f"Cancel 2 messages of {queue}? [y/N]" in asked.stdout
        assert len(there(connection, queue)) == left


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["cancel", "q"], "say which messages"),
        (["cancel", "q", "1", "--all"], "give numbers or criteria, not both"),
        (["cancel", "q", "--filter", "n >"], "--filter"),
        (["move", "q", "1"], "--to"),
        (["move", "q", "1", "--to", "noon"], "is not an instant"),
        (["shift", "q", "1", "--by", "soon"], "is not a span"),
        (["shift", "q", "1", "--by", "never"], "is not a span"),
        (["shift", "q", "1", "--by", "0s"], "is not a span"),
    ],
)
def test_wrong_options_are_refused_before_anything_happens(run: Run, words: list[str], says: str) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert says in result.stderr


def test_a_wrong_entity_is_named(run: Run) -> None:
    result = run("list", "missing")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "there is no queue or topic 'missing' here" in result.stderr


# Moving


def test_a_moved_message_keeps_all_of_it(run: Run, connection: BlockingConnection, queue: str) -> None:
    """Also AMQP types."""
    at = now_ms() + HOUR_MS
    rich = encode_message(
        header=Header(ttl=60_000, durable=True),
        message_annotations={Symbol(AT): Timestamp(at), Symbol("x-own"): Int(3)},
        properties=Properties(message_id=ULong(7), correlation_id="c", content_type=Symbol("text/plain")),
        application_properties={"n": Long(1), "größe": "ü"},
        value={"a": [1, None]},
    )
    put(connection, queue, rich, message("plain", at))
    before = list(Browser(connection, queue).peek(0, 10))
    result = run("move", queue, "--all", "--yes", "--to", iso(at + HOUR_MS))
    assert (result.exit_code, result.stdout) == (0, "2 messages moved\n")
    after = list(Browser(connection, queue).peek(0, 10))
    for old, new in zip(before, after, strict=True):
        one, two = scan(old), scan(new)
        assert due_ms(new) == at + HOUR_MS
        assert one.decode_header() == two.decode_header()
        assert one.decode_properties() == two.decode_properties()
        assert old[one.properties_end :] == new[two.properties_end :]
        assert origin_of(new) == sequence_number(old)
    assert scan(after[0]).decode_message_annotations()["x-own"] == 3
    again = run("move", queue, "--all", "--yes", "--to", iso(at + HOUR_MS))
    assert (again.exit_code, again.stdout) == (0, "0 messages moved; 2 done before\n")


def test_a_copy_of_a_message_without_an_id_has_none() -> None:
    for properties in (None, Properties(subject="pizza")):
        annotations = {Symbol("x-opt-sequence-number"): Long(3), Symbol(AT): Timestamp(5)}
        payload = encode_message(message_annotations=annotations, properties=properties, data=b"x")
        copy = copy_at(payload, 7)
        assert (due_ms(copy), origin_of(copy)) == (7, 3)
        old, new = scan(payload), scan(copy)
        assert payload[old.bare_offset :] == copy[new.bare_offset :]


def test_messages_are_shifted_both_ways(run: Run, connection: BlockingConnection, queue: str) -> None:
    at = now_ms() + 10 * HOUR_MS
    put(connection, queue, message("a", at), message("b", at + HOUR_MS))
    assert run("shift", queue, "--all", "--yes", "--by", "2h").stdout == "2 messages shifted\n"
    assert there(connection, queue) == [("a", at + 2 * HOUR_MS), ("b", at + 3 * HOUR_MS)]
    assert run("shift", queue, "4", "--by=-90m").stdout == "1 message shifted\n"
    assert sorted(there(connection, queue)) == [("a", at + 2 * HOUR_MS), ("b", at + 3 * HOUR_MS // 2)]


def test_messages_are_delivered_now(run: Run, connection: BlockingConnection, queue: str) -> None:
    at = now_ms() + HOUR_MS
    put(connection, queue, message("a", at), message("b", at), message("c", at))
    result = run("deliver", queue, "1", "3")
    assert (result.exit_code, result.stdout) == (0, "2 messages delivered\n")
    assert received(connection, queue) == ["a", "c"]
    assert there(connection, queue) == [("b", at)]
    assert run("shift", queue, "--all", "--yes", "--by=-2h").stdout == "1 message shifted\n"
    assert received(connection, queue) == ["b"]


def test_a_topic_keeps_its_schedules_itself(
    run: Run, connection: BlockingConnection, administration: Administration
) -> None:
    """Req: S-08."""
    administration.create("topic", "news", {})
    administration.create("subscription", "news/Subscriptions/all", {})
    at = now_ms() + HOUR_MS
    put(connection, "news", *(message(body, at) for body in ("goal", "cup", "foul")))
    assert len(run("list", "news").stdout.splitlines()) == 4
    assert run("cancel", "news", "--text", "foul", "--yes").exit_code == 0
    assert run("move", "news", "--text", "cup", "--yes", "--to", iso(at + HOUR_MS)).exit_code == 0
    assert run("deliver", "news", "--text", "goal", "--yes").exit_code == 0
    assert there(connection, "news") == [("cup", at + HOUR_MS)]
    assert received(connection, "news/Subscriptions/all") == ["goal"]


def test_messages_of_sessions_keep_theirs(
    run: Run, connection: BlockingConnection, administration: Administration
) -> None:
    administration.create("queue", "chats", {"RequiresSession": True})
    at = now_ms() + HOUR_MS
    put(connection, "chats", message("a", at, group_id="ann"), message("b", at, group_id="bob"))
    assert run("deliver", "chats", "--session", "bob", "--yes").stdout == "1 message delivered\n"
    receiver = connection.receiver("chats", ReceiveMode.RECEIVE_AND_DELETE, NEXT)
    assert [body_of(each.payload) for each in receiver.receive(9, 5)] == ["b"]
    assert receiver.session_id == "bob"
    receiver.close()
    assert there(connection, "chats") == [("a", at)]


def test_messages_of_partitions_are_moved(
    run: Run, connection: BlockingConnection, administration: Administration
) -> None:
    administration.create("queue", "parts", {"EnablePartitioning": True})
    at = now_ms() + HOUR_MS
    put(connection, "parts", *(message(str(n), at, message_id=str(n)) for n in range(20)))
    assert run("shift", "parts", "--all", "--yes", "--by", "1h").stdout == "20 messages shifted\n"
    assert sorted(there(connection, "parts")) == sorted((str(n), at + HOUR_MS) for n in range(20))


def test_a_copy_that_duplicate_detection_drops_costs_no_message(
    run: Run, connection: BlockingConnection, administration: Administration, served: ServedBroker
) -> None:
    window = timedelta(minutes=1)
    settings: dict[str, bool | int | str | timedelta] = {
        "RequiresDuplicateDetection": True,
        "DuplicateDetectionHistoryTimeWindow": window,
    }
    administration.create("queue", "once", settings)
    at = served.now_ms() + HOUR_MS
    put(connection, "once", message("a", at, message_id="a"))
    for done, command, *options in (("moved", "move", "--to", iso(at + HOUR_MS)), ("delivered", "deliver")):
        result = run(command, "once", "1", *options)
        assert (result.exit_code, result.stdout) == (1, f"0 messages {done}\n")
        assert "message 1 is scheduled as before" in result.stderr
        assert there(connection, "once") == [("a", at)]
    served.advance(timedelta(minutes=2))
    assert run("move", "once", "1", "--to", iso(at + HOUR_MS)).stdout == "1 message moved\n"
    assert there(connection, "once") == [("a", at + HOUR_MS)]


def test_what_becomes_active_meanwhile_is_not_there_twice(
    connection: BlockingConnection, queue: str, served: ServedBroker
) -> None:
    at = served.now_ms() + 10_000
    put(connection, queue, message("a", at))
    schedules = Schedules(connection, queue, may_drop=False)
    payload = schedules.find(1)
    assert payload is not None
    served.advance(timedelta(seconds=11))
    assert schedules.move([payload], lambda _: at + HOUR_MS) == [Moved.GONE]
    assert (there(connection, queue), received(connection, queue)) == ([], ["a"])
    assert schedules.move([payload], lambda _: 0) == [Moved.TWICE]
    assert received(connection, queue) == ["a"]


# Breaks


@pytest.fixture
def half_done(connection: BlockingConnection, queue: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, int]:
    """Messages a and b of a time, and a copy of a an hour later, as an interrupted run leaves them."""
    monkeypatch.setattr(schedule_runs, "OTHER_RUN_S", 0.0)
    at = now_ms() + 2 * HOUR_MS
    put(connection, queue, message("a", at), message("b", at))
    schedules = Schedules(connection, queue, may_drop=False)
    payload = schedules.find(1)
    assert payload is not None
    put(connection, queue, copy_at(payload, at + HOUR_MS))
    return queue, at


@pytest.mark.parametrize("words", [["--all", "--yes"], ["1", "2"], ["--to-number", "2", "--yes"]])
def test_a_shift_completes_what_an_interrupted_one_began(
    run: Run, connection: BlockingConnection, half_done: tuple[str, int], words: list[str]
) -> None:
    queue, at = half_done
    result = run("shift", queue, *words, "--by", "1h")
    assert (result.exit_code, result.stdout) == (0, "2 messages shifted\n")
    assert there(connection, queue) == [("a", at + HOUR_MS), ("b", at + HOUR_MS)]


@pytest.mark.parametrize("words", [["--all", "--yes"], ["1", "2"], ["2", "3"]])
@pytest.mark.parametrize("to", [HOUR_MS, 3 * HOUR_MS])
def test_a_move_completes_what_an_interrupted_one_began(
    run: Run, connection: BlockingConnection, half_done: tuple[str, int], words: list[str], to: int
) -> None:
    queue, at = half_done
    result = run("move", queue, *words, "--to", iso(at + to))
    assert (result.exit_code, result.stdout) == (0, "2 messages moved\n")
    assert result.stderr == "peeklock: 1 message had a copy; waiting 0 s for the run that made it.\n"
    assert sorted(there(connection, queue)) == [("a", at + to), ("b", at + to)]


def test_a_delivery_completes_what_an_interrupted_run_began(
    run: Run, connection: BlockingConnection, half_done: tuple[str, int]
) -> None:
    queue, _ = half_done
    assert run("deliver", queue, "--all", "--yes").stdout == "2 messages delivered\n"
    assert (received(connection, queue), there(connection, queue)) == (["a", "b"], [])


COUNT = 2000


def kill_after(process: BrokerProcess, at_ms: int, copies: int) -> None:
    """Kill the broker once so many messages are due at a time."""
    connection = BlockingConnection(ConnectionString.parse(process.connection_string))
    while sum(due == at_ms for _, due in there(connection, "orders")) < copies:
        pass
    process.kill()
    connection.close()


def test_messages_survive_a_broker_that_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_runs, "OTHER_RUN_S", 0.0)
    at = now_ms() + HOUR_MS
    with BrokerProcess(tmp_path) as process:
        text = process.connection_string.replace(f":{process.amqp_port};", f":{process.http_port};")
        Administration.of(ConnectionString.parse(text)).create("queue", "orders", {})
        connection = BlockingConnection(ConnectionString.parse(process.connection_string))
        put(connection, "orders", *(message(str(n), at) for n in range(COUNT)))
        words = ["scheduled", "move", "orders", "--all", "--yes", "--to", iso(at + HOUR_MS)]
        statuses = []
        for copies in (1, 100, None):
            monkeypatch.setattr(places, "TIMEOUT_S", 20.0 if copies is None else 0.2)
            if copies is not None:
                killing = threading.Thread(target=kill_after, args=(process, at + HOUR_MS, copies))
                killing.start()
            environment = {"SERVICEBUS_CONNECTION_STRING": process.connection_string}
            result = CliRunner().invoke(main, words, env=environment)
            statuses.append(result.exit_code)
            if copies is not None:
                killing.join()
                process.start()
            found = {body for body, _ in there(connection, "orders")}
            assert len(found) == COUNT, "a message is lost"
        assert statuses == [1, 1, 0]
        assert sorted(there(connection, "orders")) == sorted((str(n), at + HOUR_MS) for n in range(COUNT))
        connection.close()


def test_a_broken_connection_loses_and_doubles_nothing(
    served: ServedBroker, connection: BlockingConnection, queue: str
) -> None:
    at = now_ms() + HOUR_MS
    put(connection, queue, *(message(str(n), at) for n in range(60)))
    with Relay(served.port) as relay:
        text = served.connection_string.replace(f":{served.port};", f":{relay.port};")
        own = BlockingConnection(ConnectionString.parse(text, timeout_s=10))
        schedules = Schedules(own, queue, may_drop=False)
        payloads = [payload for messages in schedules.read() for payload in messages]
        outcomes = set()
        for start in range(0, 60, 3):
            cutting = threading.Timer(0.001 * (start % 7), relay.cut)
            cutting.start()
            outcomes.update(schedules.move(payloads[start : start + 3], lambda _: at + HOUR_MS))
            cutting.join()
        own.close()
    assert outcomes <= {Moved.DONE, Moved.UNKNOWN}
    assert sorted(there(connection, queue)) == sorted((str(n), at + HOUR_MS) for n in range(60))


def test_a_broker_that_is_gone_is_told_with_the_way_on(
    run: Run, connection: BlockingConnection, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = now_ms() + HOUR_MS
    put(connection, queue, *(message(str(n), at) for n in range(4)))
    monkeypatch.setattr(client_scheduling, "TOGETHER", 2)
    move = Schedules.move
    calls = count()

    def broken(self: Schedules, payloads: Sequence[bytes], at_ms: Callable[[bytes], int]) -> list[Moved]:
        if next(calls) == 1:
            raise ServiceBusError("peeklock:connection-lost", "no connection", queue, True)
        return move(self, payloads, at_ms)

    monkeypatch.setattr(Schedules, "move", broken)
    result = run("shift", queue, "--all", "--yes", "--by", "1h")
    assert result.exit_code == 1
    assert result.stderr == (
        "peeklock: no connection\n2 messages shifted. Go on with --from-number 3 --to-number 4.\n"
    )
    result = run("shift", queue, "--from-number", "3", "--to-number", "4", "--yes", "--by", "1h")
    assert result.stdout == "2 messages shifted\n"
    assert there(connection, queue) == [(str(n), at + HOUR_MS) for n in range(4)]
