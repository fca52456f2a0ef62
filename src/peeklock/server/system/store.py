"""The facts of the process by key, kept in a `Store`.

It owns the numbers of the batches and the values that were committed last; it must not know what a fact
means. Values are JSON. A change is one batch: all of it counts or none, and it shows once it is durable.
The store's journal has one frame a batch, which holds nothing here, so each batch drops the frame before.
"""

from __future__ import annotations

import asyncio
import json
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from peeklock.broker.vocabulary.changes import Change, FactRemoved, FactStored
from peeklock.store.base import Batch, Store, StoreDamaged, StoreError, StoreFailed, StoreReader

FOLDER = "system"
"""In the data folder."""

Values = Mapping[str, Any]
"""JSON values by key, in the order in which they are stored; None removes a fact."""


def folder_of(data: Path) -> Path:
    """Return the folder of the system store in a data folder."""
    return data / FOLDER


class SystemStore:
    """The facts of one process; `open` makes it. Call it on one event loop."""

    def __init__(self, store: Store, facts: dict[str, str], next_no: int) -> None:
        """Take over an open store, its facts, and the number of its next batch."""
        self._store = store
        self._texts = facts
        self._keys = sorted(facts)
        self._next_no = next_no
        self._changing = asyncio.Lock()
        self._failure: StoreError | None = None
        """What ended the writing: only the store knows then what is durable."""

    @classmethod
    async def open(cls, store: Store) -> SystemStore:
        """Open a store and read its facts. Raises: StoreError; the store is closed then."""
        await store.open()
        try:
            return cls(store, *await read(store))
        except BaseException:
            await store.close()
            raise

    def get(self, key: str) -> Any:
        """Return a value of its own, None if there is no such fact."""
        text = self._texts.get(key)
        found = None if text is None else _decode(key, text)
        return self._opened(key, found) if is_sealed(found) else found

    def keys_below(self, prefix: str) -> list[str]:
        """Return the keys that begin with a prefix, sorted."""
        found = []
        for key in self._keys[bisect_left(self._keys, prefix) :]:
            if not key.startswith(prefix):
                break
            found.append(key)
        return found

    async def put(self, values: Values) -> None:
        """Commit values together; they show once they are durable.

        Raises: ValueError or TypeError for what JSON or UTF-8 cannot encode, which changes nothing;
            StoreFailed: whether they are durable is unknown, and nothing can be put before the next `open`.
        """
        await self.change(lambda: values)

    async def change(self, make: Callable[[], Values], then: Callable[[], None] | None = None) -> None:
        """Commit what `make` returns from the values before it, with no other change in between.

        `then` is called when the values show. Both go on to their end if the caller is cancelled: a commit
        cannot be taken back. Raises: as `put`, and what `make` raises, which changes nothing.
        """
        await asyncio.shield(asyncio.ensure_future(self._change(make, then)))

    async def close(self) -> None:
        """Close the store after the changes under way."""
        async with self._changing:
            self._failure = StoreFailed("the system store is closed")
            await self._store.close()

    async def _change(self, make: Callable[[], Values], then: Callable[[], None] | None) -> None:
        async with self._changing:
            if self._failure is not None:
                raise StoreFailed(f"the facts of the process cannot be changed: {self._failure}")
            async with self._writing():
                texts = {
                    _checked(key): None if value is None else _encode(self._sealed(key, value))
                    for key, value in make().items()
                }
                if texts:
                    await self._commit(texts)
            if then is not None:
                then()

    def _sealed(self, key: str, value: Any) -> Any:
        """Return a value as it is stored."""
        return value

    def _opened(self, key: str, sealed: Any) -> Any:
        """Return what a sealed value has. Raises: StoreDamaged."""
        raise StoreDamaged(
            f"the fact {key} of the process is encrypted with the key of a cluster: copy it into a database, "
            "and start nodes with that key on it"
        )

    @asynccontextmanager
    async def _writing(self) -> AsyncIterator[None]:
        """Hold the store while a change is made."""
        yield

    async def _commit(self, texts: dict[str, str | None]) -> None:
        changes: list[Change] = [
            FactRemoved(key) if text is None else FactStored(key, text) for key, text in texts.items()
        ]
        no = self._next_no
        try:
            await self._store.commit(Batch(no, changes, truncate_before=no))
        except StoreError as failure:
            self._failure = failure
            raise
        self._next_no += 1
        for key, text in texts.items():
            if text is None:
                self._texts.pop(key, None)
            else:
                self._texts[key] = text
        self._keys = sorted(self._texts)

    def reader(self) -> StoreReader:
        """Return a reader of its store, for a back-up. Raises: StoreFailed."""
        return self._store.reader()


async def read(store: Store) -> tuple[dict[str, str], int]:
    """Return the facts in an open store, and the number of its next batch. Raises: StoreError."""
    facts = (await store.load_definitions()).facts
    for key, text in facts.items():
        _decode(key, text)
    live = await store.load_live()
    return facts, live.first_no + len(live.frame_sizes)


def is_sealed(value: Any) -> bool:
    """Return whether a value is encrypted; see `sealing`."""
    return isinstance(value, dict) and value.keys() == {"sealed"}


def _checked(key: str) -> str:
    """Return a key that UTF-8 can encode. Raises: UnicodeEncodeError, a ValueError."""
    key.encode()
    return key


def _encode(value: Any) -> str:
    # ASCII alone: JSON may contain half a surrogate pair, which UTF-8 cannot encode.
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _decode(key: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StoreDamaged(f"the fact {key} of the process is not JSON: {error}") from error
