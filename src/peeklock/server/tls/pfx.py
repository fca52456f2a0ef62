"""A certificate and its key from a PFX in base64, as Azure Key Vault returns them."""

from __future__ import annotations

import base64
import binascii
import tempfile
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from peeklock.server import files
from peeklock.server.tls.contexts import FOLDER

CERTIFICATE_FILE = "pfx-certificate.pem"
KEY_FILE = "pfx-key.pem"


class PfxInvalid(Exception):
    """The PFX cannot be used; the message says why, without its content."""


def unpacked(text: str, data: Path | None) -> tuple[Path, Path]:
    """Write certificate chain and key as PEM files; return both.

    `data` is the data folder; without one the files are in a temporary folder. OpenSSL reads files only.
    Raises: PfxInvalid.
    """
    try:
        key, certificate, more = pkcs12.load_key_and_certificates(
            base64.b64decode(text, validate=False), None
        )
    except (binascii.Error, ValueError) as failure:
        raise PfxInvalid(
            "cannot be read: give a PFX file without a password, in base64 (`base64 -w0 FILE.pfx`)"
        ) from failure
    if key is None or certificate is None:
        raise PfxInvalid("has no certificate with its key: export both")
    chain = b"".join(one.public_bytes(serialization.Encoding.PEM) for one in (certificate, *more))
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    folder = Path(tempfile.mkdtemp(prefix="peeklock-tls-")) if data is None else data / FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    files.replace(folder / KEY_FILE, pem, 0o600)
    files.replace(folder / CERTIFICATE_FILE, chain, 0o644)
    return folder / CERTIFICATE_FILE, folder / KEY_FILE
