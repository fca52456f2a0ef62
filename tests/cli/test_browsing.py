"""`peeklock peek`, `tail` and `search` against a broker: what people and programs get, and errors."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count as counting
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from peeklock.amqp.types import Long
from peeklock.cli import main
from peeklock.cli.message_text import columns, head, line, nearest
from peeklock.cli.visible import visible
from peeklock.client import (
    Administration,
    BlockingConnection,
    ConnectionString,
    Properties,
    ReceiveMode,
    encode_message,
)
from peeklock.client.browsing import PAGE_COUNT, Browser, sequence_number
from peeklock.client.errors import ServiceBusError
from peeklock.testing.served import ServedBroker

ORDERS = 30


def put(connection: BlockingConnection, queue: str, *messages: bytes) -> None:
    sender = connection.sender(queue)
    for each in messages:
        sender.send(each)
    sender.flush()
    sender.close()


@pytest.fixture(scope="module")
def served() -> Iterator[ServedBroker]:
    with ServedBroker() as broker:
        administration = Administration.of(ConnectionString.parse(broker.connection_string))
        for name in ("orders", "followed", "long", "near", "far", "failing"):
            administration.create("queue", name, {})
        administration.create("queue", "sessions", {"RequiresSession": True})
        administration.create("topic", "news", {})
        administration.create("subscription", "news/Subscriptions/sport", {})
        yield broker


@pytest.fixture(scope="module")
def connection(served: ServedBroker) -> Iterator[BlockingConnection]:
    made = BlockingConnection(ConnectionString.parse(served.connection_string))
    put(
        made,
        "orders",
        *(
            encode_message(
                properties=Properties(
                    message_id=f"order-{n}", subject="pizza" if n % 2 else "pasta\x1b[31m\u202e"
                ),
                application_properties={"n": n},
                data=json.dumps({"total": 10 * n, "items": [{"sku": f"A{n % 3}"}]}).encode(),
            )
            for n in range(ORDERS)
        ),
        encode_message(value={"größe": [1, 2]}),
        encode_message(data=b"\xff\x00\x01"),
    )
    put(
        made,
        "sessions",
        *(encode_message(properties=Properties(group_id=one), data=one.encode()) for one in "abab"),
    )
    put(made, "news", encode_message(data=b"goal"))
    yield made
    made.close()


@pytest.fixture
def run(served: ServedBroker, connection: BlockingConnection) -> Callable[..., Result]:
    def invoke(*arguments: str, columns: int = 100) -> Result:
        environment = {"SERVICEBUS_CONNECTION_STRING": served.connection_string, "COLUMNS": str(columns)}
        return CliRunner().invoke(main, arguments, env=environment)

    return invoke


def numbers(result: Result) -> list[int]:
    assert result.exit_code == 0, result.output
    return [json.loads(each)["sequenceNumber"] for each in result.stdout.splitlines()]


# Peek


def test_a_table_has_a_line_for_each_message_and_hides_nothing(run: Callable[..., Result]) -> None:
    result = run("peek", "orders", "--count", "3", columns=130)
    first, *rows = result.stdout.splitlines()
    assert first.split() == [
        "SEQUENCE",
        "ENQUEUED",
        "(UTC)",
        "ID",
        "SUBJECT",
        "SESSION",
        "STATE",
        "SIZE",
        "BODY",
    ]
    assert len(rows) == 3
    assert r"pasta\x1b[3…" in rows[0]
    assert rows[1].split()[3:5] == ["order-1", "pizza"]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_a_table_fits_the_terminal(run: Callable[..., Result], width: int) -> None:
    lines = run("peek", "orders", columns=width).stdout.splitlines()
    assert len(lines) == 21
    assert max(map(cell_len, lines)) <= width


def test_peek_goes_on_from_a_number(run: Callable[..., Result]) -> None:
    assert numbers(run("peek", "orders", "--from-number", "5", "--count", "2", "--json")) == [5, 6]
    assert numbers(run("peek", "orders", "--from-number", "31", "--json")) == [31, 32]
    assert numbers(run("peek", "orders", "--from-number", "99", "--json")) == []


def test_a_message_is_shown_whole(run: Callable[..., Result]) -> None:
    shown = run("peek", "orders", "--from-number", "1", "--full").stdout
    assert r"subject                 pasta\x1b[31m\u202e" in shown
    assert "properties\n  n  0\nbody (data)\n  {" in shown
    assert (
        'body (value, as JSON)\n  {\n    "größe"'
        in run("peek", "orders", "--from-number", "31", "--full").stdout
    )
    assert "base64)\n  /wAB\n" in run("peek", "orders", "--from-number", "32", "--full").stdout


def test_programs_get_bodies_that_say_what_they_are(run: Callable[..., Result]) -> None:
    result = run("peek", "orders", "--from-number", "30", "--json")
    text, value, binary = map(json.loads, result.stdout.splitlines())
    assert json.loads(text["body"])["total"] == 290
    assert value["bodyValue"] == {"größe": [1, 2]}
    assert binary["bodyBase64"] == "/wAB"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", text["enqueuedTime"])


def test_subscriptions_sessions_and_dead_letters_are_seen(
    run: Callable[..., Result], connection: BlockingConnection
) -> None:
    assert numbers(run("peek", "news/Subscriptions/sport", "--json")) == [1]
    assert numbers(run("peek", "sessions", "--session", "b", "--json")) == [2, 4]
    assert numbers(run("search", "sessions", "--session", "a", "--json")) == [1, 3]
    assert numbers(run("peek", "orders", "--transfer-dead-letter", "--json")) == []
    put(connection, "failing", encode_message(data=b"bad", properties=Properties(group_id="s")))
    receiver = connection.receiver("failing", ReceiveMode.PEEK_LOCK)
    for _ in range(10):
        for delivery in receiver.receive(max_count=1, timeout_s=10):
            from peeklock.client import ABANDON

            receiver.settle(delivery, ABANDON)
            receiver.flush()
    receiver.close()
    dead = run("peek", "failing", "--dead-letter", "--json")
    assert numbers(dead) == [1]
    assert json.loads(dead.stdout)["properties"]["DeadLetterReason"] == "MaxDeliveryCountExceeded"
    for options in (
        ("--dead-letter", "--session", "s"),
        ("--dead-letter", "--reason", "MaxDeliveryCountExceeded"),
    ):
        assert numbers(run("search", "failing", *options, "--json")) == [1]
    assert numbers(run("peek", "failing", "--dead-letter", "--session", "s", "--json")) == [1]
    assert numbers(run("peek", "failing", "--dead-letter", "--session", "t", "--json")) == []


def test_states_are_chosen(run: Callable[..., Result], connection: BlockingConnection) -> None:
    assert len(numbers(run("search", "orders", "--state", "active", "--json"))) == ORDERS + 2
    assert numbers(run("peek", "orders", "--state", "deferred", "--json")) == []


# Search


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--filter", "sys.Label = 'pizza' AND n > 26"], [28, 30]),
        (["--json-path", "$.total > 270"], [29, 30]),
        (["--json-path", '$.items[*].sku == "A1"', "--to-number", "6"], [2, 5]),
        (["--json-path", "$.größe[1] == 2"], [31]),
        (["--text", "SKU", "-i", "--from-number", "29"], [29, 30]),
        (["--regex", r'"total": [0-9]0,'], list(range(2, 11))),
        (["--filter", "n >= 0", "--count", "2"], [1, 2]),
        (["--until", "2020-01-01"], []),
        (["--since", "2h", "--from-number", "32"], [32]),
        (["--until", "2h"], []),
        (["--since", "2020-01-01T00:00+02:00", "--from-number", "32"], [32]),
    ],
)
def test_a_search_finds_messages(run: Callable[..., Result], options: list[str], found: list[int]) -> None:
    assert numbers(run("search", "orders", *options, "--json")) == found


def test_a_search_reads_a_long_queue_to_its_end(
    run: Callable[..., Result], connection: BlockingConnection
) -> None:
    count = 3 * PAGE_COUNT + 1
    put(connection, "long", *(encode_message(data=b"%d" % n) for n in range(count)))
    assert numbers(run("search", "long", "--json")) == list(range(1, count + 1))
    assert numbers(run("search", "long", "--text", str(count - 1), "--json")) == [count]


@pytest.mark.parametrize(
    ("queue", "answer_s", "sizes"),
    [
        ("near", 0.01, [PAGE_COUNT] * 7),
        ("far", 0.02, [PAGE_COUNT, 2 * PAGE_COUNT, 4 * PAGE_COUNT]),
    ],
)
def test_pages_are_small_unless_answers_travel_far(
    connection: BlockingConnection, queue: str, answer_s: float, sizes: list[int]
) -> None:
    """A large page is a long turn of the broker's loop, for which its other clients wait."""
    put(connection, queue, *(encode_message(data=b"%d" % n) for n in range(7 * PAGE_COUNT)))
    now_s = counting(0.0, answer_s)
    browser = Browser(connection, queue, clock_s=lambda: next(now_s))
    assert [len(page) for page in browser.read()] == sizes


