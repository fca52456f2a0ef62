"""Planted bugs in topics and rules: each subclasses the real namespace, or a part of a topic."""

from __future__ import annotations

from typing import Any, ClassVar

from peeklock.amqp.messaging import Sections
from peeklock.broker.content.subject import MessageSubject
from peeklock.broker.entities.entity import Entity
from peeklock.broker.entities.fan_out import FanOut, Rule
from peeklock.broker.queue import enqueue
from peeklock.broker.queue.outcome import Outcome
from peeklock.broker.vocabulary.changes import Change, EntityStored, MessageStored, RuleStored
from peeklock.broker.vocabulary.commands import Command
from peeklock.broker.vocabulary.effects import Effect
from peeklock.broker.vocabulary.message import Message
from peeklock.rules.errors import EvaluationError
from peeklock.rules.filters import CorrelationFilter, Filter
from tests.simulation.bugs.namespace import Answer, Watched

Failed = list[tuple[Rule, EvaluationError]]


class Deaf:
    """An index of rules that does not learn of one subscription."""

    def __init__(self, index: Any, entity_id: int) -> None:
        self._index = index
        self._entity_id = entity_id

    def match(self, subject: Any) -> tuple[list[Rule], Failed]:
        matched, failed = self._index.match(subject)
        return (
            [rule for rule in matched if rule.subscription.entity_id != self._entity_id],
            [(rule, error) for rule, error in failed if rule.subscription.entity_id != self._entity_id],
        )


class LosingFanOut(FanOut):
    """Loses the copy for the last of three or more subscriptions."""

    __slots__ = ()

    def send_on(self, *args: Any) -> int:
        if len(self.subscriptions) < 3:
            return super().send_on(*args)
        index, last = self._index, max(entity.entity_id for entity in self.subscriptions.values())
        self._index = Deaf(index, last)  # type: ignore[assignment]  # the planted bug: an index in all but one rule
        try:
            return super().send_on(*args)
        finally:
            self._index = index


class DoublingFanOut(FanOut):
    """Makes a copy for each of two rules without an action."""

    __slots__ = ()

    def send_on(
        self,
        message: Message,
        sections: Sections | None,
        head: Sections,
        turn: int | None,
        out: Outcome,
    ) -> int:
        count = super().send_on(message, sections, head, turn, out)
        served: set[int] = set()
        subject = MessageSubject(message, head, self._shared.tokens)
        for rule in self._index.match(subject)[0]:
            queue = rule.subscription.main
            if rule.action is None and queue.queue_id in served and queue.sessions is None:
                enqueue.store_copy(queue, message.copied(), sections, turn, out)
            elif rule.action is None:
                served.add(queue.queue_id)
        return count


class ForgivingFanOut(FanOut):
    """Takes a rule that cannot be evaluated for one that does not match, whatever the subscription's
    settings."""

    __slots__ = ()

    def _dead_lettered(self, failed: Failed) -> dict[int, tuple[Entity, str]]:
        return {}


class Pedantic:
    """An index of rules that compares the names in correlation filters exactly."""

    def __init__(self, index: Any) -> None:
        self._index = index

    def match(self, subject: Any) -> tuple[list[Rule], Failed]:
        matched, failed = self._index.match(subject)
        return [rule for rule in matched if self._exact(rule.description.filter, subject)], failed

    @staticmethod
    def _exact(filter: Filter, subject: Any) -> bool:
        names = [name for name, _ in filter.properties] if isinstance(filter, CorrelationFilter) else []
        return all(subject.user_name(name.lower()) == name for name in names)


class PedanticFanOut(FanOut):
    """See `Pedantic`."""

    __slots__ = ()

    def send_on(self, *args: Any) -> int:
        index = self._index
        self._index = Pedantic(index)  # type: ignore[assignment]  # the planted bug: an index in all but names
        try:
            return super().send_on(*args)
        finally:
            self._index = index


class WithFanOut(Watched):
    """Replaces the distribution of all topics."""

    fan_out: ClassVar[type[FanOut]]

    def before(self, command: Command, now_ms: int) -> Answer | None:
        for entity in self._entities:
            if entity.fan_out is not None:
                entity.fan_out.__class__ = self.fan_out
        return None


class LostCopies(WithFanOut):
    """See `LosingFanOut`."""

    fan_out = LosingFanOut


class DoubledCopies(WithFanOut):
    """See `DoublingFanOut`."""

    fan_out = DoublingFanOut


class ExactNames(WithFanOut):
    """See `PedanticFanOut`."""

    fan_out = PedanticFanOut


class ForgivenRules(WithFanOut):
    """See `ForgivingFanOut`."""

    fan_out = ForgivingFanOut


class TornCopies(Watched):
    """Stores the last copy of a message a little later than the others."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._later: list[tuple[int, Change]] = []

    def look(self, changes: list[Change], effects: list[Effect], now_ms: int) -> Answer:
        held = [change for at_ms, change in self._later if at_ms < now_ms]
        self._later = [(at_ms, change) for at_ms, change in self._later if at_ms >= now_ms]
        copies = [change for change in changes if isinstance(change, MessageStored) and change.payload]
        last = copies[-1] if len(copies) > 1 and copies[-1].payload is copies[-2].payload else None
        if last is not None:
            self._later.append((now_ms, last))
        return held + [change for change in changes if change is not last], effects


class OwnBodies(Watched):
    """Gives each copy its own body."""

    def look(self, changes: list[Change], effects: list[Effect], now_ms: int) -> Answer:
        for change in changes:
            if isinstance(change, MessageStored) and change.payload is not None:
                change.payload = bytes(bytearray(change.payload))
        return changes, effects


class SilentRules(Watched):
    """Changes rules in memory, and stores the first change only."""

    def look(self, changes: list[Change], effects: list[Effect], now_ms: int) -> Answer:
        if any(isinstance(change, EntityStored) for change in changes):
            return changes, effects
        return [change for change in changes if not isinstance(change, RuleStored)], effects
