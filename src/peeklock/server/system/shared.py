"""The facts of a cluster: in one store, which each node holds only while it changes them.

A change takes the lease on the store, reads what is there, commits, and gives the lease back. So nodes change
the facts one after the other, and `make` sees all that was committed before. A node reads the changes of
others with `refresh`. Keys and the certificate authority are encrypted.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from typing import Any

from peeklock.server.system import authority, keys
from peeklock.server.system.sealing import Sealing
from peeklock.server.system.store import SystemStore, Values, is_sealed, read
from peeklock.store.base import Store, StoreError
from peeklock.store.encoding import definitions


class SharedSystemStore(SystemStore):
    """See `SystemStore`; `open_shared` makes it."""

    def __init__(self, make: Callable[[], Store], sealing: Sealing, on_change: Callable[[], None]) -> None:
        super().__init__(make(), {}, 1)
        self._make = make
        self._sealing = sealing
        self._on_change = on_change
        self._changed: set[str] = set()
        """Keys of the facts that have changed since the last `refresh`."""

    @classmethod
    async def open_shared(
        cls, make: Callable[[], Store], sealing: Sealing, on_change: Callable[[], None]
    ) -> SharedSystemStore:
        """Read the facts, and seal the secrets that a broker before the cluster has left.

        Args:
            make: returns the store of the facts, not open.
            sealing: seals the secrets.
            on_change: called in a thread after a change, to tell other nodes.

        Raises: StoreError.
        """
        made = cls(make, sealing, on_change)
        await made.change(made._unsealed_secrets)
        return made

    def _unsealed_secrets(self) -> Values:
        return {
            key: value
            for key, text in self._texts.items()
            if _is_secret(key) and not is_sealed(value := json.loads(text))
        }

    def _sealed(self, key: str, value: Any) -> Any:
        return self._sealing.seal(key, value) if _is_secret(key) else value

    def _opened(self, key: str, sealed: Any) -> Any:
        return self._sealing.open(key, sealed)

    async def refresh(self) -> set[str]:
        """Read what other nodes have changed; return the keys of the facts that changed since the last call.

        Those that this node has changed are among them. Raises: StoreError.
        """
        async with self._changing:
            self._replace(await asyncio.to_thread(self._read))
            changed, self._changed = self._changed, set()
        return changed

    def _read(self) -> dict[str, str]:
        with closing(self._store.reader()) as reader:
            return definitions.read_all(reader.entries()).facts

    def _replace(self, facts: dict[str, str]) -> None:
        self._changed |= {key for key, _ in facts.items() ^ self._texts.items()}
        self._texts, self._keys = facts, sorted(facts)

    async def _commit(self, texts: dict[str, str | None]) -> None:
        await super()._commit(texts)
        self._changed |= texts.keys()

    @asynccontextmanager
    async def _writing(self) -> AsyncIterator[None]:
        store = self._store = self._make()
        await store.open()
        try:
            facts, self._next_no = await read(store)
            self._replace(facts)
            before = self._next_no
            yield
        finally:
            self._failure = None  # the next change reads again what is durable
            await store.close()
        if self._next_no != before:
            with contextlib.suppress(StoreError):  # it is durable, and the others look without being told
                await asyncio.to_thread(self._on_change)


def _is_secret(key: str) -> bool:
    return key == authority.FACT or key.startswith(keys.PREFIX)
