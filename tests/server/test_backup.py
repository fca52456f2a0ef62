"""`peeklock backup` and `peeklock restore` of data folders: what they refuse, and what they leave behind."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from click.testing import CliRunner, Result

from peeklock.capture.folder import STORE_MARK_NAME
from peeklock.cli import main
from peeklock.cli.running import find
from peeklock.client import BlockingConnection, ConnectionString, encode_message, scan
from peeklock.demo.broker import READY, BrokerProcess, program
from peeklock.moving.copying import peek
from peeklock.server import backup, restore
from peeklock.server.net.backup_pages import PAGE_BYTES
from peeklock.server.system.store import SystemStore, folder_of
from peeklock.store.backup.format import unpack_blobs
from peeklock.store.base import Batch
from peeklock.store.sqlite.store import SqliteStore

ENTITIES: dict[str, Any] = {"Queues": [{"Name": "orders"}]}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments])


def done(*arguments: object) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.output


def refused(*arguments: object) -> str:
    result = run(*arguments)
    assert result.exit_code == 1, result.output
    return result.output


@pytest.fixture(autouse=True)
def priority(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of the tests keeps its priority."""
    monkeypatch.setattr(os, "nice", lambda increment: 0)


async def fill(data: Path) -> None:
    """Make a data folder with the facts of the process and an empty default namespace."""
    system = await SystemStore.open(SqliteStore(folder_of(data)))
    await system.put({"default-namespace": "bank", "keys/bank": [], "keys/other": []})
    await system.close()
    store = SqliteStore(data)
    await store.open()
    await store.commit(Batch(1, []))
    await store.close()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    asyncio.run(fill(folder))
    return folder


@pytest.fixture
def file(tmp_path: Path, data: Path) -> Path:
    path = tmp_path / "full.backup"
    done("backup", "--data", data, "--to", path)
    return path


async def facts_of(data: Path) -> dict[str, Any]:
    system = await SystemStore.open(SqliteStore(folder_of(data)))
    try:
        return {key: system.get(key) for key in system.keys_below("")}
    finally:
        await system.close()


# Without a broker


def test_a_folder_comes_back_with_its_facts_and_its_event_log(tmp_path: Path, data: Path) -> None:
    assert backup.EVENT_LOG_MARK == STORE_MARK_NAME
    (data / STORE_MARK_NAME).write_text('{"id": "of the log"}\n')
    said = done("backup", "--data", data, "--to", tmp_path / "file")
    assert "the default namespace 'bank': all, up to batch 1\n" in said
    assert "bytes, read again and whole" in said
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600, "it has keys"
    target = tmp_path / "target"
    said = done("restore", tmp_path / "file", "--data", target)
    assert "the namespace 'bank': 0 messages, as after batch 1; it goes on at batch 10,000,000,001" in said
    assert json.loads((target / STORE_MARK_NAME).read_text()) == {"id": "of the log"}
    assert asyncio.run(facts_of(target)) == asyncio.run(facts_of(data))
    assert sorted(path.name for path in target.iterdir()) == sorted(
        ["event-log.json", "peeklock.db", "peeklock.lock", "system"]
    )


def test_one_namespace_takes_its_keys_along_and_no_others(tmp_path: Path, data: Path, file: Path) -> None:
    done("backup", "--data", data, "--to", tmp_path / "one", "--namespace", "BANK")
    for at, source in enumerate((tmp_path / "one", file)):
        target = tmp_path / f"target {at}"
        done("restore", source, "--data", target, "--namespace", "Bank")
        assert asyncio.run(facts_of(target)) == {"default-namespace": "bank", "keys/bank": []}
    assert "has no namespace 'shop'" in refused("backup", "--data", data, "--to", "x", "--namespace", "shop")
    said = refused("restore", file, "--data", tmp_path / "x", "--namespace", "shop")
    assert said == f"peeklock: {file} has no namespace 'shop'; it has bank\n"


