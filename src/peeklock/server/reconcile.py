"""What a configuration file asks of the broker: the commands that make the namespace agree with it.

Owns: which queues are created or changed, in which order, and the refusal of what cannot be changed. Must not
know: how commands are run, the form of the file, ranges of values (`broker.validation`). Pure.

A queue may forward to one that stands below it in the file: the commands come targets first. Queues that are
done then forward among themselves, those still to come as they did before, so that no command finds its
target missing or closes a circle unless the file does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter

from peeklock.broker.commands import CreateEntity, ReplyTo, UpdateEntity
from peeklock.broker.descriptions import QueueDescription
from peeklock.broker.effects import EntityView
from peeklock.broker.errors import ServiceBusError
from peeklock.broker.quotas import TierLimits
from peeklock.broker.validation import checked, checked_update
from peeklock.server.config import Config, ConfigError, QueueConfig

_IMMUTABLE = {
    "EnablePartitioning": "enable_partitioning",
    "RequiresDuplicateDetection": "requires_duplicate_detection",
    "RequiresSession": "requires_session",
}

_FORWARDS = {"ForwardTo": "forward_to", "ForwardDeadLetteredMessagesTo": "forward_dead_lettered_to"}


@dataclass(frozen=True, slots=True)
class Step:
    """One command that the file asks for; call it with the reply-to."""

    path: str
    description: QueueDescription
    exists: bool

    def __call__(self, reply_to: ReplyTo) -> CreateEntity | UpdateEntity:
        if self.exists:
            return UpdateEntity(self.description, reply_to)
        return CreateEntity(self.description, reply_to)


def reconcile(config: Config, existing: Iterable[EntityView], limits: TierLimits) -> list[Step]:
    """Give the commands that make the namespace agree with the file; queues that agree already give none.

    Only what the file names is changed: a setting that it leaves out stays as it is on a queue that exists,
    and queues that it does not name stay.

    Raises: ConfigError when a value is out of the tier's range, when a queue exists and differs in what
    cannot be changed, or when a forward leads nowhere or in a circle; then nothing is to be run.
    Source: requirement A-02.
    """
    found = {view.description.name.lower(): view.description for view in existing}
    steps: list[Step] = []
    problems: list[str] = []
    for queue in config.queues:
        old = found.get(queue.name.lower())
        fixed = [] if old is None else _fixed(queue, old)
        problems += fixed
        if fixed:
            continue
        try:
            if old is None:
                new = checked(queue.description, limits)
            else:
                new = checked_update(old, replace(old, **queue.settings), limits)
        except ServiceBusError as failure:
            problems.append(f"{queue.path}.Properties: {failure}")
            continue
        if new != old:
            steps.append(Step(queue.path, new, exists=old is not None))
    problems += _forward_problems(config, found, steps)
    if problems:
        raise ConfigError(*problems)
    return _targets_first(steps)


def _fixed(queue: QueueConfig, old: QueueDescription) -> list[str]:
    return [
        f"{queue.path}.Properties.{key}: is {json.dumps(getattr(old, field))} on the existing queue "
        f"{old.name!r} and cannot be changed; correct the file, or delete the queue first"
        for key, field in _IMMUTABLE.items()
        if queue.settings.get(field, getattr(old, field)) != getattr(old, field)
    ]


def _forward_problems(
    config: Config, existing: Mapping[str, QueueDescription], steps: list[Step]
) -> list[str]:
    """Find the forwards that lead nowhere or in a circle; those of a queue that agrees already may stay."""
    changed = {step.path: step.description for step in steps}
    targets: dict[str, list[str]] = {queue.name.lower(): [] for queue in config.queues}
    targets.update((name, _targets(old)) for name, old in existing.items())
    targets.update((new.name.lower(), _targets(new)) for new in changed.values())
    problems = []
    for queue in config.queues:
        for key, field in _FORWARDS.items():
            target = queue.settings.get(field)
            if target is None or queue.path not in changed:
                continue
            where = f"{queue.path}.Properties.{key}"
            if target.lower() not in targets:
                problems.append(f"{where}: there is no queue {target!r}, in the file or from before")
            elif queue.name.lower() in _reached(target.lower(), targets):
                problems.append(f"{where}: forwards to {target!r} and so in a circle")
    return problems


def _targets(description: QueueDescription) -> list[str]:
    named = (getattr(description, field) for field in _FORWARDS.values())
    return [target.lower() for target in named if target is not None]


def _reached(name: str, targets: Mapping[str, list[str]]) -> set[str]:
    """Name a queue and all that its messages may come to."""
    reached = {name}
    left = [name]
    while left:
        for target in targets.get(left.pop(), ()):
            if target not in reached:
                reached.add(target)
                left.append(target)
    return reached


def _targets_first(steps: list[Step]) -> list[Step]:
    """Order steps without circles so that each comes after the queues that it forwards to."""
    by_name = {step.description.name.lower(): step for step in steps}
    targets = {name: _targets(step.description) for name, step in by_name.items()}
    ordered = TopologicalSorter(targets).static_order()
    return [by_name[name] for name in ordered if name in by_name]