# Errors


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--filter", "n == 3"], "one = compares, at position 4:\n  n == 3\n     ^"),
        (["--regex", "a(b"], "unterminated subpattern, at position 2:\n  a(b\n   ^"),
        (["--json-path", "$.a ="], "== compares, at position 5:\n  $.a =\n      ^"),
        (
            ["--since", "noon"],
            "'noon' is not an instant such as 2026-01-31T12:00:00Z, nor a span before now",
        ),
        (["--dead-letter", "--transfer-dead-letter"], "not both"),
    ],
)
def test_a_wrong_option_says_where(run: Callable[..., Result], options: list[str], text: str) -> None:
    result = run("search", "orders", *options)
    assert result.exit_code == 2
    assert text in result.stderr
    assert result.stdout == ""


def test_a_wrong_entity_shows_the_nearest(run: Callable[..., Result]) -> None:
    for command in ("peek", "search", "tail"):
        result = run(command, "ordrs")
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr == (
            "peeklock: there is no queue or subscription 'ordrs' here; did you mean 'orders'? "
            "A subscription is TOPIC/Subscriptions/NAME.\n"
        )
    assert "news/Subscriptions/sport" in run("peek", "news/Subscriptions/sports").stderr
    assert run("peek", "news").exit_code == 0  # a topic shows what is scheduled in it