def test_namespaces_beside_the_default_one_come_along_if_they_are_whole(tmp_path: Path, data: Path) -> None:
    async def add() -> None:
        system = await SystemStore.open(SqliteStore(folder_of(data)))
        for name, is_whole in (("Shop", True), ("Half", False)):
            record = {"name": name, "properties": {}, "whole": is_whole}
            await system.put({f"namespace/{name.lower()}": record})
            store = SqliteStore(data / "namespaces" / name.lower())
            await store.open()
            await store.commit(Batch(1, []))
            await store.close()
        await system.close()

    asyncio.run(add())
    said = done("backup", "--data", data, "--to", tmp_path / "all")
    assert [line.partition(":")[0] for line in said.splitlines()[:-1]] == [
        "the default namespace 'bank'",
        "the namespace 'Shop'",
    ]
    done("restore", tmp_path / "all", "--data", tmp_path / "target")
    assert [path.name for path in (tmp_path / "target" / "namespaces").iterdir()] == ["shop"]
    assert "no damage found" in done("check", tmp_path / "target" / "namespaces" / "shop")
    done("restore", tmp_path / "all", "--namespace", "shop", "--data", tmp_path / "one")
    assert asyncio.run(facts_of(tmp_path / "one")) == {"default-namespace": "Shop"}
    assert not (tmp_path / "one" / "namespaces").exists()


def test_a_dry_run_reads_a_back_up_and_writes_nothing(tmp_path: Path, file: Path) -> None:
    said = done("restore", file, "--dry-run", "--data", tmp_path / "target")
    assert "the default namespace 'bank': up to batch 1, of 20" in said
    assert said.endswith("all of it was read: whole\n")
    assert not (tmp_path / "target").exists()
    file.write_bytes(file.read_bytes()[:-1])
    assert "cut off" in refused("restore", file, "--dry-run")
    assert run("restore", file).exit_code == 2


def test_a_back_up_replaces_nothing(tmp_path: Path, data: Path, file: Path) -> None:
    said = refused("backup", "--data", data, "--to", data / "peeklock.db")
    assert said == f"peeklock: {data}/peeklock.db is in the data folder {data}: name a file outside of it\n"
    (tmp_path / "link").symlink_to(data)
    assert "is in the data folder" in refused("backup", "--data", data, "--to", tmp_path / "link" / "new")
    said = refused("backup", "--data", data, "--to", file, "--since", file)
    assert said == f"peeklock: {file} exists: name a new file, or move that one away\n"
    assert "there is no folder" in refused("backup", "--data", data, "--to", tmp_path / "none" / "file")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_leaves_no_back_up(tmp_path: Path, data: Path) -> None:
    """A link that stands in for the file under way leads to a device that is full."""
    (tmp_path / "file.part").symlink_to("/dev/full")
    said = refused("backup", "--data", data, "--to", tmp_path / "file")
    assert said == (
        f"peeklock: cannot write {tmp_path}/file.part: No space left on device; it was removed: free some "
        "space, or name another place, and back up again\n"
    )
    assert not (tmp_path / "file").exists()
    assert not (tmp_path / "file.part").is_symlink()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_back_up_leaves_nothing(tmp_path: Path, data: Path, number: int, status: int) -> None:
    """A pipe stands in for the file under way, so that it is certain when the command writes."""

    async def grow() -> None:
        store = SqliteStore(data)
        await store.open()
        await store.commit(Batch(2, [], {1: [os.urandom(1_000_000)]}))
        await store.close()

    asyncio.run(grow())
    part = tmp_path / "file.part"
    os.mkfifo(part)
    command = [program(), "backup", "--data", str(data), "--to", str(tmp_path / "file")]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as running, part.open("rb") as pipe:
        assert pipe.read(10)
        running.send_signal(number)
        assert running.wait(30) == status
    assert not list(tmp_path.glob("file*"))


def test_a_restore_changes_nothing_that_is_there(tmp_path: Path, data: Path, file: Path) -> None:
    before = sorted((path.name, path.stat().st_mtime_ns) for path in data.iterdir())
    said = refused("restore", file, "--data", data)
    assert said.startswith(f"peeklock: {data} is not empty, it has ")
    assert said.endswith("restore into an empty folder; nothing was changed\n")
    assert sorted((path.name, path.stat().st_mtime_ns) for path in data.iterdir()) == before
    volume = tmp_path / "volume"
    (volume / "lost+found").mkdir(parents=True)
    done("restore", file, "--data", volume)


