"""The configuration file at the start of a broker: read, and applied to its namespace."""

from __future__ import annotations

import asyncio
import sys
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


def read_configuration(settings: Settings) -> Config | None:
    """Read the file; first of all, so that a bad one leaves nothing behind. Raises: StartFailed."""
    if settings.config is None and settings.config_json is None:
        return None
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


async def apply(config: Config, shard: Shard, settings: Settings, hosts: HostNames) -> None:
    """Make the namespace agree with the file. Raises: StartFailed."""
    from peeklock.config.form import ConfigError
    from peeklock.config.reconcile import counted, reconcile

    if shard.is_deleting:
        await shard.catch_up()  # the file may name what a stop left half deleted
    try:
        existing: list[EntityView] = []
        for kind in EntityKind:
            found: Any = await shard.submit(partial(ListEntities, kind, 0, sys.maxsize))
            existing += found.entities
        rules = await _rules_of(config, shard, existing)
        steps = reconcile(config, existing, rules, TIERS[settings.tier], hosts)
        # All at once, so in one commit: a crash leaves all of it or nothing.
        answers = await asyncio.gather(*(shard.submit(step) for step in steps))
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
