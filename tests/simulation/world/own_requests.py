"""Commands that a simulated process gives one of its namespaces.

Owns: where each answer goes, and which refusals the administration may meet. Must not know: the commands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from peeklock.broker.vocabulary.commands import NO_LINK, OWN_CONNECTION_ID, Command, ReplyTo
from peeklock.broker.vocabulary.effects import Done, Effect, EntityFound, Failed, RulesFound
from peeklock.broker.vocabulary.errors import (
    ArgumentInvalid,
    EntityAlreadyExists,
    EntityNotFound,
    RuleAlreadyExists,
    RuleNotFound,
    ServerBusy,
)
from tests.simulation.oracle.rulings import EXISTS, MISSING, RuleRequest

if TYPE_CHECKING:
    from tests.simulation.world.shard import Shard

_EXPECTED = (
    EntityNotFound | EntityAlreadyExists | ArgumentInvalid | RuleNotFound | RuleAlreadyExists | ServerBusy
)


class OwnRequests:
    """A connection without a peer."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._number = 0
        self.rule_changes: dict[ReplyTo, RuleRequest] = {}
        """Changes of rules by the administration that are not answered yet."""
        self._asked: dict[ReplyTo, Callable[[Any], None]] = {}

    def reply_to(self) -> ReplyTo:
        """Return the address of the next answer."""
        self._number += 1
        return ReplyTo(OWN_CONNECTION_ID, NO_LINK, self._number)

    def ask(self, make: Callable[[ReplyTo], Command], then: Callable[[Any], None]) -> None:
        """Give a command; `then` gets the effect that answers it."""
        reply_to = self.reply_to()
        self._asked[reply_to] = then
        self._shard.offer([make(reply_to)])

    # As a connection

    def handle(self, effects: Iterable[Effect], now_ms: int) -> None:
        """Take answers."""
        for effect in effects:
            self._take(effect)

    def _take(self, effect: Effect) -> None:
        """Take an answer. Legitimate refusals: the entity exists already, or is gone by itself, its forward
        destination is gone, or it is being deleted in slices."""
        reply_to: ReplyTo = effect.reply_to  # type: ignore[union-attr]  # no effect of a link comes here
        then = self._asked.pop(reply_to, None)
        if then is not None:
            then(effect)
            return
        assert isinstance(effect, EntityFound | RulesFound | Done) or (
            isinstance(effect, Failed) and isinstance(effect.error, _EXPECTED)
        ), effect
        request = self.rule_changes.pop(reply_to, None)
        if request is not None:
            condition = _condition(effect.error) if isinstance(effect, Failed) else None
            self._shard.checker.rulings.answered(request, condition)

    def flush(self) -> None:
        """Write nothing: the answers were taken."""

    def bodies_wanted(self) -> set[int]:
        return set()

    def bodies_arrived(self, now_ms: int) -> None:
        """Do nothing: nothing waits."""


def _condition(error: Exception) -> str:
    """Return the condition that a client would get for a refusal."""
    return EXISTS if isinstance(error, RuleAlreadyExists) else MISSING
