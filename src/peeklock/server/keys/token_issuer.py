"""The issuer of web tokens that `--jwt` names: its settings from the file, its keys, both followed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from peeklock.auth.jwt import JwtSettings, JwtVerifier
from peeklock.server.keys.jwt_keys import JwtKeys, load_jwt


class TokenIssuer:
    """One issuer, as its file describes it now."""

    def __init__(self, file: Path, now_ms: Callable[[], int]) -> None:
        """Read the file; `now_ms`: UTC, never jumping. Raises: JwtFileInvalid."""
        self._file = file
        self._now_ms = now_ms
        self._settings, self.files = load_jwt(file)
        self._keys = JwtKeys(self._settings, now_ms)
        self.verifier = JwtVerifier(self._settings, self._keys)

    async def start(self) -> None:
        """Begin to fetch the issuer's keys, and keep them fresh until `stop`."""
        await self._keys.start()

    async def stop(self) -> None:
        """Cancel what is under way."""
        await self._keys.stop()

    async def read_again(self) -> None:
        """Follow the file; a new `verifier` stands for it. Raises: JwtFileInvalid, and nothing changes."""
        settings, self.files = load_jwt(self._file)
        if _names_other_keys(settings, self._settings):
            await self._keys.stop()
            self._keys = JwtKeys(settings, self._now_ms)
            await self._keys.start()
        self._settings = settings
        self.verifier = JwtVerifier(settings, self._keys)


def _names_other_keys(new: JwtSettings, old: JwtSettings) -> bool:
    return (new.issuer, new.keys) != (old.issuer, old.keys)
