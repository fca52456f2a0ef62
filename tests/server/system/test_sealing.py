"""Secrets of a cluster are encrypted in its database."""

from __future__ import annotations

import pytest

from peeklock.cluster.key import ClusterKey
from peeklock.server.system.sealing import Sealing
from peeklock.store.base import StoreDamaged

SEALING = Sealing(ClusterKey(b"a" * 32))


def test_a_sealed_value_is_opened_for_its_fact_alone() -> None:
    sealed = SEALING.seal("keys/one", {"key": "secret"})
    assert "secret" not in str(sealed)
    assert sealed != SEALING.seal("keys/one", {"key": "secret"})
    assert SEALING.open("keys/one", sealed) == {"key": "secret"}
    with pytest.raises(StoreDamaged, match="keys/two of the process cannot be decrypted with this"):
        SEALING.open("keys/two", sealed)


def test_another_key_and_changed_bytes_open_nothing() -> None:
    sealed = SEALING.seal("keys/one", [])
    with pytest.raises(StoreDamaged):
        Sealing(ClusterKey(b"b" * 32)).open("keys/one", sealed)
    for text in (sealed["sealed"][:-4] + "AAA=", "", "é", None):
        with pytest.raises(StoreDamaged):
            SEALING.open("keys/one", {"sealed": text})
