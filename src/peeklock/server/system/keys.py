"""The shared access keys of one namespace, as a fact of the process.

A change is computed and committed with no other in between, so none, such as the revocation of a key, is
undone by another. `keys.rules` says what a rule may be.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeVar

from peeklock.auth import ALL_RIGHTS, SasRule
from peeklock.server import log
from peeklock.server.keys.rules import (
    ROOT_RULE,
    Draw,
    KeysRefused,
    new_rule,
    read_rules,
    rule_json,
    with_added,
    with_rotated,
    without,
)
from peeklock.server.system.store import SystemStore, Values
from peeklock.store.base import StoreDamaged

PREFIX = "keys/"

_Rules = list[SasRule]
_T = TypeVar("_T")


def fact_key(namespace: str) -> str:
    """Return the key of the fact with the rules of a namespace."""
    return PREFIX + namespace.lower()


def values_of(namespace: str, rules: Sequence[SasRule]) -> Values:
    """Return what is to be put for these rules of a namespace."""
    return {fact_key(namespace): [rule_json(rule) for rule in rules]}


class NamespaceKeys:
    """The shared access rules of one namespace. An empty list is not the same as none: it stays empty."""

    def __init__(self, system: SystemStore, namespace: str, draw: Draw = os.urandom) -> None:
        """Name the namespace, in any case; nothing is made yet."""
        self._system = system
        self._namespace = namespace
        self._draw = draw
        self.on_change: Callable[[list[SasRule]], None] = lambda rules: None
        """Is called with all rules once a change is durable, before the change returns."""
        self._shown: _Rules = []
        """What was followed last."""

    def rules(self) -> list[SasRule]:
        """Return the rules, none if the namespace has no keys. Raises: StoreDamaged."""
        return self._kept() or []

    def follow(self) -> None:
        """Call `on_change` if another process has changed the rules. Raises: StoreDamaged."""
        rules = self._kept()
        if rules is not None and rules != self._shown:
            self._shown = rules
            self.on_change(rules)

    async def load_or_make(self, first_name: str = ROOT_RULE) -> list[SasRule]:
        """Return the rules; without any kept, make one of this name, which has all rights.

        Raises: StoreError.
        """
        kept = self._kept()
        if kept is not None:
            return kept
        rule = new_rule(first_name, ALL_RIGHTS, self._draw)

        def first(kept: _Rules | None) -> tuple[_Rules, _Rules]:
            rules = [rule] if kept is None else kept
            return rules, rules

        rules = await self._change(first)
        # A warning: if the keys were lost, no client has a valid one any more.
        log.warning(
            "keys made",
            {
                "namespace": self._namespace,
                "rules": [first_name],
                "do": "`peeklock keys list` shows what clients need",
            },
        )
        return rules

    async def add(self, name: str, rights: Sequence[str]) -> SasRule:
        """Add a rule with new keys; see `with_added`. Raises: KeysRefused, StoreError."""
        return await self._change(lambda kept: with_added(self._there(kept), name, rights, self._draw))

    async def rotate(self, name: str, *, revoke: bool) -> SasRule:
        """Replace the primary key of a rule; see `with_rotated`. Raises: KeysRefused, StoreError."""
        return await self._change(
            lambda kept: with_rotated(self._there(kept), name, self._draw, revoke=revoke)
        )

    async def remove(self, name: str) -> tuple[str, bool]:
        """Remove a rule; return its name, and whether it was the last with Manage.

        Raises: KeysRefused, StoreError.
        """
        return await self._change(lambda kept: without(self._there(kept), name))

    async def _change(self, make: Callable[[_Rules | None], tuple[_Rules, _T]]) -> _T:
        """Commit the rules that `make` returns from those kept before; return its answer.

        Raises: what `make` raises, StoreError.
        """
        made: list[tuple[_Rules, _T]] = []

        def values() -> Values:
            made.append(make(self._kept()))
            return values_of(self._namespace, made[0][0])

        await self._system.change(values, lambda: self.on_change(made[0][0]))
        return made[0][1]

    def _kept(self) -> _Rules | None:
        key = fact_key(self._namespace)
        found = self._system.get(key)
        if found is None:
            return None
        try:
            return read_rules(found)
        except ValueError as failure:  # its text quotes no key
            raise StoreDamaged(f"the fact {key} of the process cannot be read: {failure}") from None

    def _there(self, kept: _Rules | None) -> _Rules:
        """Return the rules. Raises: KeysRefused without any, else a removed namespace got keys again."""
        if kept is None:
            raise KeysRefused(f"the namespace '{self._namespace}' has no keys; was it removed?")
        return kept
