"""The control socket: its mode, a stale one, a path that cannot have one."""

from __future__ import annotations

import asyncio
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from peeklock.server.net.control import PATH_BYTES_MAX, ControlSocket
from peeklock.server.settings import Settings, StartFailed

SETTINGS = Settings(None, None, "127.0.0.1", 0, 0, "memory", None, None, "standard", None)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path: pytest's may be too long for a socket."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        yield Path(made)


@contextmanager
def opened(path: Path, *, asked: bool = True) -> Iterator[ControlSocket]:
    settings = replace(SETTINGS, control=path) if asked else replace(SETTINGS, data=path.parent)
    loop = asyncio.new_event_loop()
    control = ControlSocket(settings, asyncio.Protocol)
    try:
        loop.run_until_complete(control.open())
        yield control
    finally:
        control.close()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


def left_by_a_kill(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))


def test_only_its_owner_can_use_it_and_it_goes_with_the_broker(folder: Path) -> None:
    with opened(folder / "control.sock", asked=False) as control:
        assert control.path == folder / "control.sock"
        found = control.path.stat().st_mode
        assert (stat.S_ISSOCK(found), stat.S_IMODE(found)) == (True, 0o600)
    assert list(folder.iterdir()) == []


def test_a_broker_without_a_folder_has_none_unless_it_is_named() -> None:
    assert ControlSocket(SETTINGS, asyncio.Protocol).path is None


def test_a_stale_socket_is_replaced(folder: Path) -> None:
    path = folder / "s"
    left_by_a_kill(path)
    with opened(path), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


def test_the_socket_of_another_broker_stays(folder: Path) -> None:
    path = folder / "s"
    with opened(path):
        said = f"--control {path}: another process listens there; stop it"
        with pytest.raises(StartFailed, match=said), opened(path):
            pass
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))


def test_a_socket_that_has_replaced_ours_stays(folder: Path) -> None:
    path = folder / "s"
    with opened(path):
        path.unlink()
        left_by_a_kill(path)
    assert path.is_socket()


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_what_is_no_socket_stays(folder: Path, kind: str) -> None:
    path = folder / "s"
    if kind == "file":
        path.write_text("x")
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(folder / "elsewhere")
    with pytest.raises(StartFailed, match="something else of that name; move it away"), opened(path):
        pass
    assert path.lstat()


def test_a_folder_that_is_missing_is_said_so(folder: Path) -> None:
    said = "No such file or directory; choose a path in a folder that exists"
    with pytest.raises(StartFailed, match=said), opened(folder / "none" / "s"):
        pass


def test_a_path_is_as_long_as_a_socket_takes(folder: Path) -> None:
    longest = folder / ("x" * (PATH_BYTES_MAX - len(str(folder)) - 1))
    with opened(longest):
        assert longest.is_socket()
    too_long = longest.with_name(longest.name + "x")
    with pytest.raises(StartFailed, match="at most 107 bytes, and this one 108"), opened(too_long):
        pass


def test_without_the_usual_socket_the_broker_starts(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "control.sock").write_text("x")
    with caplog.at_level("WARNING"), opened(folder / "control.sock", asked=False) as control:
        assert control.path is None
    assert "there is no control socket" in caplog.text
    assert (folder / "control.sock").read_text() == "x"
