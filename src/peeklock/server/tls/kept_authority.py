"""Where the local authority is kept: its certificate and its private key, as PEM.

It owns the files of an authority that is kept in a folder; it must not know what makes or checks one.
"""

from __future__ import annotations

import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from peeklock.server import files


@dataclass(frozen=True, slots=True)
class Pair:
    """The certificate of an authority and its private key, as PEM; either may be missing, and nothing is
    checked."""

    certificate: bytes | None = None
    key: bytes | None = None


class KeptAuthority(Protocol):
    """A place for the authority. Methods block; call them in a thread."""

    certificate_place: str
    """How an error names the certificate."""
    key_place: str
    mend: str
    """What to do if they are damaged or do not belong together."""
    mend_missing_key: str
    """What to do if the key is missing."""

    def load(self) -> Pair:
        """Return what is there. Raises: OSError."""

    def save(self, pair: Pair) -> None:
        """Keep a whole pair in the place of what was there. Raises: OSError."""


class FolderAuthority:
    """An authority in two files."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Name the files, in one folder; nothing is touched."""
        again = "to have a new authority made, which every client must then trust"
        self._certificate = certificate
        self._key = key
        self.certificate_place = str(certificate)
        self.key_place = str(key)
        self.mend = f"put a sound copy back, or delete {certificate.name} and {key.name} there {again}"
        self.mend_missing_key = f"put it back, or delete {certificate} {again}"

    def load(self) -> Pair:
        return Pair(
            *(file.read_bytes() if file.exists() else None for file in (self._certificate, self._key))
        )

    def save(self, pair: Pair) -> None:
        """Write what differs, the key first: a crash between the two leaves a key without a certificate."""
        for file, data, mode in ((self._key, pair.key, 0o600), (self._certificate, pair.certificate, 0o644)):
            assert data is not None
            if not file.exists() or file.read_bytes() != data:
                files.replace(file, data, mode)


def belong_together(pair: Pair, scratch: Path) -> bool:
    """Return whether OpenSSL accepts a pair; `scratch`: a folder for its files, which are removed again.

    OpenSSL reads files only. Raises: OSError.
    """
    if pair.certificate is None or pair.key is None:
        return False
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        made = FolderAuthority(Path(folder, "certificate.pem"), Path(folder, "key.pem"))
        made.save(pair)
        try:
            # Without a pass phrase OpenSSL asks for one at the terminal.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
                made.certificate_place, made.key_place, password=""
            )
        except ssl.SSLError:
            return False
    return True
