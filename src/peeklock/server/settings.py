"""What `peeklock serve` was asked for.

Owns: the settings of a broker process, as values. Must not know: who reads them, and from where they come.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from peeklock.broker.queue.graces import LOCK_GRACE_MS
from peeklock.broker.queue.wall_clock import CLOCK_STEP_LIMIT_MS
from peeklock.server.keys.authority_manager import AuthMode

if TYPE_CHECKING:
    from peeklock.server.capture import CaptureSettings


HISTORY = 1_000
"""What development mode remembers. Our choice: 10 MB at most, with bodies of 4 KiB."""


@dataclass(frozen=True, slots=True)
class Settings:
    """See the module."""

    data: Path | None
    config: Path | None
    host: str
    amqp_port: int
    http_port: int
    durability: Literal["fsync", "os", "memory"]
    tls_cert: Path | None
    tls_key: Path | None
    tier: str
    min_free_bytes: int | None
    enforce_quotas: bool = False
    delete_lock: bool = False
    lock_grace_ms: int | None = LOCK_GRACE_MS
    """How long a connection that broke keeps its locks; None = until they lapse."""
    clock_step_limit_ms: int = CLOCK_STEP_LIMIT_MS
    """How far forwards the wall clock may be set at once without being taken to be wrong."""
    capture: CaptureSettings | None = None
    """None = no event log."""
    auth: frozenset[AuthMode] = frozenset()
    """What is asked of clients; empty = development mode, in which the emulator's well-known key is good for
    everything."""
    jwt: Path | None = None
    """The file that says which JSON web tokens are taken; None = none."""
    allow_plaintext: bool = False
    """Take connections without TLS from other machines too."""
    tls_names: tuple[str, ...] = ()
    """What our certificate has to name beside this machine."""
    host_names: tuple[str, ...] = ()
    """Further DNS names by which HTTP clients come where no secret is asked for."""
    history: int | None = None
    """How many of the messages that left are remembered; None = `HISTORY` in development mode, else none."""
    usual_ports: bool = False
    """Listen on 5671, 443 and 80 too."""
    accept_loss: bool = False
    """Go on with what can be read of a damaged store."""

    @property
    def history_size(self) -> int:
        """How many of the messages that left are remembered; 0 = none."""
        return self.history if self.history is not None else 0 if self.auth else HISTORY
