"""Commands as a transaction keeps them: their records and sizes, and the partitions that they fix.

Source: wire contract 6, C12, C30, C34.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from peeklock.amqp.messaging import Sections
from peeklock.broker.content import overlay as overlays
from peeklock.broker.entities.entity import Entity
from peeklock.broker.queue.message_queue import MessageQueue
from peeklock.broker.queue.message_session import SessionLock
from peeklock.broker.vocabulary.commands import (
    Abandon,
    Complete,
    DeadLetter,
    Defer,
    ReplyTo,
    Send,
    SendBatch,
    SequenceNumber,
    UpdateDisposition,
)
from peeklock.broker.vocabulary.errors import InvalidOperation
from peeklock.broker.vocabulary.message import Message
from peeklock.broker.vocabulary.quotas import ENLISTED_BYTES_MIN


@dataclass(slots=True)
class Numbered:
    """A schedule in a transaction: its messages are numbered and wait for the commit."""

    queue_id: int
    messages: list[tuple[Message, Sections]]
    """Without the duplicates at the time of the request."""
    reply_to: ReplyTo


@dataclass(slots=True)
class Cancelled:
    """A cancellation in a transaction: its messages stay scheduled until the commit, and may be activated."""

    queue_id: int
    numbers: list[SequenceNumber]
    reply_to: ReplyTo


@dataclass(slots=True)
class StateSet:
    """A session state, set with the commit if the session is still under the same lock."""

    queue_id: int
    session_id: str
    lock: SessionLock
    state: bytes | None
    reply_to: ReplyTo


WithMessages = Send | SendBatch | Numbered
Settling = Complete | Abandon | Defer | DeadLetter
Enlisted = WithMessages | Cancelled | StateSet | Settling | UpdateDisposition


def messages_of(command: WithMessages) -> list[tuple[Message, Sections]]:
    """Return the messages that a command stores."""
    return [(command.message, command.sections)] if isinstance(command, Send) else command.messages


def count_of(command: Enlisted) -> int:
    """Return how many of a transaction's messages a command takes."""
    return len(messages_of(command)) if isinstance(command, WithMessages) else 0


def size_of(command: Enlisted) -> int:
    """Return how many of a transaction's bytes a command takes."""
    if isinstance(command, WithMessages):
        return sum(max(ENLISTED_BYTES_MIN, message.size_bytes) for message, _ in messages_of(command))
    if isinstance(command, Cancelled):
        return ENLISTED_BYTES_MIN * len(command.numbers)
    if isinstance(command, StateSet):
        return max(ENLISTED_BYTES_MIN, len(command.state or b""))
    if isinstance(command, Complete):
        return ENLISTED_BYTES_MIN
    size_bytes = 0 if command.properties is None else len(overlays.merged(None, command.properties))
    if isinstance(command, DeadLetter | UpdateDisposition):
        size_bytes += len(command.reason or "") + len(command.description or "")
    locks = len(command.lock_tokens) if isinstance(command, UpdateDisposition) else 1
    return max(ENLISTED_BYTES_MIN * locks, size_bytes)


@dataclass(frozen=True, slots=True)
class _Used:
    partition: int
    key: str | None
    """None while there are only messages without a key."""


class UsedPartitions:
    """The partition of a transaction in each partitioned entity; a topic and its subscriptions are one."""

    __slots__ = ("_used",)

    def __init__(self) -> None:
        self._used: dict[int, _Used] = {}  # by entity id

    def of(self, entity: Entity, queue: MessageQueue) -> int | None:
        """Return the partition for messages without a key, fixed on first use; None without partitions."""
        partitions = queue.main.partitions
        if partitions is None:
            return None
        top = entity.topic or entity
        used = self._used.get(top.entity_id)
        if used is None:
            used = self._used[top.entity_id] = _Used(partitions.next_in_turn(), None)
        return used.partition

    def use(
        self,
        entity: Entity,
        queue: MessageQueue,
        keys: Iterable[str | None],
        numbers: Iterable[SequenceNumber],
    ) -> None:
        """Add the partition keys of messages to send and the numbers of messages to settle, all or none.

        Raises: InvalidOperation: all of them have not one key and one partition.
        """
        partitions = queue.main.partitions
        if partitions is None:
            return
        top = entity.topic or entity
        used = self._used.get(top.entity_id)
        for key in keys:
            if key is not None:
                used = _joined(used, partitions.of_key(key.encode()), key, top.name)
        for number in numbers:
            used = _joined(used, partitions.of_number(number), None, top.name)
        if used is not None:
            self._used[top.entity_id] = used


def _joined(used: _Used | None, partition: int, key: str | None, name: str) -> _Used:
    if used is None:
        return _Used(partition, key)
    if used.partition != partition or (key is not None and used.key not in (None, key)):
        raise InvalidOperation(
            f"A transaction uses one partition key in a partitioned entity, for sends and settlements: in "
            f"'{name}' it has used {_shown(used.partition, used.key)}, and this is {_shown(partition, key)}."
        )
    return _Used(partition, used.key if key is None else key)


def _shown(partition: int, key: str | None) -> str:
    return f"partition {partition}" if key is None else f"key '{key}' in partition {partition}"
