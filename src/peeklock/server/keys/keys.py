"""Files of shared access rules: that of `--keys`, and `keys.json` of earlier releases.

Others replace such a file; it is only read here. `rules` says what a rule may be.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from peeklock.auth import SasRule
from peeklock.server.keys.rules import KeysRefused, read_rules

FILE = "keys.json"
"""Of earlier releases, in the data folder."""
FILE_BYTES_MAX = 1024 * 1024
"""Our choice: twelve rules with the longest names and keys need 10 KiB."""


class KeyFile:
    """The shared access rules in `keys.json` of a data folder, as earlier releases kept them."""

    _TOO_OPEN = 0o077
    """Bits of the mode that make the file readable or writable for too many."""

    def __init__(self, path: Path) -> None:
        """Name the file; it is not read yet."""
        self.path = path
        self._seen: tuple[int, ...] | None = None

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
            raise KeysRefused(f"{self.path} is no file of keys: {failure}") from None

    def _too_open(self) -> str:
        return (
            f"{self.path} can be read by others than its owner, so others may know the keys: run "
            f"`chmod 600 {self.path}`, start again, and replace them with "
            f"`peeklock keys rotate {self.path.parent} NAME --revoke`"
        )

    def _missing(self) -> str:
        return f"{self.path} is missing"

    def changed(self) -> bool:
        """Return whether the file has changed since the last reading, successful or not."""
        return self._identity() != self._seen

    def _identity(self) -> tuple[int, ...] | None:
        try:
            status = self.path.stat()
        except OSError:
            return None
        return (status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode)


class GivenKeyFile(KeyFile):
    """Rules in a file that others write, such as a secret that Kubernetes mounts; it is only read.

    Its group may read it: a mounted secret belongs to root, and to the group of the broker.
    """

    _TOO_OPEN = 0o037

    @property
    def only_read(self) -> str:
        """Why its rules cannot be changed here."""
        return f"{self.path} is only read: change it where it is made, and the broker follows"

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
