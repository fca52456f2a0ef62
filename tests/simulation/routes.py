"""Where a message may go: forwarding, as the descriptions of the entities have it (F-01).

Owns: which places a message that arrives at an entity may come to rest in, and which entities number it on
its way. Must not know: the broker's structures; a description that changed in the same batch gives both
outcomes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from peeklock.broker.descriptions import EntityStatus, QueueDescription
from tests.simulation.facts import Facts
from tests.simulation.records import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER, Commit

HOPS_MAX = 4
TOO_MANY_HOPS = "MaxTransferHopCountExceeded"
MISSING = "MessagingEntityNotFound"
REFUSING = "MessagingEntityDisabled"
WITHOUT_SESSION = "Session ID is null."


@dataclass(frozen=True, slots=True)
class End:
    """A place where a message may come to rest."""

    entity_id: int
    sub: int
    hops: int
    numbered: tuple[int, ...]
    """Entities that have issued a number for it on the way, without keeping a record of it."""
    reason: str | None = None
    """Why it is in a dead-letter queue."""
    dead_from: str | None = None
    """The entity that forwarded it as a dead letter."""


class Routes:
    """The forwards of a namespace, as far as the facts tell."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def of_arrival(self, entity_id: int, hops: int, session_id: str | None, commit: Commit) -> list[End]:
        """Tell where a message may be that arrives at an entity, or is activated there."""
        if not self._may_be_there(entity_id, commit):
            return []
        return list(self._arrive(entity_id, hops, session_id, commit, (), None))

    def of_sending_via(
        self, entity_id: int, destination: str, session_id: str | None, commit: Commit
    ) -> list[End]:
        """Tell where a message may be that is sent via an entity to another one."""
        if not self._may_be_there(entity_id, commit):
            return []
        return list(
            self._pass_on(
                entity_id, destination, 0, session_id, commit, (entity_id,), None, is_dead_letter=False
            )
        )

    def of_stored(self, entity_id: int, hops: int, session_id: str | None, commit: Commit) -> list[End]:
        """Tell where a message may go that was stored in an entity which forwards."""
        return [
            end
            for description in self._facts.possible(entity_id, commit)
            if description.forward_to is not None
            for end in self._pass_on(
                entity_id, description.forward_to, hops, session_id, commit, (), None, is_dead_letter=False
            )
        ]

    def of_dead_letter(self, entity_id: int, hops: int, session_id: str | None, commit: Commit) -> list[End]:
        """Tell where a dead letter of an entity may be."""
        ends: list[End] = []
        for description in self._facts.possible(entity_id, commit):
            path = description.forward_dead_lettered_to
            ends.append(End(entity_id, DEAD_LETTER, hops, ()))  # also while it waits to be passed on
            if path is not None:
                ends += self._pass_on(
                    entity_id, path, hops, session_id, commit, (), description.name, is_dead_letter=True
                )
        return ends

    def targets(self, name: str) -> list[QueueDescription]:
        """Give every description of every entity in the chain from a name on, at any time."""
        found: list[QueueDescription] = []
        names = [name]
        for wanted in names:
            for entity_id in self._facts.named(wanted):
                for description in self._facts.history(entity_id * 4):
                    found.append(description)
                    for path in (description.forward_to, description.forward_dead_lettered_to):
                        if path is not None and path not in names:
                            names.append(path)
        return found

    def _arrive(
        self,
        entity_id: int,
        hops: int,
        session_id: str | None,
        commit: Commit,
        numbered: tuple[int, ...],
        dead_from: str | None,
    ) -> Iterator[End]:
        yield End(entity_id, MAIN, hops, numbered, None, dead_from)
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
    ) -> Iterator[End]:
        before = None if is_dead_letter else dead_from
        if hops >= HOPS_MAX:
            yield End(entity_id, DEAD_LETTER, hops, numbered, TOO_MANY_HOPS, before)
            return
        targets = [i for i in self._facts.named(path) if self._may_be_there(i, commit)]
        obstacles: set[str] = set()
        if not any(self._surely_there(i, commit) for i in targets):
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
                yield from self._arrive(target, hops + 1, session_id, commit, numbered, dead_from)
        for reason in sorted(obstacles):
            yield End(entity_id, TRANSFER_DEAD_LETTER, hops, numbered, reason, before)

    def _may_be_there(self, entity_id: int, commit: Commit) -> bool:
        gone = self._facts.gone.get(entity_id)
        return gone is None or gone.no >= commit.no

    def _surely_there(self, entity_id: int, commit: Commit) -> bool:
        gone = self._facts.gone.get(entity_id)
        created = self._facts.descriptions[entity_id][0][0]
        return created < commit.no and (gone is None or gone.no > commit.no)
