"""`peeklock receive` against a broker: outcomes, sessions, waits, closed pipes, Ctrl-C, breaks."""

from __future__ import annotations

import json
import signal
import time
from datetime import timedelta

import pytest
from click.testing import CliRunner
from rich.cells import cell_len

from peeklock.cli import main
from peeklock.client import NEXT, Administration, BlockingConnection, ConnectionString, ReceiveMode
from peeklock.testing.served import ServedBroker
from tests.cli.commands import Make, Run, bodies, fill, put, started, there
from tests.spark.relay import Relay

# Outcomes


def test_one_message_is_printed_and_completed(run: Run, make: Make) -> None:
    queue = make("a", "b")
    result = run("receive", queue)
    assert result.exit_code == 0
    head, line, end = result.stdout.splitlines()
    assert head.startswith("SEQUENCE")
    assert line.split()[0] == "1"
    assert end == "1 message completed."
    assert [each["body"] for each in there(run, queue)] == ["b"]


def test_many_are_received_in_order(run: Run, make: Make) -> None:
    wanted = [str(n) for n in range(350)]
    queue = make(*wanted)
    assert bodies(run("receive", queue, "--count", "300", "--json")) == wanted[:300]
    assert bodies(run("receive", queue, "--count", "300", "--wait", "0s", "--json")) == wanted[300:]
    assert there(run, queue) == []


def test_abandoned_messages_come_once_and_are_counted(run: Run, make: Make) -> None:
    queue = make("a", "b")
    result = run("receive", queue, "--count", "5", "--wait", "0s", "--then", "abandon", "--json")
    assert bodies(result) == ["a", "b"]
    assert [each["deliveryCount"] for each in there(run, queue)] == [1, 1]
    assert bodies(run("receive", queue, "--json")) == ["a"], "it is available at once"


def test_messages_are_deferred(run: Run, make: Make) -> None:
    queue = make("a")
    result = run("receive", queue, "--then", "defer")
    assert result.stdout.endswith("1 message deferred.\n")
    assert [each["state"] for each in there(run, queue)] == ["deferred"]


def test_a_dead_letter_has_reason_and_description_and_can_be_received(run: Run, make: Make) -> None:
    queue = make("a")
    outcome = ("--then", "dead-letter", "--reason", "Bad", "--description", "no price")
    assert run("receive", queue, *outcome).stdout.endswith("1 message dead-lettered.\n")
    [dead] = there(run, queue, "--dead-letter")
    assert dead["properties"] == {"DeadLetterReason": "Bad", "DeadLetterErrorDescription": "no price"}
    shown = run("receive", queue, "--dead-letter", "--full").stdout
    assert "  DeadLetterReason            Bad\n" in shown
    assert there(run, queue, "--dead-letter") == []


def test_receive_and_delete(run: Run, make: Make) -> None:
    queue = make("a", "b", "c")
    result = run("receive", queue, "--delete", "--count", "2")
    assert result.stdout.endswith("2 messages deleted.\n")
    assert [each["body"] for each in there(run, queue)] == ["c"]


def test_what_receive_prints_can_be_sent(run: Run, make: Make) -> None:
    queue, other = make("a", b"\xff\x00"), make()
    printed = run("receive", queue, "--count", "2", "--json").stdout
    assert run("send", other, lines=printed).stdout == f"2 messages sent to {other}\n"
    again = there(run, other)
    assert (again[0]["body"], again[1]["bodyBase64"]) == ("a", "/wA=")


@pytest.mark.parametrize("width", [40, 80])
def test_a_table_fits_and_hides_nothing(run: Run, make: Make, width: int) -> None:
    queue = make("x" * 200, "\x1b[31m\u202e", b"\xff")
    lines = run("receive", queue, "--count", "3", columns=width).stdout.splitlines()
    assert max(map(cell_len, lines)) <= width
    assert r"\x1b[31m" in lines[2]
    assert "base64: /w==" in lines[3]


