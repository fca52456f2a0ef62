"""How clients are told to trust the local authority, per language and per operating system.

Owns: what `peeklock ca` prints; the lines for Python, Node.js, Java and Go are tried by the tests. Must not
know: how an authority is made or used.
"""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from pathlib import Path

from peeklock.server.tls.certificates import fingerprint, keep_authority, names_in
from peeklock.server.tls.contexts import CA_FILE, CERTIFICATE_FILE, FOLDER
from peeklock.store.sqlite.folder import DATABASE_NAME


class NoStore(Exception):
    """The folder is no broker's; the message says what to do."""


def authority_of(data: Path) -> tuple[Path, str]:
    """Give the authority's file of a data folder, made if need be, and the page about it.

    Raises: NoStore; OSError when a file cannot be read or is damaged, by name.
    """
    file = (data / FOLDER / CA_FILE).absolute()
    if not file.exists() and not (data / DATABASE_NAME).exists():
        raise NoStore(
            f"{data} is no data folder; name the one that `peeklock serve --data` was given, after its first "
            "start"
        )
    certificate = keep_authority(file.parent, datetime.now(UTC)).certificate
    mark = fingerprint(certificate)
    head = (
        f"certificate  {file}\nSHA-256      {mark}\nvalid until  {certificate.not_valid_after_utc:%Y-%m-%d}\n"
    )
    if names := names_in(file.parent / CERTIFICATE_FILE):
        head += (
            f"good for     {', '.join(names)}\n             (`peeklock serve --tls-name NAME` adds a name or "
            "an address by which clients come)\n"
        )
    return file, head + "\n" + page(file, f"peeklock-{mark.replace(':', '')[:8].lower()}")


def page(file: Path, name: str) -> str:
    """Write how each language and system is told to trust this file; `name`: what it is called there."""
    path = shlex.quote(str(file))
    store = shlex.quote(str(Path.cwd() / f"{name}.p12"))
    options = f"-Djavax.net.ssl.trustStore={store} -Djavax.net.ssl.trustStorePassword=changeit"
    return f"""\
Copy this file to each client, also to those of other users here: its folder is its owner's alone
(`peeklock ca DIR --print > ca.pem`). The file is public. What lies beside it is not. The paths below are
those of this machine: put the copy's in their place.

REQUESTS_CA_BUNDLE and SSL_CERT_FILE take the place of all other authorities: a program that goes to other
servers too needs one file with theirs and this one, for example, on Debian or Ubuntu:
    cat /etc/ssl/certs/ca-certificates.crt {path} > joined.pem

Python, in the code; good for ServiceBusClient and ServiceBusAdministrationClient, sync and aio:
    connection_verify={str(file)!r}
Python, without touching the code (ServiceBusClient and the sync administration client; again after each
update of certifi):
    cat {path} >> "$(python -m certifi)"
Python, administration clients only, by the environment (sync; aio):
    export REQUESTS_CA_BUNDLE={path}
    export SSL_CERT_FILE={path}

JavaScript (Node.js):
    export NODE_EXTRA_CA_CERTS={path}

Java, a trust store of its own with this authority alone:
    keytool -importcert -noprompt -alias {name} -file {path} -keystore {store} -storepass changeit
    export JAVA_TOOL_OPTIONS={shlex.quote(options)}
Java, beside the authorities that it trusts already:
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
Python and Node.js have authorities of their own and do not ask the system.

A broker that was started with --tls-cert shows that certificate and does not use this authority.
"""
