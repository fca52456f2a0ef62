"""Planted bugs in the ownership of cursors: each lets a reader have what belongs to another."""

from __future__ import annotations

from typing import Any

from peeklock.broker.queue.cursor import Cursor
from peeklock.broker.queue.cursors import Cursors
from peeklock.broker.queue.outcome import Outcome
from tests.simulation.world.sizes import Patch

_take = Cursors.take


def _take_from_anybody(
    cursors: Cursors, name: str, owner: str, take_over: bool, expires_after_ms: int | None, out: Outcome
) -> Cursor:
    """Take a cursor also from an owner that has read."""
    return _take(cursors, name, owner, True, expires_after_ms, out)


STOLEN_CURSORS: tuple[Patch, ...] = ((Cursors, "take", _take_from_anybody),)


def _keep(cursors: Cursors, cursor: Cursor, out: Outcome) -> None:
    """Leave a new owner the claims of one that has not read."""


KEPT_CLAIMS: tuple[Patch, ...] = ((Cursors, "_yield", _keep),)


def _let_all_in(*_: Any) -> None:
    """Refuse nobody."""


STRANGE_READERS: tuple[Patch, ...] = ((Cursors, "_require_owner", _let_all_in),)
