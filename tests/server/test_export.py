"""`peeklock export`: the configuration file of a data folder, which it does not touch."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from peeklock.broker.vocabulary.changes import EntityRemoved, EntityStored, RuleStored
from peeklock.broker.vocabulary.descriptions import (
    AuthorizationRule,
    Description,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from peeklock.broker.vocabulary.quotas import STANDARD
from peeklock.config.exporting import Export
from peeklock.config.file import format_config, parse_config
from peeklock.config.form import ConfigError
from peeklock.config.hosts import HostNames
from peeklock.config.reconcile import reconcile
from peeklock.demo.broker import BrokerProcess, program
from peeklock.rules.filters import CorrelationFilter, SqlFilter
from peeklock.server.export import export_config
from peeklock.store.base import Batch, StoreDamaged, StoreFailed, StoreTooNew
from peeklock.store.sqlite.format import FORMAT
from peeklock.store.sqlite.store import SqliteStore
from tests.golden.stores.make import (
    ALL,
    EVENTS,
    EVERY_SETTING,
    EVERY_SUBSCRIPTION_SETTING,
    EVERY_TOPIC_SETTING,
    ORDERS,
    RULED,
    SESSIONS,
)
from tests.golden.stores.make import RULES as RULES_OF_EACH_KIND
from tests.store.damage import meddle

GOLDEN = Path(__file__).parents[1] / "golden/stores"
QUEUES = [QueueDescription("orders", lock_duration_ms=30_000), QueueDescription("done", forward_to="orders")]
NEWS: list[Description] = [
    TopicDescription("News"),
    SubscriptionDescription("News", "all"),
    SubscriptionDescription("News", "x"),
]
RULES = [RuleDescription("b", SqlFilter("x = 1")), RuleDescription("a", CorrelationFilter(label="y"))]
EXPORTED = format_config([*QUEUES, *NEWS], {"News/Subscriptions/all": RULES})


@contextmanager
def untouched(folder: Path) -> Iterator[None]:
    """Make sure that no file in a folder changes, comes or goes."""
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    yield
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


async def opened(folder: Path) -> SqliteStore:
    """Make a store with two queues, a topic, two subscriptions and two rules; a queue has been deleted."""
    store = SqliteStore(folder, durability="os")
    await store.open()
    numbered = enumerate([*QUEUES, QueueDescription("gone"), *NEWS], start=1)
    await store.commit(Batch(1, [EntityStored(number, entity, 0, 0) for number, entity in numbered]))
    await store.commit(Batch(2, [EntityRemoved(3), *(RuleStored(5, rule) for rule in RULES)]))
    return store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a broker that was stopped."""

    async def make() -> None:
        await (await opened(tmp_path / "data")).close()

    asyncio.run(make())
    return tmp_path / "data"


def test_the_entities_of_a_folder_are_exported_and_nothing_is_touched(folder: Path) -> None:
    """Req: A-02."""
    with untouched(folder):
        assert export_config(folder) == Export(EXPORTED, ())


def test_a_topic_that_is_half_deleted_is_not_exported(tmp_path: Path) -> None:
    """Req: A-02"""

    async def make() -> None:
        store = await opened(tmp_path)
        await store.commit(Batch(3, [EntityStored(4, NEWS[0], 0, 0, deleting=True), EntityRemoved(6)]))
        await store.close()

    asyncio.run(make())
    assert export_config(tmp_path) == Export(format_config(QUEUES, {}), ())


def test_authorization_rules_are_left_out_and_that_is_told(tmp_path: Path) -> None:
    """Req: A-02, R-04. The file has no place for them, and keys are to be nowhere else."""
    rules = tuple(AuthorizationRule(name, ("Send",), "secret", "secret") for name in ("a", "b"))
    entities: list[QueueDescription | TopicDescription] = [
        QueueDescription("plain"),
        QueueDescription("orders", authorization_rules=rules),
        TopicDescription("news", authorization_rules=rules[:1]),
    ]

    async def make() -> None:
        store = SqliteStore(tmp_path, durability="os")
        await store.open()
        await store.commit(Batch(1, [EntityStored(n, each, 0, 0) for n, each in enumerate(entities, 1)]))
        await store.close()

    asyncio.run(make())
    exported = export_config(tmp_path)
    assert "secret" not in exported.text + repr(exported.warnings)
    assert exported.text == format_config([replace(each, authorization_rules=()) for each in entities], {})
    assert exported.warnings == (
        "the authorization rules a, b of the queue 'orders' and their keys are not in the file, whose "
        "format has none: set them through the administration API where it is used",
        "the authorization rules a of the topic 'news' and their keys are not in the file, whose "
        "format has none: set them through the administration API where it is used",
    )


