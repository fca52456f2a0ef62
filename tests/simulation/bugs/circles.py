"""Planted bugs in circles of forwards: each replaces the forwards of the real namespace."""

from __future__ import annotations

from typing import Any, ClassVar

from peeklock.amqp.messaging import Sections
from peeklock.broker.entities.entity import Entity
from peeklock.broker.entities.fan_out import FanOut
from peeklock.broker.entities.forwarding import HOPS_MAX, Forwarding
from peeklock.broker.namespace import Namespace
from peeklock.broker.queue.message_queue import MessageQueue
from peeklock.broker.queue.outcome import Outcome
from peeklock.broker.vocabulary.addresses import SequenceNumber
from peeklock.broker.vocabulary.message import Message
from tests.simulation.bugs.topics import WithFanOut
from tests.simulation.world.sizes import COPIES_FOLLOWING_MAX


class ForgetfulForwarding(Forwarding):
    """Skips the count of a hop now and then."""

    def pass_on(self, source: MessageQueue, path: str, message: Message, *args: Any, **head: Any) -> None:
        if message.hops == 1 and message.sequence_number % 3 == 0:
            message.hops = 0
        super().pass_on(source, path, message, *args, **head)


class EndlessForwarding(Forwarding):
    """Counts no hop from the second one on, so that a message in a circle never ends."""

    def pass_on(self, source: MessageQueue, path: str, message: Message, *args: Any, **head: Any) -> None:
        message.hops = min(message.hops, 1)
        super().pass_on(source, path, message, *args, **head)


class DroppingForwarding(Forwarding):
    """Drops a message silently after its last hop."""

    def pass_on(self, source: MessageQueue, path: str, message: Message, *args: Any, **head: Any) -> None:
        if message.hops < HOPS_MAX:
            super().pass_on(source, path, message, *args, **head)


class LosingForwarding(Forwarding):
    """Loses a message behind its second hop, and reports in the event log that it went on."""

    def pass_on(
        self,
        source: MessageQueue,
        path: str,
        message: Message,
        sections: Any,
        out: Outcome,
        **head: Any,
    ) -> None:
        target = self._entities.target(path)
        if message.hops != 2 or target is None:
            super().pass_on(source, path, message, sections, out, **head)
        else:
            forwarded = out.forwarded(source, message, target.main.name)
            out.passed_on(source, forwarded, SequenceNumber(target.main.next_position))


class SilentForwarding(Forwarding):
    """Drops a message silently when too many copies would follow from it."""

    def _dead_letter_copies(self, *args: Any) -> None:
        pass


class UncountingFanOut(FanOut):
    """Makes copies with one hop less than the message has made."""

    __slots__ = ()

    def send_on(self, message: Message, *args: Any) -> int:
        message.hops = max(0, message.hops - 1)
        return super().send_on(message, *args)


class GenerousFanOut(FanOut):
    """Lets as many copies follow from each copy as from a message that was sent."""

    __slots__ = ()

    def send_on(self, message: Message, *args: Any) -> int:
        message.copies_left = COPIES_FOLLOWING_MAX
        return super().send_on(message, *args)

    def _share(self, left: int, copies: list[tuple[Entity, Message]], head: Sections) -> None:
        pass


class WithForwarding(Namespace):
    """Forwards in another way."""

    forwarding: ClassVar[type[Forwarding]]

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._shared.forwarding.__class__ = self.forwarding


class ForgottenHops(WithForwarding):
    """See `ForgetfulForwarding`."""

    forwarding = ForgetfulForwarding


class EndlessCircles(WithForwarding):
    """See `EndlessForwarding`."""

    forwarding = EndlessForwarding


class DroppedAtTheEnd(WithForwarding):
    """See `DroppingForwarding`."""

    forwarding = DroppingForwarding


class LostForwards(WithForwarding):
    """See `LosingForwarding`."""

    forwarding = LosingForwarding


class DroppedBeyondTheLimit(WithForwarding):
    """See `SilentForwarding`."""

    forwarding = SilentForwarding


class UnsharedLimits(WithFanOut):
    """See `GenerousFanOut`."""

    fan_out = GenerousFanOut


class UncountedHops(WithFanOut):
    """See `UncountingFanOut`."""

    fan_out = UncountingFanOut
