"""The file of the namespace's shared access rules, `keys.json` in the data folder.

Owns: the file's form, its rights on disk, and the changes that an operator makes to it. Must not know: who
uses the keys. Rules of single entities are the administration's.

The file is changed by replacing it whole, so that a broker that reads it meanwhile sees the old or the new
one; a running broker looks every second whether it is another file. Whoever changes it holds a lock on the
folder from the reading on, so that no change, a revoked key for one, is undone by another. Source of names
and numbers: Learn "Service Bus access control with Shared Access Signatures" (12 rules, names of 1 to 256
characters).
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from peeklock.auth import ALL_RIGHTS, Right, SasRule
from peeklock.auth.rights import implied
from peeklock.server import log

FILE = "keys.json"
ROOT_RULE = "RootManageSharedAccessKey"
"""The rule that every namespace of Azure begins with."""

RULES_MAX = 12
KEY_BYTES = 32
FILE_BYTES_MAX = 1024 * 1024
"""Our choice: twelve rules with the longest names and keys need 10 KiB."""

KEY_LENGTH_MAX = 256

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,254}[A-Za-z0-9])?")
_FIELDS = {"name", "rights", "primaryKey", "secondaryKey"}

Draw = Callable[[int], bytes]
"""Gives so many random bytes."""


class KeysRefused(Exception):
    """The file cannot be used, or what is asked of it cannot be done; the text says what to do."""


class KeyFile:
    """The shared access rules of one data folder."""

    def __init__(self, data: Path, draw: Draw = os.urandom) -> None:
        """`data`: the broker's folder."""
        self.path = data / FILE
        self._draw = draw
        self._seen: tuple[int, ...] | None = None

    def load_or_make(self) -> list[SasRule]:
        """Read the rules; where there is no file, make one with the root rule and fresh keys.

        Raises: KeysRefused.
        """
        with self._alone():
            if not self.path.exists():
                self._write([self._fresh(ROOT_RULE, ALL_RIGHTS)])
                # Where there were keys before, no client has the right one any more.
                log.warning(
                    "keys made",
                    {
                        "file": str(self.path),
                        "rules": [ROOT_RULE],
                        "do": f"`peeklock keys list {self.path.parent}` shows what clients need",
                    },
                )
            return self.load()

    def load(self) -> list[SasRule]:
        """Read the rules. Raises: KeysRefused."""
        self._seen = self._identity()
        try:
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_mode & 0o077:
                    raise KeysRefused(
                        f"{self.path} can be read by others than its owner: take it as known to them. Say "
                        f"`chmod 600 {self.path}`, then replace the keys that others may have read with "
                        f"`peeklock keys rotate {self.path.parent} NAME --revoke`"
                    )
                raw = file.read(FILE_BYTES_MAX + 1)
        except FileNotFoundError:
            raise KeysRefused(
                f"{self.path} is missing; start the broker once with --auth sas, which makes it"
            ) from None
        except OSError as failure:
            raise KeysRefused(f"{self.path} cannot be read: {failure.strerror}") from failure
        if len(raw) > FILE_BYTES_MAX:
            raise KeysRefused(f"{self.path} is larger than {FILE_BYTES_MAX} bytes")
        try:
            return _rules(json.loads(raw))
        except (
            ValueError,
            RecursionError,
        ) as failure:  # JSONDecodeError and UnicodeDecodeError are ValueErrors
            # The text of such an error quotes nothing of the file.
            raise KeysRefused(f"{self.path} is not as `peeklock keys` writes it: {failure}") from None

    def changed(self) -> bool:
        """Tell whether the file is another than at the last reading, whether that went well or not."""
        return self._identity() != self._seen

    def add(self, name: str, rights: Sequence[str]) -> SasRule:
        """Add a rule with fresh keys; `rights` by name, in any case. Raises: KeysRefused."""
        known = {right.value.lower(): right for right in Right}
        unknown = [right for right in rights if right.lower() not in known]
        if unknown:
            raise KeysRefused(f"{unknown[0]!r} is no right; these are: {_shown_rights()}")
        with self._alone():
            return self._add(name, [known[right.lower()] for right in rights])

    def _add(self, name: str, rights: Sequence[Right]) -> SasRule:
        rules = self.load()
        if any(rule.name.lower() == name.lower() for rule in rules):
            raise KeysRefused(f"there is a rule {name!r} already; names differ by more than their case")
        if len(rules) == RULES_MAX:
            raise KeysRefused(f"there are {RULES_MAX} rules already, which is the most: remove one first")
        rule = self._fresh(name, implied(rights))
        try:
            _check(rule)
        except ValueError as failure:
            raise KeysRefused(str(failure)) from None
        self._write([*rules, rule])
        return rule

    def rotate(self, name: str, *, revoke: bool) -> SasRule:
        """Give a rule a fresh primary key.

        The old one becomes the secondary key, so that whoever has it can go on until the next rotation; with
        `revoke` the secondary key is a fresh one too, and every holder of an old key is out at once.

        Raises: KeysRefused.
        """
        with self._alone():
            rules = self.load()
            rule = _named(rules, name)
            kept = self._key() if revoke else rule.primary_key
            rotated = replace(rule, primary_key=self._key(), secondary_key=kept)
            self._write([rotated if rule is other else other for other in rules])
        return rotated

    def remove(self, name: str) -> tuple[str, bool]:
        """Remove a rule; answer its name, and whether the last one with Manage went. Raises: KeysRefused."""
        with self._alone():
            rules = self.load()
            rule = _named(rules, name)
            left = [other for other in rules if other is not rule]
            self._write(left)
        return rule.name, Right.MANAGE in rule.rights and not any(
            Right.MANAGE in other.rights for other in left
        )

    @staticmethod
    def shown(*rules: SasRule) -> str:
        """Return a line for each rule and each of its keys, as a connection string has them."""
        lines = []
        for rule in rules:
            lines.append(f"{rule.name} ({', '.join(right.value for right in Right if right in rule.rights)})")
            for which, key in zip(("primary", "secondary"), rule.keys, strict=False):
                lines.append(f"  {which:9}  SharedAccessKeyName={rule.name};SharedAccessKey={key}")
        return "\n".join(lines)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold off others that would change the file at the same time. Raises: KeysRefused."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder = os.open(self.path.parent, os.O_RDONLY)
        except OSError as failure:
            raise KeysRefused(f"{self.path} cannot be written: {failure.strerror}") from failure
        try:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    def _identity(self) -> tuple[int, ...] | None:
        try:
            status = self.path.stat()
        except OSError:
            return None
        return (status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode)

    def _fresh(self, name: str, rights: frozenset[Right]) -> SasRule:
        return SasRule(name, self._key(), self._key(), rights)

    def _key(self) -> str:
        return base64.b64encode(self._draw(KEY_BYTES)).decode()

    def _write(self, rules: list[SasRule]) -> None:
        """Replace the file. Raises: KeysRefused."""
        told = {
            "rules": [
                {
                    "name": rule.name,
                    "rights": [right.value for right in Right if right in rule.rights],
                    "primaryKey": rule.primary_key,
                    "secondaryKey": rule.secondary_key,
                }
                for rule in rules
            ]
        }
        new = self.path.with_suffix(".new")
        try:
            new.unlink(missing_ok=True)
            # Never anything but the owner's, also for an instant, whatever the umask is.
            with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                self._give_to_owner(file.fileno())
                json.dump(told, file, indent=2)
                file.write("\n")
                file.flush()
                os.fsync(file.fileno())
            new.replace(self.path)
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as failure:
            raise KeysRefused(f"{self.path} cannot be written: {failure.strerror}") from failure

    def _give_to_owner(self, descriptor: int) -> None:
        """Let a broker of another user read what root has changed, or it would go on with the old keys."""
        if os.geteuid() == 0:
            owner = self.path.parent.stat()
            os.fchown(descriptor, owner.st_uid, owner.st_gid)


