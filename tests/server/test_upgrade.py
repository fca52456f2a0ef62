"""A data folder that release 0.2.0 wrote: commands on it, the first start of this release, the way back."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from click.testing import CliRunner, Result

from peeklock import __version__
from peeklock.cli import main
from peeklock.demo.broker import BrokerFailed, BrokerProcess
from peeklock.server.system.store import SystemStore, folder_of
from peeklock.store.sqlite.format import FORMAT
from peeklock.store.sqlite.store import SqliteStore
from tests.kept_keys import KeptKeys
from tests.releases import unpacked
from tests.store.damage import format_of, meddle, release_of

EARLIER_FORMAT = 6
GOLDEN = Path(__file__).parents[1] / "golden" / "stores"
SENT = [f"order {number}" for number in range(20)]
FILES = ("keys.json", "tls/ca.pem", "tls/ca-key.pem")
"""What an earlier release needs of a folder besides its store."""


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of release 0.2.0."""
    return unpacked("0.2.0", tmp_path_factory.mktemp("releases"))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, earlier: Path) -> Path:
    """A folder in which that release was killed, with messages, keys and an authority: its data folder."""
    folder = tmp_path_factory.mktemp("written")
    broker = broker_on(folder)
    broker.executable = earlier
    with broker:
        with client_of(broker, keys_in(broker.data)) as client, client.get_queue_sender("orders") as sender:
            sender.send_messages([ServiceBusMessage(text) for text in SENT])
        broker.kill()
    return broker.data


