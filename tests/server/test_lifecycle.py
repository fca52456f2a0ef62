"""Namespaces that are made and deleted while a broker serves others, by the command and by the file."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from click.testing import CliRunner, Result

from peeklock.cli import main
from peeklock.config.namespace_limits import NamespaceLimits, limits_of, write_limits
from peeklock.demo.broker import BrokerFailed, BrokerProcess
from peeklock.server.system.namespaces import NamespaceRecord, NamespaceRecords
from peeklock.server.system.store import SystemStore, folder_of
from peeklock.store.base import StoreDamaged
from peeklock.store.memory import MemoryStore
from peeklock.store.sqlite.store import SqliteStore
from tests.kept_keys import KeptKeys
from tests.server.test_throw_away import bodies, send
from tests.server.waiting import until

LIMITS = NamespaceLimits("premium", ("bank.example.org",), 5, 7 << 20, 9)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path: pytest's may be too long for a socket."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        yield Path(made)


def write_config(file: Path, *namespaces: dict[str, Any]) -> Path:
    file.write_text(json.dumps({"UserConfig": {"Namespaces": namespaces}}))
    return file


def run(broker: BrokerProcess, *arguments: str, answer: str = "") -> Result:
    """Return the result of `peeklock namespaces`."""
    return CliRunner().invoke(main, ["namespaces", *arguments, f"--data={broker.data}"], input=answer)


def done(broker: BrokerProcess, *arguments: str) -> str:
    result = run(broker, *arguments)
    assert result.exit_code == 0, result.output
    return result.output.strip()


def refused(broker: BrokerProcess, *arguments: str) -> str:
    result = run(broker, *arguments)
    assert result.exit_code == 1, result.output
    return result.output


def listed(broker: BrokerProcess) -> dict[str, Any]:
    found = json.loads(done(broker, "list", "--json"))["namespaces"]
    return {one["name"]: one for one in found}


# By the command


@pytest.mark.parametrize("auth", ["development", "sas"])
def test_a_namespace_is_made_found_again_after_a_kill_and_deleted(folder: Path, auth: str) -> None:
    orders = write_config(folder / "orders.json", {"Name": "any", "Queues": [{"Name": "orders"}]})
    with BrokerProcess(folder, ["--auth", auth]) as broker:
        text = done(broker, "create", "Bank", f"--config={orders}")
        send(text, "a")
        keys = KeptKeys(broker.data, "bank").load() if auth == "sas" else []
        assert [rule.name for rule in keys] == ["Bank"] * len(keys)
        broker.kill()
        broker.start()
        assert listed(broker)["Bank"]["kind"] == "created"
        assert bodies(text) == ["a"]
        assert done(broker, "delete", "BANK", "--yes") == "deleted Bank"
        assert list(listed(broker)) == ["sbemulatorns"]
        assert not (broker.data / "namespaces" / "bank").exists()
        with pytest.raises(ServiceBusError):
            bodies(text)
        again = done(broker, "create", "bank", f"--config={orders}")
        assert (again == text.replace("=Bank", "=bank")) == (auth == "development")
        assert bodies(again) == []
        broker.kill()
        broker.start()
        assert bodies(again) == []


def test_a_namespace_has_the_limits_of_the_options_and_of_the_file(folder: Path) -> None:
    file = write_config(
        folder / "Config.json",
        {
            "Name": "x",
            "Properties": {"MaxConnections": 2, "Tier": "Basic"},
            "Queues": [{"Name": "big", "Properties": {"MaxMessageSizeInKilobytes": 102_400}}],
        },
    )
    with BrokerProcess(folder, ["--durability=os"]) as broker:
        text = done(
            broker, "create", "bank", f"--config={file}", "--tier=premium", "--host-name=Bank.Example.org"
        )
        found = json.loads(done(broker, "show", "bank", "--json"))
        assert found["tier"] == "Premium"
        assert found["properties"] == {
            "Tier": "Premium",
            "HostNames": ["bank.example.org"],
            "MaxConnections": 2,
        }
        # Larger than a connection might hold with the tier that the broker began with.
        big = "b" * (9 << 20)
        client = ServiceBusClient.from_connection_string(text, retry_total=0)
        with client, client.get_queue_sender("big") as sender:
            sender.send_messages(ServiceBusMessage(big))
        assert bodies(text, "big") == [big]
        broker.kill()
        broker.start()
        assert json.loads(done(broker, "show", "bank", "--json")) == found
        assert "MaxConnections=2" in done(broker, "list")
        assert "MaxConnections  2" in done(broker, "show", "bank")


def test_the_clients_of_a_deleted_namespace_are_told_and_others_go_on(folder: Path) -> None:
    file = write_config(folder / "Config.json", {"Name": "shop", "Queues": [{"Name": "orders"}]})
    with BrokerProcess(folder, [f"--config={file}"]) as broker:
        text = done(broker, "create", "bank", f"--config={file}")
        root = "SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE"
        shop = f"{broker.connection_string}{root}"
        other = ServiceBusClient.from_connection_string(shop, retry_total=0)
        client = ServiceBusClient.from_connection_string(text, retry_total=0)
        send(shop, "a")
        with (
            other,
            client,
            other.get_queue_receiver("orders") as kept,
            client.get_queue_receiver("orders") as receiver,
        ):
            assert receiver.peek_messages(1) == []
            [message] = kept.receive_messages(1, 10)
            done(broker, "delete", "bank", "--yes")
            with pytest.raises(ServiceBusError, match="'bank' was deleted"):
                receiver.receive_messages(1, 10)
            kept.complete_message(message)


def test_a_deletion_is_confirmed(folder: Path) -> None:
    with BrokerProcess(folder, ["--durability=os"]) as broker:
        done(broker, "create", "bank")
        no = run(broker, "delete", "bank", answer="n\n")
        assert (no.exit_code, "with all its messages" in no.output) == (1, True)
        assert "bank" in listed(broker)
        assert run(broker, "delete", "bank", answer="y\n").exit_code == 0
        assert "bank" not in listed(broker)


def test_a_throw_away_namespace_is_made_by_the_command(folder: Path) -> None:
    with BrokerProcess(folder, ["--durability=os"]) as broker:
        text = done(broker, "create", "--throw-away", "--lease=PT10M")
        [name] = set(listed(broker)) - {"sbemulatorns"}
        assert f"SharedAccessKeyName={name};" in text
        assert "lease=PT10M" in done(broker, "list")
        done(broker, "create", "mine", "--throw-away")
        assert listed(broker)["mine"]["kind"] == "throw-away"
        done(broker, "delete", name, "--yes")
        assert set(listed(broker)) == {"sbemulatorns", "mine"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "NAME of the new namespace"),
        (["a", "--lease=PT1M"], "--lease is for --throw-away"),
        (["a", "--throw-away", "--tier=basic"], "has no limits"),
        (["a", "--config=FILE", "--tier=basic"], "is no Config.json"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path: Path, arguments: list[str], says: str) -> None:
    file = tmp_path / "broken.json"
    file.write_text("[]")
    given = [argument.replace("FILE", str(file)) for argument in arguments]
    result = CliRunner().invoke(main, ["namespaces", "create", *given, "--url=http://127.0.0.1:1"])
    assert result.exit_code == 2
    assert says in result.output


def test_what_cannot_be_made_or_deleted_is_refused_and_changes_nothing(folder: Path) -> None:
    first = {"Name": "shop", "Properties": {"HostNames": ["shop.example.org"]}}
    file = write_config(folder / "Config.json", first, {"Name": "bank"})
    bad = write_config(folder / "bad.json", {"Name": "x", "Queues": [{"Name": "a//b"}]})
    clash = {"Name": "q", "Properties": {"ForwardTo": "nowhere"}}
    late = write_config(folder / "late.json", {"Name": "x", "Queues": [clash]})
    with BrokerProcess(folder, [f"--config={file}", "--auth=sas"]) as broker:
        KeptKeys(broker.data).add("web", ["Send"])
        done(broker, "create", "team", "--host-name=team.example.org")
        before = listed(broker)
        for arguments, says in [
            (("create", "BANK"), "already a namespace 'bank'"),
            (("create", "team"), "already a namespace 'team'"),
            (("create", "web"), "has a key 'web'"),
            (("create", "new", "--host-name=team.example.org"), "means the namespace 'team'"),
            (("create", "new", "--host-name=shop.example.org"), "means the namespace 'shop'"),
            (("create", "new", "--host-name=bank"), "means the namespace 'bank'"),
            (("create", "new", "--host-name=localhost"), "host name of all namespaces"),
            (("create", "LocalHost"), "not localhost"),
            (("create", "new", "--host-name=*.org"), "has a pattern"),
            (("create", "new", "--tier=gold"), "Gold"),
            (("create", "new", f"--config={bad}"), "Queues[0].Name"),
            (("create", "new", f"--config={late}"), "nowhere"),
            (("create", "-"), "'-' is not a name"),
            (("create", "a/b"), "'a/b' is not a name"),
            (("create", "ä \0"), "is not a name"),
            (("create", ".."), "'..' is not a name"),
            (("create", "a" * 64), "is not a name"),
            (("delete", "shop", "--yes"), "is the default namespace"),
            (("delete", "bank", "--yes"), "is of the configuration file"),
            (("delete", "nobody", "--yes"), "no namespace 'nobody'"),
            (("show", "nobody"), "no namespace 'nobody'"),
        ]:
            assert says in refused(broker, *arguments)
        assert listed(broker) == before
        assert sorted(os.listdir(broker.data / "namespaces")) == ["bank", "team"]
        done(broker, "create", "new")  # nothing is left of the attempts


def test_a_folder_of_an_earlier_namespace_is_not_taken(folder: Path) -> None:
    """Its messages and its event log are somebody's."""
    with BrokerProcess(folder, [f"--capture={folder / 'log'}"]) as broker:
        log = folder / "log" / "_namespaces" / "bank"
        done(broker, "create", "bank")
        assert until(log.is_dir)
        done(broker, "delete", "bank", "--yes")
        assert f"{log} has the event log" in refused(broker, "create", "bank")
        shutil.rmtree(log)
        left = broker.data / "namespaces" / "bank"
        left.mkdir()
        assert f"{left} has the messages" in refused(broker, "create", "bank")
        left.rmdir()
        done(broker, "create", "bank")
        assert until(lambda: list(log.rglob("*.parquet")))