def test_a_folder_that_a_kill_left_is_read_through_its_wal(tmp_path: Path) -> None:
    """Req: A-02."""
    left = tmp_path / "left"

    async def leave() -> None:
        store = await opened(tmp_path / "data")
        shutil.copytree(tmp_path / "data", left, ignore=shutil.ignore_patterns("*-shm"))
        await store.close()

    asyncio.run(leave())
    assert (left / "peeklock.db-wal").stat().st_size > 0
    with untouched(left):
        assert export_config(left).text == EXPORTED


TOPICS = [EVENTS, EVERY_TOPIC_SETTING, ALL, EVERY_SUBSCRIPTION_SETTING]


@pytest.mark.parametrize(
    ("number", "stored", "rules"),
    [
        (1, [ORDERS, EVERY_SETTING], []),
        (2, [ORDERS, EVERY_SETTING, SESSIONS], []),
        (3, [ORDERS, EVERY_SETTING, SESSIONS, *TOPICS], RULES_OF_EACH_KIND),
        (4, [ORDERS, EVERY_SETTING, SESSIONS, *TOPICS], RULES_OF_EACH_KIND),
        (5, [ORDERS, EVERY_SETTING, SESSIONS, *TOPICS, RULED], RULES_OF_EACH_KIND),
    ],
)
def test_folders_of_each_format_are_read(
    tmp_path: Path, number: int, stored: list[EntityStored], rules: list[RuleStored]
) -> None:
    """Req: A-02, R-07."""
    shutil.copytree(GOLDEN / f"format-{number}", tmp_path / "data")
    names = {entity.entity_id: entity.description.name for entity in stored}
    by_path: dict[str, list[RuleDescription]] = {}
    for rule in rules:
        by_path.setdefault(names[rule.entity_id], []).append(rule.rule)
    with untouched(tmp_path / "data"):
        exported = export_config(tmp_path / "data").text
    assert exported == format_config([entity.description for entity in stored], by_path)


def test_forwards_whose_target_was_deleted_are_told_of(folder: Path) -> None:
    """Over an empty folder the broker refuses them, so the file is no copy of the set-up. Req: A-02, F-01."""

    async def forward() -> None:
        store = SqliteStore(folder, durability="os")
        await store.open()
        sub = SubscriptionDescription("News", "x", forward_to="gone", forward_dead_lettered_to="done")
        queue = QueueDescription("done", forward_to="ORDERS", forward_dead_lettered_to="lost")
        await store.commit(Batch(3, [EntityStored(6, sub, 0, 0), EntityStored(2, queue, 0, 0)]))
        await store.close()

    asyncio.run(forward())
    done = export(folder)
    assert done.returncode == 0
    assert done.stderr.decode().splitlines() == [
        "peeklock: ForwardDeadLetteredMessagesTo of the queue 'done' names 'lost', which was deleted: "
        "over an empty folder the broker refuses this file; create 'lost' again, or remove "
        "ForwardDeadLetteredMessagesTo from the file",
        "peeklock: ForwardTo of the subscription 'News/Subscriptions/x' names 'gone', which was deleted: "
        "over an empty folder the broker refuses this file; create 'gone' again, or remove "
        "ForwardTo from the file",
    ]
    [config] = parse_config(done.stdout)
    with pytest.raises(ConfigError) as refused:
        reconcile(config, [], {}, STANDARD, HostNames())
    assert len(refused.value.problems) == 2


