"""Where a message may go: forwards, by the descriptions of the entities (F-01).

Owns: the places where a message that arrives at an entity may rest, and the entities that number it on its
way. Must not know: what a topic makes of it (`copies`), the broker's structures. A description that changed
in the same batch allows both outcomes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from peeklock.broker.vocabulary.descriptions import Description, EntityStatus, TopicDescription
from peeklock.broker.vocabulary.message import MessageState
from tests.simulation.oracle.facts import Facts
from tests.simulation.oracle.history import Sent
from tests.simulation.oracle.records import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER, Commit, Record

HOPS_MAX = 4
TOO_MANY_HOPS = "MaxTransferHopCountExceeded"
MISSING = "MessagingEntityNotFound"
REFUSING = "MessagingEntityDisabled"
WITHOUT_SESSION = "Session ID is null."

FAN_OUT = -1
"""Beside the kinds of queues: no place to rest in, a topic distributes copies there."""


@dataclass(frozen=True, slots=True)
class End:
    """A place where a message may rest."""

    entity_id: int
    sub: int
    hops: int
    numbered: tuple[int, ...]
    """Entities that have issued a number for it on the way, without a record of it."""
    reason: str | None = None
    """Why it is in a dead-letter queue."""
    dead_from: str | None = None
    """The entity that forwarded it as a dead letter."""


class Routes:
    """The forwards of a namespace, as far as the facts show them."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def starts(self, before: Record | None, sent: Sent, commit: Commit) -> list[End]:
        """Return where a message may go that is sent, or leaves the place that it was in `before`."""
        session_id = sent.session_id
        ends: list[End] = []
        if before is None:
            for entity_id in self._facts.named(sent.via or sent.queue):
                if sent.via is None:
                    ends += self.of_arrival(entity_id, 0, session_id, commit)
                else:
                    ends += self.of_sending_via(entity_id, sent.queue, session_id, commit)
        elif before.sub == MAIN and before.state is MessageState.SCHEDULED:
            ends = self.of_arrival(before.entity_id, before.hops, session_id, commit)
        elif before.sub == MAIN:
            ends = self.of_stored(before.entity_id, before.hops, session_id, commit)
            if not self._facts.is_topic(before.entity_id):
                ends += self.of_dead_letter(before.entity_id, before.hops, session_id, commit)
        elif before.sub == DEAD_LETTER:
            ends = self.of_dead_letter(before.entity_id, before.hops, session_id, commit)
            # One that would become too many copies is put back, behind the others.
            ends = [
                end
                for end in ends
                if (end.entity_id, end.sub) != (before.entity_id, before.sub)
                or (end.reason == TOO_MANY_HOPS and before.hops < HOPS_MAX)
            ]
        return ends

    def of_arrival(self, entity_id: int, hops: int, session_id: str | None, commit: Commit) -> list[End]:
        """Return where a message may be that arrives at an entity, or is activated there."""
        if not self.may_be_there(entity_id, commit):
            return []
        return list(self._arrive(entity_id, hops, session_id, commit, (), None))

    def of_sending_via(
        self, entity_id: int, destination: str, session_id: str | None, commit: Commit
    ) -> list[End]:
        """Return where a message may be that is sent via an entity to another one."""
        if not self.may_be_there(entity_id, commit):
            return []
        return list(
            self._pass_on(
                entity_id, destination, 0, session_id, commit, (entity_id,), None, is_dead_letter=False
            )
        )

    def of_stored(self, entity_id: int, hops: int, session_id: str | None, commit: Commit) -> list[End]:
        """Return where a message may go that was stored in an entity which forwards, or in a topic."""
        if self._facts.is_topic(entity_id):
            return [End(entity_id, FAN_OUT, hops, ())]
        return [
            end
            for description in self._facts.possible(entity_id, commit)
            if description.forward_to is not None
            for end in self._pass_on(
                entity_id, description.forward_to, hops, session_id, commit, (), None, is_dead_letter=False
            )
        ]

    def of_dead_letter(self, entity_id: int, hops: int, session_id: str | None, commit: Commit) -> list[End]:
        """Return where a dead letter of an entity may be."""
        ends: list[End] = []
        for description in self._facts.possible(entity_id, commit):
            path = description.forward_dead_lettered_to
            ends.append(End(entity_id, DEAD_LETTER, hops, ()))  # also while it waits for its forward
            if path is not None:
                ends += self._pass_on(
                    entity_id, path, hops, session_id, commit, (), description.name, is_dead_letter=True
                )
        return ends

    def of_copy(
        self, entity_id: int, hops: int, session_id: str | None, commit: Commit, dead_from: str | None
    ) -> list[End]:
        """Return where a topic's copy for a subscription may be."""
        if self._facts.description(entity_id * 4).requires_session and session_id is None:
            return self.of_buried_copy(entity_id, hops, session_id, commit, dead_from, WITHOUT_SESSION)
        return list(self._arrive(entity_id, hops, session_id, commit, (), dead_from))

    def of_buried_copy(
        self,
        entity_id: int,
        hops: int,
        session_id: str | None,
        commit: Commit,
        dead_from: str | None,
        reason: str,
    ) -> list[End]:
        """Return where a topic's copy may be that is a dead letter of a subscription from the start."""
        numbered = (entity_id,)
        ends = [End(entity_id, DEAD_LETTER, hops, numbered, reason, dead_from)]
        for description in self._facts.possible(entity_id, commit):
            if description.forward_dead_lettered_to is not None:
                ends += self._pass_on(
                    entity_id,
                    description.forward_dead_lettered_to,
                    hops,
                    session_id,
                    commit,
                    numbered,
                    description.name,
                    is_dead_letter=True,
                )
        return ends

    def targets(self, name: str) -> list[Description]:
        """Return every description of every entity in the chain from a name on, at any time; behind a topic
        are its subscriptions."""
        found: list[Description] = []
        names = [name]
        for wanted in names:
            for entity_id in self._facts.named(wanted):
                for description in self._facts.history(entity_id * 4):
                    found.append(description)
                    for path in (description.forward_to, description.forward_dead_lettered_to):
                        if path is not None and path not in names:
                            names.append(path)
                    if isinstance(description, TopicDescription):
                        behind = [self._facts.name(i) for i in self._facts.subscriptions(entity_id)]
                        names += [path for path in behind if path not in names]
        return found

    def is_target(self, name: str) -> bool:
        """Return whether anything was ever forwarded to a name."""
        return any(
            name in (description.forward_to, description.forward_dead_lettered_to)
            for known in self._facts.descriptions.values()
            for _, description in known
        )

    def _arrive(
        self,
        entity_id: int,
        hops: int,
        session_id: str | None,
        commit: Commit,
        numbered: tuple[int, ...],
        dead_from: str | None,
        reason: str | None = None,
    ) -> Iterator[End]:
        """Add the ends of a way to `ends`. `reason`: why it is a dead letter that is forwarded, where its way
        determines that."""
        yield End(entity_id, MAIN, hops, numbered, reason, dead_from)
        if self._facts.is_topic(entity_id):
            yield End(entity_id, FAN_OUT, hops, (*numbered, entity_id), None, dead_from)
        for description in self._facts.possible(entity_id, commit):
            if description.forward_to is not None:
                yield from self._pass_on(
                    entity_id,
                    description.forward_to,
                    hops,
                    session_id,
                    commit,
                    (*numbered, entity_id),
                    dead_from,
                    is_dead_letter=False,
                    reason=reason,
                )

    def _pass_on(
        self,
        entity_id: int,
        path: str,
        hops: int,
        session_id: str | None,
        commit: Commit,
        numbered: tuple[int, ...],
        dead_from: str | None,
        *,
        is_dead_letter: bool,
        reason: str | None = None,
    ) -> Iterator[End]:
        before = None if is_dead_letter else dead_from
        if hops >= HOPS_MAX:
            yield End(entity_id, DEAD_LETTER, hops, numbered, TOO_MANY_HOPS, before)
            return
        targets = [i for i in self._facts.named(path) if self.may_be_there(i, commit)]
        obstacles: set[str] = set()
        if not any(self.surely_there(i, commit) for i in targets):
            obstacles.add(MISSING)
        for target in targets:
            sure = set()
            for description in self._facts.possible(target, commit):
                if description.status not in (EntityStatus.ACTIVE, EntityStatus.RECEIVE_DISABLED):
                    obstacles.add(REFUSING)
                elif description.requires_session and session_id is None:
                    obstacles.add(WITHOUT_SESSION)
                else:
                    sure.add(description.name)
            if sure:
                if self._facts.is_topic(target):
                    yield from self._too_many_copies(
                        entity_id, hops, session_id, commit, numbered, before, goes_on=not is_dead_letter
                    )
                yield from self._arrive(target, hops + 1, session_id, commit, numbered, dead_from, reason)
        for obstacle in sorted(obstacles):
            yield End(entity_id, TRANSFER_DEAD_LETTER, hops, numbered, obstacle, before)

    def _too_many_copies(
        self,
        entity_id: int,
        hops: int,
        session_id: str | None,
        commit: Commit,
        numbered: tuple[int, ...],
        dead_from: str | None,
        *,
        goes_on: bool,
    ) -> Iterator[End]:
        """Return where a message may be that would become more copies than may follow from one (C15)."""
        yield End(entity_id, DEAD_LETTER, hops, numbered, TOO_MANY_HOPS, dead_from)
        for description in self._facts.possible(entity_id, commit) if goes_on else ():
            if description.forward_dead_lettered_to is not None:
                yield from self._pass_on(
                    entity_id,
                    description.forward_dead_lettered_to,
                    hops,
                    session_id,
                    commit,
                    numbered,
                    description.name,
                    is_dead_letter=True,
                    reason=TOO_MANY_HOPS,
                )

    def leads_to_topic(self, entity_id: int, commit: Commit) -> bool:
        """Return whether messages or dead letters of an entity surely come to a topic at last."""
        known = [entity_id]
        for each in known:
            possible = [_forwards(description) for description in self._facts.possible(each, commit)]
            for path in set.intersection(*possible) if possible else ():
                for target in self._facts.named(path)[-1:]:
                    if self.surely_there(target, commit):
                        if self._facts.is_topic(target):
                            return True
                        if target not in known:
                            known.append(target)
        return False

    def may_be_there(self, entity_id: int, commit: Commit) -> bool:
        """Return whether an entity may exist when something in a commit is decided."""
        gone = self._facts.gone.get(entity_id)
        return gone is None or gone.no >= commit.no

    def surely_there(self, entity_id: int, commit: Commit) -> bool:
        """Return whether an entity exists then, whatever the order of the commit's parts."""
        gone = self._facts.gone.get(entity_id)
        created = self._facts.descriptions[entity_id][0][0]
        return created < commit.no and (gone is None or gone.no > commit.no)


def _forwards(description: Description) -> set[str]:
    """Return where an entity passes on messages or dead letters."""
    paths = description.forward_to, description.forward_dead_lettered_to
    return {path for path in paths if path is not None}
