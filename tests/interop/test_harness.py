"""The harness of clients' programs: builds, and programs that behave well or badly."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console

from tests.interop import builds, program
from tests.interop.__main__ import run_all
from tests.interop.builds import BuildFailed, Client, build, features, is_built
from tests.interop.program import Outcome, Program

ANSWER = """echo '{"feature": "send", "status": "works"}'"""
"""A line of shell that answers the request of the feature `send`."""


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Client]:
    """Return a client whose program is shell; builds go to a folder of this test."""
    monkeypatch.setattr(builds, "BUILDS", tmp_path / "builds")
    folder = tmp_path / "shell"
    folder.mkdir()

    def make(run: str = "", build: str = "", needs: tuple[str, ...] = ()) -> Client:
        (folder / "build.sh").write_text(build)
        (folder / "run.sh").write_text(run)
        return Client("shell", "Shell", "sh", folder, (), needs, ())

    return make


@pytest.fixture
def start(make: Callable[..., Client], tmp_path: Path) -> Iterator[Callable[[str], Program]]:
    """Start a program with its broker."""
    started: list[Program] = []

    def start(run: str) -> Program:
        client = make(f"while read request; do\n{run}\ndone")
        started.append(Program(client, tmp_path, tmp_path).__enter__())
        return started[-1]

    yield start
    for one in started:
        one.__exit__(None, None, None)


def test_what_a_program_answers_is_the_outcome(start: Callable[[str], Program]) -> None:
    shown = start("""echo '{"feature": "send", "status": "differs", "how": "slowly"}'""")
    assert shown.try_feature("send") == Outcome("differs", "slowly")


def test_a_failure_is_told_with_the_log_of_this_feature_alone(start: Callable[[str], Program]) -> None:
    shown = start(
        """echo "about $request" >&2; echo '{"feature": "send", "status": "failed", "error": "why"}'"""
    )
    for _ in range(2):
        outcome = shown.try_feature("send")
        assert outcome.status == "failed"
        assert outcome.how == 'why\nits log:\n  about {"feature": "send"}'


def test_the_broker_is_restarted_when_the_program_asks(start: Callable[[str], Program]) -> None:
    shown = start(f"""echo '{{"ask": "restart"}}'; read done; echo "$done" >&2; {ANSWER}""")
    assert shown.try_feature("send") == Outcome("works")
    folder = Path(shown.log).parent
    assert (folder / "broker.log").read_text().count('"event": "stopped"') == 1
    assert shown.log.read_text() == '{"done": "restart"}\n'


def test_a_program_that_ends_fails_the_feature_and_is_started_anew(start: Callable[[str], Program]) -> None:
    shown = start("echo dying >&2; exit 3")
    for _ in range(2):
        assert shown.try_feature("send").how == "the program ended with status 3\nits log:\n  dying"


@pytest.mark.parametrize(
    "line", ["oops", "[]", '{"feature": "other", "status": "works"}', '{"status": "fine"}']
)
def test_a_line_that_is_no_answer_fails_the_feature(start: Callable[[str], Program], line: str) -> None:
    outcome = start(f"echo '{line}'").try_feature("send")
    assert outcome.status == "failed"
    assert f"no answer to 'send' is this line: {line!r}" in outcome.how.replace("\\n", "")


def test_a_program_that_hangs_is_killed_with_all_that_it_started(
    start: Callable[[str], Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "FEATURE_S_MAX", 0.5)
    shown = start("sleep 600 & wait")
    assert shown.try_feature("send").how == "the program did not answer within 0.5 s"


def test_a_build_is_made_once_for_each_state_of_the_folder(make: Callable[..., Client]) -> None:
    script = "echo built >>../times; touch $1/made"
    client = make(build=script)
    times = client.folder.parent / "times"
    first = build(client)
    assert (first / "made").exists()
    assert build(client) == first
    assert times.read_text() == "built\n"
    client = make(build=script, run="# changed")
    assert not is_built(client)
    assert build(client) != first
    assert times.read_text() == "built\nbuilt\n"
    assert not first.exists()


def test_a_build_leaves_those_of_a_folder_with_a_longer_name(
    make: Callable[..., Client], tmp_path: Path
) -> None:
    others = tmp_path / "builds/shell-other-0123456789abcdef", tmp_path / "builds/shell-other.lock"
    others[0].mkdir(parents=True)
    others[1].touch()
    build(make())
    assert all(other.exists() for other in others)


def test_pages_and_what_tools_leave_are_no_change(make: Callable[..., Client]) -> None:
    client = make()
    build(client)
    (client.folder / "notes.md").write_text("new")
    (client.folder / "__pycache__").mkdir()
    (client.folder / "__pycache__/main.pyc").write_text("new")
    assert is_built(client)


def test_a_build_that_fails_says_so_in_the_tool_s_words_and_is_tried_again(
    make: Callable[..., Client],
) -> None:
    client = make(build="echo no such package; exit 4")
    for _ in range(2):
        with pytest.raises(
            BuildFailed, match=r"(?s)^shell: .*build.sh ended with status 4.*no such package$"
        ):
            build(client)


@pytest.mark.parametrize("shim", [False, True])
def test_a_tool_that_is_missing_or_does_not_start_is_named(
    make: Callable[..., Client], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shim: bool
) -> None:
    tool = f"no-such-tool-{shim}"
    if shim:
        (tmp_path / tool).write_text("#!/bin/sh\nexit 127\n")
        (tmp_path / tool).chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert make(needs=(tool,)).missing == f"shell: {tool} is not installed"
    assert make(needs=(sys.executable,)).missing == ""


def test_each_feature_is_told_when_it_is_done(make: Callable[..., Client]) -> None:
    """Without a terminal for a bar, as a line each."""
    client = make(
        """while read -r request; do echo "${request%\\}}, \\"status\\": \\"works\\"}"; done""",
        build="""echo '{"shell": "1"}' >"$1/versions.json" """,
    )
    told = io.StringIO()
    run_all(Console(file=told, width=200), [client])
    lines = told.getvalue().splitlines()
    count = len(features())
    assert lines[:-1] == [
        f"shell {number}/{count}: {name} works" for number, name in enumerate(features(), 1)
    ]
    assert lines[-1].startswith(f"shell: {count} works, in ")
