"""Writes the blocks of a back-up in their order, and compresses each one while the next is read.

The compressor takes most of the time, and releases the interpreter lock: it has a thread. One block is on its
way at a time, so the memory is bounded by two blocks.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from peeklock.store.backup.format import (
    LEVEL,
    START,
    Header,
    Kind,
    StoreEnd,
    StoreHead,
    block_head,
    pack_end,
    pack_record,
)


class Writer:
    """Writes a back-up. Its end as a context ends the thread; only `end` makes the back-up whole."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        """Begin a back-up; `write` takes its bytes in order, in the thread of the caller."""
        self._write = write
        self._thread = ThreadPoolExecutor(1, "compressor")
        self._packing: tuple[Kind, Future[bytes]] | None = None
        self._checksum = 0
        self._blocks = 0
        write(START)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(cancel_futures=True)

    def add(self, kind: Kind, data: bytes) -> None:
        """Compress a block, and write the one before. Raises: what `write` raises."""
        packing = self._thread.submit(zlib.compress, data, LEVEL)
        self._flush()
        self._packing = kind, packing
        self._blocks += 1

    def add_record(self, kind: Kind, record: Header | StoreHead | StoreEnd) -> None:
        """Add a block that is one record."""
        self.add(kind, pack_record(record))

    def end(self) -> None:
        """Write the last block; then the back-up is whole."""
        self.add(Kind.END, pack_end(self._blocks))
        self._flush()

    def _flush(self) -> None:
        """Write the block that is compressed."""
        if self._packing is None:
            return
        kind, packing = self._packing
        self._packing = None
        packed = packing.result()
        head, self._checksum = block_head(kind, packed, self._checksum)
        self._write(head)
        self._write(packed)