def test_a_wrong_key_or_connection_string_is_one_line(
    run: Callable[..., Result], served: ServedBroker
) -> None:
    wrong = served.connection_string.replace("SharedAccessKey=", "SharedAccessKey=x")
    result = run("peek", "orders", "--connection-string", wrong)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert "Check SharedAccessKeyName and SharedAccessKey" in result.stderr
    assert run("peek", "orders", "--connection-string", "Endpoint=x").exit_code == 2
    none = CliRunner().invoke(main, ["peek", "orders"], env={"SERVICEBUS_CONNECTION_STRING": None})
    assert none.exit_code == 2
    assert "SERVICEBUS_CONNECTION_STRING" in none.stderr


# As processes


def started(served: ServedBroker, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "peeklock", *arguments],
        env={**os.environ, "SERVICEBUS_CONNECTION_STRING": served.connection_string, "COLUMNS": "80"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_tail_follows_new_messages_until_ctrl_c(served: ServedBroker, connection: BlockingConnection) -> None:
    put(connection, "followed", encode_message(data=b"old"))
    with started(served, "tail", "followed") as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("SEQUENCE")
        put(connection, "followed", encode_message(data=b"new"))
        assert process.stdout.readline().endswith("new\n")
        put(connection, "followed", encode_message(data=b"newer"))
        assert process.stdout.readline().endswith("newer\n")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "")
    receiver = connection.receiver("followed", ReceiveMode.RECEIVE_AND_DELETE)
    assert len(receiver.receive(max_count=3, timeout_s=10)) == 3  # nothing was taken
    receiver.close()


def test_a_closed_pipe_ends_it_silently(served: ServedBroker, connection: BlockingConnection) -> None:
    with started(served, "tail", "followed", "--json") as process:
        assert process.stdout is not None
        process.stdout.close()
        while process.poll() is None:
            put(connection, "followed", encode_message(data=b"x"))
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.returncode == 141


def test_a_topic_without_schedules_is_named(run: Callable[..., Result]) -> None:
    result = run("peek", "news")
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 1)
    assert result.stderr == (
        "'news' is a topic, and has no scheduled messages. The others are in its subscriptions: "
        "peeklock peek news/Subscriptions/NAME\n"
    )
    assert run("peek", "news", "--json").stderr == ""
    assert run("peek", "failing").stderr == ""


def test_a_sub_queue_has_no_dead_letters(run: Callable[..., Result]) -> None:
    text = "'orders/$DeadLetterQueue' is a sub-queue already: name its entity, 'orders'."
    for words in (("peek", "--dead-letter"), ("dead-letters", "groups")):
        result = run(*words, "orders/$DeadLetterQueue")
        assert (result.exit_code, text in result.stderr) == (2, True)


def test_a_terminal_is_told_that_no_broker_answers_yet() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        text = f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=a;SharedAccessKey=b;"
        text += "UseDevelopmentEmulator=true;"
        ours, terminal = pty.openpty()
        command = [sys.executable, "-m", "peeklock", "peek", "orders", "--connection-string", text]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=terminal) as process:
            try:
                said = os.read(ours, 1000).decode()
            finally:
                process.kill()
                os.close(ours)
                os.close(terminal)
    assert said == f"connecting to 127.0.0.1:{port} ...\r\n"


