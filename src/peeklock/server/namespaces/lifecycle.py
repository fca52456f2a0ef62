"""The namespaces beside the default one that have a store of their own: at the start, and one by one.

The configuration file names some; a command makes and deletes others, which are facts of the process. Making
and deleting take several steps. The record of a namespace says meanwhile that it is not whole, so that the
next start removes what a crash has left.

It must not know pages or sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from peeklock.config.hosts import HOST_LABEL_RULE, is_host_label
from peeklock.config.namespace_limits import NO_LIMITS, NamespaceLimits
from peeklock.server import log
from peeklock.server.descriptors import descriptors_max, namespaces_max
from peeklock.server.disk import store_name
from peeklock.server.keys.rules import KeysRefused
from peeklock.server.namespaces.registry import NamespaceThere, Registry
from peeklock.server.namespaces.served import Kind, Process, ServedNamespace
from peeklock.server.settings import StartFailed
from peeklock.server.system.namespaces import FOLDER, NamespaceRecord, NamespaceRecords
from peeklock.store.base import StoreError

if TYPE_CHECKING:
    from peeklock.config.file import Config

T = TypeVar("T")

OPENED_AT_ONCE = 32
"""Namespaces. Our choice: four for each thread that writes."""

OF_THE_FILE = "'{}' is of the configuration file: leave it out there and reload the broker, then delete it."

DELETED = "The namespace '{}' was deleted."


class NotDeletable(Exception):
    """A namespace cannot be deleted; the text says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A namespace that is to be served."""

    name: str
    kind: Kind
    limits: NamespaceLimits
    config: Config | None

    @property
    def store(self) -> str:
        """The name of its store."""
        return store_name(self.name, is_default=self.kind == "default")

    @classmethod
    def default(cls, name: str, config: Config | None) -> Wanted:
        """Return the default namespace."""
        return cls(name, "default", NO_LIMITS if config is None else config.limits, config)


class Lifecycle:
    """Serves them, makes them, deletes them."""

    def __init__(self, process: Process, registry: Registry) -> None:
        """Begin with the default namespace alone."""
        self._process = process
        self._registry = registry
        self._records = NamespaceRecords(process.system)
        self._logs_run = False
        self._under_way: set[asyncio.Task[Any]] = set()
        self.close: Callable[[ServedNamespace, str], None] = lambda served, why: None
        """Closes the connections of a namespace, and tells them why."""

    # At the start

    async def start(self, configs: Sequence[Config]) -> None:
        """Serve those of the configuration and those that a command has made. Raises: StartFailed."""
        await self.remove_rests()
        wanted = self.wanted(configs)
        if wanted:
            self._warn_of_too_many(1 + len(wanted))  # first: what follows may fail for want of files
        await self._serve_all(wanted)
        if wanted:
            self._say_what_fits()

    async def remove_rests(self, is_in_use: Callable[[str], bool] = lambda store: False) -> None:
        """Remove what a crash has left of namespaces that were made or deleted. Raises: StartFailed.

        `is_in_use` returns whether a process of the cluster has a store, which it makes or deletes just now.
        """
        try:
            for record in self._records.all():
                if not record.is_whole and not is_in_use(store_name(record.name, is_default=False)):
                    await self._remove(record.name)
                    log.info("the rest of a namespace removed", {"name": record.name})
        except (StoreError, OSError) as failure:
            raise StartFailed(str(failure)) from failure

    def wanted(self, configs: Sequence[Config]) -> list[Wanted]:
        """Return those of the configuration and those that a command has made. Raises: StartFailed."""
        try:
            records = self._records.all()
        except StoreError as failure:
            raise StartFailed(str(failure)) from failure
        named = {config.namespace.lower() for config in configs}
        return [
            *(Wanted(config.namespace, "configured", config.limits, config) for config in configs),
            *(
                Wanted(record.name, "created", record.limits, None)
                for record in records
                if record.is_whole and record.name.lower() not in named
            ),
        ]

    async def _serve_all(self, wanted: Sequence[Wanted]) -> None:
        """Serve several, some at a time: they wait for the disk. Raises: StartFailed."""
        with ExitStack() as names:
            for one in wanted:
                try:
                    names.enter_context(self._registry.reserved(one.name, one.limits.host_names))
                except NamespaceThere as failure:
                    text = f"the namespace '{one.name}': {str(failure).rstrip('.')}; name another one so"
                    raise StartFailed(f"{text}, or delete one of the two") from failure
            for first in range(0, len(wanted), OPENED_AT_ONCE):
                opening = (self._serve(one) for one in wanted[first : first + OPENED_AT_ONCE])
                for opened in await asyncio.gather(*opening, return_exceptions=True):
                    if isinstance(opened, BaseException):
                        raise opened

    async def serve(self, wanted: Wanted) -> ServedNamespace:
        """Serve one from now on, the default one in the place of its stand-in.

        Raises: NamespaceThere, StartFailed.
        """
        if wanted.kind != "default":
            with self._registry.reserved(wanted.name, wanted.limits.host_names):
                return await self._serve(wanted)
        served = await self._opened(wanted)
        self._registry.set_default(served)
        self._start_log(served)
        return served

    async def _serve(self, wanted: Wanted) -> ServedNamespace:
        """Serve a namespace from now on. Raises: StartFailed."""
        served = await self._opened(wanted)
        self._begin(served)
        return served

    def _begin(self, served: ServedNamespace) -> None:
        """Add an open namespace to those that clients find."""
        self._registry.add(served)
        self._start_log(served)

    def _start_log(self, served: ServedNamespace) -> None:
        if self._logs_run and served.capture is not None:
            served.capture.start()

    async def _opened(self, wanted: Wanted) -> ServedNamespace:
        """Return a namespace that is ready to be served. Raises: StartFailed."""
        settings = own = self._process.settings
        if wanted.kind != "default":
            own = replace(settings, data=self._folder(wanted.name), keys=None)
        try:
            served = ServedNamespace(wanted.name, self._process, own, wanted.kind, limits=wanted.limits)
        except KeysRefused as failure:
            raise StartFailed(f"the namespace {wanted.name}: {failure}") from failure
        await served.open()
        try:
            await served.configure(wanted.config)
        except StartFailed:
            await served.shard.stop()
            raise
        served.make_capture()
        return served

    def run_event_logs(self) -> None:
        """Write the event logs from now on, those of new namespaces too."""
        self._logs_run = True
        for served in self._registry:
            if served.capture is not None:
                served.capture.start()

    def _warn_of_too_many(self, count: int) -> None:
        """Warn if the limit of open files does not allow so many namespaces."""
        if self._process.settings.data is not None and count > namespaces_max():
            do = "raise the limit of open files (ulimit -n), or no client may be able to connect"
            log.warning("more namespaces than the limit of open files allows", {**_fits(count), "do": do})

    def _say_what_fits(self) -> None:
        """Say how many namespaces the limit of open files allows."""
        count = len(self._registry)
        if self._process.settings.data is not None and count <= namespaces_max():
            log.info("namespaces served", _fits(count))

    # While the broker runs

    async def follow(self, configs: Sequence[Config]) -> None:
        """Serve those that the configuration file names now; keep those it names no more, and say so.

        `configs`: all but the default one. Raises: StartFailed.
        """
        for config in configs:
            served = self._registry.get(config.namespace)
            if served is None:
                self._warn_of_too_many(1 + len(self._registry))
                await self._serve_all([Wanted(config.namespace, "configured", config.limits, config)])
                self._say_what_fits()
                continue
            if served.kind == "throw-away":
                raise StartFailed(f"'{served.name}' is a throw-away namespace: end it, or name another one")
            served.kind = "configured"
            if served.limits != config.limits:
                do = "restart the broker: they count from its next start"
                log.warning("the Properties of a namespace have changed", {"name": served.name, "do": do})
        named = {config.namespace.lower() for config in configs}
        for served in self._registry:
            if served.kind in ("configured", "dropped") and served.name.lower() not in named:
                served.kind = "created" if self._records.has(served.name) else "dropped"
                do = "name it in the file again, or delete it with `peeklock namespaces delete`"
                log.warning(
                    "a namespace is kept that the file names no more", {"name": served.name, "do": do}
                )

    async def make(self, name: str, config: Config | None) -> ServedNamespace:
        """Make a namespace that stays, with the limits and entities of a configuration; None = empty.

        Raises: ValueError for a name that cannot be one; NamespaceThere; StartFailed for a configuration or
            folder that cannot be used; StoreError.
        """
        if not is_host_label(name):
            raise ValueError(f"'{name[:64]}' is not {HOST_LABEL_RULE}")
        limits = NO_LIMITS if config is None else config.limits
        self._registry.require_free(name, limits.host_names)
        for served in self._registry:
            if served.authority.has_rule(name) and not served.settings.is_development:
                why = f"The namespace '{served.name}' has a key '{name}', as would the new one"
                raise NamespaceThere(
                    f"{why}: on a shared host name no client could choose. Try another name."
                )
        return await self._to_its_end(self._make(Wanted(name, "created", limits, config)))

    async def _make(self, wanted: Wanted) -> ServedNamespace:
        name, limits = wanted.name, wanted.limits
        with self._registry.reserved(name, limits.host_names):
            await asyncio.to_thread(self._require_no_folder, name)
            await self._records.put(NamespaceRecord(name, limits, is_whole=False))
            try:
                served = await self._opened(wanted)
                try:
                    await self._records.put(NamespaceRecord(name, limits))
                except StoreError:
                    await served.stop()
                    raise
            except (StartFailed, StoreError):
                with contextlib.suppress(StoreError, OSError):  # the next start removes it
                    await self._remove(name)
                raise
        self._begin(served)
        log.info("namespace made", {"name": name})
        self._warn_of_too_many(len(self._registry))
        self._say_what_fits()
        return served

    def _require_no_folder(self, name: str) -> None:
        """Raise StartFailed where a new namespace would have messages or events of an earlier one."""
        capture = self._process.settings.capture
        logs = None
        if capture is not None:
            from peeklock.server.capture import folder_of

            logs = folder_of(capture, name.lower(), is_default=False)
        stores, own = self._process.stores, self._folder(name)
        if stores is not None and own is not None and stores.has(own, store_name(name, is_default=False)):
            raise StartFailed(
                f"{own} has the messages of an earlier namespace '{name}': move it away, or name the "
                "namespace in the configuration file"
            )
        if logs is not None and logs.exists():
            raise StartFailed(
                f"{logs} has the event log of an earlier namespace '{name}': move it away, or name the "
                "namespace in the configuration file"
            )

    async def delete(self, served: ServedNamespace) -> None:
        """Delete a namespace with all that is in it; its clients are told. Its event log stays.

        Raises: NotDeletable; NamespaceThere, if that is under way; StoreError.
        """
        if served.kind == "default":
            raise NotDeletable(f"'{served.name}' is the default namespace, which a broker always has.")
        if served.kind == "configured":
            raise NotDeletable(OF_THE_FILE.format(served.name))
        await self._to_its_end(self._delete(served))

    async def _delete(self, served: ServedNamespace) -> None:
        name = served.name
        if self._registry.get(name) is not served:
            raise NamespaceThere(f"The namespace '{name}' is being deleted.")
        self._registry.remove(served)
        with self._registry.reserved(name, served.limits.host_names):
            try:
                await self._records.put(NamespaceRecord(name, served.limits, is_whole=False))
            except StoreError:
                self._registry.add(served)
                raise
            self.close(served, DELETED.format(name))
            await served.retire()
            try:
                await self._remove(name)
            except (OSError, StoreError) as failure:
                do = "correct what is wrong: the next start removes it"
                log.error(
                    "the folder of a deleted namespace stays",
                    {"reason": str(failure), "name": name, "do": do},
                )
        log.info("namespace deleted", {"name": name})

    async def delete_elsewhere(self, wanted: Wanted, until_free: Callable[[], Awaitable[None]]) -> None:
        """Delete a namespace that another node owns.

        `until_free` waits until that node, which reads the record, has given it back. Raises: NotDeletable;
        NamespaceThere; StoreError.
        """
        if wanted.kind != "created":
            raise NotDeletable(OF_THE_FILE.format(wanted.name))

        async def deleted() -> None:
            with self._registry.reserved(wanted.name, wanted.limits.host_names):
                await self._records.put(NamespaceRecord(wanted.name, wanted.limits, is_whole=False))
                await until_free()
                with contextlib.suppress(OSError):  # of a folder that this node does not have
                    await self._remove(wanted.name)
            log.info("namespace deleted", {"name": wanted.name})

        await self._to_its_end(deleted())

    async def _remove(self, name: str) -> None:
        """Remove folder and facts of a namespace that is not served. Raises: OSError, StoreError."""
        stores, folder = self._process.stores, self._folder(name)
        if stores is not None and folder is not None:
            await asyncio.to_thread(stores.remove, folder, store_name(name, is_default=False))
        await self._records.remove(name)

    def _folder(self, name: str) -> Path | None:
        data = self._process.settings.data
        return None if data is None else data / FOLDER / name.lower()

    async def _to_its_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what work returns, which goes on if the caller is cancelled."""
        task = asyncio.ensure_future(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return await asyncio.shield(task)

    async def stop(self) -> None:
        """Wait for what is under way."""
        if self._under_way:
            await asyncio.wait(set(self._under_way))


def _fits(count: int) -> dict[str, object]:
    return {"namespaces": count, "fit": namespaces_max(), "open_files_limit": descriptors_max()}
