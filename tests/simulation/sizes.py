"""Sizes of the broker brought down to what a simulation writes.

Owns: which sizes. Must not know: what they are for beyond the line that says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from peeklock.broker import cursors
from peeklock.engine import engine as engine_module
from peeklock.engine import reclaim

BODIES_BYTES_MAX = 4_000
"""So small that bodies are read back from the store all the time."""

SMALL_SIZES: tuple[tuple[ModuleType, str, int], ...] = (
    (engine_module, "ROW_BYTES_MAX", 2_000),
    (reclaim, "JOURNAL_BYTES_MIN", 6_000),
    (reclaim, "HEAD_READ_BYTES", 1_500),
    (reclaim, "COPY_READ_BYTES", 4_000),
    (reclaim, "TRUNCATE_BYTES_MAX", 3_000),
    (reclaim, "DROP_ALONE_BYTES", 2_000),
    (reclaim, "LIST_ROWS_MAX", 7),
    (cursors, "SLICE", 3),
)
"""Sizes at which the engine begins to reclaim space, and cursors to work in slices, brought down to what a
simulation writes."""


@contextmanager
def small_sizes() -> Iterator[None]:
    """Let the engine reclaim space as early as a simulation needs it."""
    before = [getattr(module, name) for module, name, _ in SMALL_SIZES]
    for module, name, value in SMALL_SIZES:
        setattr(module, name, value)
    try:
        yield
    finally:
        for (module, name, _), value in zip(SMALL_SIZES, before, strict=True):
            setattr(module, name, value)
