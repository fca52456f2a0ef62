"""Resubmission: dead letters sent again, and removed from the dead-letter queue when they are accepted.

Spark chooses the messages; sending and settling happens here, on one connection. The dead-letter queue is
received through once. Chosen messages are sent without their dead-letter properties; when the broker has
accepted a slice, the slice is completed. A crash in between leaves messages in both places: the next run
sends them again with the same new ids, so a target with duplicate detection drops them. Other messages are
held and released at the end.

The new id is made of the old id and the dead letter's number. A target with duplicate detection would drop a
message with the old id, and it would be lost.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from peeklock.amqp.encoding import encode
from peeklock.amqp.messaging import scan
from peeklock.client.connection import BlockingConnection
from peeklock.client.errors import MESSAGE_LOCK_LOST, ServiceBusError
from peeklock.client.links import COMPLETE, RELEASE, Delivery, ReceiveMode, Receiver
from peeklock.client.overrides import Overrides, override
from peeklock.spark.options import SubQueue
from peeklock.spark.sink.outgoing import ID_LENGTH_MAX

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from peeklock.amqp.performatives import DeliveryState

DEAD_LETTER_PROPERTIES = ("DeadLetterReason", "DeadLetterErrorDescription")
SLICE = 250
"""Messages sent before their outcomes are awaited and they are completed. Our choice: a slice takes
milliseconds, and locks last at least five seconds."""
WAIT_S = 2.0
"""A dead-letter queue without a delivery for this long is empty, or others hold its messages."""
ROUNDS_MAX = 3
"""Number of times that locks of held messages may lapse before the rest is given up."""


@dataclass(slots=True)
class Outcome:
    """Counts of the chosen dead letters."""

    sent: int = 0
    unsettled: int = 0
    """Sent, but their locks were lost: they are still dead letters."""
    missing: int = 0
    """Not received: others hold them or have settled them."""


def resubmit(
    connection: BlockingConnection,
    entity: str,
    target: str,
    wanted: set[int],
    *,
    keep_ids: bool,
    tell: Callable[[int], None],
) -> Outcome:
    """Send the dead letters with the sequence numbers `wanted` again.

    Args:
        entity: the owner of the dead-letter queue.
        target: a queue or topic.
        tell: called with the number of messages sent so far.

    Raises:
        ServiceBusError: refused, or the connection broke; messages not completed are still dead letters.
    """
    left = set(wanted)
    outcome = Outcome()
    held: dict[int, Delivery] = {}
    rounds = 0
    sender = connection.sender(target)
    receiver = connection.receiver(entity + SubQueue.DEAD_LETTER.value, ReceiveMode.PEEK_LOCK)
    try:
        while left and rounds < ROUNDS_MAX:
            arrived = {_number(delivery): delivery for delivery in receiver.receive(SLICE, WAIT_S)}
            if not arrived:
                break
            chosen = {number: delivery for number, delivery in arrived.items() if number in left}
            others = {number: delivery for number, delivery in arrived.items() if number not in left}
            rounds += bool(held.keys() & others.keys()) and not chosen
            held |= others
            for number, delivery in chosen.items():
                sender.send(alive(delivery.payload, number, keep_ids=keep_ids), number)
            sender.flush()
            left -= chosen.keys()
            outcome.sent += len(chosen)
            outcome.unsettled += _settle(receiver, [*chosen.values()], COMPLETE)
            tell(outcome.sent)
        _settle(receiver, [*held.values()], RELEASE)
    finally:
        sender.close()
        receiver.close()
    outcome.missing = len(left)
    return outcome


def default_target(entity: str) -> str:
    """Return the entity, or the topic of a subscription."""
    return re.split("/subscriptions/", entity, flags=re.IGNORECASE)[0]


def choose(
    dead_letters: DataFrame, reasons: tuple[str, ...], where: str | None, limit: int | None
) -> DataFrame:
    """Return the messages of a dead-letter queue that fit the options."""
    from peeklock.pipeline.running import rows_where

    chosen = dead_letters
    if reasons:
        chosen = chosen.where(chosen.deadLetterReason.isin(*reasons))
    chosen = rows_where(chosen, where)
    return chosen if limit is None else chosen.orderBy("sequenceNumber").limit(limit)


def alive(payload: bytes, number: int, *, keep_ids: bool) -> bytes:
    """Return a dead letter as a message to send."""
    fields = {}
    if not keep_ids:
        fields[0] = encode(new_id(scan(payload).decode_properties().message_id, number))
    without = dict.fromkeys(DEAD_LETTER_PROPERTIES)
    return override(payload, Overrides(fields=fields, application_properties=without))[0]


def new_id(old: object, number: int) -> str:
    """Return the message id of a resubmission, always the same for the same dead letter."""
    made = f"{'' if old is None else old}+resubmitted-{number}"
    if len(made) <= ID_LENGTH_MAX:
        return made
    return f"resubmitted-{number}-{hashlib.blake2b(made.encode(), digest_size=16).hexdigest()}"


def _number(delivery: Delivery) -> int:
    annotations = scan(delivery.payload).decode_message_annotations()
    return int(annotations["x-opt-sequence-number"])


def _settle(receiver: Receiver, deliveries: list[Delivery], outcome: DeliveryState) -> int:
    """Settle in slices; return how many locks were lost."""
    lost = 0
    for start in range(0, len(deliveries), SLICE):
        for delivery in deliveries[start : start + SLICE]:
            try:
                receiver.settle(delivery, outcome)
            except ServiceBusError as error:
                if error.condition != MESSAGE_LOCK_LOST:
                    raise
                lost += 1
        while True:  # each call raises for one failure
            try:
                receiver.flush()
                break
            except ServiceBusError as error:
                if error.condition != MESSAGE_LOCK_LOST:
                    raise
                lost += 1
    return lost