def test_what_the_encoding_of_the_terminal_lacks_is_escaped(
    served: ServedBroker, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    out, err = started(served, "receive", make("日本"), "--full").communicate(timeout=30)
    assert (out.splitlines()[-1], err) == (r"  \u65e5\u672c", "")


# Waiting


def test_no_message_has_a_status_of_its_own(run: Run, make: Make) -> None:
    queue = make()
    result = run("receive", queue, "--wait", "0s")
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == f"peeklock: no message came from '{queue}'.\n"


def test_it_waits_for_a_message(served: ServedBroker, connection: BlockingConnection, make: Make) -> None:
    queue = make()
    with started(served, "receive", queue, "--wait", "1m", "--json") as process:
        put(connection, queue, "late")
        out, err = process.communicate(timeout=50)
    assert (json.loads(out)["body"], err, process.returncode) == ("late", "", 0)


# Sessions


def test_a_session_is_received_by_name(run: Run, make: Make) -> None:
    queue = make("a:1", "b:1", "a:2", RequiresSession=True)
    result = run("receive", queue, "--session", "a", "--count", "9", "--wait", "0s", "--json")
    assert bodies(result) == ["a:1", "a:2"]
    assert [each["body"] for each in there(run, queue)] == ["b:1"]


def test_the_next_session_is_received(run: Run, make: Make) -> None:
    queue = make("a:1", "b:1", "a:2", RequiresSession=True)
    next_one = ("receive", queue, "--next-session", "--count", "9", "--wait", "0s", "--json")
    assert bodies(run(*next_one)) == ["a:1", "a:2"]
    assert bodies(run(*next_one)) == ["b:1"]
    assert run(*next_one).exit_code == 3


def test_sessions_are_followed_one_after_the_other(run: Run, make: Make) -> None:
    queue = make("a:1", "b:1", "a:2", RequiresSession=True)
    result = run("receive", queue, "--next-session", "--follow", "--count", "3", "--wait", "0s", "--json")
    assert bodies(result) == ["a:1", "a:2", "b:1"]


def test_the_lock_of_a_followed_session_is_renewed_and_a_break_survived(
    served: ServedBroker, connection: BlockingConnection, make: Make
) -> None:
    queue = make("a:1", RequiresSession=True, LockDuration="PT5S")
    with Relay(served.port) as relay:
        text = served.connection_string.replace(f":{served.port};", f":{relay.port};")
        arguments = ("receive", queue, "--session", "a", "--follow", "--json", "--connection-string", text)
        with started(served, *arguments) as process:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["body"] == "a:1"
            while relay.asked.count(b"renew-session-lock") < 3:  # more than the lock lasts
                assert process.poll() is None
            put(connection, queue, "a:2", sessions=True)
            assert json.loads(process.stdout.readline())["body"] == "a:2"
            while relay.asked.count(b"renew-session-lock") < 4:  # then the answers have come
                assert process.poll() is None
            relay.cut()
            put(connection, queue, "a:3", sessions=True)
            assert json.loads(process.stdout.readline())["body"] == "a:3"
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "3 messages completed.\n")


def test_an_entity_with_sessions_needs_one(run: Run, make: Make) -> None:
    result = run("receive", make(RequiresSession=True))
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert result.stderr.endswith("Say which session: --session ID, or --next-session.\n")
    for option in (("--session", "a"), ("--next-session",)):
        result = run("receive", make(), *option)
        assert result.exit_code == 1
        assert result.stderr.endswith("Leave out --session and --next-session.\n")


def test_a_session_that_is_held_says_what_to_do(run: Run, make: Make, connection: BlockingConnection) -> None:
    queue = make("a:1", RequiresSession=True)
    holder = connection.receiver(queue, ReceiveMode.PEEK_LOCK, NEXT)
    holder.start()
    result = run("receive", queue, "--session", "a")
    holder.close()
    assert result.exit_code == 1
    assert "Another receiver holds the session" in result.stderr


# Stopping


def test_ctrl_c_ends_a_wait_and_says_what_was_done(
    served: ServedBroker, connection: BlockingConnection, make: Make
) -> None:
    queue = make("a", "b")
    with started(served, "receive", queue, "--follow") as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert [each.split()[-1] for each in lines] == ["BODY", "a", "b"]
    assert (process.returncode, out, err) == (130, "", "2 messages completed.\n")
    put(connection, queue, "c")
    receiver = connection.receiver(queue, ReceiveMode.RECEIVE_AND_DELETE)
    assert len(receiver.receive(1, 5)) == 1
    receiver.close()


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("signals", [1, 2])
def test_ctrl_c_while_the_reader_sleeps(
    served: ServedBroker, run: Run, make: Make, signals: int, unbuffered: str
) -> None:
    """Once: the message that is being printed is settled, the others are released. Twice: it ends at once."""
    queue = make(*(f"{n}{'x' * 50_000}" for n in range(20)))
    with started(served, "receive", queue, "--count", "20", "--json", unbuffered=unbuffered) as process:
        assert process.stdout is not None
        first = process.stdout.read(50_000)  # more than that stays in the pipe, and the process waits
        assert first
        fill(process)
        process.send_signal(signal.SIGINT)
        if signals == 2:
            time.sleep(0.2)  # two signals at once are one
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130
        rest = process.stdout.read()
        assert process.stderr is not None
        err = process.stderr.read()
        assert process.wait(30) == 130
    printed = (first + rest).count("\n")
    left = there(run, queue)
    if signals == 1:
        assert err == f"{printed} messages completed.\n"
        assert [int(each["body"].rstrip("x")) for each in left] == [*range(printed, 20)]
        assert {each["deliveryCount"] for each in left} == {0}
    else:
        assert err == ""
        assert len(left) == 20


