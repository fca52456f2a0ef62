"""Shared access rules of a namespace: their checks, their JSON, and the changes of a list of them.

It owns what a rule may be, and no place where rules are kept. Source of names and numbers: Learn "Service Bus
access control with Shared Access Signatures" (12 rules, names of 1 to 256 characters).
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from peeklock.auth import ALL_RIGHTS, Right, SasRule
from peeklock.auth.rights import implied

ROOT_RULE = "RootManageSharedAccessKey"
"""The rule that every new namespace of Azure has."""

RULES_MAX = 12
KEY_BYTES = 32
KEY_LENGTH_MAX = 256

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,254}[A-Za-z0-9])?")
_FIELDS = {"name", "rights", "primaryKey", "secondaryKey"}

Draw = Callable[[int], bytes]
"""Returns so many random bytes."""


class KeysRefused(Exception):
    """The keys cannot be used or changed; the message says why and what to do."""


# Changes


def new_rule(name: str, rights: frozenset[Right], draw: Draw) -> SasRule:
    """Return a rule with new keys, unchecked."""
    return SasRule(name, _new_key(draw), _new_key(draw), rights)


def with_added(
    rules: Sequence[SasRule], name: str, rights: Sequence[str], draw: Draw
) -> tuple[list[SasRule], SasRule]:
    """Return the rules with a further one, and that one, with new keys.

    `rights` are names, in any case. Raises: KeysRefused.
    """
    known = {right.value.lower(): right for right in Right}
    unknown = [right for right in rights if right.lower() not in known]
    if unknown:
        raise KeysRefused(f"{unknown[0]!r} is not a right; the rights are {_shown_rights()}")
    if any(rule.name.lower() == name.lower() for rule in rules):
        raise KeysRefused(f"there is already a rule {name!r}; names that differ in case are the same")
    if len(rules) == RULES_MAX:
        raise KeysRefused(f"there are already {RULES_MAX} rules, the maximum: remove one first")
    rule = new_rule(name, implied(known[right.lower()] for right in rights), draw)
    try:
        _check(rule)
    except ValueError as failure:
        raise KeysRefused(str(failure)) from None
    return [*rules, rule], rule


def with_rotated(
    rules: Sequence[SasRule], name: str, draw: Draw, *, revoke: bool
) -> tuple[list[SasRule], SasRule]:
    """Return the rules, one of them with a new primary key, and that one.

    The old one becomes the secondary key: its holders keep access until the next rotation. With `revoke` the
    secondary key is new too. Raises: KeysRefused.
    """
    rule = _named(rules, name)
    kept = _new_key(draw) if revoke else rule.primary_key
    rotated = replace(rule, primary_key=_new_key(draw), secondary_key=kept)
    return [rotated if rule is other else other for other in rules], rotated


def without(rules: Sequence[SasRule], name: str) -> tuple[list[SasRule], tuple[str, bool]]:
    """Return the rules that are left; the name of the one that is gone, and whether it was the last with
    Manage. Raises: KeysRefused."""
    rule = _named(rules, name)
    left = [other for other in rules if other is not rule]
    was_last = not any(Right.MANAGE in other.rights for other in left)
    return left, (rule.name, Right.MANAGE in rule.rights and was_last)


def _named(rules: Sequence[SasRule], name: str) -> SasRule:
    for rule in rules:
        if rule.name.lower() == name.lower():
            return rule
    names = ", ".join(rule.name for rule in rules) or "none"
    raise KeysRefused(f"there is no rule {name!r}; there are: {names}")


# JSON


def rule_json(rule: SasRule) -> dict[str, Any]:
    """Return a rule as JSON, with its keys."""
    return {
        "name": rule.name,
        "rights": [right.value for right in Right if right in rule.rights],
        "primaryKey": rule.primary_key,
        "secondaryKey": rule.secondary_key,
    }


def read_rules(given: Any) -> list[SasRule]:
    """Return the rules of a JSON list. Raises: ValueError, with a text that quotes no key."""
    if not isinstance(given, list):
        raise ValueError("the rules must be a list")
    rules = [_read_rule(one, f"rule {number}") for number, one in enumerate(given, 1)]
    names = [rule.name.lower() for rule in rules]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"the rule {name!r} appears twice")
    if len(rules) > RULES_MAX:
        raise ValueError(f"{len(rules)} rules; the maximum is {RULES_MAX}")
    return rules


def _read_rule(given: Any, which: str) -> SasRule:
    if not isinstance(given, dict) or not {"name", "rights", "primaryKey"} <= set(given) <= _FIELDS:
        raise ValueError(f"{which} must have name, rights, primaryKey, perhaps secondaryKey, nothing else")
    name, rights = given["name"], given["rights"]
    keys = (given["primaryKey"], given.get("secondaryKey", ""))
    if not isinstance(name, str) or not isinstance(rights, list) or not all(isinstance(k, str) for k in keys):
        raise ValueError(f"{which}: name and keys must be strings, rights a list")
    known = {right.value: right for right in Right}
    if not all(isinstance(right, str) and right in known for right in rights):
        raise ValueError(f"{which}: rights must be among {', '.join(known)}")
    rule = SasRule(name, *keys, frozenset(known[right] for right in rights))
    _check(rule)
    return rule


def _check(rule: SasRule) -> None:
    """Raise ValueError for a rule that Service Bus would refuse."""
    if not _NAME.fullmatch(rule.name):
        raise ValueError(
            f"the rule name {rule.name[:64]!r} must have 1 to 256 letters, digits, '.', '-' or '_', and "
            "begin and end with a letter or digit"
        )
    if not rule.rights:
        raise ValueError(f"the rule {rule.name!r} has no rights; give it one of {_shown_rights()}")
    if Right.MANAGE in rule.rights and rule.rights != ALL_RIGHTS:
        raise ValueError(f"the rule {rule.name!r} has Manage, which needs Send and Listen too")
    if not rule.primary_key:
        raise ValueError(f"the rule {rule.name!r} has no primary key")
    if max(len(key) for key in rule.keys) > KEY_LENGTH_MAX:
        raise ValueError(f"a key of the rule {rule.name!r} is longer than {KEY_LENGTH_MAX} characters")


def _new_key(draw: Draw) -> str:
    return base64.b64encode(draw(KEY_BYTES)).decode()


def _shown_rights() -> str:
    return ", ".join(right.value for right in Right)
