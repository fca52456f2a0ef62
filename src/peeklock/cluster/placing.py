"""Which node is to own which store, and what one node does about it. Pure.

Every node computes the same placing from the same view. A difference between two views costs time alone: the
lease in the database decides who owns a store, and a store is opened only once its lease is free.

A store stays with its owner. One without a live owner goes to the node that has the fewest. Stores move only
to make the numbers even: when a node joins, it gets its share from those that have the most, so that none has
more than `ceil(stores / nodes)`. An operator may choose the node of a store, which has it while it is fit.
How busy a store is does not count.

While nodes of several releases run, only those of the newest one take stores: an older one keeps what it has,
and may not read what a newer one writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from peeklock.cluster.view import ClusterNode, View

WITNESSES_MIN = 2
"""So many other nodes must report a node unreachable. Our choice: of two nodes each would believe itself."""


@dataclass(frozen=True, slots=True)
class Moves:
    """What one node does now; each in the order of names."""

    take: tuple[str, ...]
    """Stores that are free, and its own."""
    give: tuple[str, ...]
    """Stores that it owns, and another one is to own."""


def fit_nodes(view: View) -> list[str]:
    """Return the nodes that may own stores, sorted: those that live, stay, and can be reached.

    If none of those that live and stay can be reached, all may: a doubtful owner is better than none.
    """
    live = [node for node in view.nodes.values() if node.is_live and not node.is_leaving]
    fit = [node.name for node in live if node.is_sound and not is_cut_off(node, live)]
    return sorted(fit or [node.name for node in live])


def is_cut_off(node: ClusterNode, live: Iterable[ClusterNode]) -> bool:
    """Return whether all other live nodes report that they cannot reach a node."""
    others = [other for other in live if other.name != node.name]
    return len(others) >= WITNESSES_MIN and all(node.name in other.unreached for other in others)


def takers(view: View, names: Iterable[str]) -> list[str]:
    """Return those of some nodes that have the newest release of them."""
    release = {name: _release(view.nodes[name].version) for name in names}
    newest = max(release.values(), default=())
    return [name for name in release if release[name] == newest]


def _release(version: str) -> tuple[int, ...]:
    """Return what orders releases: `0.3.0.dev1` and `0.3.0rc1` come before `0.3.0`."""
    numbers = re.findall(r"[0-9]+", version.partition("+")[0])
    is_final = re.fullmatch(r"[0-9.]+(\+.*)?", version) is not None
    major, minor, patch = (int(number) for number in [*numbers, "0", "0", "0"][:3])
    return major, minor, patch, int(is_final)


def place(view: View, stores: Iterable[str]) -> dict[str, str]:
    """Return the node that is to own each store, none if no node is fit."""
    names = fit_nodes(view)
    if not names:
        return {}
    of: dict[str, str] = {}
    count = dict.fromkeys(names, 0)
    newest = takers(view, names)

    def put(store: str, name: str) -> None:
        of[store] = name
        count[name] += 1

    wanted = sorted(set(stores))
    chosen = {
        store
        for store in wanted
        if (lease := view.lease(store)).place in newest
        or (lease.place in count and lease.place == lease.owner)
    }
    homeless = []
    for store in wanted:
        lease = view.lease(store)
        if store in chosen:
            assert lease.place is not None
            put(store, lease.place)
        elif lease.owner in count:
            put(store, lease.owner)
        else:
            homeless.append(store)
    for store in homeless:
        put(store, min(newest, key=lambda name: (count[name], name)))
    _even_out(of, count, chosen, newest)
    return of


def _even_out(of: dict[str, str], count: dict[str, int], chosen: set[str], newest: Iterable[str]) -> None:
    """Move stores, but the chosen ones, from nodes with many to the one of `newest` with the fewest."""
    movable: dict[str, list[str]] = {name: [] for name in count}
    for store in sorted(of):
        if store not in chosen:
            movable[of[store]].append(store)
    while givers := [name for name in count if movable[name]]:
        most = max(givers, key=lambda name: (count[name], name))
        fewest = min(newest, key=lambda name: (count[name], name))
        if count[most] - count[fewest] < 2:
            return
        store = movable[most].pop()
        movable[fewest].append(store)
        of[store] = fewest
        count[most] -= 1
        count[fewest] += 1


def plan(view: View, stores: Iterable[str], name: str, owned: Iterable[str]) -> Moves:
    """Return what a node does.

    Args:
        view: what the database says.
        stores: all that are to be owned by some node.
        name: of the node.
        owned: stores that it has open.
    """
    of, has = place(view, stores), set(owned)
    mine = {store for store, owner in of.items() if owner == name}

    def is_free(store: str) -> bool:
        lease = view.lease(store)
        # Its own lease of an earlier start is taken back at once.
        return not lease.is_valid or lease.owner == name

    take = sorted(store for store in mine - has if is_free(store))
    # A store without a future owner was deleted. Without a fit node, an owner keeps what it has.
    unwanted = {store for store in has - mine if store in of} | (has - set(stores))
    return Moves(tuple(take), tuple(sorted(unwanted)))
