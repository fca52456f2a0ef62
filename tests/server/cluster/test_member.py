"""Nodes that open the namespaces that they are to own, and give others back."""

from __future__ import annotations

import asyncio
import logging
import os
import time
import uuid
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from peeklock.auth import ALL_RIGHTS
from peeklock.broker.vocabulary.changes import FactStored
from peeklock.cli import main
from peeklock.config.namespace_limits import NamespaceLimits
from peeklock.server.app import Broker
from peeklock.server.cluster.member import Member
from peeklock.server.disk import SYSTEM, store_name
from peeklock.server.keys.rules import new_rule
from peeklock.server.settings import CaptureSettings, StartFailed
from peeklock.server.system.keys import NamespaceKeys, values_of
from peeklock.server.system.namespaces import NamespaceRecord, NamespaceRecords
from peeklock.server.system.store import read
from peeklock.store.base import Batch
from peeklock.store.postgres.format import FORMAT
from peeklock.store.postgres.store import PostgresStore
from tests.postgres_server import PostgresServer, database_of, require_postgres
from tests.server.cluster.names import names as names  # a fixture
from tests.server.cluster.nodes import Cluster, in_cluster, until_next_view
from tests.server.cluster.test_relay import send
from tests.server.waiting import SECONDS_MAX


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.new_database(f"cluster{uuid.uuid4().hex}")


def test_namespaces_are_spread_over_nodes_that_come_and_go(url: str, tmp_path: Path) -> None:
    async def check(cluster: Cluster) -> None:
        await cluster.start("a")
        await cluster.until_owned(a=["default", "namespace/one", "namespace/two"])
        await cluster.start("b")
        await cluster.until_owned(a=["default", "namespace/one"], b=["namespace/two"])
        assert await cluster.stop("a") == 0
        await cluster.until_owned(b=["default", "namespace/one", "namespace/two"])

    in_cluster(check, url, tmp_path, ["main", "one", "two"])


def test_an_operator_moves_a_namespace(url: str, tmp_path: Path) -> None:
    async def check(cluster: Cluster) -> None:
        first = await cluster.start("a")
        await cluster.until_owned(a=["default"])
        await cluster.start("b")
        assert first.node is not None
        first.node.member.nodes.choose(["default"], "b")
        await cluster.until_owned(a=[], b=["default"])
        assert first.registry.default.name == "main"
        first.node.member.nodes.choose(["default"], "a")
        await cluster.until_owned(a=["default"], b=[])

    in_cluster(check, url, tmp_path, ["main"])


def test_a_broker_that_is_no_node_is_refused_in_a_cluster(url: str, tmp_path: Path) -> None:
    async def check(cluster: Cluster) -> None:
        await cluster.start("a")
        with pytest.raises(StartFailed, match="are those of a cluster: start this broker as a node of it"):
            await cluster.start("b", node=None, cluster_key=None)
        cluster.key.write_bytes(b"x" * 32)
        with pytest.raises(StartFailed, match="have another cluster key"):
            await cluster.start("b")
        cluster.key.write_bytes(b"x")
        with pytest.raises(StartFailed, match=r"cluster\.key: it has 1 bytes, and a key has 32 to"):
            await cluster.start("b")

    in_cluster(check, url, tmp_path, ["main"])


def test_nodes_share_keys_and_the_certificate_authority(url: str, tmp_path: Path) -> None:
    async def check(cluster: Cluster) -> None:
        first = await cluster.start("a", auth=frozenset({"sas"}))
        second = await cluster.start("b", auth=frozenset({"sas"}))
        await cluster.until_owned(a=["default"], b=[])
        rules = []
        for broker in (first, second):
            keys = broker.registry.default.keys
            assert isinstance(keys, NamespaceKeys)
            rules.append(keys.rules())
        assert rules[0] == rules[1] != []
        pems = [(tmp_path / name / "tls" / "ca.pem").read_bytes() for name in "ab"]
        assert pems[0] == pems[1]

    in_cluster(check, url, tmp_path, ["main"])


