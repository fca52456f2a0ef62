"""An exclusive hold on one message, named by its token.

Owns: the `Lock` record. Must not know: why it was taken or how it ends; `message_queue` decides both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from peeklock.broker.message import Message
    from peeklock.broker.message_queue import MessageQueue


class Lock:
    """One message held for one receiver until an instant; at exactly `locked_until_ms` it counts as lost.

    Never written to the store: a restart drops it (L-12).
    """

    __slots__ = ("holder", "locked_until_ms", "message", "queue", "token")

    def __init__(
        self,
        token: bytes,
        message: Message,
        queue: MessageQueue,
        locked_until_ms: int,
        holder: dict[bytes, Lock],
    ) -> None:
        self.token = token  # 16 bytes in .NET order
        self.message = message
        self.queue = queue
        self.locked_until_ms = locked_until_ms
        self.holder = (
            holder  # the locks of the link or connection it was taken over, whose break drops it (L-13)
        )
