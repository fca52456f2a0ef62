"""A TLS context from files, or from a local authority."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from pathlib import Path

from peeklock.server.tls.contexts import TlsFiles


def server_context(
    data: Path | None,
    certificate: Path | None = None,
    key: Path | None = None,
    names: Sequence[str] = (),
    *,
    now_s: float | None = None,
) -> ssl.SSLContext:
    """Return what a broker with these settings meets TLS connections with."""
    return TlsFiles(data, certificate, key, names).load(now_s)
