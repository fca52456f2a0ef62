"""The text of `peeklock ca`: how clients trust the local authority, per language and operating system.

Tests run the lines for Python, Node.js, Java and Go.
"""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from pathlib import Path

from peeklock.server.tls.certificates import fingerprint, keep_authority, names_in
from peeklock.server.tls.contexts import CA_FILE, CA_STORE_FILE, CERTIFICATE_FILE, FOLDER
from peeklock.store.sqlite.folder import DATABASE_NAME


class NoStore(Exception):
    """The folder is not a data folder; the message says what to do."""


def authority_of(data: Path) -> tuple[Path, str]:
    """Return the authority's file of a data folder, made if missing, and the text about it.

    Raises: NoStore; OSError, with its name, for a file that is damaged or cannot be read.
    """
    file = (data / FOLDER / CA_FILE).absolute()
    if not file.exists() and not (data / DATABASE_NAME).exists():
        raise NoStore(
            f"{data} is not a data folder; give the one of `peeklock serve --data`, after its first start"
        )
    certificate = keep_authority(file.parent, datetime.now(UTC)).certificate
    mark = fingerprint(certificate)
    head = (
        f"certificate  {file}\nSHA-256      {mark}\nvalid until  {certificate.not_valid_after_utc:%Y-%m-%d}\n"
    )
    if names := names_in(file.parent / CERTIFICATE_FILE):
        head += (
            f"good for     {', '.join(names)}\n             (`peeklock serve --tls-name NAME` adds a name or "
            "an address)\n"
        )
    return file, head + "\n" + page(file, f"peeklock-{mark.replace(':', '')[:8].lower()}")


def page(file: Path, name: str) -> str:
    """Return how each language and system trusts this file; `name`: its name there."""
    path = shlex.quote(str(file))
    store = shlex.quote(str(file.with_name(CA_STORE_FILE)))
    options = f"-Djavax.net.ssl.trustStore={store} -Djavax.net.ssl.trustStorePassword=changeit"
    return f"""\
Copy this file to each client, also of other users on this machine: only its owner can read its folder
(`peeklock ca DIR --print > ca.pem`). The file is public; the other files in the folder are not. The paths
below are those of this machine: replace them by that of the copy.

REQUESTS_CA_BUNDLE and SSL_CERT_FILE replace all other authorities: a program that also connects to other
servers needs a file with their authorities and this one, on Debian or Ubuntu for example:
    cat /etc/ssl/certs/ca-certificates.crt {path} > joined.pem

Python, in the code, for ServiceBusClient and ServiceBusAdministrationClient, sync and aio:
    connection_verify={str(file)!r}
Python, without changing the code (ServiceBusClient and the sync administration client; repeat after each
update of certifi):
    cat {path} >> "$(python -m certifi)"
Python, administration clients only, by the environment (sync; aio):
    export REQUESTS_CA_BUNDLE={path}
    export SSL_CERT_FILE={path}

JavaScript (Node.js):
    export NODE_EXTRA_CA_CERTS={path}

Java, with the trust store beside the file, which has only this authority (copy it, too):
    export JAVA_TOOL_OPTIONS={shlex.quote(options)}
Java, in addition to the authorities that it trusts already:
    keytool -importcert -noprompt -alias {name} -file {path} -cacerts -storepass changeit

Go, on Linux (elsewhere as the system below):
    export SSL_CERT_FILE={path}

.NET, on Linux (elsewhere as the system below):
    export SSL_CERT_FILE={path}

Debian, Ubuntu:
    sudo cp {path} /usr/local/share/ca-certificates/{name}.crt && sudo update-ca-certificates
Fedora, RHEL:
    sudo cp {path} /etc/pki/ca-trust/source/anchors/{name}.pem && sudo update-ca-trust
macOS:
    sudo security add-trusted-cert -d -r trustRoot -k /Library/Keychains/System.keychain {path}
Windows, as administrator, with a copy of the file:
    certutil -addstore -f Root ca.pem
Python and Node.js do not use the system's authorities.

A broker with --tls-cert uses that certificate and not this authority.
"""
