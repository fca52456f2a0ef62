"""Which node owns which store: examples, and rounds of nodes that see the database at different times."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peeklock.cluster.placing import fit_nodes, place, plan
from peeklock.cluster.view import LIVE_S, ClusterNode, StoreLease, View


def nodes(*names: str, **changes: ClusterNode) -> dict[str, ClusterNode]:
    return {name: changes.get(name, ClusterNode(name, f"{name}:1", 0.0)) for name in names}


def held(owner: str, place: str | None = None) -> StoreLease:
    return StoreLease(owner, 3.0, 1, f"session of {owner}", place)


def test_stores_without_an_owner_are_spread() -> None:
    assert place(View(nodes("a", "b")), ["x", "y", "z"]) == {"x": "a", "y": "b", "z": "a"}


def test_an_owner_keeps_what_it_has() -> None:
    view = View(nodes("a", "b"), {"x": held("b"), "y": held("a"), "z": held("b")})
    assert place(view, "xyz") == {"x": "b", "y": "a", "z": "b"}


def test_a_node_that_joins_gets_its_share_from_those_that_have_the_most() -> None:
    view = View(nodes("a", "b", "c"), {"w": held("a"), "x": held("a"), "y": held("b"), "z": held("b")})
    of = place(view, "wxyz")
    assert [store for store in "wxyz" if of[store] != view.lease(store).owner] == ["z"]
    assert of["z"] == "c"
    assert plan(view, "wxyz", "b", "yz").give == ("z",)
    assert plan(view, "wxyz", "c", "").take == ()  # b has not given it back yet


def test_the_choice_of_an_operator_comes_first() -> None:
    view = View(nodes("a", "b"), {"x": held("a", "b"), "y": held("b", "b"), "z": held("a", "gone")})
    assert place(view, "xyz") == {"x": "b", "y": "b", "z": "a"}


def test_a_node_that_has_started_again_takes_its_stores_at_once() -> None:
    """Its lease is of the process before, and holds still."""
    assert plan(View(nodes("a"), {"x": held("a")}), "x", "a", ()).take == ("x",)


def test_a_store_that_is_no_more_wanted_is_given_back() -> None:
    assert plan(View(nodes("a"), {"x": held("a")}), "", "a", "x").give == ("x",)


def test_a_node_that_nobody_reaches_owns_nothing() -> None:
    silent = ClusterNode("a", "a:1", 0.0)
    witness = [ClusterNode(name, "", 0.0, unreached=frozenset("a")) for name in "bc"]
    three = View({node.name: node for node in (silent, *witness)}, {"x": held("a")})
    assert fit_nodes(three) == ["b", "c"]
    assert plan(three, "x", "a", "x").give == ("x",)
    two = View({node.name: node for node in (silent, witness[0])})
    assert fit_nodes(two) == ["a", "b"]  # of two, each would believe itself
    one_of_two = replace(witness[1], unreached=frozenset())
    assert fit_nodes(View({node.name: node for node in (silent, witness[0], one_of_two)})) == ["a", "b", "c"]


def test_a_node_whose_listener_fails_owns_nothing_unless_all_do() -> None:
    unsound = ClusterNode("a", "", 0.0, is_sound=False)
    assert fit_nodes(View({"a": unsound, "b": ClusterNode("b", "", 0.0)})) == ["b"]
    assert fit_nodes(View({"a": unsound})) == ["a"]


def test_without_a_fit_node_an_owner_keeps_its_stores() -> None:
    view = View({"a": ClusterNode("a", "", LIVE_S)}, {"x": held("a")})
    assert plan(view, "x", "a", "x") == plan(view, "x", "a", "x").__class__((), ())


class Cluster:
    """A database, and nodes that act on views of it that may be old."""

    def __init__(self, names: list[str], stores: list[str]) -> None:
        self.stores = stores
        self.nodes = {name: ClusterNode(name, "", 0.0) for name in names}
        self.held: dict[str, StoreLease] = {}
        self.moves = 0

    def view(self) -> View:
        return View(dict(self.nodes), dict(self.held))

    def owned(self, name: str) -> list[str]:
        return [store for store, lease in self.held.items() if lease.is_valid and lease.owner == name]

    def act(self, name: str, seen: View) -> None:
        """Do what a node plans; the database refuses a lease that is not free."""
        todo = plan(seen, self.stores, name, self.owned(name))
        for store in todo.give:
            self.held[store] = replace(self.held[store], owner=None, left_s=0.0, session=None)
        for store in todo.take:
            lease = self.held.get(store, StoreLease(None, 0.0, 0))
            if not lease.is_valid:
                self.held[store] = StoreLease(name, 3.0, lease.epoch + 1, f"session of {name}", lease.place)
                self.moves += 1

    def kill(self, name: str) -> None:
        self.nodes[name] = replace(self.nodes[name], seen_s=LIVE_S)
        for store in self.owned(name):
            self.held[store] = replace(self.held[store], left_s=-1.0)

    def settle(self) -> None:
        live = [name for name, node in self.nodes.items() if node.is_live]
        for _ in range(2 * len(self.stores) + 2):
            for name in live:
                self.act(name, self.view())


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 5), st.integers(0, 12), st.integers())
def test_rounds_converge_whatever_old_views_nodes_act_on(
    node_count: int, store_count: int, seed: int
) -> None:
    """All stores get one owner, none has more than its share, and then nothing moves any more."""
    draw = random.Random(seed)
    names = [f"n{n}" for n in range(node_count)]
    cluster = Cluster(names, [f"s{n:02}" for n in range(store_count)])
    seen = [cluster.view()]
    for _ in range(30):
        cluster.act(draw.choice(names), draw.choice(seen[-4:]))
        seen.append(cluster.view())
    cluster.settle()
    counts = [len(cluster.owned(name)) for name in names]
    assert sum(counts) == store_count
    assert max(counts) <= math.ceil(store_count / node_count)
    moves = cluster.moves
    cluster.settle()
    assert cluster.moves == moves


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 5), st.integers(1, 12), st.data())
def test_when_a_node_dies_only_its_stores_move(
    node_count: int, store_count: int, data: st.DataObject
) -> None:
    names = [f"n{n}" for n in range(node_count)]
    cluster = Cluster(names, [f"s{n:02}" for n in range(store_count)])
    cluster.settle()
    before = {store: lease.owner for store, lease in cluster.held.items()}
    dead = data.draw(st.sampled_from(names))
    lost = len(cluster.owned(dead))
    cluster.kill(dead)
    moves = cluster.moves
    cluster.settle()
    assert cluster.moves == moves + lost
    kept = {store: lease.owner for store, lease in cluster.held.items() if before[store] != dead}
    assert kept == {store: owner for store, owner in before.items() if owner != dead}
    assert all(lease.is_valid for lease in cluster.held.values())


@pytest.mark.parametrize(
    ("older", "newer"),
    [("0.9.1", "0.10.0"), ("0.10.0.dev2", "0.10.0"), ("0.10.0rc1", "0.10.0"), ("0.10.0", "0.10.1.dev0")],
)
def test_releases_are_in_their_order(older: str, newer: str) -> None:
    nodes = {"a": ClusterNode("a", "", 0.0, version=older), "b": ClusterNode("b", "", 0.0, version=newer)}
    assert place(View(nodes), "x") == {"x": "b"}


def test_while_nodes_are_upgraded_only_the_newest_take_stores() -> None:
    """Those of an older release keep what they have, also if an operator has chosen one."""
    of = {"a": "0.9.1", "b": "0.10.0.dev2", "c": "0.10.0", "d": "0.9.1"}
    nodes = {name: ClusterNode(name, "", 0.0, version=version) for name, version in of.items()}
    view = View(nodes, {"x": held("a"), "y": held("gone"), "z": held("d", "d"), "w": held("gone", "a")})
    assert place(view, "wxyz") == {"x": "a", "y": "c", "z": "d", "w": "c"}
    assert place(View({name: nodes[name] for name in "ad"}), "xy") == {"x": "a", "y": "d"}
    many = View({name: nodes[name] for name in "ac"}, {store: held("c") for store in "wxyz"})
    assert set(place(many, "wxyz").values()) == {"c"}
    back = View(many.nodes, {store: held("a") for store in "wxyz"})
    assert sorted(place(back, "wxyz").values()) == ["a", "a", "c", "c"]
