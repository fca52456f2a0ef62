"""What each tier allows, as data in one place.

Owns: the tier tables. Must not know: who asks, what a queue does. A limit that is not a tier's stands in
`validation`.
Source: wire contract 10.1 and 10.2; Learn "Service Bus quotas and limits", "Service Bus premium and standard
tiers".
"""

from __future__ import annotations

from dataclasses import dataclass

from peeklock.broker.descriptions import UNLIMITED_MS

_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class TierLimits:
    """Limits and features of one tier."""

    name: str
    """The SKU as the administration shows it."""
    message_size_kb_default: int
    """Size as transferred, with all overhead."""
    message_size_kb_max: int
    """More than the default: the entity may choose (MaxMessageSizeInKilobytes)."""
    max_size_mb_max: int
    """Largest size of an entity that may be asked for."""
    queues_max: int
    """Entities in a namespace; enforced only where the namespace says so (A-05)."""
    ttl_ms_max: int
    """Largest time-to-live, and the default of an entity."""
    batch_delete_max: int
    """Most messages one batch delete takes."""
    duplicate_detection: bool
    deferral: bool


BASIC = TierLimits(
    name="Basic",
    message_size_kb_default=256,
    message_size_kb_max=256,
    max_size_mb_max=5 * 1024,
    queues_max=10_000,
    ttl_ms_max=14 * _DAY_MS,
    batch_delete_max=500,
    duplicate_detection=False,
    deferral=False,
)
STANDARD = TierLimits(
    name="Standard",
    message_size_kb_default=256,
    message_size_kb_max=256,
    max_size_mb_max=5 * 1024,
    queues_max=10_000,
    ttl_ms_max=UNLIMITED_MS,
    batch_delete_max=500,
    duplicate_detection=True,
    deferral=True,
)
PREMIUM = TierLimits(
    name="Premium",
    message_size_kb_default=1024,
    message_size_kb_max=100 * 1024,
    max_size_mb_max=80 * 1024,
    queues_max=1_000,
    ttl_ms_max=UNLIMITED_MS,
    batch_delete_max=4_000,
    duplicate_detection=True,
    deferral=True,
)

TIERS = {tier.name.lower(): tier for tier in (BASIC, STANDARD, PREMIUM)}
