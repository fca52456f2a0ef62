"""The nodes of a cluster in PostgreSQL: who may join, what others see, and how soon."""

from __future__ import annotations

import asyncio
import queue
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from peeklock.cluster.placing import plan
from peeklock.cluster.view import LIVE_S, View
from peeklock.store.base import StoreDeposed
from peeklock.store.postgres.database import Database
from peeklock.store.postgres.leases import Lease
from peeklock.store.postgres.nodes import NodeRefused, Nodes, Report, is_cluster
from peeklock.store.postgres.store import PostgresStore
from peeklock.store.postgres.watch import POLL_S, Watch
from tests.postgres_server import PostgresServer, database_of


class Process:
    """One node."""

    def __init__(self, url: str, name: str, instance: str = "") -> None:
        self.database: Database = database_of(url, instance=f"{instance or name}@host")
        self.nodes = Nodes(self.database.connections, self.database.leases.owner, name)
        self.report = Report()
        self.views: queue.Queue[View] = queue.Queue()
        self.replaced: queue.Queue[StoreDeposed] = queue.Queue()
        self.watch = Watch(self.nodes, lambda: self.report, self.views.put, self.replaced.put)

    def join(self, key: str = "digest", log_folder: str = "") -> None:
        self.nodes.admit(f"{self.nodes.name}.example:5673", "1.0", key, log_folder)

    def until(self, is_there: Callable[[View], bool]) -> View:
        """Return the first view with what is looked for."""
        until_s = time.monotonic() + 20
        while time.monotonic() < until_s:
            view = self.views.get(timeout=20)
            if is_there(view):
                return view
        raise AssertionError("it was never seen")


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.new_database(f"nodes{uuid.uuid4().hex}")


@pytest.fixture
def process(url: str) -> Iterator[Callable[..., Process]]:
    made: list[Process] = []

    def make(name: str, instance: str = "") -> Process:
        made.append(Process(url, name, instance))
        return made[-1]

    yield make
    for one in made:
        one.watch.stop()
        one.database.close()


def test_nodes_see_each_other_and_who_owns_a_store(process: Callable[..., Process]) -> None:
    first, second = process("a"), process("b")
    first.join()
    second.join()
    taken = first.database.leases.take("default")
    assert isinstance(taken, Lease)
    for one in (first, second):
        one.watch.start()
    view = second.until(lambda view: len(view.nodes) == 2 and "default" in view.held)
    assert view.nodes["a"].address == "a.example:5673"
    assert view.nodes["a"].version == "1.0"
    assert view.nodes["a"].is_live
    lease = view.lease("default")
    assert (lease.owner, lease.epoch, lease.session) == ("a", taken.epoch, first.nodes.session())
    assert lease.is_valid
    first.database.leases.release(taken)
    second.until(lambda view: view.lease("default").owner is None and not view.lease("default").is_valid)


def test_a_change_is_seen_at_once(process: Callable[..., Process]) -> None:
    """Not only with the next poll."""
    first, second = process("a"), process("b")
    first.join()
    first.database.leases.take("default")
    first.watch.start()
    first.until(lambda view: True)

    def seen_after_s(choice: str | None) -> float:
        began_s = time.monotonic()
        second.nodes.choose(["default"], choice)
        first.until(lambda view: view.lease("default").place == choice)
        return time.monotonic() - began_s

    assert min(map(seen_after_s, ("b", None, "a"))) < POLL_S / 2


def test_what_a_node_reports_is_seen_by_others(process: Callable[..., Process]) -> None:
    first, second = process("a"), process("b")
    first.join()
    second.join()
    first.report = Report(is_sound=False, unreached=frozenset("bc"), is_leaving=True)
    for one in (first, second):
        one.watch.start()
    node = second.until(lambda view: not view.nodes["a"].is_sound).nodes["a"]
    assert (node.unreached, node.is_leaving) == (frozenset("bc"), True)
    first.watch.stop()
    second.until(lambda view: view.nodes["a"].seen_s > POLL_S)
    first.nodes.leave()
    second.until(lambda view: "a" not in view.nodes)


def test_a_second_node_of_a_name_is_refused_while_the_first_one_lives(
    process: Callable[..., Process],
) -> None:
    first, second = process("a"), process("a", "other")
    first.join()
    first.watch.start()
    with pytest.raises(NodeRefused, match=r"a node 'a' of .* runs already, on host: choose another --node"):
        second.join()
    assert first.replaced.empty()


