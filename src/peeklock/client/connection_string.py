"""A parsed connection string. Source: wire contract 1.2."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from peeklock.auth.sas import generate
from peeklock.client.credentials import Credential, web_token
from peeklock.client.errors import NOT_IMPLEMENTED, OptionError, refused
from peeklock.client.token_file import read_token

PLAIN_PORT: Final = 5672
TLS_PORT: Final = 5671
HTTPS_PORT: Final = 443

TOKEN_MS: Final = 300_000
"""Lifetime of a token for one HTTP request. Our choice."""

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
_URL: Final = re.compile("amqps?://", re.IGNORECASE)
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
    credential: Credential | None = field(default=None, repr=False)
    """Gives JSON web tokens; instead of key and signature."""
    websocket: bool = False
    """Whether AMQP travels over WebSocket."""
    generic: bool = False
    """Whether it is any AMQP 1.0 broker: `key_name` and `key` are user and password for SASL PLAIN instead of
    tokens; there are no batches and no management, and a settlement has no answer."""

    @classmethod
    def parse(
        cls,
        connection_string: str,
        *,
        ca_file: str | None = None,
        timeout_s: float = 60.0,
        token_file: str | None = None,
        credential: Credential | None = None,
        websocket: bool = False,
    ) -> ConnectionString:
        """Return a connection string taken apart, as by official clients; but with TLS too a port is kept.

        Args:
            connection_string: `Endpoint=sb://host[:port];SharedAccessKeyName=...;SharedAccessKey=...`, or
                `SharedAccessSignature` instead of the two; `UseDevelopmentEmulator=true` means no TLS;
                `EntityPath` is optional. Or `amqp://user:password@host:port`, with TLS `amqps://`: any broker
                of AMQP 1.0, without what Service Bus alone has.
            ca_file: PEM file of the certificates to trust; None = those of the machine.
            timeout_s: how long an operation is retried before its error is raised.
            token_file: file with a JSON web token; the connection string has no key and no signature then.
            credential: of `azure-identity`, for example; the same holds.
            websocket: AMQP over WebSocket, by port 443 unless the connection string has another one.

        Raises:
            OptionError: a key is unknown, missing or wrong, or the file cannot be read. The text never quotes
                a value that may be secret.
        """
        instead = None if credential is None else "a credential"
        instead = instead if token_file is None else "a token file"
        if _URL.match(connection_string.strip()):
            if instead is not None:
                raise _wrong(f"is the URL of a broker without tokens, and {instead} is given")
            certificates = None if ca_file is None else read_certificates(ca_file)
            return _of_url(connection_string.strip(), certificates, timeout_s, websocket)
        values = _values(connection_string)
        host, port = _endpoint(values.get("Endpoint", ""))
        plain = values.get("UseDevelopmentEmulator", "false").lower()
        if plain not in ("true", "false"):
            raise _wrong("has a UseDevelopmentEmulator that is neither true nor false")
        key_name, key, signature = _key(values, instead)
        tls = plain == "false"
        return cls(
            host,
            port or (PLAIN_PORT if not tls else HTTPS_PORT if websocket else TLS_PORT),
            tls,
            key_name,
            key,
            signature,
            values.get("EntityPath", "").strip("/"),
            None if ca_file is None else read_certificates(ca_file),
            timeout_s,
            token_file,
            credential,
            websocket,
        )

    def authorization(self, now_ms: int) -> str:
        """Return the header Authorization of an HTTP request to the namespace.

        Raises: ServiceBusError: the file or the credential has no token, or the broker takes none.
        """
        if self.generic:
            raise refused(NOT_IMPLEMENTED, "it is not said to be Service Bus", host=self.host, entity="")
        if self.token_file is not None:
            return f"Bearer {read_token(self.token_file, now_ms).text}"
        if self.credential is not None:
            return f"Bearer {web_token(self.credential).text}"
        resource = f"sb://{self.host}/"
        return self.signature or generate(resource, self.key_name, self.key, now_ms + TOKEN_MS)


def _values(connection_string: str) -> dict[str, str]:
    """Return the parts of a connection string by name. Raises: OptionError."""
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
    return values


def _of_url(url: str, certificates: str | None, timeout_s: float, websocket: bool) -> ConnectionString:
    """Return the settings of `amqp://user:password@host:port`. Raises: OptionError."""
    scheme, _, rest = url.partition("://")
    login, at, where = rest.rpartition("@")
    host, port = _endpoint(f"amqp://{where}")
    user, separator, password = login.partition(":")
    if where.partition("/")[2] or (at and not (user and separator)):
        raise _wrong("is a URL, but not of the form amqp://user:password@host:port")
    tls = scheme.lower() == "amqps"
    return ConnectionString(
        host,
        port or (TLS_PORT if tls else PLAIN_PORT),
        tls,
        unquote(user),
        unquote(password),
        certificates=certificates,
        timeout_s=timeout_s,
        websocket=websocket,
        generic=True,
    )


def _key(values: Mapping[str, str], instead: str | None) -> tuple[str, str, str]:
    """Return key name, key and signature; `instead`: what else gives tokens. Raises: OptionError."""
    key_name, key = values.get("SharedAccessKeyName", ""), values.get("SharedAccessKey", "")
    signature = values.get("SharedAccessSignature", "")
    if instead is not None:
        if signature or key_name or key:
            raise _wrong(f"has a key or a signature, and {instead} is given; use one of them")
    elif bool(signature) == bool(key_name or key):
        raise _wrong("needs either SharedAccessKeyName and SharedAccessKey, or SharedAccessSignature")
    elif not signature and not (key_name and key):
        raise _wrong(f"lacks {'SharedAccessKey' if key_name else 'SharedAccessKeyName'}")
    return key_name, key, signature


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
