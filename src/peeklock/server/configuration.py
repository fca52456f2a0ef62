"""The configuration file: read, and applied to the namespace, at the start and when it changes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from peeklock.broker.vocabulary.commands import ListEntities, ListRules
from peeklock.broker.vocabulary.descriptions import EntityKind, RuleDescription
from peeklock.broker.vocabulary.effects import EntityView, Failed
from peeklock.broker.vocabulary.quotas import TIERS
from peeklock.config.hosts import HostNames
from peeklock.server import log
from peeklock.server.settings import CONFIG_VARIABLE, Settings, StartFailed
from peeklock.server.shard.shard import Shard

if TYPE_CHECKING:
    from peeklock.config.file import Config
    from peeklock.config.reconcile import Step


PAGE = 250
"""Entities that are listed in one turn of a broker that serves clients."""

COMMANDS = 50
"""In one turn and one commit of a reload. Our choice: they take 3 ms, with the log lines of the changes."""


def read_configuration(settings: Settings) -> Sequence[Config]:
    """Read the file; first of all, so that a bad one leaves nothing behind. Raises: StartFailed.

    Returns one for each namespace, none without a file.
    """
    if settings.config is None and settings.config_json is None:
        return ()
    from peeklock.config.file import EMULATOR_DEFAULTS, parse_config, read_config
    from peeklock.config.form import ConfigError

    defaults = EMULATOR_DEFAULTS if settings.emulator_defaults else None
    try:
        if settings.config is not None:
            return read_config(settings.config, defaults)
        assert settings.config_json is not None
        return parse_config(settings.config_json.encode(), defaults)
    except ConfigError as failure:
        raise StartFailed(f"{_place(settings)}: {failure}") from failure


def in_request(content: bytes) -> Config:
    """Return the configuration in a request: of its first namespace, whose name does not count.

    Raises: StartFailed.
    """
    from peeklock.config.file import parse_config
    from peeklock.config.form import ConfigError

    try:
        return parse_config(content)[0]
    except ConfigError as failure:
        raise StartFailed(f"the configuration: {failure}") from failure


async def follow(config: Config, shard: Shard, settings: Settings) -> None:
    """Make the namespace of a running broker agree with the file, in slices. Raises: StartFailed."""
    existing = await _existing(shard, PAGE)
    rules = await _rules_of(config, shard, existing)
    steps = await asyncio.to_thread(_steps, config, existing, rules, settings)
    await _do(steps, config, shard, settings, COMMANDS)


async def apply(config: Config, shard: Shard, settings: Settings) -> None:
    """Make the namespace agree with the file, at the start: a crash leaves all of it or nothing.

    Raises: StartFailed.
    """
    if shard.is_deleting:
        await shard.catch_up()  # the file may name what a stop left half deleted
    existing = await _existing(shard, sys.maxsize)
    steps = _steps(config, existing, await _rules_of(config, shard, existing), settings)
    await _do(steps, config, shard, settings, sys.maxsize)


async def _existing(shard: Shard, page: int) -> list[EntityView]:
    existing: list[EntityView] = []
    for kind in EntityKind:
        first = len(existing)
        while True:
            found: Any = await shard.submit(partial(ListEntities, kind, len(existing) - first, page))
            existing += found.entities
            if len(found.entities) < page:
                break
    return existing


def _steps(
    config: Config,
    existing: list[EntityView],
    rules: dict[str, list[RuleDescription]],
    settings: Settings,
) -> list[Step]:
    from peeklock.config.form import ConfigError
    from peeklock.config.reconcile import reconcile

    try:
        return reconcile(config, existing, rules, TIERS[settings.tier], HostNames(settings.own_names))
    except ConfigError as failure:
        raise StartFailed(f"{_place(settings)}: {failure}") from failure


async def _do(steps: list[Step], config: Config, shard: Shard, settings: Settings, at_once: int) -> None:
    """Run the commands, so many in a turn and a commit. Raises: StartFailed."""
    from peeklock.config.form import ConfigError
    from peeklock.config.reconcile import counted

    answers = []
    for part in _parts(steps, at_once):
        answers += await asyncio.gather(*(shard.submit(step) for step in part))
    try:
        refused = [
            f"{step.path}: {answer.error}"
            for step, answer in zip(steps, answers, strict=True)
            if isinstance(answer, Failed)
        ]
        if refused:
            raise ConfigError(*refused)
    except ConfigError as failure:
        raise StartFailed(f"{_place(settings)}: {failure}") from failure
    done = counted(steps)
    for name, count in config.counts().items():
        figures = {"created": done[name, False], "changed": done[name, True]}
        log.info("configuration followed", {"kind": name, "in_file": count, **figures})


def _place(settings: Settings) -> str:
    return CONFIG_VARIABLE if settings.config is None else str(settings.config)


def _parts(steps: list[Step], size: int) -> Iterator[list[Step]]:
    for first in range(0, len(steps), size):
        yield steps[first : first + size]


async def _rules_of(
    config: Config, shard: Shard, existing: list[EntityView]
) -> dict[str, list[RuleDescription]]:
    """Return the present rules of the subscriptions for which the file has some, by path in lower case."""
    known = {view.description.name.lower() for view in existing}
    rules = {}
    for entity in config.entities:
        path = entity.name.lower()
        if entity.rules and path in known:
            found: Any = await shard.submit(partial(ListRules, path, 0, sys.maxsize))
            rules[path] = found.rules
    return rules
