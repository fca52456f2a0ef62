"""Sizes and limits of the broker, reduced to the scale of a simulation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from peeklock.amqp.link import ReassemblyBudget
from peeklock.broker.entities import fan_out
from peeklock.broker.queue import cursors
from peeklock.broker.vocabulary import message
from peeklock.engine import driver, journal, reclaim
from peeklock.engine import engine as engine_module
from peeklock.gateway.bounds import Buffers
from peeklock.store.encoding import frames, records

Patch = tuple[Any, str, Any]
"""A module or class, the name of an attribute, and its replacement."""

BODIES_BYTES_MAX = 4_000
"""Small enough that bodies are read back from the store all the time."""

COPIES_FOLLOWING_MAX = 30
"""Copies that may follow from one message: more than the rules of any topic here, and fewer than a circle
with two ways makes."""

SMALL_SIZES: tuple[Patch, ...] = (
    (driver, "WINDOW", 5),
    (driver, "READ_ROWS_MAX", 3),
    (engine_module, "ROW_BYTES_MAX", 2_000),
    (journal, "JOURNAL_BYTES_MIN", 6_000),
    (journal, "HEAD_READ_BYTES", 1_500),
    (reclaim, "COPY_READ_BYTES", 4_000),
    (journal, "TRUNCATE_BYTES_MAX", 3_000),
    (reclaim, "DROP_ALONE_BYTES", 2_000),
    (reclaim, "DROP_TOGETHER_ROWS", 2),
    (reclaim, "LIST_ROWS_MAX", 7),
    (cursors, "SLICE", 3),
    *((owner, "COPIES_FOLLOWING_MAX", COPIES_FOLLOWING_MAX) for owner in (message, fan_out, frames, records)),
)
"""Sizes at which effects leave in parts, the engine begins to reclaim space, cursors work in slices, and
circles end."""


def small_buffers() -> Buffers:
    """Return budgets of unfinished deliveries that three strangers fill. A client may send a message that is
    too large, of which 256 KiB are buffered; the budget of clients is enough for all of them."""
    return Buffers(320 * 1024, ReassemblyBudget(4 * 1024 * 1024), ReassemblyBudget(128 * 1024))


@contextmanager
def patched(patches: Iterable[Patch]) -> Iterator[None]:
    """Replace attributes for a while."""
    patches = list(patches)
    before = [getattr(owner, name) for owner, name, _ in patches]
    for owner, name, value in patches:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for (owner, name, _), value in zip(patches, before, strict=True):
            setattr(owner, name, value)
