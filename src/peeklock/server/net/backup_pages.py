"""The pages `/$api/v1/backup` and `/$api/v1/backup/ID`: stores in memory, as they are stored.

`peeklock backup` alone asks for them, on the control socket, since stores have keys. A reader sees one
instant, and only the newest one is kept, until it was not asked for a while. No answer is large, so that no
page holds up the loop; the command compresses.
"""

from __future__ import annotations

import asyncio
import struct
import uuid
from collections.abc import Callable, Mapping

from peeklock.admin.exchange import Response
from peeklock.api.exchange import JSON, to_json
from peeklock.broker.vocabulary.errors import ArgumentInvalid, InvalidOperation
from peeklock.server.net.operator_pages import PageRequest
from peeklock.store.backup.format import StoreHead, pack_blobs, pack_entries
from peeklock.store.base import StoreReader

PAGE_BYTES = 1024 * 1024
"""Of frames or body rows. Our choice: they take 1 ms."""

PAGE_NUMBERS, PAGE_ENTRIES = 50_000, 1_000
"""Numbers of rows, and entries. Our choice: they take 2 ms."""

IDLE_S = 60.0
"""A reader keeps what the store has dropped meanwhile. Our choice: the command asks every few milliseconds,
unless who reads the back-up is slow."""

BYTES = "application/octet-stream"

Stores = Mapping[str, tuple[StoreHead, Callable[[], StoreReader]]]
"""Head and reader of each store, by key."""


class BackupPages:
    """Shows the stores of one process."""

    def __init__(self, stores: Callable[[], Stores], data: str | None) -> None:
        """`stores` returns those in memory; `data`: the folder that has the others, None = there is none."""
        self._stores = stores
        self._data = data
        self._reader: StoreReader | None = None
        self._id = ""
        self._idle: asyncio.TimerHandle | None = None

    async def show(self, request: PageRequest) -> Response:
        """Return the heads of all stores."""
        if self._data is not None:
            text = f"This broker keeps its messages in {self._data}: back them up with --data {self._data}."
            return request.exchange.refusal(InvalidOperation(text))
        heads = [{"name": head.name, "role": head.role} for head, _ in self._stores().values()]
        return Response(200, JSON, to_json({"stores": heads}))

    async def open(self, request: PageRequest) -> Response:
        """Read the store of the query's `store` from now on; return the id of the reader, and its ends."""
        found = self._stores().get(_first(request, "store"))
        if found is None:
            return request.exchange.refusal(ArgumentInvalid("There is no such store: back up again."))
        self._reader, self._id = found[1](), uuid.uuid4().hex
        self._wait()
        ends = self._reader.ends()
        opened = {
            "id": self._id,
            "ends": [ends.first_no, ends.last_no, ends.last_row],
            "writer": self._reader.writer_name(),
        }
        return Response(201, JSON, to_json(opened))

    async def read(self, request: PageRequest) -> Response:
        """Return a piece of what the query's `what` names, after the number or place `after`."""
        reader, after = self._reader, _first(request, "after")
        if reader is None or request.argument != self._id:
            text = "Another back-up has begun, or this one has paused for too long: back up again."
            return request.exchange.refusal(InvalidOperation(text))
        if not after.isascii() or not after.isdigit():
            return request.exchange.refusal(ArgumentInvalid("after must be a number."))
        self._wait()
        return Response(200, BYTES, _read(reader, _first(request, "what"), int(after)))

    def _wait(self) -> None:
        """Forget the reader unless it is asked again in time."""
        if self._idle is not None:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_later(IDLE_S, self._forget)

    def _forget(self) -> None:
        self._reader = None


def _first(request: PageRequest, name: str) -> str:
    return request.query.get(name, [""])[0]


def _read(reader: StoreReader, what: str, after: int) -> bytes:
    match what:
        case "frames":
            return pack_blobs(reader.frames(after, PAGE_BYTES))
        case "rows":
            return pack_blobs(reader.body_rows(after, PAGE_BYTES))
        case "row":
            data = reader.body_row(after)
            return b"" if data is None else pack_blobs([(after, data)])
        case "numbers":
            numbers = reader.body_row_numbers()[after : after + PAGE_NUMBERS]
            return struct.pack(f"<{len(numbers)}Q", *numbers)
        case _:
            return pack_entries(reader.entries()[after : after + PAGE_ENTRIES])