def test_secrets_are_encrypted_also_those_of_a_broker_before(
    url: str, tmp_path: Path, postgres: PostgresServer
) -> None:
    name = url.rpartition("/")[2]
    query = "SELECT convert_from(k, 'UTF8'), convert_from(v, 'UTF8') FROM peeklock.kv ORDER BY k"

    def secrets() -> list[str]:
        found = {str(key): str(text) for key, text in postgres.execute(query, name)}
        return [text for key, text in found.items() if "keys/main" in key or "certificate-authority" in key]

    async def check(cluster: Cluster) -> None:
        sas = frozenset({"sas"})
        alone = await cluster.start("before", node=None, cluster_key=None, auth=sas)
        keys = alone.registry.default.keys
        assert isinstance(keys, NamespaceKeys)
        before = keys.rules()
        assert await cluster.stop("before") == 0
        assert not any("sealed" in text for text in secrets())
        node = await cluster.start("a", auth=sas)
        await cluster.until_owned(a=["default"])
        assert len(secrets()) == 2
        assert all(text.startswith('{"sealed":') for text in secrets())
        keys = node.registry.default.keys
        assert isinstance(keys, NamespaceKeys)
        assert keys.rules() == before

    in_cluster(check, url, tmp_path, ["main"])


def test_the_keys_of_a_node_that_does_not_run_are_not_said_to_be_missing(url: str, tmp_path: Path) -> None:
    async def check(cluster: Cluster) -> None:
        await cluster.start("a", auth=frozenset({"sas"}))
        await cluster.until_owned(a=["default"])

    in_cluster(check, url, tmp_path, ["main"])
    said = CliRunner().invoke(main, ["keys", "list", str(tmp_path / "a")])
    assert said.exit_code == 1
    assert "are in the database that its broker was started with, and no broker runs on it" in said.output
    assert "ask another node of its cluster" in said.output


