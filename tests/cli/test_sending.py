"""`peeklock send` against a broker: each property, JSON Lines, bad lines, breaks, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from peeklock.cli import main
from peeklock.client import Administration, ConnectionString, Properties, encode_message, scan
from peeklock.client.composing import SET_BY_THE_BROKER, ComposeError, compose
from peeklock.search import Peeked, message_json
from peeklock.testing.served import ServedBroker

QUEUES = ("orders", "copies", "lines", "piped", "many", "options")


@pytest.fixture(scope="module")
def served() -> Iterator[ServedBroker]:
    with ServedBroker() as broker:
        administration = Administration.of(ConnectionString.parse(broker.connection_string))
        for name in QUEUES:
            administration.create("queue", name, {})
        administration.create("queue", "sessions", {"RequiresSession": True})
        administration.create("topic", "news", {})
        administration.create("subscription", "news/Subscriptions/sport", {})
        yield broker


@pytest.fixture
def run(served: ServedBroker) -> Callable[..., Result]:
    def invoke(*arguments: str, lines: str | None = None) -> Result:
        environment = {"SERVICEBUS_CONNECTION_STRING": served.connection_string}
        return CliRunner().invoke(main, arguments, input=lines, env=environment)

    return invoke


def started(served: ServedBroker, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "peeklock", *arguments],
        env={**os.environ, "SERVICEBUS_CONNECTION_STRING": served.connection_string},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def there(run: Callable[..., Result], entity: str) -> list[dict[str, Any]]:
    result = run("search", entity, "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(each) for each in result.stdout.splitlines()]


def rows(*bodies: str, **further: Any) -> str:
    return "".join(json.dumps({"body": body, **further}) + "\n" for body in bodies)


def test_each_option_sets_a_property(run: Callable[..., Result]) -> None:
    result = run(
        *("send", "options", "1 pizza", "--id", "order-1", "--session", "s", "--subject", "pizza"),
        *("--correlation-id", "c", "--content-type", "text/plain", "--to", "t", "--reply-to", "r"),
        *("--property", "size=large", "--property", "n:=3", "--property", "hot:=true", "--ttl", "1h30m"),
        *("--at", "2099-01-31T12:00", "--partition-key", "s"),
    )
    assert (result.exit_code, result.output) == (0, "1 message sent to options\n")
    [found] = there(run, "options")
    assert found["state"] == "scheduled"
    wanted = {
        "messageId": "order-1", "sessionId": "s", "subject": "pizza", "correlationId": "c",
        "contentType": "text/plain", "to": "t", "replyTo": "r", "timeToLive": 5400,
        "properties": {"size": "large", "n": 3, "hot": True}, "partitionKey": "s",
        "scheduledEnqueueTime": "2099-01-31T12:00:00.000Z", "bodyType": "data", "body": "1 pizza",
    }  # fmt: skip
    assert found | wanted == found


def test_what_peek_prints_can_be_sent(run: Callable[..., Result], tmp_path: Path) -> None:
    binary = tmp_path / "order.bin"
    binary.write_bytes(b"\xff\x00")
    assert run("send", "orders", "--file", str(binary), "--count", "2").exit_code == 0
    further = (
        {"bodyType": "value", "bodyValue": {"größe": [1, None]}, "messageId": 7},
        {"bodyType": "sequence", "bodyValue": [1, "a"], "userId": "/wAB"},
        {"bodyType": "value", "body": "text", "timeToLive": 0.5 * 86400, "replyToSessionId": "x"},
        {"bodyType": "value", "bodyBase64": "/wAB", "contentEncoding": "gzip"},
        {"properties": {"n": 1.5, "no": None}},
    )
    assert run("send", "orders", lines="\n".join(map(json.dumps, further)) + "\n\n").exit_code == 0
    printed = run("peek", "orders", "--json").stdout
    assert len(printed.splitlines()) == 7
    result = run("send", "copies", lines=printed)
    assert (result.exit_code, result.stdout) == (0, "7 messages sent to copies\n")
    assert [kept(each) for each in there(run, "copies")] == [
        kept(json.loads(x)) for x in printed.splitlines()
    ]


def kept(found: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key not in SET_BY_THE_BROKER}


def test_all_keys_of_a_shown_message_are_known() -> None:
    everything = encode_message(
        properties=Properties(
            *("id", b"u", "to", "subject", "reply", "correlation", "type", "encoding", None, None, "s"),
            reply_to_group_id="r",
        ),
        application_properties={"a": 1},
        message_annotations={"x-opt-partition-key": "s", "x-opt-via-partition-key": "v"},
        data=b"x",
    )
    shown = message_json(Peeked(everything))
    again = scan(compose(shown))
    assert again.decode_properties() == scan(everything).decode_properties()
    assert again.decode_message_annotations() == {"x-opt-partition-key": "s"}


def test_options_win_over_a_line(run: Callable[..., Result]) -> None:
    lines = rows("a", subject="x", properties={"n": 1, "m": 2}) + rows("b")
    assert run("send", "news", "--subject", "y", "--property", "n:=9", lines=lines).exit_code == 0
    first, second = there(run, "news/Subscriptions/sport")
    assert (first["subject"], first["properties"]) == ("y", {"n": 9, "m": 2})
    assert second["properties"] == {"n": 9}


def test_sessions_go_to_a_queue_that_requires_them(run: Callable[..., Result]) -> None:
    lines = "".join(rows(str(n), sessionId="ab"[n % 3 // 2]) for n in range(9))
    assert run("send", "sessions", lines=lines).exit_code == 0
    assert [each["body"] for each in there(run, "sessions")] == [str(n) for n in range(9)]
    refused = run("send", "sessions", "none")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "session" in refused.stderr.lower()


def test_a_bad_line_stops_after_those_before_it(run: Callable[..., Result]) -> None:
    lines = rows("a", "b") + '{"bdy": 1}\n' + rows("c")
    result = run("send", "lines", lines=lines)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "peeklock: line 3: 'bdy' is no key of a message.\n2 messages accepted. Go on with --from-line 3.\n"
    )
    result = run("send", "lines", "--from-line", "3", "--skip-bad", lines=lines + "x\n")
    assert (result.exit_code, result.stdout) == (0, "1 message sent to lines; 2 bad lines skipped\n")
    assert result.stderr == (
        "peeklock: line 3: 'bdy' is no key of a message.\n"
        "peeklock: line 5: this is not JSON: Expecting value, at character 1.\n"
    )
    assert [each["body"] for each in there(run, "lines")] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"subject": 3}, "'subject' is not a text: 3"),
        ({"messageId": 1.5}, "'messageId' is neither a text nor a whole number"),
        ({"properties": [1]}, "'properties' is not an object"),
        ({"properties": {"a": {}}}, "property 'a' is neither"),
        ({"properties": {"a": 1 << 70}}, "cannot be encoded"),
        ({"body": 1}, "'body' is not a text: 1; write JSON as a text, or an AMQP value as 'bodyValue'"),
        ({"body": "a", "bodyValue": 1}, "one body"),
        ({"bodyBase64": "*"}, "'bodyBase64' is not base64"),
        ({"bodyType": "sequence", "body": "a"}, "no body of the type sequence"),
        ({"bodyType": "data", "bodyValue": 1}, "no body of the type data"),
        ({"bodyType": "x"}, "it is data, value or sequence"),
        ({"timeToLive": -1}, "'timeToLive' is not"),
        ({"timeToLive": True}, "'timeToLive' is not"),
        ({"scheduledEnqueueTime": "noon"}, "'scheduledEnqueueTime' is not an instant"),
        ({"body": "\ud800"}, "is no text"),
    ],
)
def test_what_is_no_message_is_refused(row: dict[str, Any], text: str) -> None:
    with pytest.raises(ComposeError, match=text.replace(".", r"\.").replace("*", r"\*")):
        compose(row)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("x", "--file", __file__), "not both"),
        (("x", "--skip-bad"), "--from-line and --skip-bad are of JSON Lines"),
        (("--count", "2"), "--count needs BODY or --file"),
        (("x", "--property", "n"), "'n' is not KEY=VALUE"),
        (("x", "--property", "n:=x"), "'x' is not a number, true or false"),
        (("x", "--ttl", "50d"), "the longest is 49d"),
        (("x", "--at", "noon"), "'noon' is not an instant"),
    ],
)
def test_wrong_options_are_refused(run: Callable[..., Result], arguments: tuple[str, ...], text: str) -> None:
    result = run("send", "orders", *arguments)
    assert result.exit_code == 2
    assert text in result.stderr


def test_an_entity_with_sessions_asks_for_one(run: Callable[..., Result]) -> None:
    result = run("send", "sessions", "hello")
    assert (result.exit_code, result.stderr.endswith("--session ID, or sessionId in a line.\n")) == (1, True)


def test_a_wrong_entity_shows_the_nearest(run: Callable[..., Result]) -> None:
    for lines in ("", rows("a")):
        result = run("send", "newz", lines=lines)
        assert result.exit_code == 1
        assert result.stderr == "peeklock: there is no queue or topic 'newz' here; did you mean 'news'?\n"


def test_lines_of_a_slow_pipe_are_sent_at_once_and_ctrl_c_says_how_to_go_on(
    served: ServedBroker, run: Callable[..., Result]
) -> None:
    with started(served, "send", "piped") as process:
        assert process.stdin is not None
        process.stdin.write(rows("a", "b") + '{"body": "hal')
        process.stdin.flush()
        while len(there(run, "piped")) < 2:
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        assert process.stderr is not None
        out, err = process.stdout.read(), process.stderr.read()
        assert process.wait(30) == 130
    assert (out, err) == ("", "2 messages accepted. Go on with --from-line 3.\n")


def test_a_break_says_how_many_were_accepted() -> None:
    with ServedBroker() as broker:
        Administration.of(ConnectionString.parse(broker.connection_string)).create("queue", "orders", {})
        process = started(broker, "send", "orders")
        assert process.stdin is not None
        process.stdin.write(rows("a", "b"))
        process.stdin.flush()
        runner = CliRunner()
        environment = {"SERVICEBUS_CONNECTION_STRING": broker.connection_string}
        while runner.invoke(main, ["peek", "orders", "--json"], env=environment).stdout.count("\n") < 2:
            assert process.poll() is None
    out, err = process.communicate(rows("c", "d"), timeout=60)
    assert (process.returncode, out) == (1, "")
    assert err.splitlines()[1:] == [
        "2 messages accepted. Go on with --from-line 3. Later ones may be accepted too."
    ]


def test_many_lines_arrive_in_order(run: Callable[..., Result]) -> None:
    lines = "".join(rows(f"{n}{'x' * (n % 7 * 1000)}") for n in range(2000))
    assert run("send", "many", lines=lines).stdout == "2,000 messages sent to many\n"
    assert [int(each["body"].rstrip("x")) for each in there(run, "many")] == [*range(2000)]
