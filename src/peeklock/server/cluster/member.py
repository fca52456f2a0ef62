"""One node at work: it reports itself, opens the namespaces that it is to own, and gives others back.

`cluster.placing` decides from what the database says. All is done in one task, a step at a time: what was
decided on an old view is refused by the lease, and decided again.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING

from peeklock.cluster.placing import Moves, plan
from peeklock.cluster.view import ClusterNode, View
from peeklock.server import log
from peeklock.server.cluster.directory import Directory
from peeklock.server.cluster.stand_in import follow_keys
from peeklock.server.disk import SYSTEM, store_name
from peeklock.server.loop.tasks import tell_failure
from peeklock.server.namespaces.lifecycle import DELETED, OPENED_AT_ONCE, Lifecycle, Wanted
from peeklock.server.namespaces.registry import NamespaceThere, Registry
from peeklock.server.namespaces.served import ServedNamespace
from peeklock.server.settings import StartFailed
from peeklock.server.system import keys, namespaces
from peeklock.server.system.shared import SharedSystemStore
from peeklock.store.base import StoreError, StoreInUse

if TYPE_CHECKING:
    from peeklock.config.file import Config
    from peeklock.store.postgres.nodes import Nodes, Report

ANSWERS_S_MAX = 0.5
"""How long a namespace that moves answers what was begun. Our choice: a move takes a second."""

CLIENTS_S_MAX = 0.2
"""How long its clients may take to read that it moves. Our choice, likewise."""

RETRY_S = 10.0
"""After a namespace could not be opened. Our choice: people mend what is wrong."""

THERE_S_MAX = 3.0
"""How long another namespace may have the name of one before that is told. Our choice: to make or to delete
one takes a second."""

FREE_S_MAX = 10.0
"""For another node to give a namespace back. Our choice: two leases."""

FREE_LOOK_S = 0.05

AWAY_S = 2.5
"""A view that comes so long after the one before says that the database, or this node, was away. Our
choice: twice what a view takes at most when all is well."""

GRACE_S = 3.0
"""After that, until this node takes what others had: so long may they take to connect again and to renew
their leases, which they try each 1.25 s. Our choice."""

GRACE_PAUSE_S = 10.0
"""After a grace until the next one: a node whose every view is late takes stores all the same. Our choice."""

MOVED = "The namespace '{}' moves to another node of the cluster: connect again."


class Member:
    """This process as a node."""

    def __init__(
        self,
        nodes: Nodes,
        registry: Registry,
        lifecycle: Lifecycle,
        system: SharedSystemStore,
        configs: Sequence[Config],
        own_names: Sequence[str],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """Own nothing yet. Raises: StartFailed.

        Args:
            nodes: the cluster, which this node has joined.
            registry: with the stand-in as the default namespace.
            lifecycle: opens and ends namespaces.
            system: the facts of the cluster.
            configs: of the configuration file, the default namespace first.
            own_names: further host names of the broker.
            on_failure: called when this node may not go on.
        """
        from peeklock.store.postgres.nodes import Report
        from peeklock.store.postgres.watch import Watch

        self.nodes = nodes
        self.view = View()
        """What the database said last."""
        self.configs = configs
        self._registry = registry
        self._stand_in = registry.default
        self._lifecycle = lifecycle
        self._system = system
        self._own_names = own_names
        self.directory = self._make_directory()
        self._seen = asyncio.Event()
        self._facts_seen = (0, 0)
        """The lease on the facts when they were read last: its epoch, and its last batch."""
        self._names_changed = False
        """The directory is to be made again."""
        self._failed_at_s: dict[str, float] = {}
        self._there_since_s: dict[str, float] = {}
        """By store: since when the name of its namespace is not free; infinite = that was told."""
        self._report = Report()
        self._loop = loop = asyncio.get_running_loop()
        self._viewed_s = loop.time()
        self._patient_until_s = -math.inf
        """Until then nothing is taken: leases of others may have ended while the database was away."""
        self._watchers: list[Callable[[], None]] = []
        self._stops = False
        self._ending: set[asyncio.Task[None]] = set()
        """The ends of the event logs of namespaces that were given back."""
        self._task: asyncio.Task[None] | None = None
        self._watch = Watch(
            nodes,
            lambda: self._report,
            lambda view: _tell(loop, self._take_view, view),
            lambda failure: _tell(loop, on_failure, failure),
        )

    def start(self) -> None:
        """Begin to report, and to own."""
        self._watch.start()
        self._task = self._loop.create_task(self._run())
        self._task.add_done_callback(tell_failure)

    def unreached_s(self) -> float | None:
        """Return for how long the database could not be reached, None = it can."""
        return self.nodes.connections.reach.gone_s()

    def view_age_s(self) -> float:
        """Return how old the view is."""
        return self._loop.time() - self._viewed_s

    def on_view(self, watcher: Callable[[], None]) -> None:
        """Call a function with each new view."""
        self._watchers.append(watcher)

    def say(self, change: Callable[[Report], Report]) -> None:
        """Change what this node reports, from its next report on."""
        self._report = change(self._report)

    async def stop(self) -> None:
        """Open nothing more, and let others take what this node is about to give back."""
        self.say(lambda report: replace(report, is_leaving=True))
        self._stops = True
        self._seen.set()
        if self._task is not None:
            await self._task

    async def give_all(self) -> None:
        """Close all namespaces after their last commits, whose clients were told."""
        await asyncio.gather(*(served.retire(CLIENTS_S_MAX, moves=True) for served in self._registry))

    async def end_logs(self) -> None:
        """End the event logs of namespaces that are closed, which others may take meanwhile."""
        with contextlib.suppress(StoreError):  # others see it a second later
            await asyncio.to_thread(self.nodes.notify)
        await asyncio.gather(*(served.end_log() for served in self._registry), *self._ending)

    async def leave(self) -> None:
        """Be no node any more; all namespaces are closed."""
        self._watch.stop()
        with contextlib.suppress(StoreError):  # others see it when it reports no more
            await asyncio.to_thread(self.nodes.leave)

    def follow(self, configs: Sequence[Config]) -> None:
        """Follow a changed configuration file: namespaces that it names now are owned by some node."""
        self.configs = configs
        self._names_changed = True
        self._seen.set()

    def owned(self) -> dict[str, ServedNamespace]:
        """Return the namespaces that this node owns, by the names of their stores."""
        return {
            store_name(served.name, is_default=served.is_default): served
            for served in self._registry
            if served is not self._stand_in
        }

    def served(self, wanted: Wanted) -> ServedNamespace | None:
        """Return a namespace if this node owns it."""
        found = self._registry.get(wanted.name)
        return None if found is self._stand_in else found

    def owner_of(self, store: str) -> tuple[str, ClusterNode] | None:
        """Return the process that owns a store, and its node; None = no known process does."""
        lease = self.view.lease(store)
        node = self.view.nodes.get(lease.owner or "")
        if not lease.is_valid or node is None or lease.session is None:
            return None
        return lease.session, node

    async def move(self, store: str, name: str | None) -> None:
        """Choose the node that owns a store from now on; None = any node. Raises: StoreError."""
        await asyncio.to_thread(self.nodes.choose, [store], name)

    async def delete(self, wanted: Wanted) -> None:
        """Delete a namespace that another node owns, which gives it back.

        Raises: StoreError, NamespaceThere, NotDeletable.
        """
        await self._lifecycle.delete_elsewhere(wanted, lambda: self._until_free(wanted))

    async def _until_free(self, wanted: Wanted) -> None:
        """Wait until no process owns a namespace. Raises: StoreInUse.

        To remove a store that is owned would depose its owner, which stops with all its namespaces then.
        """
        until_s = self._loop.time() + FREE_S_MAX
        while self.view.lease(wanted.store).is_valid:
            if self._loop.time() >= until_s:
                owner = self.view.lease(wanted.store).owner
                named = "another process" if owner is None else f"the node '{owner}'"
                raise StoreInUse(
                    f"The namespace '{wanted.name}' is deleted, but {named} has not given it back within "
                    f"{FREE_S_MAX:g} s: its messages are removed when a node takes the default namespace."
                )
            await asyncio.sleep(FREE_LOOK_S)

    def _make_directory(self) -> Directory:
        """Return all namespaces of the cluster. Raises: StartFailed."""
        first = self.configs[0] if self.configs else None
        default = Wanted.default(self._stand_in.name, first)
        return Directory(default, self._lifecycle.wanted(self.configs[1:]), self._own_names)

    # From the watch

    def _take_view(self, view: View) -> None:
        now_s = self._loop.time()
        is_late = now_s - self._viewed_s >= AWAY_S
        if is_late and now_s >= self._patient_until_s + GRACE_PAUSE_S:
            self._patient_until_s = now_s + GRACE_S
        self.view, self._viewed_s = view, now_s
        self._seen.set()
        for watcher in self._watchers:
            watcher()

    # The task

    async def _run(self) -> None:
        while True:
            await self._seen.wait()
            self._seen.clear()
            if self._stops:
                return
            try:
                await self._follow_facts()
                wanted = self.directory.by_store
                todo = plan(self.view, wanted, self.nodes.name, self.owned())
                if self._loop.time() < self._patient_until_s:
                    todo = replace(todo, take=())
                await self._do(todo, wanted)
            except (StoreError, StartFailed) as failure:
                log.error("the node cannot follow the cluster", {"reason": str(failure)})

    async def _follow_facts(self) -> None:
        """Follow namespaces and keys that another node has changed, and the configuration of this one."""
        lease = self.view.lease(SYSTEM)
        # The epoch grows before a change is committed, the number of the batch with it.
        seen = (lease.epoch, lease.batch_no)
        if seen != self._facts_seen:
            changed = await self._system.refresh()
            self._facts_seen = seen
            self._follow_keys(changed)
            if any(key.startswith(namespaces.PREFIX) for key in changed):
                self._names_changed = True
        if self._names_changed:
            self.directory = self._make_directory()
            self._names_changed = False

    def _follow_keys(self, changed: Set[str]) -> None:
        """Follow those keys of namespaces that are among the changed facts."""
        for served in (self._stand_in, *self.owned().values()):
            if keys.fact_key(served.name) in changed:
                try:
                    follow_keys(served)
                except StoreError as failure:  # the others are followed all the same
                    do = "correct what is wrong, and change the keys again: those before count until then"
                    fields = {"namespace": served.name, "reason": str(failure), "do": do}
                    log.error("the keys of a namespace are not followed", fields)

    async def _do(self, todo: Moves, wanted: Mapping[str, Wanted]) -> None:
        for store in todo.give:
            served = self.owned().get(store)
            if served is not None:
                await self._give(served)
        now_s = self._loop.time()
        take = [store for store in todo.take if now_s >= self._failed_at_s.get(store, -RETRY_S) + RETRY_S]
        for first in range(0, len(take), OPENED_AT_ONCE):
            some = take[first : first + OPENED_AT_ONCE]
            await asyncio.gather(*(self._take(wanted[store]) for store in some))
        if todo.give or not self.owned().keys().isdisjoint(take):
            await asyncio.to_thread(self.nodes.notify)

    async def _take(self, wanted: Wanted) -> None:
        try:
            served = await self._lifecycle.serve(wanted)
        except NamespaceThere as failure:
            self._tell_there(wanted, str(failure))
            return
        except StartFailed as failure:
            if isinstance(failure.__cause__, StoreInUse):
                return  # another node was quicker
            self._failed_at_s[wanted.store] = self._loop.time()
            fields = {"namespace": wanted.name, "reason": str(failure)}
            log.error("a namespace cannot be opened", {**fields, "do": "correct what is wrong"})
            return
        self._failed_at_s.pop(wanted.store, None)
        self._there_since_s.pop(wanted.store, None)
        log.info("namespace taken", {"name": served.name, "node": self.nodes.name})
        if served.is_default:
            await self._lifecycle.remove_rests(self._is_in_use)

    def _tell_there(self, wanted: Wanted, reason: str) -> None:
        """Log that a name is not free, once, if it is not only made or deleted just now."""
        now_s = self._loop.time()
        if now_s - self._there_since_s.setdefault(wanted.store, now_s) >= THERE_S_MAX:
            self._there_since_s[wanted.store] = math.inf
            do = "choose another name or host name for one of the two, or delete one"
            fields = {"namespace": wanted.name, "reason": reason, "do": do}
            log.error("the name of a namespace is not free, so it is not opened", fields)

    def _is_in_use(self, store: str) -> bool:
        """Return whether a process that runs has a store."""
        lease = self.view.lease(store)
        is_earlier_start = lease.owner == self.nodes.name and lease.session != self.nodes.session()
        return lease.is_valid and not is_earlier_start

    async def _give(self, served: ServedNamespace) -> None:
        """Close a namespace after its last commit, for another node to take."""
        if served.is_default:
            self._registry.set_default(self._stand_in)
        else:
            self._registry.remove(served)
        for connection in list(served.connections.values()):
            connection.stop_taking()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(served.shard.answer(), ANSWERS_S_MAX)
        is_deleted = self.directory.by_name(served.name) is None
        self._lifecycle.close(served, (DELETED if is_deleted else MOVED).format(served.name))
        await served.retire(CLIENTS_S_MAX, moves=not is_deleted)
        if not is_deleted:
            ending = self._loop.create_task(served.end_log())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
            ending.add_done_callback(tell_failure)
        log.info("namespace given back", {"name": served.name, "node": self.nodes.name})


def _tell(loop: asyncio.AbstractEventLoop, function: Callable[..., None], value: object) -> None:
    """Call a function on the loop, which may be closed already."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function, value)
