"""The file of the namespace's shared access rules, `keys.json` in the data folder.

A change replaces the file as a whole, so that a broker that reads it sees the old or the new one; a running
broker checks every second whether the file has changed. A change holds a lock on the folder from the reading
on, so that none, such as the revocation of a key, is undone by another. Source of names and numbers: Learn
"Service Bus access control with Shared Access Signatures" (12 rules, names of 1 to 256 characters).
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from peeklock.auth import ALL_RIGHTS, Right, SasRule
from peeklock.auth.rights import implied
from peeklock.server import files, log

FILE = "keys.json"
ROOT_RULE = "RootManageSharedAccessKey"
"""The rule that every new namespace of Azure has."""

RULES_MAX = 12
KEY_BYTES = 32
FILE_BYTES_MAX = 1024 * 1024
"""Our choice: twelve rules with the longest names and keys need 10 KiB."""

KEY_LENGTH_MAX = 256

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,254}[A-Za-z0-9])?")
_FIELDS = {"name", "rights", "primaryKey", "secondaryKey"}

Draw = Callable[[int], bytes]
"""Returns so many random bytes."""


class KeysRefused(Exception):
    """The file cannot be used or changed; the message says why and what to do."""


class KeyFile:
    """The shared access rules of one data folder."""

    _TOO_OPEN = 0o077
    """Bits of the mode that make the file readable or writable for too many."""

    def __init__(self, data: Path, draw: Draw = os.urandom) -> None:
        """Name the file in the data folder; it is not read yet."""
        self.path = data / FILE
        self._draw = draw
        self._seen: tuple[int, ...] | None = None

    def load_or_make(self, name: str = ROOT_RULE) -> list[SasRule]:
        """Return the rules of the file; without one, make it with one rule, which has all rights.

        Raises: KeysRefused.
        """
        with self._locked():
            if not self.path.exists():
                self._write([self._new(name, ALL_RIGHTS)])
                # A warning: if the file was lost, no client has a valid key any more.
                log.warning(
                    "keys made",
                    {
                        "file": str(self.path),
                        "rules": [name],
                        "do": f"`peeklock keys list {self.path.parent}` shows what clients need",
                    },
                )
            return self.load()

    def load(self) -> list[SasRule]:
        """Return the rules of the file. Raises: KeysRefused."""
        self._seen = self._identity()
        try:
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_mode & self._TOO_OPEN:
                    raise KeysRefused(self._too_open())
                raw = file.read(FILE_BYTES_MAX + 1)
        except FileNotFoundError:
            raise KeysRefused(self._missing()) from None
        except OSError as failure:
            raise KeysRefused(f"{self.path} cannot be read: {failure.strerror}") from failure
        if len(raw) > FILE_BYTES_MAX:
            raise KeysRefused(f"{self.path} is larger than {FILE_BYTES_MAX} bytes")
        try:
            return _rules(json.loads(raw))
        except (ValueError, RecursionError) as failure:  # the errors of JSON and UTF-8 are ValueErrors
            # Their texts quote nothing of the file.
            raise KeysRefused(f"{self.path} is not as `peeklock keys` writes it: {failure}") from None

    def _too_open(self) -> str:
        return (
            f"{self.path} can be read by others than its owner, so others may know the keys: run "
            f"`chmod 600 {self.path}`, then replace them with "
            f"`peeklock keys rotate {self.path.parent} NAME --revoke`"
        )

    def _missing(self) -> str:
        return f"{self.path} is missing; start the broker once with --auth sas to create it"

    def changed(self) -> bool:
        """Return whether the file has changed since the last reading, successful or not."""
        return self._identity() != self._seen

    def add(self, name: str, rights: Sequence[str]) -> SasRule:
        """Add a rule with new keys; `rights` are names, in any case. Raises: KeysRefused."""
        known = {right.value.lower(): right for right in Right}
        unknown = [right for right in rights if right.lower() not in known]
        if unknown:
            raise KeysRefused(f"{unknown[0]!r} is not a right; the rights are {_shown_rights()}")
        with self._locked():
            return self._add(name, [known[right.lower()] for right in rights])

    def _add(self, name: str, rights: Sequence[Right]) -> SasRule:
        rules = self.load()
        if any(rule.name.lower() == name.lower() for rule in rules):
            raise KeysRefused(f"there is already a rule {name!r}; names that differ in case are the same")
        if len(rules) == RULES_MAX:
            raise KeysRefused(f"there are already {RULES_MAX} rules, the maximum: remove one first")
        rule = self._new(name, implied(rights))
        try:
            _check(rule)
        except ValueError as failure:
            raise KeysRefused(str(failure)) from None
        self._write([*rules, rule])
        return rule

    def rotate(self, name: str, *, revoke: bool) -> SasRule:
        """Replace the primary key of a rule.

        The old one becomes the secondary key: its holders keep access until the next rotation. With `revoke`
        the secondary key is new too.

        Raises: KeysRefused.
        """
        with self._locked():
            rules = self.load()
            rule = _named(rules, name)
            kept = self._key() if revoke else rule.primary_key
            rotated = replace(rule, primary_key=self._key(), secondary_key=kept)
            self._write([rotated if rule is other else other for other in rules])
        return rotated

    def remove(self, name: str) -> tuple[str, bool]:
        """Remove a rule; return its name, and whether it was the last with Manage. Raises: KeysRefused."""
        with self._locked():
            rules = self.load()
            rule = _named(rules, name)
            left = [other for other in rules if other is not rule]
            self._write(left)
        was_last = not any(Right.MANAGE in other.rights for other in left)
        return rule.name, Right.MANAGE in rule.rights and was_last

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep others from changing the file at the same time. Raises: KeysRefused."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with files.locked(self.path.parent):
                yield
        except OSError as failure:
            raise KeysRefused(f"{self.path} cannot be written: {failure.strerror}") from failure

    def _identity(self) -> tuple[int, ...] | None:
        try:
            status = self.path.stat()
        except OSError:
            return None
        return (status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode)

    def _new(self, name: str, rights: frozenset[Right]) -> SasRule:
        return SasRule(name, self._key(), self._key(), rights)

    def _key(self) -> str:
        return base64.b64encode(self._draw(KEY_BYTES)).decode()

    def _write(self, rules: list[SasRule]) -> None:
        """Replace the file. Raises: OSError."""
        content = {"rules": [rule_json(rule) for rule in rules]}
        files.replace(self.path, json.dumps(content, indent=2).encode() + b"\n", 0o600)


class GivenKeyFile(KeyFile):
    """Rules in a file that others write, such as a secret that Kubernetes mounts; it is only read.

    Its group may read it: a mounted secret belongs to root, and to the group of the broker.
    """

    _TOO_OPEN = 0o037

    def __init__(self, path: Path) -> None:
        """Name the file; it is not read yet."""
        super().__init__(path.parent)
        self.path = path

    def load_or_make(self, name: str = ROOT_RULE) -> list[SasRule]:
        """Return the rules of the file, which is never made. Raises: KeysRefused."""
        return self.load()

    def _write(self, rules: list[SasRule]) -> None:
        raise KeysRefused(f"{self.path} is only read: change it where it is made, and the broker follows")

    def _too_open(self) -> str:
        return (
            f"{self.path} can be read by others than its owner and group, so others may know the keys: "
            "give it the mode 0440 or 0400, then replace the keys in it"
        )

    def _missing(self) -> str:
        return f"{self.path} is missing; --keys names the file with the shared access keys"


def rule_json(rule: SasRule) -> dict[str, Any]:
    """Return a rule as the file has it, with its keys."""
    return {
        "name": rule.name,
        "rights": [right.value for right in Right if right in rule.rights],
        "primaryKey": rule.primary_key,
        "secondaryKey": rule.secondary_key,
    }


def _named(rules: list[SasRule], name: str) -> SasRule:
    for rule in rules:
        if rule.name.lower() == name.lower():
            return rule
    names = ", ".join(rule.name for rule in rules) or "none"
    raise KeysRefused(f"there is no rule {name!r}; there are: {names}")


def _rules(given: Any) -> list[SasRule]:
    """Return the rules in a file. Raises: ValueError, with a text that quotes no key."""
    if not isinstance(given, dict) or set(given) != {"rules"} or not isinstance(given["rules"], list):
        raise ValueError('it must be {"rules": [...]} and nothing else')
    rules = [_rule(one, f"rule {number}") for number, one in enumerate(given["rules"], 1)]
    names = [rule.name.lower() for rule in rules]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"the rule {name!r} appears twice")
    if len(rules) > RULES_MAX:
        raise ValueError(f"{len(rules)} rules; the maximum is {RULES_MAX}")
    return rules


def _rule(given: Any, which: str) -> SasRule:
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


def _shown_rights() -> str:
    return ", ".join(right.value for right in Right)
