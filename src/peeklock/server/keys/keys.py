"""The file of the namespace's shared access rules, `keys.json` in the data folder.

A change replaces the file as a whole, so that a broker that reads it sees the old or the new one; a running
broker checks every second whether the file has changed. A change holds a lock on the folder from the reading
on, so that none, such as the revocation of a key, is undone by another. `rules` says what a rule may be.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from peeklock.auth import ALL_RIGHTS, SasRule
from peeklock.server import files, log
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

__all__ = ["FILE", "GivenKeyFile", "KeyFile", "KeysRefused", "rule_json"]

FILE = "keys.json"
FILE_BYTES_MAX = 1024 * 1024
"""Our choice: twelve rules with the longest names and keys need 10 KiB."""


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
                self._write([new_rule(name, ALL_RIGHTS, self._draw)])
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
            return _read(json.loads(raw))
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
        """Add a rule with new keys; see `with_added`. Raises: KeysRefused."""
        with self._locked():
            rules, rule = with_added(self.load(), name, rights, self._draw)
            self._write(rules)
        return rule

    def rotate(self, name: str, *, revoke: bool) -> SasRule:
        """Replace the primary key of a rule; see `with_rotated`. Raises: KeysRefused."""
        with self._locked():
            rules, rule = with_rotated(self.load(), name, self._draw, revoke=revoke)
            self._write(rules)
        return rule

    def remove(self, name: str) -> tuple[str, bool]:
        """Remove a rule; return its name, and whether it was the last with Manage. Raises: KeysRefused."""
        with self._locked():
            left, gone = without(self.load(), name)
            self._write(left)
        return gone

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


def _read(given: Any) -> list[SasRule]:
    """Return the rules in a file. Raises: ValueError, with a text that quotes no key."""
    if not isinstance(given, dict) or set(given) != {"rules"} or not isinstance(given["rules"], list):
        raise ValueError('it must be {"rules": [...]} and nothing else')
    return read_rules(given["rules"])
