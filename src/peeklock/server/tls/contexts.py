"""The TLS contexts of connections, and the files behind them, followed while the broker runs.

Without a pair of the user's own, the local authority of the data folder signs one (`certificates`, imported
when needed). Without a data folder the authority exists in this process only.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from peeklock.server import log
from peeklock.server.tls.kept_authority import FolderAuthority, KeptAuthority

FOLDER = "tls"
CA_FILE = "ca.pem"
CA_STORE_FILE = "ca.p12"
"""The authority as a trust store of Java, with the password `changeit`, which is its tools' default."""
CA_KEY_FILE = "ca-key.pem"
CERTIFICATE_FILE = "certificate.pem"
KEY_FILE = "key.pem"

FULL_NAME_S_MAX = 1.0
"""Time-out for the look-up of this machine's full name, and of its addresses: without a name server it takes
half a minute. Our choice."""

_Found = TypeVar("_Found")

_ELSEWHERE = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
"""Never this machine's addresses. Source: RFC 5737 and RFC 3849, for documentation."""


LOOK_S = 60.0
"""Between two checks of the files for changes. Our choice: a renewed pair is in use a minute later."""

KEEP_S = 86_400.0
"""Between two checks of the expiry of our own certificate."""


class TlsFiles:
    """The certificate and key of the broker while it runs; methods read files."""

    def __init__(
        self,
        data: Path | None,
        certificate: Path | None = None,
        key: Path | None = None,
        names: Sequence[str] = (),
        *,
        for_others: bool = False,
        authority: KeptAuthority | None = None,
    ) -> None:
        """Read nothing yet.

        Args:
            data: the folder with the local authority; None = it is not kept.
            certificate: a PEM file, instead of what the authority signs.
            key: a PEM file; None = in the same file as the certificate.
            names: names in the authority's certificate, beside this machine's.
            for_others: other machines can connect, so the certificate needs this machine's addresses.
            authority: where the local authority of `data` is kept; None = in the folder.
        """
        self._data = data
        self._certificate = certificate
        self._key = key
        self._names = names
        self._for_others = for_others
        self._authority = authority
        self.names: list[str] = []
        """Names in our own certificate when it was loaded last."""
        self._seen: list[tuple[int, int, int]] | None = None
        """State of the files when they were read last; None = they have not been read."""
        self.refused = False
        """Whether the present files cannot be used."""
        self._kept_at_s = 0.0

    def load(self, now_s: float | None = None) -> ssl.SSLContext:
        """Return a context from the present files, for a certificate made at `now_s`, UTC; None = now.

        Raises: OSError (file not readable), ssl.SSLError (not a PEM pair, or not matching), with the file.
        """
        now_s = time.time() if now_s is None else now_s
        before = self._stamps()
        if self._certificate is None:
            others = own_addresses() if self._for_others else []
            self.names = _unique([*host_names(), *self._names, *others])
            context = _own_context(self._data, self.names, now_s, self._authority)
        else:
            context = _context(self._certificate, self._key or self._certificate)
        # Ours may have been written just now; given files may have been replaced during the load.
        self._seen = self._stamps() if self._certificate is None else before
        self._kept_at_s = now_s
        return context

    def make_files(self) -> bool:
        """Make the local authority and its certificate unless they look sound; return whether they were made.

        The certificate has the names that are known at once. `load` looks up the others, which may take
        seconds, and replaces it if one is missing. Raises: as `load`.
        """
        if self.looks_sound():
            return False
        from peeklock.server.tls.certificates import keep_pair

        assert self._data is not None
        others = own_addresses(ask=False) if self._for_others else []
        names = _unique([*host_names(ask=False), *self._names, *others])
        keep_pair(self._data / FOLDER, names, datetime.datetime.now(datetime.UTC), self._authority)
        return True

    def looks_sound(self) -> bool:
        """Return whether the files in the data folder can be loaded and belong together; changes nothing.

        OpenSSL checks it: `cryptography` costs too much for a broker that may never have a TLS client.
        """
        if self._certificate is not None or self._data is None:
            return True  # loaded already, or not kept
        certificate, key, ca, *ca_keys = self._files()
        try:
            _load(certificate, key)
            for ca_key in filter(Path.exists, ca_keys):
                _load(ca, ca_key)
            if self._authority is not None and self._authority.load().certificate != ca.read_bytes():
                return False
            is_ours = certificate.read_bytes().endswith(ca.read_bytes())
            return is_ours and ca.with_name(CA_STORE_FILE).exists()
        except OSError:  # ssl.SSLError is one
            return False

    def open_keys(self) -> list[Path]:
        """Return the files with private keys that others than their owner can read."""
        files = self._files()[1::2]  # every second one is a key
        return [file for file in files if file.exists() and file.stat().st_mode & 0o077]

    def follow(self, now_s: float | None = None) -> ssl.SSLContext | None:
        """Return a new context if the pair has changed or must be renewed; None = keep the old one.

        A faulty new pair is logged, and the old one stays until the files change again.
        """
        now_s = time.time() if now_s is None else now_s
        stamps, seen = self._stamps(), self._seen
        if seen is None:
            return None  # no TLS client yet
        ours = self._certificate is None and self._data is not None
        if stamps == seen and not (ours and now_s >= self._kept_at_s + KEEP_S):
            return None
        try:
            context = self.load(now_s)
        except OSError as failure:  # ssl.SSLError is one
            self._seen, self._kept_at_s, self.refused = stamps, now_s, True
            log.error(
                "the TLS files cannot be used; the old pair stays in use",
                {"reason": str(failure), "do": "correct them; they are checked every minute, and on SIGHUP"},
            )
            return None
        self.refused = False
        if self._seen == seen:
            return None
        files = [str(file) for file in self._files()[:2]]
        log.info("TLS pair changed; new connections get the new one", {"files": files})
        return context

    def _files(self) -> list[Path]:
        if self._certificate is not None:
            return [self._certificate, self._key or self._certificate]
        if self._data is None:
            return []
        folder = self._data / FOLDER
        names = [CERTIFICATE_FILE, KEY_FILE, CA_FILE]
        if self._authority is None:
            names.append(CA_KEY_FILE)
        return [folder / name for name in names]

    def _stamps(self) -> list[tuple[int, int, int]]:
        stamps = []
        for file in self._files():
            try:
                found = file.stat()
            except OSError:  # missing: reading it reports that
                stamps.append((0, 0, 0))
            else:
                stamps.append((found.st_ino, found.st_mtime_ns, found.st_size))
        return stamps


