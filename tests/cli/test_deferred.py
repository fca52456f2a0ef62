"""`peeklock deferred` against a broker: lists, numbers, outcomes, sessions, closed pipes, Ctrl-C."""

from __future__ import annotations

import json
import signal
from datetime import timedelta

import pytest

from peeklock.client import BlockingConnection, ReceiveMode
from peeklock.client.deferred import DeferredMessages
from peeklock.testing.served import ServedBroker
from tests.cli.commands import Make, Run, bodies, fill, started, there


def defer(run: Run, queue: str, count: int, *options: str) -> None:
    result = run("receive", queue, "--then", "defer", "--count", str(count), "--wait", "0s", *options)
    assert result.stdout.endswith(f"{count} message{'s' if count > 1 else ''} deferred.\n"), result.output


def test_deferred_messages_are_listed(run: Run, make: Make) -> None:
    queue = make("a", "b", "c")
    defer(run, queue, 2)
    assert bodies(run("deferred", "list", queue, "--json")) == ["a", "b"]
    assert run("deferred", "list", queue).stdout.count("\n") == 3
    assert run("deferred", "list", make()).stdout.count("\n") == 1


def test_they_are_received_by_number(run: Run, make: Make) -> None:
    queue = make("a", "b", "c", "d")
    defer(run, queue, 3)
    assert bodies(run("deferred", "receive", queue, "3", "1", "--json")) == ["c", "a"]
    assert [(each["body"], each["state"]) for each in there(run, queue)] == [
        ("b", "deferred"),
        ("d", "active"),
    ]
    result = run("deferred", "receive", queue, "2")
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "1 message completed.")


def test_each_outcome(run: Run, make: Make) -> None:
    queue = make(*"abcd")
    defer(run, queue, 4)
    assert run("deferred", "receive", queue, "1", "--then", "abandon").exit_code == 0
    assert run("deferred", "receive", queue, "2", "--then", "defer").exit_code == 0
    assert run("deferred", "receive", queue, "3", "--delete").stdout.endswith("1 message deleted.\n")
    outcome = ("--then", "dead-letter", "--reason", "Bad", "--description", "no price")
    assert run("deferred", "receive", queue, "4", *outcome).exit_code == 0
    assert [(each["sequenceNumber"], each["state"]) for each in there(run, queue)] == [
        (1, "deferred"),
        (2, "deferred"),
    ]
    [dead] = there(run, queue, "--dead-letter")
    assert dead["properties"] == {"DeadLetterReason": "Bad", "DeadLetterErrorDescription": "no price"}


def test_all_are_received(run: Run, make: Make) -> None:
    wanted = [str(n) for n in range(320)]
    queue = make(*wanted, "active")
    defer(run, queue, 320)
    assert bodies(run("deferred", "receive", queue, "--all", "--json")) == wanted
    assert [each["body"] for each in there(run, queue)] == ["active"]
    result = run("deferred", "receive", queue, "--all")
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == f"peeklock: '{queue}' has no deferred message.\n"


def test_all_that_stay_deferred_come_once(run: Run, make: Make) -> None:
    queue = make("a", "b")
    defer(run, queue, 2)
    assert bodies(run("deferred", "receive", queue, "--all", "--then", "abandon", "--json")) == ["a", "b"]
    assert len(there(run, queue)) == 2


def test_numbers_without_a_message_are_named_and_the_others_received(
    run: Run, make: Make, connection: BlockingConnection
) -> None:
    queue = make("a", "b", "c")
    defer(run, queue, 2)
    DeferredMessages(connection, queue).receive([2], ReceiveMode.PEEK_LOCK)
    result = run("deferred", "receive", queue, "1", "2", "3", *map(str, range(80, 91)), "--json")
    assert (result.exit_code, json.loads(result.stdout)["body"]) == (1, "a")
    assert result.stderr == (
        f"peeklock: '{queue}' has no deferred message 2, 3, 80, 81, 82, 83, 84, 85, 86, 87 and 3 more, or "
        "another receiver has locked it. `peeklock deferred list` shows what is there.\n"
    )


def test_more_than_an_answer_holds_is_received(run: Run, make: Make) -> None:
    queue = make(*(f"{n}{'x' * 200_000}" for n in range(20)))
    defer(run, queue, 20)
    received = bodies(run("deferred", "receive", queue, "--all", "--json"))
    assert [int(each.rstrip("x")) for each in received] == [*range(20)]


