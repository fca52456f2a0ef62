"""Deferred messages, received by their sequence numbers and settled, at any Service Bus.

Source: wire contract 5.2 (receive-by-sequence-number, update-disposition).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from peeklock.amqp.annotations import STATE, broker_annotations
from peeklock.amqp.performatives import Accepted, DeliveryState, Modified, Rejected
from peeklock.amqp.types import Array, Long, UInt
from peeklock.client.browsing import Browser, sequence_number
from peeklock.client.connection import BlockingConnection
from peeklock.client.errors import MESSAGE_NOT_FOUND, ServiceBusError
from peeklock.client.links import ReceiveMode

RECEIVE: Final = "com.microsoft:receive-by-sequence-number"
SETTLE: Final = "com.microsoft:update-disposition"

DEFERRED: Final = 1
"""State of a deferred message. Source: wire contract 3.2."""

_MODES: Final = {ReceiveMode.RECEIVE_AND_DELETE: UInt(0), ReceiveMode.PEEK_LOCK: UInt(1)}

_ONE_BY_ONE: Final = (MESSAGE_NOT_FOUND, "com.microsoft:argument-out-of-range")
"""Refusals of a request for several messages that say nothing of each of them."""


@dataclass(frozen=True, slots=True)
class Received:
    """A deferred message that is received."""

    payload: bytes
    lock_token: UUID | None
    """None in the mode that deletes."""


class DeferredMessages:
    """The deferred messages of a queue, subscription or sub-queue."""

    def __init__(self, connection: BlockingConnection, path: str, session_id: str | None = None) -> None:
        """`session_id`: of an entity with sessions; a receiver of this connection holds the session."""
        self._browser = Browser(connection, path, session_id)
        self._management = connection.management(path)
        self._further: dict[str, Any] = {} if session_id is None else {"session-id": session_id}

    def numbers(self) -> Iterator[list[int]]:
        """Yield the sequence numbers of all of them, in steps. Raises: ServiceBusError."""
        for messages in self._browser.read():
            found = [
                sequence_number(each) for each in messages if broker_annotations(each)[STATE] == DEFERRED
            ]
            if found:
                yield found

    def receive(self, numbers: Sequence[int], mode: ReceiveMode) -> tuple[list[Received], list[int]]:
        """Return the messages with these sequence numbers, and the numbers without a message.

        A message that another receiver has locked is not there. Raises: ServiceBusError.
        """
        try:
            return self._receive(numbers, mode), []
        except ServiceBusError as error:
            if error.condition not in _ONE_BY_ONE or (
                len(numbers) == 1 and error.condition != MESSAGE_NOT_FOUND
            ):
                raise
        if len(numbers) == 1:
            return [], [*numbers]
        received: list[Received] = []
        absent: list[int] = []
        for number in numbers:
            found, missing = self.receive([number], mode)
            received += found
            absent += missing
        return received, absent

    def settle(self, received: Sequence[Received], outcome: DeliveryState) -> None:
        """Settle messages, with an outcome as of `Receiver.settle`, and wait for the answer.

        After `ABANDON` they are deferred, as before. Raises: ServiceBusError.
        """
        tokens = [each.lock_token for each in received if each.lock_token is not None]
        if tokens:
            asked = {"lock-tokens": Array.of(UUID, tokens), **disposition(outcome), **self._further}
            self._management.request(SETTLE, asked, repeat=False)

    def _receive(self, numbers: Sequence[int], mode: ReceiveMode) -> list[Received]:
        asked = {**by_number(numbers, mode), **self._further}
        body = self._management.request(RECEIVE, asked, repeat=False).body
        return [Received(each["message"], each.get("lock-token")) for each in body.get("messages") or ()]


def by_number(numbers: Sequence[int], mode: ReceiveMode) -> dict[str, Any]:
    """Return a request for messages by their numbers."""
    return {"sequence-numbers": Array.of(Long, numbers), "receiver-settle-mode": _MODES[mode]}


def disposition(outcome: DeliveryState) -> dict[str, Any]:
    """Return the part of a request that says the outcome."""
    if isinstance(outcome, Accepted):
        return {"disposition-status": "completed"}
    if isinstance(outcome, Modified):
        return {"disposition-status": "defered" if outcome.undeliverable_here else "abandoned"}
    assert isinstance(outcome, Rejected), "no other outcome is one of `$management`"
    info = {} if outcome.error is None else outcome.error.info or {}
    found = {
        "deadletter-reason": info.get("DeadLetterReason"),
        "deadletter-description": info.get("DeadLetterErrorDescription"),
    }
    return {
        "disposition-status": "suspended",
        **{key: text for key, text in found.items() if text is not None},
    }
