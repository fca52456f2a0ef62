"""Settlements that keep or move a message: abandon, defer, dead-letter, with changed properties and their
limit.

`MessageQueue.complete` is apart, since it needs none of this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from peeklock.broker.content import overlay as overlays
from peeklock.broker.queue.outcome import Outcome
from peeklock.broker.queue.peek_lock import Lock
from peeklock.broker.vocabulary.errors import InvalidOperation
from peeklock.broker.vocabulary.events import EventType

_TOO_LARGE: Final = b"too large"
"""In place of an overlay over the limit; compared by identity."""


def abandon(lock: Lock, out: Outcome, properties: Mapping[str, Any] | None = None) -> None:
    """Return a locked message to its queue, counted, with changed properties (L-06)."""
    _keep(lock, out, properties, why=EventType.ABANDONED)


def defer(lock: Lock, out: Outcome, properties: Mapping[str, Any] | None = None) -> None:
    """Set a locked message aside, counted, until its number is requested (L-08, L-10)."""
    _keep(lock, out, properties, why=EventType.DEFERRED)


def dead_letter(
    lock: Lock,
    out: Outcome,
    reason: str | None = None,
    description: str | None = None,
    properties: Mapping[str, Any] | None = None,
) -> None:
    """Move a locked message to the dead-letter queue (L-09). Source: wire contract 3.8.

    Raises: InvalidOperation: this is a dead-letter queue.
    """
    require_dead_lettering(lock)
    overlay = overlays.with_reason(lock.message.overlay, reason, description, properties)
    if overlay is not None and len(overlay) > overlays.OVERLAY_BYTES_MAX:
        _dead_letter_too_large(lock, out)
        return
    lock.queue.end(lock)
    lock.queue.dead_letter(lock.message, overlay, out, token=lock.token)


def require_dead_lettering(lock: Lock) -> None:
    """Raise what `dead_letter` would raise."""
    queue = lock.queue
    if queue.dead_letters is None:
        raise InvalidOperation(
            f"'{queue.name}' is a dead-letter queue: its messages cannot be dead-lettered further"
        )


def require_change(lock: Lock, properties: Mapping[str, Any] | None) -> None:
    """Raise what `abandon` or `defer` would raise, before the first of several locks is settled."""
    if lock.queue.dead_letters is None:
        _overlay_for(lock, properties)


def _keep(lock: Lock, out: Outcome, properties: Mapping[str, Any] | None, why: EventType) -> None:
    overlay = _overlay_for(lock, properties)
    if overlay is _TOO_LARGE:
        _dead_letter_too_large(lock, out)
    else:
        lock.queue.give_back(lock, out, counted=True, why=why, overlay=overlay)


def _overlay_for(lock: Lock, properties: Mapping[str, Any] | None) -> bytes | None:
    if not properties:
        return None
    overlay = overlays.merged(lock.message.overlay, properties)
    if len(overlay) <= overlays.OVERLAY_BYTES_MAX:
        return overlay
    queue = lock.queue
    if queue.dead_letters is None:
        raise InvalidOperation(
            f"the changed properties of sequence number {lock.message.sequence_number} of '{queue.name}' "
            f"are {len(overlay)} bytes, at most {overlays.OVERLAY_BYTES_MAX} are allowed"
        )
    return _TOO_LARGE


def _dead_letter_too_large(lock: Lock, out: Outcome) -> None:
    """Dead-letter a message whose properties exceed the limit, without the change that did it (3.8)."""
    lock.queue.end(lock)
    overlay = overlays.with_reason(
        lock.message.overlay, "HeaderSizeExceeded", "The size quota for this stream has been exceeded."
    )
    lock.queue.dead_letter(lock.message, overlay, out, token=lock.token)
