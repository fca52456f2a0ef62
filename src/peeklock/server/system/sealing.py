"""Secrets among the facts of a cluster, encrypted: who can read the database cannot act as its clients.

A sealed value is `{"sealed": TEXT}`: base64 of a random nonce and of AES-256-GCM, whose associated data is
the key of the fact, so that no value can take the place of another one.
"""

from __future__ import annotations

import base64
import json
import os
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from peeklock.cluster.key import ClusterKey
from peeklock.store.base import StoreDamaged

NONCE_BYTES = 12
"""Source: NIST SP 800-38D 8.2; random ones are good for 2^32 values of a key."""


class Sealing:
    """Seals and opens values with a key that follows from the cluster key."""

    def __init__(self, key: ClusterKey) -> None:
        self._cipher = AESGCM(key.derived("secrets"))

    def seal(self, fact: str, value: Any) -> dict[str, str]:
        """Return a JSON value sealed for this fact."""
        nonce = os.urandom(NONCE_BYTES)
        sealed = self._cipher.encrypt(nonce, json.dumps(value).encode(), fact.encode())
        return {"sealed": base64.b64encode(nonce + sealed).decode()}

    def open(self, fact: str, sealed: dict[str, Any]) -> Any:
        """Return a value that was sealed for this fact. Raises: StoreDamaged."""
        try:
            data = base64.b64decode(sealed["sealed"], validate=True)
            return json.loads(self._cipher.decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], fact.encode()))
        except (ValueError, TypeError, InvalidTag) as failure:
            raise StoreDamaged(
                f"the fact {fact} of the process cannot be decrypted with this cluster key"
            ) from failure
