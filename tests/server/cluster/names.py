"""Host names of namespaces, for clients in this process."""

from __future__ import annotations

import socket
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resolve `NAME.localhost`, which not every system does."""
    resolve = socket.getaddrinfo

    def of_any(host: Any, *more: Any, **options: Any) -> Any:
        is_ours = isinstance(host, str) and host.endswith(".localhost")
        return resolve("127.0.0.1" if is_ours else host, *more, **options)

    monkeypatch.setattr(socket, "getaddrinfo", of_any)