def test_a_folder_that_cannot_be_read_says_why(folder: Path, tmp_path: Path) -> None:
    """Req: A-02, R-07."""
    with pytest.raises(StoreFailed, match="there is no store in"):
        export_config(tmp_path)
    database = folder / "peeklock.db"
    meddle(database, "UPDATE kv SET v = replace(v, 'orders', 'odders')")
    with pytest.raises(StoreDamaged, match="the entry entity/000000000001 fails its checksum"):
        export_config(folder)
    meddle(database, "DROP TABLE kv")
    with pytest.raises(StoreFailed, match="could not read the definitions of"):
        export_config(folder)
    meddle(database, f"PRAGMA user_version = {FORMAT + 1}")
    with pytest.raises(StoreTooNew, match=f"has format {FORMAT + 1}"):
        export_config(folder)


def test_the_command_exports_what_a_running_broker_has_and_another_one_takes_it(tmp_path: Path) -> None:
    """Req: A-02."""
    given = tmp_path / "Config.json"
    queues = [
        {"Name": "b", "Properties": {"ForwardTo": "c/d", "LockDuration": "PT7S"}},
        {"Name": "c/d", "Properties": {"UserMetadata": "für später"}},
    ]
    rule = {"Name": "r", "Properties": {"FilterType": "Sql", "SqlFilter": {"SqlExpression": "x = 1"}}}
    topic = {"Name": "news", "Subscriptions": [{"Name": "all"}, {"Name": "some", "Rules": [rule]}]}
    given.write_text(
        json.dumps({"UserConfig": {"Namespaces": [{"Name": "ns", "Queues": queues, "Topics": [topic]}]}})
    )

    (tmp_path / "first").mkdir()
    with BrokerProcess(tmp_path / "first", ["--durability=os", f"--config={given}"]) as broker:
        running = export(broker.data)
        assert running.returncode == 0
        broker.check()
        broker.kill()
        assert export(broker.data).stdout == running.stdout

    exported = tmp_path / "Exported.json"
    exported.write_bytes(running.stdout)
    assert running.stdout.decode() == format_config(
        [
            QueueDescription("b", forward_to="c/d", lock_duration_ms=7_000),
            QueueDescription("c/d", user_metadata="für später"),
            TopicDescription("news"),
            SubscriptionDescription("news", "all"),
            SubscriptionDescription("news", "some"),
        ],
        {
            "news/Subscriptions/all": [RuleDescription("$Default")],
            "news/Subscriptions/some": [RuleDescription("r", SqlFilter("x = 1"))],
        },
    )
    (tmp_path / "second").mkdir()
    with BrokerProcess(tmp_path / "second", ["--durability=os", f"--config={exported}"]) as broker:
        assert export(broker.data).stdout == running.stdout


def test_a_running_broker_exports_the_limits_of_its_namespace(tmp_path: Path) -> None:
    """Req: A-02. A broker over an empty folder gets them with the file."""
    limits = {"Tier": "Premium", "HostNames": ["bus.example"], "MaxConnections": 9, "MaxSizeInMegabytes": 7}
    given = tmp_path / "Config.json"
    given.write_text(json.dumps({"UserConfig": {"Namespaces": [{"Name": "ns", "Properties": limits}]}}))
    (tmp_path / "first").mkdir()
    with BrokerProcess(tmp_path / "first", ["--durability=os", f"--config={given}"]) as broker:
        exported = export(broker.data).stdout
        template = subprocess.run(
            [program(), "export", broker.data, "--format=arm"], capture_output=True, timeout=60, check=True
        ).stdout
    assert json.loads(exported)["UserConfig"]["Namespaces"][0]["Properties"] == limits
    assert json.loads(template)["resources"][0]["sku"]["name"] == "Premium"
    [config] = parse_config(exported)
    assert config.limits == parse_config(given.read_bytes())[0].limits


def test_the_command_fails_where_there_is_no_store(tmp_path: Path) -> None:
    """Req: A-02."""
    done = export(tmp_path)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.decode().startswith(f"peeklock: there is no store in {tmp_path}: ")


def export(folder: Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([program(), "export", folder], capture_output=True, timeout=30, check=False)
