"""Messages copied by browsing: nothing is taken from the source, and no receiver gets a copy by accident.

The copies of each queue, subscription and dead-letter queue go to a queue of their own below `browse/`, in
their order. A copy has the message bit for bit, without what the broker wrote, and says in application
properties where it comes from.

The queue is the checkpoint. Copies are sent in pages, each of which is accepted as a whole before the next
begins; within a page a busy broker may change the order. So the last copies say what is there, and a run, or
one whose connection broke, goes on with what is not. A target that still takes in what came over a connection
that it has reported as broken may have that page twice; the numbers of the source then tell.
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
from peeklock.client.errors import ServiceBusError
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

BREAKS_MAX: Final = 5
"""Breaks of a connection without a new copy in between. Our choice; each one was retried for a while."""

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
    make_queue(queue)
    copying = _Copying(source, place, target, queue)
    before = copying.resume()
    breaks = 0
    while True:
        count = copying.count
        try:
            copying.run(progress)
            return Copied(copying.count, before)
        except ServiceBusError as error:
            breaks = 1 if copying.count > count else breaks + 1
            if not error.retryable or breaks >= BREAKS_MAX:
                raise
        copying.resume()


class _Copying:
    """The copies of one place under way."""

    def __init__(
        self, source: BlockingConnection, place: str, target: BlockingConnection, queue: str
    ) -> None:
        self._source, self._place = source, place
        self._target, self._queue = target, queue
        self._last = 0
        self._copied: frozenset[int] = frozenset()
        self._under_way: set[int] = set()
        self.count = 0
        """Copies that are known to be there."""

    def resume(self) -> int:
        """Ask the queue what is there; return the largest number of it.

        Raises: ServiceBusError; CopyError: the queue has other messages.
        """
        earlier, latest = _last_copies(self._target, self._queue, self._place)
        self._last, self._copied = max(earlier, default=0), frozenset(latest)
        self.count += len(self._copied & self._under_way)
        self._under_way.clear()
        return max(self._last, max(latest, default=0))

    def run(self, progress: Callable[[int], None]) -> None:
        """Copy what is not there. Raises: ServiceBusError."""
        sender = self._target.sender(self._queue, sends_again=False)
        try:
            while found := peek(self._source, self._place, self._last + 1, PEEK_COUNT):
                copies = [_copy(payload, self._place) for payload in found]
                new = [(number, copy) for number, copy in copies if number not in self._copied]
                self._under_way = {number for number, _ in new}
                for number, copy in new:
                    sender.send(copy, f"message {number} of '{self._place}'")
                sender.flush()
                self._under_way.clear()
                self._last = max(number for number, _ in copies)
                self.count += len(new)
                progress(self.count)
        finally:
            sender.close()


def queue_maker(administration: Administration, tier: str) -> Callable[[str], bool]:
    """Return what makes the queues for copies: as large as the tier allows."""

    def make(name: str) -> bool:
        return administration.create(QueueDescription(name, max_size_mb=TIERS[tier].max_size_mb_max))

    return make


def peek(connection: BlockingConnection, place: str, number: int, count: int) -> list[bytes]:
    """Return up to `count` messages from a sequence number on. Raises: ServiceBusError."""
    return Browser(connection, place).peek(number, count)


def _last_copies(target: BlockingConnection, queue: str, place: str) -> tuple[list[int], list[int]]:
    """Return from which messages the last copies in a queue come: those before the last two pages, and these.

    All messages up to the largest of the former are copied, since their pages were accepted.

    Raises: ServiceBusError; CopyError: the queue has other messages.
    """
    last = last_number(lambda number: bool(peek(target, queue, number, 1)))
    found: list[int] = []
    at = max(1, last - 4 * PEEK_COUNT + 1)
    while at <= last and (payloads := peek(target, queue, at, PEEK_COUNT)):
        for payload in payloads:
            scanned = scan(payload)
            properties = scanned.decode_application_properties()
            if properties.get(SOURCE) != place:
                text = f"'{queue}' has a message that is not a copy from '{place}': empty or delete it"
                raise CopyError(text)
            found.append(int(properties[SOURCE_NUMBER]))
            at = int(scanned.decode_message_annotations()["x-opt-sequence-number"]) + 1
    split = max(0, len(found) - 2 * PEEK_COUNT)
    return found[:split], found[split:]


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