def _unique(names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(filter(None, names)))


def in_folder(folder: Path) -> KeptAuthority:
    """Return the authority that is kept in a folder of TLS files."""
    return FolderAuthority(folder / CA_FILE, folder / CA_KEY_FILE)


def _own_context(
    data: Path | None, names: Sequence[str], now_s: float, authority: KeptAuthority | None
) -> ssl.SSLContext:
    now = datetime.datetime.fromtimestamp(now_s, datetime.UTC)
    if data is not None:
        from peeklock.server.tls.certificates import keep_pair

        folder = data / FOLDER
        keep_pair(folder, names, now, authority)
        return _context(folder / CERTIFICATE_FILE, folder / KEY_FILE)
    from peeklock.server.tls.certificates import make_pair

    with tempfile.TemporaryDirectory(prefix="peeklock-tls-") as made:  # OpenSSL reads files only
        pair = Path(made, CERTIFICATE_FILE), Path(made, KEY_FILE)
        for file, pem in zip(pair, make_pair(names, now), strict=True):
            file.write_bytes(pem)
        return _context(*pair)


def _context(certificate: Path, key: Path) -> ssl.SSLContext:
    try:
        return _load(certificate, key)
    except OSError as failure:  # ssl.SSLError is one too
        raise _fault(certificate, key, failure) from failure


def _load(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # Azure refuses older ones too
    # Without a pass phrase OpenSSL asks for one at the terminal, and a service would hang at its start.
    context.load_cert_chain(certificate, key, password="")
    return context


def _fault(certificate: Path, key: Path, failure: OSError) -> OSError:
    """Return an error with the file of a pair that OpenSSL refused, since it names none."""
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
    """Return the error for a faulty file."""
    return ssl.SSLError(ssl.SSL_ERROR_SSL, text)  # with the text alone, str() would show a tuple


def host_names(*, ask: bool = True) -> list[str]:
    """Return the names of this machine: local ones, its own, and its full name if `ask`."""
    names = ["localhost", "127.0.0.1", "::1"]
    own = socket.gethostname()
    for name in (own, own if "." in own or not ask else _full_name(own)):
        if name and name not in names and name.isascii():
            names.append(name)
    return names


def own_addresses(*, ask: bool = True) -> list[str]:
    """Return addresses by which other machines may reach this one; those of its name only if `ask`."""

    def resolve() -> list[str]:
        return [str(address[0]) for *_, address in socket.getaddrinfo(socket.gethostname(), None)]

    found = []
    for family, address in _ELSEWHERE:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((address, 9))  # sends nothing: it only chooses a source address
                found.append(str(probe.getsockname()[0]))
        except OSError:  # no route for this family
            continue
    if ask:
        found += _in_time(resolve) or []
    # Link-local addresses need a zone, which no certificate can name.
    return [address for address in dict.fromkeys(found) if not _is_near(address)]


def _is_near(address: str) -> bool:
    ip = ipaddress.ip_address(address.partition("%")[0])
    return ip.is_loopback or ip.is_link_local or ip.is_unspecified


def _in_time(ask: Callable[[], _Found]) -> _Found | None:
    """Return the result of a look-up; None = it failed or took too long."""
    found: list[_Found] = []

    def asking() -> None:
        with contextlib.suppress(OSError, UnicodeError):
            found.append(ask())

    thread = threading.Thread(target=asking, daemon=True)
    thread.start()
    thread.join(FULL_NAME_S_MAX)
    return found[0] if found else None


def _full_name(own: str) -> str:
    """Return this machine's full name; empty = none was found in time."""
    name = (_in_time(lambda: socket.getfqdn(own)) or "").rstrip(".")
    # A resolver may answer with any name with a dot: that of every machine, or an address.
    return "" if "." not in name or name.startswith("localhost.") or _is_address(name) else name


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name.endswith(".arpa")
    return True