def _named(rules: list[SasRule], name: str) -> SasRule:
    for rule in rules:
        if rule.name.lower() == name.lower():
            return rule
    names = ", ".join(rule.name for rule in rules) or "none"
    raise KeysRefused(f"there is no rule {name!r}; there are: {names}")


def _rules(told: Any) -> list[SasRule]:
    """Read the rules. Raises: ValueError, with a text that quotes no key."""
    if not isinstance(told, dict) or set(told) != {"rules"} or not isinstance(told["rules"], list):
        raise ValueError('it is to be {"rules": [...]} and nothing else')
    rules = [_rule(one, f"rule {number}") for number, one in enumerate(told["rules"], 1)]
    names = [rule.name.lower() for rule in rules]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"the rule {name!r} is there twice")
    if len(rules) > RULES_MAX:
        raise ValueError(f"{len(rules)} rules; {RULES_MAX} is the most")
    return rules


def _rule(told: Any, which: str) -> SasRule:
    if not isinstance(told, dict) or not {"name", "rights", "primaryKey"} <= set(told) <= _FIELDS:
        raise ValueError(f"{which} is to have name, rights, primaryKey, perhaps secondaryKey, nothing else")
    name, given = told["name"], told["rights"]
    keys = (told["primaryKey"], told.get("secondaryKey", ""))
    if not isinstance(name, str) or not isinstance(given, list) or not all(isinstance(k, str) for k in keys):
        raise ValueError(f"{which}: name and keys are texts, rights is a list")
    known = {right.value: right for right in Right}
    if not all(isinstance(right, str) and right in known for right in given):
        raise ValueError(f"{which}: the rights are {', '.join(known)}")
    rule = SasRule(name, *keys, frozenset(known[right] for right in given))
    _check(rule)
    return rule


def _check(rule: SasRule) -> None:
    """Refuse a rule that cannot be one. Raises: ValueError."""
    if not _NAME.fullmatch(rule.name):
        raise ValueError(
            f"the name {rule.name[:64]!r} of a rule is not 1 to 256 letters, digits, '.', '-' or '_' that "
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
