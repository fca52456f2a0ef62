"""`peeklock backup` and `peeklock restore`, killed at any moment, and on volumes that are too small."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from peeklock.broker.vocabulary.changes import MessageStored
from peeklock.broker.vocabulary.message import Message
from peeklock.demo.broker import program
from peeklock.server.backup import read_backup
from peeklock.server.system.store import SystemStore, folder_of
from peeklock.store.backup.format import BackupUnusable
from peeklock.store.base import Batch
from peeklock.store.check import SOUND, check
from peeklock.store.sqlite.folder import UNFINISHED_NAME
from peeklock.store.sqlite.store import SqliteStore
from tests.kill.test_full_disk import do

pytestmark = pytest.mark.kill

ROWS = 80
ROW_BYTES = 256 * 1024
MB = 1024 * 1024


async def fill(data: Path) -> None:
    """Make a data folder with 20 MB that cannot be compressed."""
    system = await SystemStore.open(SqliteStore(folder_of(data), durability="os"))
    await system.put({"default-namespace": "bank"})
    await system.close()
    store = SqliteStore(data, durability="os")
    await store.open()
    for no in range(1, ROWS + 1):
        message = Message(ROW_BYTES)
        message.position = message.sequence_number = no  # type: ignore[assignment]  # both count here
        message.body_row = no
        await store.commit(Batch(no, [MessageStored(4, message)], {no: [os.urandom(ROW_BYTES)]}))
    await store.close()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kill") / "data"
    asyncio.run(fill(folder))
    return folder


@pytest.fixture(scope="module")
def file(data: Path) -> Path:
    path = data.parent / "whole.backup"
    assert run("backup", "--data", data, "--to", path) == ""
    return path


def run(*arguments: object) -> str:
    """Run a command of `peeklock`; return what it says if it fails."""
    done = subprocess.run([program(), *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert done.returncode in (0, 1), done.stderr
    return done.stderr if done.returncode else ""


def killed_in(seconds: float, *arguments: object) -> bool:
    """Run a command and kill it after a time; return whether it ended before."""
    with subprocess.Popen([program(), *map(str, arguments)], stderr=subprocess.DEVNULL) as running:
        try:
            return running.wait(seconds) == 0
        except subprocess.TimeoutExpired:
            running.kill()
            return False


def moments(started_s: float) -> list[float]:
    """Return moments spread over what a whole run took."""
    random = Random(3)
    return [random.uniform(0.2, 1.0) * started_s for _ in range(4)]


def test_a_back_up_that_is_killed_is_not_there_or_is_refused(tmp_path: Path, data: Path) -> None:
    """Req: R-02."""
    started = time.monotonic()
    assert run("backup", "--data", data, "--to", tmp_path / "first") == ""
    for at, seconds in enumerate(moments(time.monotonic() - started)):
        target = tmp_path / f"{at}.backup"
        if killed_in(seconds, "backup", "--data", data, "--to", target):
            continue
        part = target.with_name(f"{target.name}.part")
        if target.exists():  # killed while it was read again
            read_backup(target)
        elif part.exists():
            with pytest.raises(BackupUnusable, match=r"cut off|not a back-up"):
                read_backup(part)
            assert run("backup", "--data", data, "--to", target) == "", "what is left is no obstacle"
            assert not part.exists()
    assert check(data).exit_status == SOUND


def test_a_restore_that_is_killed_says_so_and_is_whole_when_it_is_repeated(
    tmp_path: Path, file: Path
) -> None:
    """Req: R-02."""
    started = time.monotonic()
    assert run("restore", file, "--data", tmp_path / "first") == ""
    for at, seconds in enumerate(moments(time.monotonic() - started)):
        target = tmp_path / f"target {at}"
        is_whole = killed_in(seconds, "restore", file, "--data", target)
        if not is_whole and target.exists() and (target / UNFINISHED_NAME).exists():
            said = run("serve", "--data", target, "--amqp-port", 0, "--http-port", 0)
            assert "is not whole: a restore into it runs, or was interrupted" in said
            assert "delete what is in the folder" in run("restore", file, "--data", target)
            do("rm", "-r", str(target))
        if not (target / "peeklock.db").exists():
            assert run("restore", file, "--data", target) == ""
        assert check(target).exit_status == SOUND


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A volume of 21 MB."""
    place = tmp_path / "small"
    place.mkdir()
    do("mount", "-t", "tmpfs", "-o", f"size={21 * MB}", "none", str(place))
    try:
        yield place
    finally:
        do("umount", str(place))


def test_a_full_disk_leaves_no_back_up_and_no_store(small: Path, data: Path, file: Path) -> None:
    """Req: R-06."""
    taken = small / "taken"
    taken.write_bytes(bytes(8 * MB))
    said = run("backup", "--data", data, "--to", small / "file")
    assert "No space left on device; it was removed: free some space" in said
    assert [path.name for path in small.iterdir()] == ["taken"]
    said = run("restore", file, "--data", small / "data")
    assert "the bodies alone need 20,9" in said
    assert "nothing was changed" in said
    assert not (small / "data").exists()
    taken.write_bytes(bytes(1_040_000))  # room for the bodies, and not for more
    said = run("restore", file, "--data", small / "data")
    assert "the disk is full" in said
    assert "is not whole" in run("serve", "--data", small / "data", "--amqp-port", 0, "--http-port", 0)