def test_what_a_kill_leaves_of_a_namespace_is_removed_at_the_next_start(folder: Path) -> None:
    """Its record says that it is not whole, from before its folder is made until after that is gone."""

    async def put(data: Path) -> None:
        system = await SystemStore.open(SqliteStore(folder_of(data)))
        await NamespaceRecords(system).put(NamespaceRecord("bank", is_whole=False))
        await system.close()

    with BrokerProcess(folder, ["--auth=sas"]) as broker:
        done(broker, "create", "bank")
        [old] = KeptKeys(broker.data, "bank").load()
        broker.kill()
        asyncio.run(put(broker.data))
        broker.start()
        assert list(listed(broker)) == ["sbemulatorns"]
        assert not (broker.data / "namespaces" / "bank").exists()
        done(broker, "create", "bank")
        [new] = KeptKeys(broker.data, "bank").load()
        assert new.primary_key != old.primary_key


# By the configuration file


def test_the_file_adds_and_drops_namespaces_while_the_broker_runs(folder: Path) -> None:
    shop, bank, team = {"Name": "shop"}, {"Name": "bank"}, {"Name": "team"}
    file = write_config(folder / "Config.json", shop)
    with BrokerProcess(folder, [f"--config={file}"]) as broker:

        def reload(*namespaces: dict[str, Any], says: str) -> None:
            write_config(file, *namespaces)
            assert broker.pid is not None
            os.kill(broker.pid, signal.SIGHUP)
            assert until(lambda: says in broker.log.read_text()), broker.log.read_text()

        def kinds() -> dict[str, str]:
            return {name: one["kind"] for name, one in listed(broker).items()}

        done(broker, "create", "team")
        reload(shop, {**bank, "Queues": [{"Name": "orders"}]}, says='"namespaces": 3')
        assert until(lambda: kinds() == {"shop": "default", "bank": "configured", "team": "created"})
        reload(shop, team, says="a namespace is kept that the file names no more")
        assert until(lambda: kinds() == {"shop": "default", "bank": "dropped", "team": "configured"})
        reload(
            shop,
            {**team, "Properties": {"MaxConnections": 1}},
            says="the Properties of a namespace have changed",
        )
        reload(shop, bank, says="namespaces served")
        assert until(lambda: kinds() == {"shop": "default", "bank": "configured", "team": "created"})
        reload(shop, says="no more")
        assert until(lambda: kinds()["bank"] == "dropped")
        done(broker, "delete", "bank", "--yes")
        assert not (broker.data / "namespaces" / "bank").exists()
        done(broker, "create", "tests", "--throw-away")
        reload(shop, {"Name": "tests"}, says="is a throw-away namespace")
        done(broker, "create", "late", "--host-name=late.example.org")
        clash = {"Name": "other", "Properties": {"HostNames": ["late.example.org"]}}
        reload(shop, clash, says="means the namespace 'late' already")
        assert set(kinds()) == {"shop", "team", "tests", "late"}