@pytest.fixture
def data(written: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    copied: Path = shutil.copytree(written.parent, tmp_path / "copy") / "data"
    return copied


def broker_on(folder: Path, *others: str) -> BrokerProcess:
    """Describe a broker with keys on the folder `data` in a folder; `others`: further namespaces."""
    config = folder / "Config.json"
    namespaces = [{"Name": name, "Queues": [{"Name": "orders"}]} for name in ("bank", *others)]
    config.write_text(json.dumps({"UserConfig": {"Namespaces": namespaces}}))
    return BrokerProcess(folder, [f"--config={config}", "--auth=sas"])


def keys_in(data: Path) -> str:
    """Return the name and the key in the file of an earlier release, as a connection string has them."""
    [rule] = json.loads((data / "keys.json").read_text())["rules"]
    return f"SharedAccessKeyName={rule['name']};SharedAccessKey={rule['primaryKey']};"


def client_of(broker: BrokerProcess, key: str) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(broker.connection_string + key)


def peeked(broker: BrokerProcess, key: str, queue: str = "orders") -> list[tuple[int | None, str]]:
    """Return sequence number and body of each message."""
    with client_of(broker, key) as client, client.get_queue_receiver(queue) as receiver:
        found = receiver.peek_messages(max_message_count=100, sequence_number=1)
        return [(message.sequence_number, str(message)) for message in found]


def files_of(data: Path) -> dict[str, str]:
    """Return what is there of `FILES`."""
    return {name: (data / name).read_text() for name in FILES if (data / name).exists()}


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(main, [str(each) for each in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), "no command has a traceback"
    return result


ALL = [(number, text) for number, text in enumerate(SENT, 1)]


# Commands on a folder that only an earlier release has used


def test_commands_read_a_folder_of_an_earlier_release_or_say_what_to_do(data: Path, tmp_path: Path) -> None:
    """Req: R-07."""
    store, files = (data / "peeklock.db").read_bytes(), files_of(data)
    checked = run("check", data)
    assert checked.exit_code == 0, checked.output
    assert f"peeklock.db, format {EARLIER_FORMAT}\n" in checked.output
    assert "  'orders': 20\n" in checked.output
    exported = run("export", data)
    assert exported.exit_code == 0
    assert '"Name": "orders"' in exported.output
    for command in (["list"], ["add", "--rights=Send"], ["rotate"], ["remove"]):
        names = ["other"] if command != ["list"] else []
        changed = run("keys", command[0], data, *names, *command[1:])
        assert changed.exit_code == 1
        assert changed.output == (
            f"peeklock: the keys of {data} are in {data}/keys.json, where earlier releases keep them; start "
            "the broker of this release on it once with --auth sas to take them over\n"
        )
    backed_up = run("backup", "--data", data, "--to", tmp_path / "file")
    assert backed_up.exit_code == 1
    assert backed_up.output == (
        f"peeklock: {data}/peeklock.db has format {EARLIER_FORMAT}, of an earlier release, and this one "
        f"backs up format {FORMAT}: copy the folder while no broker runs on it, or start the broker of this "
        "release on it once\n"
    )
    assert run("ca", data).exit_code == 0
    assert (data / "peeklock.db").read_bytes() == store
    assert files_of(data) == files


# The first start, and the way back


def test_an_earlier_release_refuses_the_folder_afterwards_and_takes_the_copy(
    data: Path, earlier: Path, tmp_path: Path
) -> None:
    """It names both formats. What its try leaves changes nothing for this release. Req: R-04, R-07."""
    copied = shutil.copytree(data.parent, tmp_path / "before")
    key, authority = keys_in(data), (data / "tls" / "ca.pem").read_bytes()
    broker = broker_on(data.parent)
    with broker:
        assert peeked(broker, key) == ALL
        assert broker.stop() == 0
        broker.executable = earlier
        refusal = f"has format {FORMAT}, written by a newer release; this one reads up to {EARLIER_FORMAT}"
        with pytest.raises(BrokerFailed, match=refusal):
            broker.start()
        for command in ("check", "export"):
            refused = subprocess.run([earlier, command, data], capture_output=True, text=True, check=False)
            assert refused.returncode != 0
            assert refusal in refused.stdout + refused.stderr
        assert keys_in(data) != key, "it has made a new file"
        broker.executable = None
        broker.start()
        assert peeked(broker, key) == ALL
        assert [rule.name for rule in KeptKeys(data).load()] == ["RootManageSharedAccessKey"]
        assert (data / "tls" / "ca.pem").read_bytes() == authority
        assert "a file of an earlier release is not read" in broker.log.read_text()
    back = broker_on(copied)
    back.executable = earlier
    with back:
        assert peeked(back, key) == ALL


@pytest.mark.parametrize("which", ["default", "system"])
def test_a_newer_store_is_refused_and_nothing_is_taken_over(data: Path, which: str) -> None:
    """Req: R-07."""
    release = "a newer release"
    if which == "system":
        release = f"release {__version__}"

        async def make() -> None:
            await (await SystemStore.open(SqliteStore(folder_of(data)))).close()

        asyncio.run(make())
    path = (data if which == "default" else folder_of(data)) / "peeklock.db"
    meddle(path, f"PRAGMA user_version = {FORMAT + 1}")
    before = files_of(data)
    said = (
        f"{path} has format {FORMAT + 1}, written by {release}; this release, {__version__}, reads up to "
        f"{FORMAT}: start {release}"
    )
    with pytest.raises(BrokerFailed, match=said):
        broker_on(data.parent).start()
    assert files_of(data) == before


def test_stores_of_several_formats_are_one_folder(data: Path, written: Path) -> None:
    """As a kill leaves it, when the default namespace has the new format and the others wait. Req: R-07."""
    broker = broker_on(data.parent, "shop", "yard")
    with broker:
        broker.kill()
        for name, source in (("shop", written), ("yard", GOLDEN / "format-1")):
            folder = data / "namespaces" / name
            shutil.rmtree(folder)
            shutil.copytree(source, folder)
        formats = [format_of(folder / "peeklock.db") for folder in folders_of(data)]
        assert formats == [FORMAT, FORMAT, EARLIER_FORMAT, 1]
        file = data.parent / "mixed.backup"
        backed_up = run("backup", "--data", data, "--to", file)
        assert backed_up.exit_code == 0, backed_up.output
        assert [format_of(folder / "peeklock.db") for folder in folders_of(data)] == formats
        broker.start()
        key = KeptKeys(data, "shop").load()[0]
        assert key.name == "shop"
        assert peeked(broker, f"SharedAccessKeyName=shop;SharedAccessKey={key.primary_key};") == ALL
        assert broker.stop() == 0
    restored = run("restore", file, "--data", data.parent / "restored")
    assert restored.exit_code == 0, restored.output
    for folder in (*folders_of(data), *folders_of(data.parent / "restored")):
        assert f"peeklock.db, format {FORMAT}\n" in (checked := run("check", folder)).output
        assert checked.exit_code == 0, checked.output
        assert release_of(folder / "peeklock.db") == __version__


def folders_of(data: Path) -> list[Path]:
    """Return the folders of the stores in a data folder with the namespaces of the test above."""
    return [data, folder_of(data), *(data / "namespaces" / name for name in ("shop", "yard"))]


def test_the_page_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its commands run as they are, one after the other, and it quotes what release 0.2.0 says. Req: R-07."""
    page = (Path(__file__).parents[2] / "docs/how-to/upgrade.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^ *```sh\n(.*?)^ *```", page, re.MULTILINE | re.DOTALL)
    commands = [line.split() for block in blocks for line in block.splitlines()]
    assert len(blocks) == page.count("```sh")
    assert len(commands) == 6
    assert (
        f"has format {FORMAT}, written by a newer release; this one reads up to {EARLIER_FORMAT}: start"
        in page
    )
    monkeypatch.setattr(os, "nice", lambda increment: 0)  # the process of the tests keeps its priority
    monkeypatch.chdir(tmp_path)
    with broker_on(tmp_path):
        for program, *arguments in commands:
            assert program == "peeklock"
            assert (done := run(*arguments)).exit_code == 0, done.output
    for name in ("data-before", "rehearsal"):
        assert (tmp_path / name / "peeklock.db").exists()


# A kill in the middle of the first start


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.long)])
def test_a_first_start_that_is_killed_at_any_step_is_finished_by_the_next(
    data: Path, tmp_path: Path, every: int
) -> None:
    """Until its store has the new format, the folder is one that the earlier release can take: with its keys
    and its authority.

    Req: R-02, R-04, R-07.
    """
    files, place = files_of(data), tmp_path / "killed"
    place.mkdir()
    command = [sys.executable, "-m", "tests.server.upgrade_steps", str(data), str(place), str(every)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *killed, last = map(json.loads, done.stdout.splitlines())
    assert len(killed) * every > 50
    assert last["format"] == FORMAT
    assert last["facts"]["authority"] == [files["tls/ca.pem"], files["tls/ca-key.pem"]]
    assert last["facts"]["keys"] == json.loads(files["keys.json"])["rules"]
    assert len(last["facts"]["messages"]) == len(SENT)
    for each in killed:
        assert each["facts"] == last["facts"], each["step"]
        if each["format"] == EARLIER_FORMAT:
            assert each["files"] == files, each["step"]
    assert {each["format"] for each in killed} == {EARLIER_FORMAT, FORMAT}
