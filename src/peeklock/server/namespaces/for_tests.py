"""What tests may ask of a namespace: move its clock, reset it.

A clock goes forwards only, from one due time to the next: each timer fires in its order and at its own time,
and is durable before the next. Tokens and idle time-outs keep the real clock.

A reset removes what tests have left: messages, session states, ids for duplicate detection. Entities and
rules become what they were when the namespace was made. Links of an entity that has not changed stay.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from peeklock.broker.vocabulary.commands import (
    AddRule,
    CreateEntity,
    DeleteEntity,
    RemoveRule,
    UpdateEntity,
)
from peeklock.broker.vocabulary.descriptions import (
    Description,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from peeklock.broker.vocabulary.effects import Failed
from peeklock.broker.vocabulary.extension_commands import Reset
from peeklock.server.namespaces.served import ServedNamespace
from peeklock.server.shard.shard import Shard

Definitions = tuple[list[Description], dict[str, list[RuleDescription]]]


async def advance(served: ServedNamespace, ms: int) -> int:
    """Move the clock of a namespace forwards; return its new time, UTC ms. `served.clock` may not be None."""
    clock, shard = served.clock, served.shard
    assert clock is not None
    async with served.moving:
        end = clock.now_ms() + ms
        while (due := shard.timers.next_ms) is not None and due <= end:
            clock.move_to(due)
            await shard.catch_up()
        clock.move_to(end)
        await shard.catch_up()
    return end


async def reset(served: ServedNamespace, *, keep_entities: bool) -> None:
    """Reset a namespace. Raises: ServiceBusError, if an entity cannot become what it was."""
    async with served.moving:
        shard = served.shard
        if keep_entities:
            await _do(shard, Reset)
            return
        made, now = served.made_with, shard.definitions()
        wanted = {entity.name.lower(): entity for entity in made[0]}
        changed = [entity for entity in now[0] if entity != wanted.get(entity.name.lower())]
        # Subscriptions go with their topics.
        for entity in sorted(changed, key=lambda entity: isinstance(entity, TopicDescription)):
            await _do(shard, DeleteEntity, entity.name)
        if shard.is_deleting:
            await shard.catch_up()
        await _do(shard, Reset)
        await _create(shard, made, _names(shard.definitions()[0]))
        await _restore_rules(shard, made[1])


def _names(entities: Iterable[Description]) -> set[str]:
    return {entity.name.lower() for entity in entities}


async def _create(shard: Shard, made: Definitions, there: set[str]) -> None:
    """Create the entities that are gone: topics first, and forwards once all targets are there."""
    missing = [entity for entity in made[0] if entity.name.lower() not in there]
    for entity in sorted(missing, key=lambda entity: isinstance(entity, SubscriptionDescription)):
        await _do(shard, CreateEntity, _without_forwards(entity))
    for entity in missing:
        if entity != _without_forwards(entity):
            await _do(shard, UpdateEntity, entity)


def _without_forwards(entity: Description) -> Description:
    if isinstance(entity, TopicDescription):
        return entity
    return replace(entity, forward_to=None, forward_dead_lettered_to=None)


async def _restore_rules(shard: Shard, made: dict[str, list[RuleDescription]]) -> None:
    """Make the rules of each subscription what they were."""
    _, now = shard.definitions()
    for path, wanted in made.items():
        found = {rule.name: rule for rule in now.get(path, ())}
        for rule in wanted:
            if found.pop(rule.name, None) != rule:
                await _set_rule(shard, path, rule)
        for name in found:
            await _do(shard, RemoveRule, path, name)


async def _set_rule(shard: Shard, path: str, rule: RuleDescription) -> None:
    _, now = shard.definitions()
    if any(other.name == rule.name for other in now.get(path, ())):
        await _do(shard, RemoveRule, path, rule.name)
    await _do(shard, AddRule, path, rule)


async def _do(shard: Shard, command: Any, *arguments: Any) -> None:
    """Run a command. Raises: ServiceBusError."""
    answer = await shard.submit(partial(command, *arguments))
    if isinstance(answer, Failed):
        raise answer.error
