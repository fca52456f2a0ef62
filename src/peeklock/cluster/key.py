"""The secret that all nodes of a cluster share.

It is never used as it is: each use has a key of its own, derived by HMAC, so that what one use shows says
nothing of another.
"""

from __future__ import annotations

import hashlib
import hmac

BYTES_MIN = 32
"""Of the file. Our choice: 24 random bytes in base64 are 32."""

BYTES_MAX = 4096


class KeyUnusable(ValueError):
    """A file cannot be a cluster key; the text says why, and what to do."""


class ClusterKey:
    """The secret."""

    def __init__(self, content: bytes) -> None:
        """Take the content of the file; white space around it does not count. Raises: KeyUnusable."""
        secret = content.strip()
        if not BYTES_MIN <= len(secret) <= BYTES_MAX:
            raise KeyUnusable(
                f"it has {len(secret)} bytes, and a key has {BYTES_MIN} to {BYTES_MAX}: make one with "
                "`openssl rand -base64 32`, and give the same file to all nodes"
            )
        self._secret = secret

    def derived(self, use: str) -> bytes:
        """Return the key for one use, 32 bytes."""
        return hmac.new(self._secret, f"peeklock {use}".encode(), hashlib.sha256).digest()

    def digest(self) -> str:
        """Return what says whether two nodes have the same key, and nothing else."""
        return self.derived("cluster key digest").hex()
