"""Which files a broker follows while it runs, and what each one changes."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from peeklock.server import configuration, log
from peeklock.server.follow import FileWatch, FollowedFiles, Look, Outcome
from peeklock.server.namespaces.lifecycle import Lifecycle
from peeklock.server.namespaces.registry import Registry
from peeklock.server.net.ports import Ports
from peeklock.server.notify import Notifier
from peeklock.server.reload import Reload
from peeklock.server.settings import Settings, StartFailed

if TYPE_CHECKING:
    from peeklock.server.cluster.member import Member
    from peeklock.server.keys.token_issuer import TokenIssuer


def followed_files(
    settings: Settings,
    registry: Registry,
    lifecycle: Lifecycle,
    *,
    ports: Ports,
    token_issuer: TokenIssuer | None,
    notifier: Notifier,
    member: Member | None = None,
) -> Reload:
    """Return what follows the files of a started broker."""
    parts: dict[str, Look] = {}
    if settings.config is not None:
        read = partial(_read_configuration, settings, registry, lifecycle, member)
        parts["config"] = FollowedFiles(FileWatch(settings.config), read).look
    parts["keys"] = partial(_look_at_keys, registry)
    if token_issuer is not None:
        parts["jwt"] = _FollowedIssuer(token_issuer, registry).look
    parts["tls"] = partial(_look_at_tls, ports)
    if settings.settings_file is not None:
        parts["settings"] = _SettingsFile(settings.settings_file).look
    return Reload(parts, begin=notifier.reloading, end=notifier.ready)


async def _look_at_keys(registry: Registry, at_once: bool) -> Outcome:
    """Follow the keys of each namespace; one with a fault does not keep the others from it."""
    found = [await served.authority_manager.look(at_once) for served in registry]
    for outcome in (Outcome.REFUSED, Outcome.FOLLOWED):
        if outcome in found:
            return outcome
    return Outcome.UNCHANGED


async def _read_configuration(
    settings: Settings, registry: Registry, lifecycle: Lifecycle, member: Member | None
) -> str:
    """Follow the configuration file; return why it was refused."""
    try:
        configs = await asyncio.to_thread(configuration.read_configuration, settings)
        default = registry.default.name
        if configs[0].namespace != default:
            raise StartFailed(
                f"{settings.config}: UserConfig.Namespaces[0].Name: is {configs[0].namespace!r}, and the "
                f"broker runs as {default!r}; restart it to rename the namespace"
            )
        if member is None:
            await lifecycle.follow(configs[1:])
        else:
            member.follow(configs)
        owned = None if member is None else set(member.owned().values())
        for config in configs:
            served = registry.get(config.namespace)
            if owned is not None and served not in owned:
                continue  # its owner has the file too
            if served is not None:  # else it was deleted just now
                await configuration.follow(config, served.shard, served.settings)
    except StartFailed as failure:
        log.error(
            "the configuration file is not followed", {"reason": str(failure), "do": "correct the file"}
        )
        return str(failure)
    return ""


class _FollowedIssuer:
    """The file that describes the issuer of web tokens; it may name another file, with keys."""

    def __init__(self, issuer: TokenIssuer, registry: Registry) -> None:
        self._issuer = issuer
        self._registry = registry
        self._files: list[Path] = []
        self._followed = self._follow()

    def _follow(self) -> FollowedFiles:
        self._files = self._issuer.files
        return FollowedFiles(FileWatch(*self._files), self._read)

    async def look(self, at_once: bool) -> Outcome:
        found = await self._followed.look(at_once)
        if found is Outcome.FOLLOWED and self._issuer.files != self._files:
            self._followed = self._follow()
        return found

    async def _read(self) -> str:
        from peeklock.server.keys.jwt_keys import JwtFileInvalid

        try:
            await self._issuer.read_again()
        except JwtFileInvalid as failure:
            fields = {"reason": str(failure), "do": "correct the file"}
            log.error("the file of --jwt is not followed; the tokens accepted before still are", fields)
            return str(failure)
        for served in self._registry:
            served.authority.set_web_tokens(self._issuer.verifier)
        log.info("web tokens followed", {"files": [str(file) for file in self._issuer.files]})
        return ""


async def _look_at_tls(ports: Ports, at_once: bool) -> Outcome:
    """Look when asked: `Ports` looks by itself, as loading takes a thread and certificates change rarely."""
    return await ports.look_at_tls() if at_once else Outcome.UNCHANGED


class _SettingsFile:
    """The settings file: a changed one needs a restart, and that is said when a reload is asked for."""

    def __init__(self, file: Path) -> None:
        self._watch = FileWatch(file)
        self._changed = False

    async def look(self, at_once: bool) -> Outcome:
        self._changed = self._changed or (at_once and self._watch.changed(at_once=True))
        return Outcome.RESTART if self._changed else Outcome.UNCHANGED