def test_a_node_that_is_dead_is_replaced_by_one_of_its_name(process: Callable[..., Process]) -> None:
    """At once by the same data folder, else once it has not reported for long; it learns of it."""
    first, again, other = process("a"), process("a"), process("a", "other")
    first.join()
    began_s = time.monotonic()
    again.join()
    assert time.monotonic() - began_s < 1
    other.join()
    assert LIVE_S - 1 < time.monotonic() - began_s < LIVE_S + 5
    first.watch.start()
    assert "another process is the node 'a'" in str(first.replaced.get(timeout=20))


def test_a_data_folder_is_one_node_also_after_it_was_renamed(process: Callable[..., Process]) -> None:
    """Else its leases would be those of two nodes."""
    before, other, after = process("a", "folder"), process("c"), process("b", "folder")
    before.join()
    other.join()
    after.join()
    after.database.leases.take("default")
    after.watch.start()
    view = after.until(lambda view: "default" in view.held)
    assert sorted(view.nodes) == ["b", "c"]
    assert view.lease("default").owner == "b"


def test_another_cluster_key_is_refused(process: Callable[..., Process]) -> None:
    first, second = process("a"), process("b")
    assert not is_cluster(first.database.connections)
    first.join()
    assert is_cluster(first.database.connections)
    with pytest.raises(NodeRefused, match="have another cluster key: give all of them the same"):
        second.join("another digest")


def test_a_watch_goes_on_after_its_connection_has_ended(
    process: Callable[..., Process], postgres: PostgresServer
) -> None:
    first = process("a")
    first.join()
    first.watch.start()
    first.until(lambda view: True)
    ours = f"application_name = '{first.database.leases.owner.application_name}'"
    postgres.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {ours}")
    first.nodes.choose([], None)
    first.until(lambda view: view.nodes["a"].seen_s < POLL_S)


def test_stores_move_between_nodes_by_their_plans(process: Callable[..., Process]) -> None:
    """An orderly give and take: the new owner writes after the last batch of the old one."""

    async def check() -> None:
        first, second = process("a"), process("b")
        first.join()
        first.watch.start()
        view = first.until(lambda view: "a" in view.nodes)
        stores = {name: PostgresStore(first.database, name) for name in plan(view, "xy", "a", ()).take}
        assert list(stores) == ["x", "y"]
        for store in stores.values():
            await store.open()
        second.join()
        second.watch.start()
        view = await asyncio.to_thread(
            first.until, lambda view: "b" in view.nodes and view.lease("y").owner == "a"
        )
        assert plan(view, "xy", "a", stores).give == ("y",)
        await stores["y"].close()
        first.nodes.notify()
        view = await asyncio.to_thread(second.until, lambda view: not view.lease("y").is_valid)
        assert plan(view, "xy", "b", ()).take == ("y",)
        taken = PostgresStore(second.database, "y")
        await taken.open()
        view = await asyncio.to_thread(first.until, lambda view: view.lease("y").owner == "b")
        for name, store in (("a", stores["x"]), ("b", taken)):
            assert plan(view, "xy", name, "x" if name == "a" else "y") == plan(view, "", name, "")
            await store.close()

    asyncio.run(check())


def test_nodes_that_start_together_agree_on_a_folder_of_event_logs(process: Callable[..., Process]) -> None:
    """The first time, and with another folder than before."""
    for log_folder in ("one", "two"):
        nodes = [process(name) for name in "abcd"]
        with ThreadPoolExecutor(len(nodes)) as pool:
            list(pool.map(lambda node: node.join(log_folder=log_folder), nodes))  # noqa: B023  # it ends here
        for node in nodes:
            node.nodes.leave()


def test_a_node_with_another_folder_of_event_logs_is_refused(
    url: str, postgres: PostgresServer, process: Callable[..., Process]
) -> None:
    """It is not seen by others at any time."""
    first, second = process("a"), process("b")
    first.join(log_folder="one")
    for log_folder, why in (("two", "is not the one to which the other nodes"), ("", "would leave gaps")):
        with pytest.raises(NodeRefused, match=why):
            second.join(log_folder=log_folder)
    names = postgres.execute("SELECT name FROM peeklock.node", url.rpartition("/")[2])
    assert names == [("a",)]
    first.nodes.leave()
    second.join()
    with pytest.raises(NodeRefused, match=r"\(b\) write no event log"):
        first.join(log_folder="one")


def test_a_node_that_was_slow_meets_no_other_folder_of_event_logs(
    url: str, postgres: PostgresServer, process: Callable[..., Process]
) -> None:
    """It was taken for dead, and another one began with a folder of its own."""
    slow, other = process("a"), process("b")
    slow.join(log_folder="one")
    ago = f"UPDATE peeklock.node SET seen = seen - make_interval(secs => {LIVE_S})"
    postgres.execute(ago, url.rpartition("/")[2])
    other.join(log_folder="two")
    slow.watch.start()
    assert "write their event logs elsewhere" in str(slow.replaced.get(timeout=20))
