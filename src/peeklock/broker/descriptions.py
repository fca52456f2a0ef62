"""Entity descriptions and the limits of the tiers, as data.

Owns: what a queue's settings are, their defaults and ranges, and the tier tables. Must not know: XML, JSON
files, wire.
Source: wire contract 7.3, 10.1, 10.2; Learn "Service Bus quotas".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

UNLIMITED_MS = 922_337_203_685_477
"""The largest time span, P10675199DT2H48M5.4775807S, in whole ms: stands for "never"."""


class EntityStatus(Enum):
    ACTIVE = "Active"
    DISABLED = "Disabled"
    SEND_DISABLED = "SendDisabled"
    RECEIVE_DISABLED = "ReceiveDisabled"


@dataclass(frozen=True, slots=True)
class QueueDescription:
    """Settings of a queue. Times in ms."""

    name: str
    lock_duration_ms: int = 60_000
    max_size_mb: int = 1024
    requires_duplicate_detection: bool = False
    requires_session: bool = False
    default_ttl_ms: int = UNLIMITED_MS
    dead_lettering_on_expiration: bool = False
    duplicate_window_ms: int = 600_000
    max_delivery_count: int = 10
    enable_batched_operations: bool = True
    status: EntityStatus = EntityStatus.ACTIVE
    forward_to: str | None = None
    forward_dead_lettered_to: str | None = None
    user_metadata: str | None = None
    auto_delete_on_idle_ms: int = UNLIMITED_MS
    enable_partitioning: bool = False
    enable_express: bool = False
    max_message_size_kb: int | None = None
    """None = the tier's default; settable in the premium tier only."""
