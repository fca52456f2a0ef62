"""Host names of namespaces, for clients in this process."""

from __future__ import annotations

import socket

import pytest


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resolve `NAME.localhost`, which not every system does."""
    resolve = socket.getaddrinfo

    def of_any(host: object, *more: object, **options: object) -> object:
        is_ours = isinstance(host, str) and host.endswith(".localhost")
        return resolve("127.0.0.1" if is_ours else host, *more, **options)  # type: ignore[arg-type]  # passed on

    monkeypatch.setattr(socket, "getaddrinfo", of_any)
