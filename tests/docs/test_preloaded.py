"""A start of `peeklock` without its imports is as a real one: its process, streams, environment and end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from peeklock import __version__
from peeklock.demo.broker import BrokerProcess, program

# The reason: the preloader hands over descriptors and sees its children by what Linux alone has.
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere every start is a real one")

COMMANDS = ([program()], [sys.executable, "-m", "peeklock"])


def is_preloaded(process: int) -> bool:
    return b"tests.preloader" in Path(f"/proc/{process}/cmdline").read_bytes()


@pytest.mark.parametrize("command", COMMANDS, ids=["program", "module"])
def test_streams_and_status_are_its_own(command: list[str], tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
        )

    assert run("--version").stdout.startswith(f"peeklock, version {__version__}")
    refused = run("check", "none")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "Usage: peeklock check" in refused.stderr
    (tmp_path / "none").mkdir()
    assert run("check", "none").stderr != refused.stderr


def test_its_environment_is_its_own() -> None:
    environment = {**os.environ, "PEEKLOCK_DURABILITY": "sometimes"}
    refused = subprocess.run(
        [program(), "serve"], env=environment, capture_output=True, text=True, check=False
    )
    assert refused.returncode == 2
    assert "sometimes" in refused.stderr


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGTERM, 0), (signal.SIGKILL, -9)])
def test_it_is_a_child_that_signals_end(sent: signal.Signals, status: int) -> None:
    with subprocess.Popen(
        [program(), "serve", "--durability=memory", "--amqp-port=0", "--http-port=0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("peeklock ready")
        assert is_preloaded(process.pid)
        assert f"PPid:\t{os.getpid()}\n" in Path(f"/proc/{process.pid}/status").read_text()
        process.send_signal(sent)
        assert process.wait(20) == status


def test_two_are_two_processes(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with BrokerProcess(tmp_path) as one, BrokerProcess(tmp_path / "other") as other:
        assert one.pid != other.pid
        assert one.amqp_port != other.amqp_port


def test_a_start_that_asks_the_interpreter_for_something_is_a_real_one() -> None:
    environment = {**os.environ, "PYTHONVERBOSE": "1"}
    done = subprocess.run([program(), "--version"], env=environment, capture_output=True, check=True)
    assert b"import 'peeklock.cli'" in done.stderr