def test_sessions(run: Run, make: Make) -> None:
    queue = make("a:1", "b:1", "a:2", RequiresSession=True)
    defer(run, queue, 2, "--session", "a")
    defer(run, queue, 1, "--session", "b")
    assert bodies(run("deferred", "list", queue, "--json")) == ["a:1", "b:1", "a:2"]
    assert bodies(run("deferred", "list", queue, "--session", "a", "--json")) == ["a:1", "a:2"]
    refused = run("deferred", "receive", queue, "1")
    assert refused.exit_code == 1
    assert refused.stderr.endswith("Say which session: --session ID.\n")
    assert bodies(run("deferred", "receive", queue, "1", "--session", "a", "--json")) == ["a:1"]
    assert bodies(run("deferred", "receive", queue, "--all", "--session", "a", "--json")) == ["a:2"]
    refused = run("deferred", "receive", make(), "1", "--session", "a")
    assert refused.stderr.endswith("Leave out --session.\n")


def test_dead_letters(run: Run, make: Make) -> None:
    queue = make("a")
    assert run("receive", queue, "--then", "dead-letter").exit_code == 0
    assert run("receive", queue, "--dead-letter", "--then", "defer").exit_code == 0
    assert bodies(run("deferred", "receive", queue, "--dead-letter", "--all", "--json")) == ["a"]
    assert there(run, queue, "--dead-letter") == []


def test_a_closed_pipe_leaves_the_others_deferred(served: ServedBroker, run: Run, make: Make) -> None:
    queue = make(*(f"{n}{'x' * 50_000}" for n in range(20)))
    defer(run, queue, 20)
    with started(served, "deferred", "receive", queue, "--all", "--json") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["body"].startswith("0x")
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait(30) == 141
    left = [int(each["body"].rstrip("x")) for each in there(run, queue)]
    assert left == [*range(left[0], 20)]
    assert 1 <= left[0] <= 3
    again = run("deferred", "receive", queue, "--all", "--json")
    assert again.stdout.count("\n") == len(left), "none is locked"


def test_ctrl_c_says_what_was_done(served: ServedBroker, run: Run, make: Make) -> None:
    queue = make(*(f"{n}{'x' * 50_000}" for n in range(20)))
    defer(run, queue, 20)
    with started(served, "deferred", "receive", queue, "--all", "--json") as process:
        assert process.stdout is not None
        fill(process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        assert process.returncode == 130
    count = out.count("\n")
    assert err == f"{count} message{'s' if count > 1 else ''} completed.\n"
    assert [int(each["body"].rstrip("x")) for each in there(run, queue)] == [*range(count, 20)]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "give sequence numbers or --all"),
        (("1", "--all"), "give sequence numbers or --all"),
        (("x",), "'x' is not a valid integer"),
        (("-1",), "No such option"),
        ((str(1 << 63),), "is not in the range"),
        (("1", "--reason", "x"), "--reason and --description"),
        (("1", "--dead-letter", "--session", "a"), "has no sessions"),
        (("1", "--dead-letter", "--then", "dead-letter"), "cannot be dead-lettered"),
    ],
)
def test_wrong_options_are_refused(run: Run, arguments: tuple[str, ...], text: str) -> None:
    result = run("deferred", "receive", "orders", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert text in result.stderr


def test_a_wrong_entity_shows_the_nearest(run: Run, make: Make) -> None:
    queue = make()
    for arguments in (("list", f"{queue}x"), ("receive", f"{queue}x", "1")):
        result = run("deferred", *arguments)
        assert (result.exit_code, result.stdout) == (1, "")
        assert f"did you mean '{queue}'" in result.stderr


def test_a_lock_that_is_lost_is_told(served: ServedBroker, run: Run, make: Make) -> None:
    queue = make(*(f"{n}{'x' * 100_000}" for n in range(3)), LockDuration="PT5S")
    defer(run, queue, 3)
    with started(served, "deferred", "receive", queue, "--all", "--json") as process:
        assert process.stdout is not None
        fill(process)
        served.advance(timedelta(seconds=6))
        _, err = process.communicate(timeout=30)
        assert process.returncode == 1
    assert "com.microsoft:message-lock-lost" in err
    assert "printed, but not known to be completed" in err.splitlines()[-1]
    assert len(there(run, queue)) == 3