def test_a_start_refuses_two_namespaces_of_one_name_or_host(folder: Path) -> None:
    shop = {"Name": "shop"}
    file = write_config(folder / "Config.json", shop)
    broker = BrokerProcess(folder, [f"--config={file}"])
    with broker:
        done(broker, "create", "bank", "--host-name=bank.example.org")
    starts: list[tuple[list[dict[str, Any]], str]] = [
        ([{"Name": "bank"}], "There is already a namespace 'bank'"),
        ([shop, {"Name": "x", "Properties": {"HostNames": ["bank.example.org"]}}], "'bank.example.org'"),
    ]
    for config, says in starts:
        write_config(file, *config)
        with pytest.raises(BrokerFailed, match=says):
            broker.start()
    write_config(file, shop)
    with broker:
        assert set(listed(broker)) == {"shop", "bank"}


# The records


@pytest.mark.parametrize("limits", [NamespaceLimits(), LIMITS])
def test_limits_are_kept_as_the_file_has_them(limits: NamespaceLimits) -> None:
    assert limits_of(json.loads(json.dumps(write_limits(limits)))) == limits


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {"name": "bank"},
        {"name": "other", "properties": {}, "whole": True},
        {"name": 1, "properties": {}, "whole": True},
        {"name": "bank", "properties": [], "whole": True},
        {"name": "bank", "properties": {"Tier": "Gold"}, "whole": True},
        {"name": "bank", "properties": {"More": 1}, "whole": True},
    ],
)
def test_a_record_that_cannot_be_read_is_damage(value: Any) -> None:
    async def test() -> None:
        system = await SystemStore.open(MemoryStore())
        records = NamespaceRecords(system)
        await records.put(NamespaceRecord("Bank", LIMITS))
        assert records.all() == [NamespaceRecord("Bank", LIMITS)]
        assert records.has("bANK")
        await system.put({"namespace/bank": value if value is not None else 7})
        with pytest.raises(StoreDamaged, match="namespace/bank"):
            records.all()
        await records.remove("bank")
        assert records.all() == []

    asyncio.run(test())
