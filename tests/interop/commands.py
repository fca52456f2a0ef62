"""The commands of the command line that work with any Service Bus, each run once.

Owns: what they are given and what they must answer. Must not know: which broker it is, and how to reach it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from peeklock.cli import main

Run = Callable[..., Result]


def runner(login: str) -> Run:
    """Return what runs a command on the namespace of a login, and checks its exit status."""

    def run(*words: str, status: int = 0, given: str | None = None) -> Result:
        result = CliRunner().invoke(main, [*words, "--connection", login], input=given)
        assert result.exit_code == status, f"{words}: {result.output} {result.exception!r}"
        return result

    return run


def entities(run: Run, names: str) -> None:
    """Create, list, show, update and delete a queue, a topic, a subscription and a rule."""
    queue, topic = f"{names}-queue", f"{names}-topic"
    of_topic = ("subscriptions", topic, "sport"), ("rules", topic, "sport", "goals")
    for kind, *path in (("queues", queue), ("topics", topic), *of_topic):
        settings = ("--filter", "goals > 3") if kind == "rules" else ()
        assert "created" in run(kind, "create", *path, *settings).output
        assert path[-1] in run(kind, "list", *path[:-1]).output
        shown = run(kind, "show", *path, "--json").output
        assert json.loads(shown)["name"] == path[-1]
    for kind, *path, option, value in (
        ("queues", queue, "--lock-duration", "2m"),
        ("topics", topic, "--default-message-time-to-live", "1h"),
        ("subscriptions", topic, "sport", "--max-delivery-count", "3"),
        ("rules", topic, "sport", "goals", "--filter", "goals > 4"),
    ):
        assert "updated" in run(kind, "update", *path, option, value).output
    for kind, *path in (*reversed(of_topic), ("topics", topic), ("queues", queue)):
        assert "deleted" in run(kind, "delete", *path).output
        assert path[-1] not in run(kind, "list", *path[:-1]).output
    assert "there is no queue" in run("queues", "show", queue, status=1).output


def messages(run: Run, queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send, look, search and follow; measure; all in a queue that is made and deleted."""
    run("queues", "create", queue)
    run("bench", queue, "--messages", "20", "--only", "send")
    run("send", queue, "1 pizza", "--subject", "pizza", "--property", "n:=1", "--ttl", "1h")
    run("send", queue, "later", "--at", "2099-01-01T00:00Z", "--partition-key", "p")
    lines = "".join(json.dumps({"body": f"{n} cake", "properties": {"n": n}}) + "\n" for n in range(3))
    assert run("send", queue, given=lines).output == f"3 messages sent to {queue}\n"
    peeked = [json.loads(each) for each in run("peek", queue, "--json").output.splitlines()]
    assert [each["body"] for each in peeked] == ["1 pizza", "later", "0 cake", "1 cake", "2 cake"]
    found = run("search", queue, "--filter", "n = 1 AND sys.Label = 'pizza'", "--json").output
    assert [json.loads(each)["body"] for each in found.splitlines()] == ["1 pizza"]
    assert "later" in run("search", queue, "--state", "scheduled").output
    run("peek", queue, "--dead-letter")
    assert "new one" in followed(run, queue, monkeypatch).output
    assert f"did you mean '{queue}'" in run("send", f"{queue}x", "lost", status=1).output
    run("queues", "delete", queue, "--yes")


def put_right(run: Run, queue: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Group, resubmit and drop dead letters; move and purge; in queues that are made and deleted."""
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    other = f"{queue}-other"
    run("queues", "create", queue)
    run("queues", "create", other, "--session")
    run("send", queue, "1 pizza", "--count", "6")
    run("receive", queue, "--count", "4", "--then", "dead-letter", "--reason", "cold")
    assert "cold" in run("dead-letters", "groups", queue).output
    number = json.loads(run("dead-letters", "list", queue, "--count", "1", "--json").output)["sequenceNumber"]
    assert "cold" in run("dead-letters", "show", queue, str(number)).output
    sent = run("dead-letters", "resubmit", queue, "--to-number", str(number + 1)).output
    assert "Exactly once" in sent
    assert sent.endswith(f"2 messages sent to {queue}\n")
    assert run("dead-letters", "drop", queue, "--yes").output.startswith("2 messages removed")
    run("send", queue, "later", "--at", "2099-01-01T00:00Z")
    assert "3 messages moved" in run("move", queue, other, "--set-session", "a", "--count", "3").output
    assert "2 messages moved" in run("move", other, queue, "--to-number", "2").output
    assert run("purge", queue, "--yes").output == f"4 messages removed from {queue}\n"
    assert run("purge", other, "--text", "pizza", "--yes").output == f"1 message removed from {other}\n"
    for name in (queue, other):
        run("queues", "delete", name)


def received(run: Run, names: str) -> None:
    """Receive, settle in each way, receive deferred messages; list, show and receive sessions."""
    queue, chats = f"{names}-work", f"{names}-chats"
    run("queues", "create", queue)
    run("send", queue, "cake", "--count", "6")
    for outcome in ("complete", "abandon", "defer", "dead-letter"):
        assert '"cake"' in run("receive", queue, "--then", outcome, "--json").output
    assert '"cake"' in run("receive", queue, "--delete", "--json").output
    dead = run("receive", queue, "--dead-letter", "--json").output
    run("receive", queue, "--count", "2", "--then", "defer")
    assert len(run("deferred", "list", queue, "--json").output.splitlines()) == 3
    first = json.loads(run("deferred", "list", queue, "--json").output.splitlines()[0])["sequenceNumber"]
    run("deferred", "receive", queue, str(first), "--then", "dead-letter", "--reason", "Bad")
    assert "2 messages completed" in run("deferred", "receive", queue, "--all").output
    run("receive", queue, "--wait", "0s", status=3)
    assert run("send", queue, given=dead).output == f"1 message sent to {queue}\n"
    run("queues", "delete", queue, "--yes")
    run("queues", "create", chats, "--session")
    run("send", chats, "hello", "--session", "ann", "--count", "2")
    assert "--next-session" in run("receive", chats, status=1).stderr
    assert "ann" in run("receive", chats, "--next-session", "--json").output
    assert run("sessions", "list", chats).output == "SESSION\nann\n"
    run("sessions", "state", chats, "ann", "--set", "step 1")
    assert json.loads(run("sessions", "show", chats, "ann", "--json").output)["state"] == "step 1"
    run("receive", chats, "--session", "ann", "--then", "defer")
    run("deferred", "receive", chats, "--all", "--session", "ann")
    run("queues", "delete", chats, "--yes")


def followed(run: Run, queue: str, monkeypatch: pytest.MonkeyPatch) -> Result:
    """Return what `tail` shows until it is interrupted; a message arrives meanwhile."""
    pauses = iter([lambda: run("send", queue, "new one"), interrupt])
    with monkeypatch.context() as patched:
        patched.setattr("peeklock.cli.browsing.time.sleep", lambda _: next(pauses)())
        return run("tail", queue, "--json", status=130)


def interrupt() -> None:
    """Press Ctrl-C."""
    raise KeyboardInterrupt
