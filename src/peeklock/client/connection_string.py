"""A parsed connection string. Source: wire contract 1.2."""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from peeklock.auth.sas import generate
from peeklock.client.errors import OptionError

PLAIN_PORT: Final = 5672
TLS_PORT: Final = 5671

_KEYS: Final = (
    "Endpoint",
    "SharedAccessKeyName",
    "SharedAccessKey",
    "SharedAccessSignature",
    "EntityPath",
    "UseDevelopmentEmulator",
)
_CERTIFICATE: Final = re.compile(rb"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]*-----END CERTIFICATE-----")
_NAME: Final = re.compile("[A-Za-z]{1,32}")
_BY_LOWER: Final = {key.lower(): key for key in _KEYS}


@dataclass(frozen=True, slots=True)
class ConnectionString:
    """The address of a namespace, and credentials; hashable and picklable, and its repr has no secrets."""

    host: str
    port: int
    tls: bool
    key_name: str = ""
    key: str = field(default="", repr=False)
    signature: str = field(default="", repr=False)
    """A token instead of key name and key; it cannot be renewed."""
    entity_path: str = ""
    """The only entity of the connection string; empty = the whole namespace."""
    certificates: str | None = field(default=None, repr=False)
    """The certificates to trust as PEM, which processes on other machines need too; None = those of the
    machine."""
    timeout_s: float = 60.0
    """How long an operation is retried before its error is raised, seconds."""
    token_file: str | None = None
    """File with a JSON web token, read again before the token expires; instead of key and signature."""

    @classmethod
    def parse(
        cls,
        connection_string: str,
        *,
        ca_file: str | None = None,
        timeout_s: float = 60.0,
        token_file: str | None = None,
    ) -> ConnectionString:
        """Return a connection string taken apart, as by official clients; but with TLS too a port is kept.

        Args:
            connection_string: `Endpoint=sb://host[:port];SharedAccessKeyName=...;SharedAccessKey=...`, or
                `SharedAccessSignature` instead of the two; `UseDevelopmentEmulator=true` means no TLS;
                `EntityPath` is optional.
            ca_file: PEM file of the certificates to trust; None = those of the machine.
            timeout_s: how long an operation is retried before its error is raised.
            token_file: file with a JSON web token; the connection string has no key and no signature then.

        Raises:
            OptionError: a key is unknown, missing or wrong, or the file cannot be read. The text never quotes
                a value that may be secret.
        """
        values: dict[str, str] = {}
        for part in connection_string.strip().split(";"):
            if not part.strip():
                continue
            name, separator, value = part.partition("=")  # a key in base64 ends with `=`
            known = _BY_LOWER.get(name.strip().lower())
            if not separator or known is None:
                shown = "a part without '='" if not separator else "a part with an unknown name"
                if separator and _NAME.fullmatch(name.strip()):
                    shown = repr(name.strip())  # else it may be a secret without its name
                raise _wrong(f"has {shown}; it may hold {', '.join(_KEYS)}")
            values[known] = value.strip()
        host, port = _endpoint(values.get("Endpoint", ""))
        plain = values.get("UseDevelopmentEmulator", "false").lower()
        if plain not in ("true", "false"):
            raise _wrong("has a UseDevelopmentEmulator that is neither true nor false")
        key_name, key = values.get("SharedAccessKeyName", ""), values.get("SharedAccessKey", "")
        signature = values.get("SharedAccessSignature", "")
        if token_file is not None:
            if signature or key_name or key:
                raise _wrong("has a key or a signature, and a token file is given; use one of them")
        elif bool(signature) == bool(key_name or key):
            raise _wrong("needs either SharedAccessKeyName and SharedAccessKey, or SharedAccessSignature")
        elif not signature and not (key_name and key):
            raise _wrong(f"lacks {'SharedAccessKey' if key_name else 'SharedAccessKeyName'}")
        tls = plain == "false"
        return cls(
            host,
            port or (TLS_PORT if tls else PLAIN_PORT),
            tls,
            key_name,
            key,
            signature,
            values.get("EntityPath", "").strip("/"),
            None if ca_file is None else read_certificates(ca_file),
            timeout_s,
            token_file,
        )

    def token(self, resource: str, expires_at_ms: int) -> str:
        """Return a token for a resource URI; a `signature` is one already, of its own resource."""
        return self.signature or generate(resource, self.key_name, self.key, expires_at_ms)


def read_certificates(file: str) -> str:
    """Return the certificates of a PEM file, without what is around them. Raises: OptionError."""
    try:
        found = _CERTIFICATE.findall(Path(file).read_bytes())
    except OSError as failure:
        raise OptionError(
            f"the file of certificates '{file}' cannot be read: {failure.strerror or failure}."
        ) from None
    certificates = b"\n".join(found).decode("ascii")
    if not certificates:
        raise OptionError(f"the file '{file}' has no certificate in PEM.")
    try:
        ssl.create_default_context(cadata=certificates)
    except ssl.SSLError as failure:
        raise OptionError(f"the file '{file}' has a certificate that cannot be read: {failure}.") from None
    return certificates


def _endpoint(text: str) -> tuple[str, int | None]:
    """Return host and port (None = not given) of an endpoint such as `sb://name:5671/`."""
    scheme, separator, rest = text.partition("://")
    authority = rest.partition("/")[0] if separator else ""
    if not separator or scheme.lower() not in ("sb", "amqp", "amqps") or not authority:
        raise _wrong("has no Endpoint of the form sb://host or sb://host:port")
    if authority.startswith("["):  # an IPv6 literal keeps its colons
        host, _, after = authority[1:].partition("]")
        port = after.removeprefix(":")
    else:
        host, _, port = authority.partition(":")
    if not host or (port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536)):
        raise _wrong("has an Endpoint whose host or port cannot be read")
    return host, int(port) if port else None


def _wrong(what: str) -> OptionError:
    return OptionError(
        f"the connection string {what}. It looks like Endpoint=sb://host;SharedAccessKeyName=...;"
        f"SharedAccessKey=... (and UseDevelopmentEmulator=true for a broker without TLS)."
    )
