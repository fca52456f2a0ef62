"""Commands about cursors: take, claim, read, commit, release, list (X-06).

To take, claim or read needs an entity that can be received from; to commit, release and list does not, as a
lock can be settled then. Every tier has cursors, which the service does not have.
"""

from __future__ import annotations

from peeklock.broker.entities.entities import Entities
from peeklock.broker.queue.cursor_views import view_of_cursor
from peeklock.broker.queue.cursors import Cursors
from peeklock.broker.queue.message_queue import MessageQueue
from peeklock.broker.queue.outcome import Outcome
from peeklock.broker.vocabulary import commands as ask
from peeklock.broker.vocabulary import effects as do
from peeklock.broker.vocabulary.errors import (
    ArgumentInvalid,
    ArgumentOutOfRange,
    CursorNotFound,
    InvalidOperation,
)
from peeklock.broker.vocabulary.quotas import (
    CLAIM_MESSAGES_MAX,
    CURSOR_EXPIRES_AFTER_MS_MAX,
    CURSOR_EXPIRES_AFTER_MS_MIN,
    CURSOR_NAME_MAX,
)


class CursorOperations:
    """Handlers of commands about cursors."""

    def __init__(self, entities: Entities) -> None:
        self._entities = entities

    def take(self, command: ask.TakeCursor, out: Outcome) -> None:
        queue = self._claimable(command)
        if queue.cursors is None:
            queue.cursors = Cursors(queue)
        cursor = queue.cursors.take(
            command.cursor, command.owner, command.take_over, command.expires_after_ms, out
        )
        queue.accessed_at_ms = out.now_ms
        instant_ms = queue.shared.wall.instant_ms(out.now_ms)
        out.effects.append(do.CursorsFound(command.reply_to, [view_of_cursor(queue, cursor)], instant_ms))
        queue.serve(out)  # what the last owner claimed may be free

    def claim(self, command: ask.ClaimMessages, out: Outcome) -> None:
        queue = self._claimable(command)
        if command.count_max < 1 or command.bytes_max < 1:
            raise ArgumentOutOfRange(
                f"cursor '{command.cursor}' cannot claim {command.count_max} messages of "
                f"{command.bytes_max} bytes: both must be greater than zero"
            )
        if queue.cursors is None:
            queue.cursors = Cursors(queue)
        claim = queue.cursors.claim(
            command.cursor,
            min(command.count_max, CLAIM_MESSAGES_MAX),
            command.bytes_max,
            command.expires_after_ms,
            out,
            command.enqueued_up_to_ms,
            command.owner,
        )
        queue.accessed_at_ms = out.now_ms
        if claim is None:
            out.effects.append(do.Claimed(command.reply_to, 0, 0, 0))
        else:
            out.effects.append(do.Claimed(command.reply_to, claim.no, len(claim.messages), claim.size_bytes))

    def read(self, command: ask.ReadClaim, out: Outcome) -> None:
        queue = self._entities.readable(command.address)
        if command.skip < 0:
            raise ArgumentOutOfRange(f"skip {command.skip} must not be negative")
        views = self._cursors(queue, command.cursor).read(
            command.cursor, command.no, command.skip, command.count_max, command.bytes_max, command.owner, out
        )
        queue.accessed_at_ms = out.now_ms
        out.effects.append(do.MessagesFound(command.reply_to, views, queue.main.partitions is not None))

    def commit(self, command: ask.CommitClaims, out: Outcome) -> None:
        queue = self._queue(command.address)
        cursors = self._cursors(queue, command.cursor)
        left = cursors.commit(command.cursor, command.up_to_no, command.owner, out)
        queue.accessed_at_ms = out.now_ms
        out.effects.append(do.ClaimsLeft(command.reply_to, left))
        queue.serve(out)  # a session may be free

    def release(self, command: ask.ReleaseCursor, out: Outcome) -> None:
        queue = self._queue(command.address)
        cursors = self._cursors(queue, command.cursor)
        cursors.release(command.cursor, command.reply_to, out)
        queue.accessed_at_ms = out.now_ms
        queue.serve(out)

    def list_cursors(self, command: ask.ListCursors, out: Outcome) -> None:
        queue = self._queue(command.address)
        cursors = queue.cursors
        views = [] if cursors is None else [view_of_cursor(queue, cursor) for cursor in cursors.sorted()]
        instant_ms = queue.shared.wall.instant_ms(out.now_ms)
        out.effects.append(do.CursorsFound(command.reply_to, views, instant_ms))

    def _claimable(self, command: ask.TakeCursor | ask.ClaimMessages) -> MessageQueue:
        """Return the queue of a request to take or to claim, once it is known to be right."""
        entity, queue = self._entities.queue(command.address)
        entity.require_receivable(queue)
        entity.require_receiving()
        if queue is entity.main and queue.forward_to is not None:
            raise InvalidOperation(
                f"It is not possible to claim messages of '{entity.name}': it forwards to "
                f"'{queue.forward_to}'."
            )
        for what, text in (("cursor name", command.cursor), ("cursor's owner", command.owner)):
            if text is not None and not 1 <= len(text) <= CURSOR_NAME_MAX:
                raise ArgumentInvalid(
                    f"a {what} must have 1 to {CURSOR_NAME_MAX} characters, not {len(text)}"
                )
            try:
                (text or "").encode()
            except UnicodeEncodeError:
                raise ArgumentInvalid(f"{what} contains an unpaired surrogate") from None
        after_ms = command.expires_after_ms
        if after_ms is not None and not (
            CURSOR_EXPIRES_AFTER_MS_MIN <= after_ms <= CURSOR_EXPIRES_AFTER_MS_MAX
        ):
            raise ArgumentOutOfRange(
                f"cursor '{command.cursor}' cannot expire after {after_ms} ms unused; allowed: "
                f"{CURSOR_EXPIRES_AFTER_MS_MIN} to {CURSOR_EXPIRES_AFTER_MS_MAX}"
            )
        return queue

    def _queue(self, address: ask.Address) -> MessageQueue:
        entity, queue = self._entities.queue(address)
        entity.require_receivable(queue)
        return queue

    def _cursors(self, queue: MessageQueue, name: str) -> Cursors:
        """Return the cursors of a queue. Raises: CursorNotFound: it has none."""
        if queue.cursors is None:
            raise CursorNotFound(f"'{queue.name}' has no cursor '{name}': it has no cursors")
        return queue.cursors
