"""Messages copied by browsing: nothing is taken from the source, and no receiver gets a copy by accident.

The copies of each queue, subscription and dead-letter queue go to a queue of their own below `browse/`, in
their order. A copy has the message bit for bit, without what the broker wrote, and says in application
properties where it comes from. The queue is the checkpoint: a run goes on after the message that its last
copy comes from. A connection that breaks while a copy is under way may leave that copy twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from peeklock.amqp.encoding import encode
from peeklock.amqp.messaging import scan
from peeklock.amqp.types import Symbol, Timestamp
from peeklock.broker.entities.validation import is_name
from peeklock.broker.vocabulary.descriptions import (
    Description,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from peeklock.broker.vocabulary.quotas import TIERS
from peeklock.client.browsing import PEEK_COUNT, Browser, last_number
from peeklock.client.connection import BlockingConnection
from peeklock.client.overrides import Overrides, override
from peeklock.moving.administration import Administration
from peeklock.moving.definitions import Definitions

ROOT: Final = "browse"
DEAD_LETTERS: Final = "$DeadLetterQueue"

SOURCE: Final = "peeklock-source"
SOURCE_NUMBER: Final = "peeklock-source-sequence-number"
SOURCE_ENQUEUED: Final = "peeklock-source-enqueued-time"
SOURCE_STATE: Final = "peeklock-source-state"
SOURCE_SCHEDULED: Final = "peeklock-source-scheduled-time"
"""Application properties of a copy."""

_STATES: Final = {0: "Active", 1: "Deferred", 2: "Scheduled"}
"""Source: wire contract 3.4, x-opt-message-state."""

_SCHEDULED: Final = "x-opt-scheduled-enqueue-time"

_PLACE: Final = b"peeklock-import"
"""Prefix of the id of a copy whose message has none."""


class CopyError(Exception):
    """Messages cannot be copied; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Copied:
    """What was copied from one place."""

    count: int
    """In this run."""
    before: int
    """Sequence number of the last message that an earlier run copied; 0 = none."""


def places(definitions: Definitions) -> Iterator[tuple[str, str]]:
    """Yield each place that keeps messages, and the queue for its copies."""
    for entity in definitions.entities.values():
        if isinstance(entity, TopicDescription):
            continue
        below = _below(entity)
        yield entity.name, f"{ROOT}/{below}"
        yield f"{entity.name}/{DEAD_LETTERS}", f"{ROOT}/dead-letters/{below}"


def copy_messages(
    source: BlockingConnection,
    place: str,
    target: BlockingConnection,
    queue: str,
    make_queue: Callable[[str], bool],
    progress: Callable[[int], None],
) -> Copied | None:
    """Copy the messages of one place to a queue; return None if there are none.

    Args:
        source: of the messages.
        place: path of a queue or subscription, or of its dead-letter queue.
        target: of the copies.
        queue: their name.
        make_queue: creates a queue, and returns whether it was not there.
        progress: is called with the number of copies so far.

    Raises: ServiceBusError, AdministrationError, CopyError.
    """
    if not is_name(queue):
        raise CopyError(f"the name of '{queue}' is too long for a queue: copy '{place}' by a program")
    found = peek(source, place, 0, 1)
    if not found:
        return None
    is_new = make_queue(queue)
    before = 0 if is_new else _copied_up_to(target, queue, place)
    sender = target.sender(queue)
    count, last = 0, before
    try:
        while found := peek(source, place, last + 1, PEEK_COUNT):
            for payload in found:
                number, copy = _copy(payload, place)
                sender.send(copy, f"message {number} of '{place}'")
                last = max(last, number)
            sender.flush()
            count += len(found)
            progress(count)
    finally:
        sender.close()
    return Copied(count, before)


def queue_maker(administration: Administration, tier: str) -> Callable[[str], bool]:
    """Return what makes the queues for copies: as large as the tier allows."""

    def make(name: str) -> bool:
        return administration.create(QueueDescription(name, max_size_mb=TIERS[tier].max_size_mb_max))

    return make


def peek(connection: BlockingConnection, place: str, number: int, count: int) -> list[bytes]:
    """Return up to `count` messages from a sequence number on. Raises: ServiceBusError."""
    return Browser(connection, place).peek(number, count)


def _copied_up_to(target: BlockingConnection, queue: str, place: str) -> int:
    """Return the number of the message that the last copy in a queue comes from; 0 = there is no copy.

    Raises: ServiceBusError; CopyError: the queue has other messages.
    """
    last = last_number(lambda number: bool(peek(target, queue, number, 1)))
    if last == 0:
        return 0
    [payload] = peek(target, queue, last, 1)
    properties = scan(payload).decode_application_properties()
    if properties.get(SOURCE) != place:
        raise CopyError(
            f"the last message of '{queue}' is not a copy from '{place}': empty the queue, or delete it"
        )
    return int(properties[SOURCE_NUMBER])


def _copy(payload: bytes, place: str) -> tuple[int, bytes]:
    """Return the sequence number of a browsed message, and its copy."""
    annotations = scan(payload).decode_message_annotations()
    number = int(annotations["x-opt-sequence-number"])
    about: Mapping[str, str | None] = {
        SOURCE: place,
        SOURCE_NUMBER: str(number),
        SOURCE_ENQUEUED: _instant(annotations.get("x-opt-enqueued-time")),
        SOURCE_STATE: _STATES.get(int(annotations.get("x-opt-message-state") or 0), "Active"),
        SOURCE_SCHEDULED: _instant(annotations.get(_SCHEDULED)),
    }
    # A scheduled copy would get its number when it falls due, behind later ones.
    at_once = [encode(Symbol(_SCHEDULED)) + encode(Timestamp(0))] if _SCHEDULED in annotations else []
    return number, override(
        payload, Overrides(annotations=at_once, application_properties=about, place=_PLACE)
    )[0]


def _instant(ms: Any) -> str | None:
    if ms is None:
        return None
    return datetime.fromtimestamp(int(ms) / 1000, UTC).isoformat(timespec="milliseconds")


def _below(entity: Description) -> str:
    """Return the name of the copies' queue; no two entities have the same."""
    if isinstance(entity, SubscriptionDescription):
        return f"topics/{entity.topic_name}/{entity.subscription_name}"
    return f"queues/{entity.name}"