def test_a_closed_pipe_releases_what_is_not_printed(served: ServedBroker, run: Run, make: Make) -> None:
    queue = make(*(f"{n}{'x' * 50_000}" for n in range(20)))
    with started(served, "receive", queue, "--count", "20", "--json") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["body"].startswith("0x")
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait(30) == 141
    left = [int(each["body"].rstrip("x")) for each in there(run, queue)]
    assert left == [*range(left[0], 20)]
    assert 1 <= left[0] <= 3
    result = run("receive", queue, "--json", "--wait", "0s")
    assert json.loads(result.stdout)["deliveryCount"] == 0


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_is_told_and_nothing_is_settled(
    served: ServedBroker, run: Run, make: Make, unbuffered: str
) -> None:
    queue = make("a", "b")
    with open("/dev/full", "w") as full:
        process = started(served, "receive", queue, "--count", "2", unbuffered=unbuffered, stdout=full)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert err == "peeklock: standard output: No space left on device. 0 messages completed.\n"
    assert [each["deliveryCount"] for each in there(run, queue)] == [0, 0]


def test_a_break_says_what_was_done() -> None:
    with ServedBroker() as broker:
        settings = ConnectionString.parse(broker.connection_string)
        Administration.of(settings).create("queue", "orders", {})
        made = BlockingConnection(settings)
        put(made, "orders", "a", "b")
        made.close()
        process = started(broker, "receive", "orders", "--follow", "--json")
        assert process.stdout is not None
        assert [json.loads(process.stdout.readline())["body"] for _ in range(2)] == ["a", "b"]
        environment = {"SERVICEBUS_CONNECTION_STRING": broker.connection_string}
        while CliRunner().invoke(main, ["peek", "orders", "--json"], env=environment).stdout:
            assert process.poll() is None
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, "")
    assert err.splitlines()[-1] == "2 messages completed. Run it again to go on."


# Errors


def test_a_lost_lock_is_told(served: ServedBroker, run: Run, make: Make) -> None:
    queue = make(*(f"{n}{'x' * 100_000}" for n in range(3)), LockDuration="PT5S")
    with started(served, "receive", queue, "--count", "3", "--json") as process:
        assert process.stdout is not None
        assert process.stdout.read(10)
        fill(process)
        served.advance(timedelta(seconds=6))
        process.stdout.read()
        assert process.stderr is not None
        err = process.stderr.read()
        assert process.wait(30) == 1
    assert "com.microsoft:message-lock-lost" in err
    assert "printed, but not known to be completed" in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--then", "complete", "--delete"), "give --then or --delete, not both"),
        (("--reason", "x"), "--reason and --description are of --then dead-letter"),
        (("--follow", "--wait", "1s"), "leave out --wait"),
        (("--follow", "--then", "abandon"), "receive the same messages again"),
        (("--dead-letter", "--then", "dead-letter"), "cannot be dead-lettered"),
        (("--dead-letter", "--session", "a"), "has no sessions"),
        (("--session", "a", "--next-session"), "not both"),
        (("--wait", "soon"), "'soon' is not a span of time"),
        (("--count", "0"), "--count"),
    ],
)
def test_wrong_options_are_refused(run: Run, arguments: tuple[str, ...], text: str) -> None:
    result = run("receive", "orders", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert text in result.stderr


def test_a_wrong_entity_shows_the_nearest(run: Run, make: Make) -> None:
    queue = make()
    result = run("receive", f"{queue}x")
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"did you mean '{queue}'" in result.stderr


def test_a_wrong_key_is_one_line(run: Run, served: ServedBroker, make: Make) -> None:
    wrong = served.connection_string.replace("SharedAccessKey=", "SharedAccessKey=x")
    result = run("receive", make(), "--connection-string", wrong)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert "Check SharedAccessKeyName and SharedAccessKey" in result.stderr
