"""`peeklock sessions` against a broker: lists, figures and states."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.cells import cell_len

from peeklock.client import BlockingConnection, ReceiveMode
from tests.cli.commands import Make, Run


def test_sessions_are_listed_to_the_last_page(run: Run, make: Make) -> None:
    queue = make(*(f"{n:03}:x" for n in range(230)), RequiresSession=True)
    wanted = [f"{n:03}" for n in range(230)]
    result = run("sessions", "list", queue)
    assert (result.exit_code, result.stdout.splitlines()) == (0, ["SESSION", *wanted])
    lines = run("sessions", "list", queue, "--json").stdout.splitlines()
    assert [json.loads(each) for each in lines] == [{"sessionId": each} for each in wanted]


def test_an_id_is_shown_escaped_and_none_is_no_error(run: Run, make: Make) -> None:
    assert run("sessions", "list", make("a\x1b[2J:x", RequiresSession=True)).stdout == "SESSION\na\\x1b[2J\n"
    empty = make(RequiresSession=True)
    assert run("sessions", "list", empty).stdout == "SESSION\n"
    result = run("sessions", "list", empty, "--json")
    assert (result.exit_code, result.stdout) == (0, "")


def test_a_session_is_shown(run: Run, make: Make) -> None:
    queue = make("a:1", "b:1", "a:2", "a:3", RequiresSession=True)
    assert run("receive", queue, "--session", "a", "--then", "defer").exit_code == 0
    at = ("--session", "a", "--at", "2099-01-31T12:00")
    assert run("send", queue, "later", *at).exit_code == 0
    assert run("sessions", "state", queue, "a", "--set", "step 1\n" + "x" * 300).exit_code == 0
    shown = run("sessions", "show", queue, "a").stdout.splitlines()
    assert [each.split()[0] for each in shown] == [
        "session", "active", "deferred", "scheduled", "oldest", "enqueued", "state",
    ]  # fmt: skip
    assert [each.split()[1] for each in shown[1:5]] == ["2", "1", "1", "1"]
    assert shown[6].split(maxsplit=1)[1].startswith(r"step 1\nxxx")
    assert shown[6].endswith("…")
    found = json.loads(run("sessions", "show", queue, "a", "--json").stdout)
    assert (found["active"], found["oldestSequenceNumber"], found["isHeld"]) == (2, 1, False)
    assert found["state"].startswith("step 1\nx")
    empty = json.loads(run("sessions", "show", queue, "none", "--json").stdout)
    assert empty == {
        "sessionId": "none", "active": 0, "deferred": 0, "scheduled": 0, "isHeld": False, "state": None,
    }  # fmt: skip
    assert run("receive", queue, "--session", "a").exit_code == 0, "it is not held any more"


def test_a_session_that_is_held_is_shown_without_its_state(
    run: Run, make: Make, connection: BlockingConnection
) -> None:
    queue = make("a:1", RequiresSession=True)
    holder = connection.receiver(queue, ReceiveMode.PEEK_LOCK, "a")
    holder.start()
    shown = run("sessions", "show", queue, "a")
    found = json.loads(run("sessions", "show", queue, "a", "--json").stdout)
    refused = run("sessions", "state", queue, "a", "--clear")
    holder.close()
    assert shown.stdout.splitlines()[-1].endswith("not read: a receiver holds the session")
    assert (found["active"], found["isHeld"], "state" in found) == (1, True, False)
    assert (refused.exit_code, refused.stdout, refused.stderr.count("\n")) == (1, "", 1)
    assert "Another receiver holds the session: close it, wait" in refused.stderr


def test_a_state_is_set_read_and_cleared(run: Run, make: Make, tmp_path: Path) -> None:
    queue = make(RequiresSession=True)
    state = ("sessions", "state", queue, "a")
    assert run(*state).stdout == "none\n"
    assert run(*state, "--set", "größe\x1b\nb").stdout == "state of session 'a' set, 10 bytes\n"
    assert run(*state).stdout == "größe\\x1b\nb\n"
    assert json.loads(run(*state, "--json").stdout) == {
        "sessionId": "a", "isHeld": False, "state": "größe\x1b\nb",
    }  # fmt: skip
    assert run("sessions", "list", queue).stdout == "SESSION\na\n"
    file = tmp_path / "state"
    file.write_bytes(b"\xff\x00")
    assert run(*state, "--file", str(file)).stdout == "state of session 'a' set, 2 bytes\n"
    assert run(*state).stdout == "base64: /wA=\n"
    assert json.loads(run(*state, "--json").stdout)["stateBase64"] == "/wA="
    assert run(*state, "--clear").stdout == "state of session 'a' cleared\n"
    assert run(*state).stdout == "none\n"


def test_a_state_that_is_too_large_is_refused(run: Run, make: Make, tmp_path: Path) -> None:
    file = tmp_path / "state"
    file.write_bytes(bytes(300_000))
    result = run("sessions", "state", make(RequiresSession=True), "a", "--file", str(file))
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert "300000 bytes" in result.stderr


def test_an_entity_without_sessions_says_so(run: Run, make: Make) -> None:
    queue = make()
    for arguments in (("list", queue), ("show", queue, "a"), ("state", queue, "a")):
        result = run("sessions", *arguments)
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr.endswith("Name an entity that requires sessions.\n")


def test_a_wrong_entity_shows_the_nearest(run: Run, make: Make) -> None:
    queue = make(RequiresSession=True)
    for arguments in (("list", f"{queue}x"), ("show", f"{queue}x", "a"), ("state", f"{queue}x", "a")):
        result = run("sessions", *arguments)
        assert (result.exit_code, result.stdout) == (1, "")
        assert f"did you mean '{queue}'" in result.stderr


def test_it_fits_a_narrow_terminal(run: Run, make: Make) -> None:
    queue = make("a:1", RequiresSession=True)
    shown = run("sessions", "show", queue, "a", columns=40).stdout.splitlines()
    assert max(map(cell_len, shown)) <= 40


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--set", "x", "--clear"), "give one of --set, --file and --clear"),
        (("--set", "x", "--json"), "leave out --set"),
        (("--file", "/none"), "does not exist"),
    ],
)
def test_wrong_options_are_refused(run: Run, arguments: tuple[str, ...], text: str) -> None:
    result = run("sessions", "state", "chats", "a", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert text in result.stderr
