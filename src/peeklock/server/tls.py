"""The TLS contexts that connections are met with.

Owns: loading a pair of PEM files, the names that a certificate of ours is made for, and following the files
while the broker runs. Must not know: who connects, which protocol runs inside, how a certificate is made.

Without a pair of the user's own, the data folder's local authority signs one (`peeklock.server.certificates`,
imported when it is needed). Without a data folder the authority lives in this process only.
"""

from __future__ import annotations

import datetime
import ipaddress
import socket
import ssl
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

FOLDER = "tls"
CA_FILE = "ca.pem"
CA_KEY_FILE = "ca-key.pem"
CERTIFICATE_FILE = "certificate.pem"
KEY_FILE = "key.pem"

FULL_NAME_S_MAX = 1.0
"""How long this machine's full name is looked for: where no name server answers it takes half a minute. Our
choice."""


def server_context(
    data: Path | None,
    certificate: Path | None = None,
    key: Path | None = None,
    names: Sequence[str] = (),
    *,
    now_s: float | None = None,
) -> ssl.SSLContext:
    """Make the context for incoming TLS connections: from the files given, else by the local authority.

    `data`: the folder that keeps the authority, None = keep it nowhere. `names`: what the certificate has to
    name beside this machine. `now_s`: UTC, for its validity; None = the machine's clock.

    Raises: OSError (file not readable), ssl.SSLError (not a PEM pair, or not matching); both name the file.
    """
    if certificate is not None:
        return _context(certificate, key or certificate)
    now = (
        datetime.datetime.now(datetime.UTC)
        if now_s is None
        else datetime.datetime.fromtimestamp(now_s, datetime.UTC)
    )
    named = [*host_names(), *(name for name in names if name)]
    if data is not None:
        from peeklock.server.certificates import keep_pair

        folder = data / FOLDER
        keep_pair(folder, list(dict.fromkeys(named)), now)
        return _context(folder / CERTIFICATE_FILE, folder / KEY_FILE)
    from peeklock.server.certificates import make_pair

    with tempfile.TemporaryDirectory(prefix="peeklock-tls-") as made:  # OpenSSL reads files only
        pair = Path(made, CERTIFICATE_FILE), Path(made, KEY_FILE)
        for file, pem in zip(pair, make_pair(list(dict.fromkeys(named)), now), strict=True):
            file.write_bytes(pem)
        return _context(*pair)


def _context(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # Azure refuses older ones too
    try:
        # Without a pass phrase OpenSSL asks for one at the terminal, and a service would hang at its start.
        context.load_cert_chain(certificate, key, password="")
    except OSError as failure:  # ssl.SSLError is one too
        raise _fault(certificate, key, failure) from failure
    return context


def _fault(certificate: Path, key: Path, failure: OSError) -> OSError:
    """Find out which file of a pair OpenSSL did not take, since it names none."""
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        x509.load_pem_x509_certificates(certificate.read_bytes())
    except ValueError:
        return refused(f"{certificate} is not a PEM certificate")
    except OSError as unreadable:
        return unreadable
    try:
        load_pem_private_key(key.read_bytes(), None)
    except TypeError:
        return refused(f"{key} is encrypted; give a key without a pass phrase")
    except (ValueError, UnsupportedAlgorithm):
        return refused(f"{key} is not a PEM private key")
    except OSError as unreadable:
        return unreadable
    if isinstance(failure, ssl.SSLError) and failure.reason == "KEY_VALUES_MISMATCH":
        return refused(f"{key} is not the key of {certificate}")
    return refused(f"{certificate} and {key} are refused: {failure}")


def refused(text: str) -> ssl.SSLError:
    """Make the error for a file of a pair that does not do."""
    return ssl.SSLError(ssl.SSL_ERROR_SSL, text)  # with the text alone it would be shown as a tuple


def host_names() -> list[str]:
    """Name this machine as its local clients do, and by its own name and full name."""
    names = ["localhost", "127.0.0.1", "::1"]
    own = socket.gethostname()
    for name in (own, own if "." in own else _full_name(own)):
        if name and name not in names and name.isascii():
            names.append(name)
    return names


def _full_name(own: str) -> str:
    """Ask for this machine's full name; empty where there is none, or none is told in time."""
    found: list[str] = []
    asking = threading.Thread(target=lambda: found.append(socket.getfqdn(own)), daemon=True)
    asking.start()
    asking.join(FULL_NAME_S_MAX)
    name = found[0].rstrip(".") if found else ""
    # A resolver may answer with anything that has a dot: names that mean every machine, or an address.
    return "" if "." not in name or name.startswith("localhost.") or _is_address(name) else name


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name.endswith(".arpa")
    return True