def test_a_damaged_back_up_makes_no_folder(tmp_path: Path, file: Path) -> None:
    changed = bytearray(file.read_bytes())
    changed[len(changed) // 2] ^= 1
    file.write_bytes(changed)
    said = refused("restore", file, "--data", tmp_path / "target")
    assert "fails its checksum: the file is damaged" in said
    assert not (tmp_path / "target").exists()


def test_an_interrupted_restore_says_that_it_is_not_whole(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object) -> None:
        raise KeyboardInterrupt

    target = tmp_path / "target"
    monkeypatch.setattr(restore, "_require_sound", fail)
    assert run("restore", file, "--data", target).exit_code == 130
    monkeypatch.undo()
    served = run("serve", "--data", target, "--amqp-port", 0, "--http-port", 0)
    assert served.exit_code == 1
    assert f"{target} is not whole: a restore into it runs, or was interrupted" in served.output
    assert "is not whole" in run("check", target).output
    assert "is not whole" in refused("export", target)
    assert "is not whole" in refused("backup", "--data", target, "--to", tmp_path / "other")
    assert "was interrupted: delete what is in the folder" in refused("restore", file, "--data", target)


def test_a_folder_without_a_store_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    said = refused("backup", "--data", tmp_path / "empty", "--to", tmp_path / "file")
    assert said.startswith(
        f"peeklock: there is no store in {tmp_path}/empty: name the folder that a broker was"
    )


# While a broker runs


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    config = tmp_path / "Config.json"
    config.write_text(json.dumps({"UserConfig": {"Namespaces": [{"Name": "bank", **ENTITIES}]}}))
    folder = tmp_path / "served"
    folder.mkdir()
    with BrokerProcess(folder, [f"--config={config}"]) as made:
        yield made


def test_standard_output_that_ends_early_is_said(broker: BrokerProcess) -> None:
    with subprocess.Popen(
        [program(), "backup", "--data", broker.data, "--to", "-"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as backing_up:
        assert backing_up.stdout is not None
        assert backing_up.stderr is not None
        backing_up.stdout.close()
        assert b"who reads the back-up has ended, so it is cut off" in backing_up.stderr.read()
    assert backing_up.returncode == 1


def test_standard_output_has_a_whole_back_up(tmp_path: Path, broker: BrokerProcess) -> None:
    made = subprocess.run(
        [program(), "backup", "--data", broker.data, "--to", "-"], capture_output=True, timeout=60
    )
    assert made.returncode == 0
    (tmp_path / "file").write_bytes(made.stdout)
    assert "the default namespace 'bank'" in done("restore", tmp_path / "file", "--dry-run")


def test_the_page_does_what_it_says(
    tmp_path: Path, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands of the guide run as they are, one after the other."""
    page = (Path(__file__).parents[2] / "docs/how-to/back-up-and-restore.md").read_text(encoding="utf-8")
    commands = re.findall(r"^```sh\npeeklock (.*)\n```", page, re.MULTILINE)
    assert len(commands) == page.count("```sh") == 5
    monkeypatch.chdir(broker.data.parent)
    for command in commands:
        done(*command.replace("sbemulatorns", "bank").split())
    assert (broker.data.parent / "restored" / "peeklock.db").exists()


# A broker in memory


class InMemory:
    """A process with `--durability memory` and two namespaces."""

    def __init__(self, folder: Path) -> None:
        names = [{"Name": "bank", **ENTITIES}, {"Name": "Shop", **ENTITIES}]
        config = folder / "Config.json"
        config.write_text(json.dumps({"UserConfig": {"Namespaces": names}}))
        self.control = folder / "control"
        command = [program(), "serve", "--durability=memory", f"--control={self.control}"]
        command += [f"--config={config}", "--amqp-port=0", "--http-port=0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        ready = READY.match(self.process.stdout.readline().rstrip())
        assert ready is not None
        self.port = int(ready[3])
        self.connection_string = ready[1]


@pytest.fixture
def in_memory() -> Iterator[InMemory]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # the path of a socket is short
        made = InMemory(Path(folder))
        with made.process:
            yield made
            made.process.terminate()


def connected(text: str) -> BlockingConnection:
    return BlockingConnection(ConnectionString.parse(text, timeout_s=10))


def send(text: str, *bodies: bytes) -> None:
    connection = connected(text)
    sender = connection.sender("orders")
    for body in bodies:
        sender.send(encode_message(data=body))
    sender.flush()
    connection.close()


def bodies_of(text: str) -> list[bytes]:
    connection = connected(text)
    try:
        return [scan(each).decode_body()[0][1] for each in peek(connection, "orders", 0, 100)]
    finally:
        connection.close()


def test_a_broker_in_memory_is_asked(tmp_path: Path, in_memory: InMemory) -> None:
    """Its messages and namespaces come back in a folder, and an increment has what came later."""
    control, large = in_memory.control, b"two" * 60_000
    send(in_memory.connection_string, b"one", large)
    said = done("backup", "--control", control, "--to", tmp_path / "full")
    assert "the default namespace 'bank': all, up to batch " in said
    assert "the namespace 'Shop': all, up to batch 1\n" in said
    send(in_memory.connection_string, b"three")
    more = ("--control", control, "--to", tmp_path / "more", "--since", tmp_path / "full")
    assert "the default namespace 'bank': an increment, from batch " in done("backup", *more)
    target = tmp_path / "target"
    done("restore", tmp_path / "full", tmp_path / "more", "--data", target / "data")
    with BrokerProcess(target) as again:
        assert bodies_of(again.connection_string) == [b"one", large, b"three"]


def test_one_namespace_of_a_broker_in_memory(tmp_path: Path, in_memory: InMemory) -> None:
    control = ("--control", in_memory.control)
    done("backup", *control, "--to", tmp_path / "one", "--namespace", "SHOP")
    assert "the default namespace 'Shop'" in done("restore", tmp_path / "one", "--dry-run")
    said = refused("backup", *control, "--to", tmp_path / "x", "--namespace", "none")
    assert "has no namespace 'none'" in said
    assert not (tmp_path / "x").exists()


def test_the_stores_of_a_broker_in_memory_are_on_the_control_socket_alone(in_memory: InMemory) -> None:
    """They have the keys of all namespaces, which nobody may see over the network."""
    url = f"http://127.0.0.1:{in_memory.port}/$api/v1/"
    assert urlopen(f"{url}config").status == 200
    with pytest.raises(HTTPError) as failed:
        urlopen(f"{url}backup")
    assert failed.value.code == 404


def test_a_reader_is_for_one_back_up(in_memory: InMemory) -> None:
    broker = find(control=in_memory.control)
    opened = broker.value("POST", "/$api/v1/backup?store=default/bank")
    path = f"/$api/v1/backup/{opened['id']}?what=numbers&after="
    assert broker.data("GET", f"{path}0") == b""
    assert broker.ask("GET", f"{path}-1").status == 400
    assert broker.ask("POST", "/$api/v1/backup?store=default/none").status == 400
    send(in_memory.connection_string, *(bytes(200_000) for _ in range(12)))
    opened = broker.value("POST", "/$api/v1/backup?store=default/bank")
    pages = f"/$api/v1/backup/{opened['id']}?what=rows&after="
    found, sizes = [0], []
    while page := broker.data("GET", f"{pages}{found[-1]}"):
        found += [no for no, _ in unpack_blobs(page)]
        sizes.append(len(page))
    assert found[-1] == opened["ends"][2]
    assert max(sizes) < PAGE_BYTES + 300_000 < sum(sizes), "no answer holds up the loop"
    broker.value("POST", "/$api/v1/backup?store=namespace/shop")
    refusal = broker.ask("GET", f"{path}0")
    assert (refusal.status, refusal.value["detail"]) == (
        409,
        "Another back-up has begun, or this one has paused for too long: back up again.",
    )


def test_a_broker_with_a_folder_names_it(tmp_path: Path, broker: BrokerProcess) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        (Path(short) / "data").symlink_to(broker.data)
        control = ("--control", f"{short}/data/control.sock")
        said = refused("backup", *control, "--to", tmp_path / "file")
        assert said.endswith(
            f"refused it: This broker keeps its messages in {broker.data}: back them up with "
            f"--data {broker.data}\n"
        )
        assert not list(tmp_path.glob("file*"))
        assert run("backup", "--to", tmp_path / "file").exit_code == 2
        both = run("backup", "--data", broker.data, *control, "--to", tmp_path / "file")
        assert both.exit_code == 2
    none = tmp_path / "none"
    assert "no broker listens at" in refused("backup", "--control", none, "--to", tmp_path / "file")