def test_a_deposed_node_says_what_a_new_start_does(
    url: str, tmp_path: Path, postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A node waits for nobody when it starts again, and another broker does."""

    async def check(cluster: Cluster) -> None:
        await cluster.start("a")
        await cluster.until_owned(a=["default"])
        taken = "session = 'another', epoch = epoch + 1, expires = now() + interval '1 min'"
        query = f"UPDATE peeklock.lease SET {taken} WHERE name = 'default'"
        postgres.execute(query, url.rpartition("/")[2])
        assert await cluster.stopped("a") == 1

    in_cluster(check, url, tmp_path, ["main"])
    [told] = [record for record in caplog.records if record.getMessage().startswith("another process owns")]
    do = "start again: a node joins its cluster, another broker waits until the owner ends"
    assert vars(told)["fields"]["do"] == do


def test_a_database_that_is_gone_and_comes_back_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also by a node that owns nothing; `/ready` and `peeklock cluster` say it meanwhile."""
    require_postgres()
    server = PostgresServer()

    async def until(broker: Broker, *, is_gone: bool) -> None:
        assert broker.node is not None
        member, until_s = broker.node.member, time.monotonic() + SECONDS_MAX
        while (member.unreached_s() is not None) != is_gone:
            assert time.monotonic() < until_s
            await asyncio.sleep(0.02)

    async def ready(broker: Broker) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.http_port)
        writer.write(b"GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
        return answer

    async def check(cluster: Cluster) -> None:
        owner, other = await cluster.start("a"), await cluster.start("b")
        await cluster.until_owned(a=["default"], b=[])
        assert b" 200 " in await ready(other)
        await asyncio.to_thread(server.stop)
        for broker in (owner, other):
            await until(broker, is_gone=True)
        answer = await ready(other)
        assert b" 503 " in answer
        assert b"the database of the cluster cannot be reached" in answer
        shown = await asyncio.to_thread(CliRunner().invoke, main, ["cluster", f"--data={tmp_path / 'b'}"])
        assert shown.exit_code == 0
        assert "The node 'b' has not reached the database for " in shown.stderr
        await asyncio.to_thread(server.start)
        for broker in (owner, other):
            await until(broker, is_gone=False)
        assert b" 200 " in await ready(other)

    caplog.set_level(logging.INFO, "peeklock")
    try:
        server.start()
        in_cluster(check, server.new_database("gone"), tmp_path, ["main"])
    finally:
        server.remove()
    told = [record for record in caplog.records if " reached" in record.getMessage()]
    events = [(record.levelname, record.getMessage()) for record in told]
    gone, back = ("WARNING", "the database cannot be reached"), ("INFO", "the database can be reached again")
    assert sorted(events) == [back, back, gone, gone]


def test_a_change_that_is_committed_after_it_was_looked_for_is_read(url: str, tmp_path: Path) -> None:
    """The lease on the facts is taken, and seen by others, before the change is committed."""

    async def check(cluster: Cluster) -> None:
        broker = await cluster.start("a")
        await cluster.until_owned(a=["default"])
        assert broker.node is not None
        member, system = broker.node.member, broker.protocols.process.system
        with closing(database_of(url, instance="other@host")) as database:
            store = PostgresStore(database, SYSTEM)
            await store.open()
            _, no = await read(store)
            await until_next_view(member)
            await store.commit(Batch(no, [FactStored("late", "1")], truncate_before=no))
            await store.close()
            await until_next_view(member)
            assert system.get("late") == 1

    in_cluster(check, url, tmp_path, ["main"])


def test_a_namespace_that_is_being_made_is_no_rest_of_a_crash(url: str, tmp_path: Path) -> None:
    """A node that takes the default namespace removes such rests alone."""

    async def check(cluster: Cluster) -> None:
        first = await cluster.start("a")
        await cluster.until_owned(a=["default"])
        second = await cluster.start("b")
        records = NamespaceRecords(first.protocols.process.system)
        for name in ("made", "rest"):
            await records.put(NamespaceRecord(name, is_whole=False))
        with closing(database_of(url, instance="other@host")) as database:
            store = PostgresStore(database, store_name("made", is_default=False))
            await store.open()
            assert first.node is not None
            first.node.member.nodes.choose(["default"], "b")
            await cluster.until_owned(a=[], b=["default"])
            assert second.node is not None
            records = NamespaceRecords(second.protocols.process.system)
            while records.has("rest"):
                await until_next_view(second.node.member)
            assert records.has("made")
            await store.commit(Batch(1, [FactStored("key", "1")], truncate_before=1))
            await store.close()

    in_cluster(check, url, tmp_path, ["main"])


def test_a_namespace_whose_host_name_is_that_of_another_one_is_told_once(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It cannot be opened until one of the two is changed."""

    def told() -> list[str]:
        texts = [record.getMessage() for record in caplog.records]
        return [text for text in texts if "the name of a namespace is not free" in text]

    async def check(cluster: Cluster) -> None:
        broker = await cluster.start("a")
        await cluster.until_owned(a=["default", "namespace/one"])
        records = NamespaceRecords(broker.protocols.process.system)
        await records.put(NamespaceRecord("two", NamespaceLimits(host_names=("one",))))
        assert broker.node is not None
        async with asyncio.timeout(20):
            while not told():
                await until_next_view(broker.node.member)
        await until_next_view(broker.node.member)
        assert len(told()) == 1

    in_cluster(check, url, tmp_path, ["main", "one"])


def test_a_fact_of_keys_that_is_damaged_keeps_no_other_namespace_from_its_new_keys(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def check(cluster: Cluster) -> None:
        broker = await cluster.start("a", auth=frozenset({"sas"}))
        await cluster.until_owned(a=["default", "namespace/one", "namespace/two"])
        assert broker.node is not None
        two = broker.node.member.owned()["namespace/two"]
        rule = new_rule("more", ALL_RIGHTS, os.urandom)
        await broker.protocols.process.system.put({"keys/one": 5, **values_of("two", [rule])})
        async with asyncio.timeout(20):
            while not two.authority.has_rule("more"):
                await until_next_view(broker.node.member)

    in_cluster(check, url, tmp_path, ["main", "one", "two"])
    [told] = [one for one in caplog.records if one.getMessage() == "the keys of a namespace are not followed"]
    assert vars(told)["fields"]["namespace"] == "one"


def test_the_directory_is_made_again_for_changed_names_alone(url: str, tmp_path: Path) -> None:
    """Each batch of a job changes a fact, and each second has a view."""

    async def check(cluster: Cluster) -> None:
        broker = await cluster.start("a")
        await cluster.until_owned(a=["default"])
        assert broker.node is not None
        member, system = broker.node.member, broker.protocols.process.system
        await until_next_view(member)
        before = member.directory
        await system.put({"jobs/main/1": 1})
        await until_next_view(member)
        assert member.directory is before
        await NamespaceRecords(system).put(NamespaceRecord("made"))
        await cluster.until_owned(a=["default", "namespace/made"])


def test_all_nodes_write_their_event_logs_to_one_folder(url: str, tmp_path: Path) -> None:
    """Its path may differ from machine to machine."""
    same = tmp_path / "same"
    same.symlink_to(tmp_path / "log", target_is_directory=True)

    async def check(cluster: Cluster) -> None:
        await cluster.start("a", capture=CaptureSettings(tmp_path / "log"))
        with pytest.raises(StartFailed, match=r"--capture is not the one to which the other nodes \(a\)"):
            await cluster.start("b", capture=CaptureSettings(tmp_path / "log" / "other"))
        with pytest.raises(StartFailed, match=r"\(a\) write an event log, and this one would leave gaps"):
            await cluster.start("b")
        await cluster.start("b", capture=CaptureSettings(same))
        assert await cluster.stop("a") == await cluster.stop("b") == 0
        other = CaptureSettings(tmp_path / "log" / "other")
        await asyncio.gather(cluster.start("a", capture=other), cluster.start("b", capture=other))
        assert await cluster.stop("a") == await cluster.stop("b") == 0
        await cluster.start("a")
        with pytest.raises(StartFailed, match=r"\(a\) write no event log: stop all nodes, and start them"):
            await cluster.start("b", capture=CaptureSettings(tmp_path / "log"))

    in_cluster(check, url, tmp_path, ["main"])


def member_of(cluster: Cluster, name: str) -> Member:
    node = cluster.brokers[name].node
    assert node is not None
    return node.member


def test_a_node_of_an_older_release_works_on_and_takes_nothing(
    url: str, tmp_path: Path, postgres: PostgresServer
) -> None:
    """A newer one has upgraded the tables; nobody of an older release may start or take a store now."""
    database = url.rpartition("/")[2]

    def write_format(number: int) -> None:
        texts = f"CASE k WHEN 'format' THEN '{number}' ELSE '9.9' END"
        postgres.execute(f"UPDATE peeklock.meta SET v = {texts} WHERE k IN ('format', 'release')", database)

    async def check(cluster: Cluster) -> None:
        await cluster.start("a")
        await cluster.start("b")
        await cluster.until_owned(a=["default"], b=["namespace/one"])
        write_format(FORMAT + 1)
        with pytest.raises(StartFailed, match=r"has format \d+, written by release 9\.9; .*: start release"):
            await cluster.start("c")
        await asyncio.to_thread(send, cluster.brokers["a"], "one", "as before")
        assert await cluster.stop("b") == 0
        member = member_of(cluster, "a")
        until_s = time.monotonic() + SECONDS_MAX
        while not member._failed_at_s and time.monotonic() < until_s:  # noqa: ASYNC110  # no event tells
            await asyncio.sleep(0.02)
        assert cluster.owned() == {"a": ["default"]}
        write_format(FORMAT)
        member._failed_at_s.clear()
        await cluster.until_owned(a=["default", "namespace/one"])

    in_cluster(check, url, tmp_path, ["main", "one"])


def test_namespaces_go_to_the_node_of_the_newest_release(
    url: str, tmp_path: Path, postgres: PostgresServer
) -> None:
    async def check(cluster: Cluster) -> None:
        await cluster.start("a")
        await cluster.until_owned(a=["default", "namespace/one", "namespace/two"])
        await cluster.start("b")
        await cluster.until_owned(a=["default", "namespace/one"], b=["namespace/two"])
        await cluster.start("c")
        await cluster.until_owned(a=["default"], b=["namespace/two"], c=["namespace/one"])
        renamed = "UPDATE peeklock.node SET version = '9.9' WHERE name = 'b'"
        await asyncio.to_thread(postgres.execute, renamed, url.rpartition("/")[2])
        member, until_s = member_of(cluster, "a"), time.monotonic() + SECONDS_MAX
        while member.view.nodes["b"].version != "9.9" and time.monotonic() < until_s:  # noqa: ASYNC110  # as above
            await asyncio.sleep(0.02)
        assert await cluster.stop("c") == 0
        await cluster.until_owned(a=["default"], b=["namespace/one", "namespace/two"])

    in_cluster(check, url, tmp_path, ["main", "one", "two"])
