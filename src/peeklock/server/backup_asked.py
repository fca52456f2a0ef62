"""`peeklock backup` of a broker in memory: its stores, as it shows them on the control socket.

A reader asks for piece after piece (`server.net.backup_pages`), and each store is as of the instant at which
its reader was opened.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from urllib.parse import urlencode

from peeklock.server.backup import OfOne, Stores, only
from peeklock.store.backup.format import SYSTEM, StoreHead, unpack_blobs, unpack_entries
from peeklock.store.backup.verifying import key_of
from peeklock.store.base import Blob, Ends, Entry

PATH = "/$api/v1/backup"

Ask = Callable[[str, str], bytes]
"""Sends a request of a method to a path, and returns the body of a good answer."""


def stores_of(ask: Ask, namespace: str | None, where: str) -> Stores:
    """Yield the stores of a broker; `where` names it in errors. Raises: StoreFailed, what `ask` raises."""
    heads = [StoreHead(one["name"], one["role"], 0) for one in json.loads(ask("GET", PATH))["stores"]]
    system = StoreHead(SYSTEM, "system", 0)
    others = only(namespace, [(head, key_of(head)) for head in heads if head.role != "system"], where)
    reader = AskedReader(ask, key_of(system))
    yield system, reader if namespace is None else OfOne(reader, others[0][0].name)
    for head, key in others:
        yield head, AskedReader(ask, key)


class AskedReader:
    """See `store.base.StoreReader`."""

    def __init__(self, ask: Ask, key: str) -> None:
        """Open the store of a key."""
        self._ask = ask
        opened = json.loads(ask("POST", f"{PATH}?{urlencode({'store': key})}"))
        self._path: str = f"{PATH}/{opened['id']}"
        self._ends = Ends(*opened["ends"])
        self._writer: str = opened["writer"]

    def ends(self) -> Ends:
        return self._ends

    def frames(self, after: int, bytes_max: int) -> list[Blob]:
        return list(unpack_blobs(self._read("frames", after)))

    def body_rows(self, after: int, bytes_max: int) -> list[Blob]:
        return list(unpack_blobs(self._read("rows", after)))

    def body_row(self, no: int) -> bytes | None:
        return next((data for _, data in unpack_blobs(self._read("row", no))), None)

    def body_row_numbers(self) -> list[int]:
        return self._all("numbers", lambda data: [no for (no,) in struct.iter_unpack("<Q", data)])

    def entries(self) -> list[Entry]:
        return self._all("entries", unpack_entries)

    def at_one_instant(self) -> AbstractContextManager[None]:
        return nullcontext()

    def writer_name(self) -> str:
        return self._writer

    def close(self) -> None:
        """Do nothing: the broker forgets the reader."""

    def _all(self, what: str, unpacked: Callable[[bytes], list[Any]]) -> list[Any]:
        found: list[Any] = []
        while piece := unpacked(self._read(what, len(found))):
            found += piece
        return found

    def _read(self, what: str, after: int) -> bytes:
        return self._ask("GET", f"{self._path}?{urlencode({'what': what, 'after': after})}")