# Reading


class Peeks:
    """The numbers of an entity with partitions, as a broker answers peeks."""

    def __init__(self, there: set[int]) -> None:
        self.there = there

    def peek(self, number: int, count: int) -> list[bytes]:
        found = sorted(each for each in self.there if each >= number)[:count]
        return [encode_message(message_annotations={"x-opt-sequence-number": Long(each)}) for each in found]


def browser_of(there: set[int]) -> Any:
    browser: Any = Browser.__new__(Browser)
    browser.peek = Peeks(there).peek
    return browser


PLACES = st.builds(lambda partition, n: (partition << 48) + n, st.integers(0, 3), st.integers(1, 300))


@given(st.sets(PLACES, max_size=12), st.sets(PLACES, max_size=12))
def test_new_messages_of_each_partition_are_read_once(before: set[int], later: set[int]) -> None:
    last = browser_of(before).last_numbers()
    partitions = {each >> 48 for each in before}
    assert last == {one: max(each for each in before if each >> 48 == one) for one in partitions}
    new = {each for each in later if each > last.get(each >> 48, 0)}
    browser = browser_of(before | new)
    assert [sequence_number(each) for some in browser.read_new(last) for each in some] == sorted(new)
    assert [*browser.read_new(last)] == []


# Text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain 日本 é", "plain 日本 é"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("\x1b[2J\x00\x7f\x9b", r"\x1b[2J\x00\x7f\x9b"),
        ("\u202eabc\u2066\u200f", r"\u202eabc\u2066\u200f"),
        ("a\u200bb\ufeff\u00ad", r"a\u200bb\ufeff\xad"),
        ("\u00a0\u3000\u2028", r"\xa0\u3000\u2028"),
        ("\u3164\u2800\ufe0f\U000e0101\U000e0041", r"\u3164\u2800\ufe0f\U000e0101\U000e0041"),
        ("\ud800\ue000", r"\ud800\ue000"),
        ("C:\\new", "C:\\new"),
    ],
)
def test_what_does_not_show_is_escaped(text: str, shown: str) -> None:
    assert visible(text) == shown


@given(st.text())
def test_escaped_text_is_printable(text: str) -> None:
    assert visible(text).isprintable()
    assert visible(visible(text)) == visible(text)


@given(st.integers(40, 200), st.text(), st.text())
def test_any_line_fits(width: int, body: str, subject: str) -> None:
    layout = columns(width)
    found = {
        "sequenceNumber": 12345678,
        "enqueuedTime": "2026-01-31T12:00:00.000Z",
        "state": "scheduled",
        "sizeBytes": 262_144,
        "subject": subject,
        "body": body,
    }
    assert cell_len(line(found, layout)) <= width
    assert cell_len(head(layout)) <= width


@given(st.integers(40, 200))
def test_a_due_time_keeps_its_year(width: int) -> None:
    layout = columns(width, "DUE (UTC)")
    found = {"scheduledEnqueueTime": "2026-01-31T12:00:30.000Z", "state": "scheduled", "sizeBytes": 1}
    assert "2026-01-31 12:00" in line(found, layout)
    assert cell_len(line(found, layout)) <= width


def test_the_nearest_names_are_few() -> None:
    known = ["orders", "Orders-old", "news/Subscriptions/sport", "x"]
    assert nearest("ORDER", known) == ["orders", "Orders-old"]
    assert nearest("news", known) == ["news/Subscriptions/sport"]
    assert nearest("zzz", known) == []


def test_a_refusal_is_an_error_of_the_client(connection: BlockingConnection) -> None:
    with pytest.raises(ServiceBusError):
        Browser(connection, "none").peek(0, 1)


def test_a_login_names_the_namespace(served: ServedBroker, tmp_path: Path) -> None:
    environ = {
        "XDG_CONFIG_HOME": str(tmp_path),
        "SERVICEBUS_CONNECTION_STRING": served.connection_string,
    }
    assert CliRunner().invoke(main, ["logins", "add", "here"], env=environ).exit_code == 0
    environ["SERVICEBUS_CONNECTION_STRING"] = ""
    result = CliRunner().invoke(main, ["peek", "orders", "--connection", "here", "--json"], env=environ)
    assert result.exit_code == 0, result.output
    assert len(result.stdout.splitlines()) == 20
    result = CliRunner().invoke(main, ["peek", "orders", "--connection", "there"], env=environ)
    assert result.exit_code == 2
    assert "there is no login 'there' (here)" in result.stderr
