"""The local certificate authority, as a fact of the process.

Its private key is in the system store alone; `tls` writes a copy of the certificate into the folder.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from peeklock.server.system.store import SystemStore, Values
from peeklock.server.tls.contexts import CA_FILE, CA_KEY_FILE, FOLDER
from peeklock.server.tls.kept_authority import Pair
from peeklock.store.base import StoreDamaged, StoreError, StoreFailed

FACT = "certificate-authority"

_TEXT = "latin-1"
"""PEM is ASCII; a file that is damaged comes back byte by byte too."""


class SystemAuthority:
    """The authority in a system store; see `KeptAuthority`. Make it on the loop, call it in threads."""

    def __init__(self, system: SystemStore, data: Path) -> None:
        """`data`: the folder in which people mend a fault."""
        self._system = system
        self._loop = asyncio.get_running_loop()
        self.certificate_place = "the certificate of the authority in the system store"
        self.key_place = "the private key of the authority in the system store"
        self.mend = f"put sound copies of {CA_FILE} and {CA_KEY_FILE} into {data / FOLDER}, and start again"
        self.mend_missing_key = f"put {CA_KEY_FILE} into {data / FOLDER}, and start again"

        self._loaded = Pair()

    def load(self) -> Pair:
        try:
            self._loaded = read(self._system)
        except StoreDamaged as failure:
            raise OSError(str(failure)) from failure
        return self._loaded

    def save(self, pair: Pair) -> None:
        before = self._loaded

        def values() -> Values:
            if read(self._system) != before:
                raise StoreFailed("another node of the cluster has made one just now")
            return values_of(pair)

        saving = asyncio.run_coroutine_threadsafe(self._system.change(values), self._loop)
        try:
            saving.result()
        except StoreError as failure:
            raise OSError(f"the local authority cannot be kept: {failure}") from failure


def read(system: SystemStore) -> Pair:
    """Return the authority of a system store, an empty pair if it has none. Raises: StoreDamaged."""
    found = system.get(FACT)
    if found is None:
        return Pair()
    if not isinstance(found, dict) or set(found) != {"certificate", "key"}:
        raise StoreDamaged(f"the fact {FACT} of the process cannot be read: it must have certificate and key")
    return Pair(_bytes(found["certificate"]), _bytes(found["key"]))


def values_of(pair: Pair) -> Values:
    """Return what is to be put for this pair."""
    both = {"certificate": pair.certificate, "key": pair.key}
    return {FACT: {name: None if pem is None else pem.decode(_TEXT) for name, pem in both.items()}}


def _bytes(pem: Any) -> bytes | None:
    if pem is None:
        return None
    try:
        if isinstance(pem, str):
            return pem.encode(_TEXT)
    except UnicodeEncodeError:
        pass
    raise StoreDamaged(f"the fact {FACT} of the process cannot be read: a part of it is not PEM")
