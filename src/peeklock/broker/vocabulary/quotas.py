"""What each tier allows, and what one entity or transaction may cost, in one table.

`validation` has the ranges that are the same in every tier.
Source: wire contract 10.1 and 10.2; Learn "Service Bus quotas and limits", "Service Bus premium and standard
tiers". The service limits the size of messages, not their number.
"""

from __future__ import annotations

from dataclasses import dataclass

from peeklock.broker.vocabulary.descriptions import UNLIMITED_MS

_DAY_MS = 86_400_000

RECEIVE_REQUESTS_MAX = 5_000
"""Receivers of one entity; enforced with the quotas of the namespace (A-05). Source: wire contract 10.1."""

DUPLICATE_IDS_MAX = 5_000_000
"""Message ids that one entity remembers, up to 900 MB; beyond it sends are refused. Our choice: 8,000 sends a
second over the default window of ten minutes."""

DEFERRED_BYTES_MAX = 16 * 1024 * 1024
"""Size of deferred messages received by one request. Our choice: its answer is built in memory."""

RULES_MAX = 100_000
"""Rules of one topic, always enforced. Our choice, for memory: the service's limit for correlation
filters."""

TRANSACTION_MESSAGES_MAX = 100
"""Messages sent and scheduled in one transaction, without settlements. Source: wire contract 6, 10.1, C34."""

TRANSACTION_BYTES_MAX = 16 * 1024 * 1024
"""Size of messages, properties and states in one transaction, and of the next. Source: semantics F-03."""

ENLISTED_BYTES_MIN = 512
"""What each message sent, settled or cancelled, and each state, counts at least in a transaction: the memory
of its command. Source: wire contract C34; of sends, our choice."""

TRANSACTION_MS_MAX = 120_000
"""Source: wire contract 6 and 10.1: 2 minutes from the first operation."""

EMPTY_TRANSACTION_MS_MAX = 600_000
"""How long a transaction may be open before its first operation. Source: wire contract C34."""

OPEN_TRANSACTIONS_MAX = 5_000
"""On one connection; further declares wait. Source: wire contract C34."""

OPEN_TRANSACTIONS_BYTES_MAX = 64 * 1024 * 1024
"""Size of all open transactions of one connection. Source: wire contract C34."""

WAITING_DECLARES_MAX = 100
"""On one coordinator link: its credit. Source: wire contract C34."""

DECLARE_WAIT_MS_MAX = 20_000
"""How long a declare waits for its answer. Source: wire contract C34."""

CURSORS_MAX = 100
"""Cursors of one queue or sub-queue, always enforced. Our choice."""

CLAIMS_MAX = 1_000
"""Claims of one cursor neither committed nor released. Our choice: two million messages in one frame."""

CLAIM_MESSAGES_MAX = 2_000
"""Messages of one claim. Our choice: some 4 ms of work."""

CURSOR_NAME_MAX = 128
"""Characters of a cursor's name."""

CURSOR_EXPIRES_AFTER_MS = 7 * _DAY_MS
"""How long after its last use a cursor is forgotten by default. Our choice: a query that stopped over a long
weekend finds its claims."""

CURSOR_EXPIRES_AFTER_MS_MIN = 60_000
CURSOR_EXPIRES_AFTER_MS_MAX = 366 * _DAY_MS
"""Our choice."""


@dataclass(frozen=True, slots=True)
class TierLimits:
    """Limits and features of one tier; the defaults are those of Standard."""

    name: str
    """The SKU as administration shows it."""
    message_size_kb_default: int = 256
    """Size as transferred, with all overhead."""
    message_size_kb_max: int = 256
    """If larger than the default, the entity may choose (MaxMessageSizeInKilobytes)."""
    max_size_mb_max: int = 5 * 1024
    """Largest size of an entity, or of each of its partitions."""
    size_mb_step: int = 1024
    """Sizes are multiples of it. Source: wire contract C44."""
    queues_max: int = 10_000
    """Queues and topics of a namespace; enforced only if the namespace enforces quotas (A-05)."""
    ttl_ms_max: int = UNLIMITED_MS
    """Largest time-to-live, and the default of an entity."""
    session_state_bytes_max: int = 256 * 1024
    """Largest state of one session."""
    duplicate_detection: bool = True
    deferral: bool = True
    sessions: bool = True
    forwarding: bool = True
    """ForwardTo and ForwardDeadLetteredMessagesTo."""
    transactions: bool = True
    partitioning: bool = True
    """EnablePartitioning of one entity; the premium tier partitions namespaces."""
    topics: bool = True
    subscriptions_max: int = 2_000
    """Subscriptions of one topic; enforced as `queues_max`, and so are the next two."""
    sql_filters_max: int = 2_000
    """SQL filters of one topic, with true and false filters."""
    correlation_filters_max: int = 100_000
    """Correlation filters of one topic."""
    idle_deletion: bool = True
    """AutoDeleteOnIdle. Source: the service's own refusal, "The property 'AutoDeleteOnIdle' cannot be set
    when creating a Queue because the namespace [...] is using 'Basic' tier" (MassTransit issue 657)."""


STANDARD = TierLimits("Standard")
BASIC = TierLimits(
    "Basic",
    ttl_ms_max=14 * _DAY_MS,
    session_state_bytes_max=0,
    duplicate_detection=False,
    deferral=False,
    sessions=False,
    forwarding=False,
    transactions=False,
    topics=False,
    idle_deletion=False,
)
PREMIUM = TierLimits(
    "Premium",
    message_size_kb_default=1024,
    message_size_kb_max=100 * 1024,
    max_size_mb_max=80 * 1024,
    size_mb_step=1,
    queues_max=1_000,
    session_state_bytes_max=1024 * 1024,
    partitioning=False,
)

TIERS = {tier.name.lower(): tier for tier in (BASIC, STANDARD, PREMIUM)}
