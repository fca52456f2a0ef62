"""What others see of a cursor: its owner, its claims, and the backlog of its reader."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from peeklock.broker.queue.cursor import Claim, Cursor
from peeklock.broker.vocabulary.effects import CursorView

if TYPE_CHECKING:
    from peeklock.broker.queue.message_queue import MessageQueue

LOOKED_AT: Final = 100
"""Messages that are looked at for the oldest one of a backlog. Our choice: 20 us."""


def view_of_cursor(queue: MessageQueue, cursor: Cursor) -> CursorView:
    """Return the view of a cursor of a queue."""
    claims = [
        (no, len(claim.messages), claim.size_bytes)
        for no, claim in cursor.claims.items()
        if no > cursor.committed_no
    ]
    claimed = 0 if queue.cursors is None else queue.cursors.claimed_count
    return CursorView(
        cursor.name,
        cursor.last_no,
        cursor.committed_no,
        cursor.used_at_ms,
        cursor.expires_after_ms,
        claims,
        cursor.owner,
        cursor.unread_from_no is None,
        len(queue.active) - claimed + sum(count for _, count, _ in claims),
        _oldest_ms(queue, cursor),
        cursor.undone,
    )


def _oldest_ms(queue: MessageQueue, cursor: Cursor) -> int | None:
    """Return when the oldest message of the backlog was enqueued, or an earlier time if others hold more than
    `LOOKED_AT` messages before it."""
    found_ms = None
    for message in islice(queue.active.iterate(0), LOOKED_AT):
        found_ms = message.enqueued_at_ms
        claim = message.lock
        if not isinstance(claim, Claim) or (claim.cursor is cursor and claim.no > cursor.committed_no):
            return found_ms
    return found_ms if len(queue.active) > LOOKED_AT else None
