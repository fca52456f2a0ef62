"""`python -m tests.golden.stores.make FOLDER`: write the small store that each format keeps one of.

Run once when a format is new; the folder is never written again. `test_golden_stores` states what is in it.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from uuid import UUID

from peeklock.broker.vocabulary.addresses import SequenceNumber
from peeklock.broker.vocabulary.changes import (
    ClaimRemoved,
    ClaimStored,
    CursorRemoved,
    CursorStored,
    EntityRemoved,
    EntityStored,
    FactRemoved,
    FactStored,
    MessageIdSeen,
    MessageRemoved,
    MessageStored,
    NumbersIssued,
    RuleRemoved,
    RuleStored,
)
from peeklock.broker.vocabulary.descriptions import (
    DEFAULT_RULE_NAME,
    AuthorizationRule,
    EntityStatus,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from peeklock.broker.vocabulary.events import Event, EventType
from peeklock.broker.vocabulary.message import Message, MessageState
from peeklock.rules.filters import AsGiven, CorrelationFilter, FalseFilter, SqlAction, SqlFilter
from peeklock.store.base import Batch
from peeklock.store.sqlite.store import SqliteStore

ORDERS = EntityStored(1, QueueDescription("orders"), 1_700_000_000_000, 1_700_000_000_000)
EVERY_SETTING = EntityStored(
    2,
    QueueDescription(
        "with/every Setting",
        lock_duration_ms=5_000,
        max_size_mb=2048,
        requires_duplicate_detection=True,
        default_ttl_ms=86_400_000,
        dead_lettering_on_expiration=True,
        duplicate_window_ms=60_000,
        max_delivery_count=3,
        enable_batched_operations=False,
        status=EntityStatus.RECEIVE_DISABLED,
        user_metadata="naïve ☃",
        auto_delete_on_idle_ms=3_600_000,
        max_message_size_kb=2048,
    ),
    1_700_000_000_001,
    1_700_000_000_002,
)
DELETED = EntityStored(3, QueueDescription("deleted"), 0, 0)

PAYLOADS = [b"first payload", b"", b"x" * 5000]


def message(position: int, row: int, slot: int, state: MessageState = MessageState.ACTIVE) -> Message:
    made = Message(len(PAYLOADS[slot]), bare_offset=7)
    made.position = position
    made.sequence_number = SequenceNumber(position)
    made.enqueued_at_ms = 1_700_000_000_000 + position
    made.body_row, made.body_slot = row, slot
    made.state = state
    return made


def format_1() -> list[Batch]:
    """Return batches with every kind of fact that format 1 has, also ones that later facts replace."""
    plain, gone, scheduled = message(1, 1, 0), message(2, 1, 1), message(3, 1, 2, MessageState.SCHEDULED)
    scheduled.scheduled_at_ms = 1_800_000_000_000
    deferred = message(1, 1, 0, MessageState.DEFERRED)
    deferred.delivery_count = 2
    deferred.ttl_ms = 60_000
    deferred.expires_at_ms = 1_700_000_060_001
    deferred.overlay = b"\xc1\x01\x00"
    dead = message(2, 1, 1)
    dead.position = 1 << 63  # where sequence numbers have rolled over
    dead.sequence_number = SequenceNumber(0)
    dead.enqueued_sequence_number = SequenceNumber(2)
    return [
        Batch(41, [ORDERS, EVERY_SETTING, DELETED]),
        Batch(42, [MessageStored(4, m) for m in (plain, gone, scheduled)], {1: PAYLOADS}),
        Batch(
            43,
            [
                MessageIdSeen(8, b"0123456789abcdef", 1_700_000_000_000, SequenceNumber(5)),
                NumbersIssued(4, 4, SequenceNumber(4), 9),
            ],
        ),
        Batch(
            44,
            [MessageRemoved(4, gone), MessageStored(5, dead), MessageStored(4, deferred)],
            {3: [b"dead row"]},
        ),
        Batch(
            45,
            [EntityRemoved(3), NumbersIssued(4, 5, SequenceNumber(5), 1_700_000_000_003)],
            {},
            [3],
            truncate_before=42,
        ),
    ]


SESSIONS = EntityStored(
    4,
    QueueDescription(
        "sessions",
        requires_session=True,
        forward_to="orders",
        forward_dead_lettered_to="with/every Setting",
        enable_partitioning=True,
    ),
    1_700_000_000_003,
    1_700_000_000_003,
)
PARTITIONS = (*range(1, 16), 1 << 48)  # the last one has rolled over
STATE = b"state of a session"


def format_2() -> list[Batch]:
    """Return the batches that follow in format 2: texts, hops, partitions, the queue of session states."""
    first, again, other = (message(n, 4, n - 1) for n in (1, 2, 3))
    first.session_id = again.session_id = "session ☃"
    other.session_id = ""
    other.hops = 4
    changed = message(1, 4, 0, MessageState.DEFERRED)
    changed.session_id = "session ☃"
    changed.overlay = b"\xc1\x01\x00"
    state = message(1, 5, 0)
    state.session_id = "session ☃"
    old_state = message(2, 5, 0)
    old_state.session_id = "forgotten"
    forwarded = message(2, 4, 1)
    forwarded.hops = 1
    forwarded.dead_letter_source = "orders"
    untransferred = message(1, 4, 2)
    untransferred.dead_letter_source = "sessions"
    untransferred.session_id = "x" * 128
    return [
        Batch(46, [SESSIONS, *(MessageStored(16, m) for m in (first, again, other))], {4: PAYLOADS}),
        Batch(
            47,
            [
                MessageStored(19, state),
                MessageStored(19, old_state),
                MessageStored(5, forwarded),
                MessageStored(18, untransferred),
                NumbersIssued(16, 4, SequenceNumber(4), 9, tuple(range(16))),
                NumbersIssued(19, 3, SequenceNumber(3), 0),
            ],
            {5: [STATE]},
        ),
        Batch(
            48,
            [
                MessageRemoved(19, old_state),
                MessageStored(16, changed),
                NumbersIssued(16, 5, SequenceNumber(5), 1_700_000_000_003, PARTITIONS),
            ],
        ),
    ]


EVENTS = EntityStored(5, TopicDescription("Events"), 1_700_000_000_004, 1_700_000_000_004)
EVERY_TOPIC_SETTING = EntityStored(
    6,
    TopicDescription(
        "with/every Topic Setting",
        max_size_mb=2048,
        requires_duplicate_detection=True,
        default_ttl_ms=86_400_000,
        duplicate_window_ms=60_000,
        enable_batched_operations=False,
        status=EntityStatus.SEND_DISABLED,
        user_metadata="naïve ☃",
        auto_delete_on_idle_ms=3_600_000,
        enable_partitioning=True,
        enable_express=True,
        support_ordering=False,
        max_message_size_kb=2048,
    ),
    1_700_000_000_005,
    1_700_000_000_006,
)
ALL = EntityStored(7, SubscriptionDescription("events", "All"), 1_700_000_000_007, 1_700_000_000_007)
EVERY_SUBSCRIPTION_SETTING = EntityStored(
    8,
    SubscriptionDescription(
        "Events",
        "every-setting",
        lock_duration_ms=5_000,
        requires_session=True,
        default_ttl_ms=86_400_000,
        dead_lettering_on_expiration=True,
        dead_lettering_on_filter_errors=False,
        max_delivery_count=3,
        enable_batched_operations=False,
        status=EntityStatus.RECEIVE_DISABLED,
        forward_to="orders",
        forward_dead_lettered_to="with/every Setting",
        user_metadata="naïve ☃",
        auto_delete_on_idle_ms=3_600_000,
    ),
    1_700_000_000_008,
    1_700_000_000_009,
)
DELETED_SUBSCRIPTION = EntityStored(9, SubscriptionDescription("Events", "deleted"), 0, 0)

_VALUES = (
    ("@null", None),
    ("@true", True),
    ("@int", -(2**63)),
    ("@float", 1.0),
    ("@infinite", float("inf")),
    ("@text", "naïve ☃"),
    ("@bytes", b"\x00\xff"),
    ("@uuid", UUID("00112233-4455-6677-8899-aabbccddeeff")),
    ("@time", datetime(2024, 2, 29, 23, 59, 59, 999_999, tzinfo=UTC)),
    ("@span", timedelta(days=-1, microseconds=1)),
    ("@decimal", Decimal("1.10")),
)
DEFAULT_RULE = RuleStored(7, RuleDescription(DEFAULT_RULE_NAME, created_at_ms=1_700_000_000_007))
CORRELATION_RULE = RuleStored(
    8,
    RuleDescription(
        "Correlation",
        CorrelationFilter("c", "m", "t", "r", "l", "s", "rs", "ct", _VALUES),
        None,
        1_700_000_000_010,
    ),
)
NO_RULE = RuleStored(8, RuleDescription("none", FalseFilter(), None, 1_700_000_000_011))
SQL_RULE = RuleStored(
    8,
    RuleDescription(
        "sql",
        SqlFilter("colour = @text", _VALUES),
        SqlAction("SET colour = @null", _VALUES),
        1_700_000_000_012,
    ),
)
RULES = [DEFAULT_RULE, CORRELATION_RULE, NO_RULE, SQL_RULE]


def format_3() -> list[Batch]:
    """Return the batches that follow in format 3: topics, subscriptions, rules, copies that share a body."""
    copies = [message(1, 6, 0) for _ in range(3)]
    first = [MessageStored(4 * entity_id, copy) for entity_id, copy in zip((7, 8, 9), copies, strict=True)]
    old_rule = RuleStored(8, RuleDescription("SQL", FalseFilter(), None, 1))
    replaced = RuleStored(8, RuleDescription("replaced"))
    return [
        Batch(49, [EVENTS, EVERY_TOPIC_SETTING, ALL, DEFAULT_RULE]),
        Batch(50, [EVERY_SUBSCRIPTION_SETTING, DELETED_SUBSCRIPTION, old_rule, NO_RULE, replaced]),
        Batch(51, [*first, RuleStored(9, RuleDescription(DEFAULT_RULE_NAME))], {6: PAYLOADS[:1]}),
        Batch(52, [SQL_RULE, CORRELATION_RULE, RuleRemoved(8, "REPLACED"), EntityRemoved(9)]),
    ]


LAKE = CursorStored(28, "a lake/é", 3, 1, 1_700_000_000_020, 604_800_000)
UNUSED = CursorStored(17, "unused", 0, 0, 1_700_000_000_021, 60_000)
CLAIMS = [ClaimStored(28, "a lake/é", 2, ((4, 2), (9, 1))), ClaimStored(28, "a lake/é", 3, ((1 << 63, 1),))]
ENQUEUED = Event(
    *(EventType.ENQUEUED, 1_700_000_000_022, 4, "orders", 4, 4, 0, 0, 13, 1_700_000_000_022, 0, 0, 0, 0, 1),
    *(None, "session ☃", None, "sender", b"transaction", None, b"head", 0),
)


def format_4() -> list[Batch]:
    """Return the batches that follow in format 4: cursors, claims, events."""
    old_claim = ClaimStored(28, "a lake/é", 1, ((1, 1),))
    gone = CursorStored(28, "gone", 0, 0, 0, 60_000)
    claimed = [message(n, 7, slot) for slot, n in enumerate((4, 5, 9))]
    return [
        Batch(53, [*(MessageStored(28, m) for m in claimed), LAKE, old_claim, gone], {7: PAYLOADS}),
        Batch(54, [*CLAIMS, ClaimRemoved(28, "a lake/é", 1), UNUSED, CursorRemoved(28, "gone")], events=[]),
        Batch(55, [], events=[ENQUEUED]),
    ]


RULED = EntityStored(
    10,
    QueueDescription(
        "ruled",
        authorization_rules=(
            AuthorizationRule("sender", ("Send",), "first ☃", "second", 1_700_000_000_023, 1_700_000_000_024),
            AuthorizationRule("Owner", ("Send", "Listen", "Manage"), "k" * 256, "=", 1, 1_700_000_000_025),
        ),
    ),
    1_700_000_000_023,
    1_700_000_000_025,
)


def format_5() -> list[Batch]:
    """Return the batch that follows in format 5: authorization rules."""
    return [Batch(56, [RULED])]


_GIVEN = (("@short", 5), ("@none", None), ("@time", datetime(2024, 2, 29, tzinfo=UTC)))
AS_GIVEN = (AsGiven("d:short", "+5"), None, AsGiven("d:dateTime", "2024-02-29T00:00:00.0000000Z"))
GIVEN_RULES = [
    RuleStored(
        8,
        RuleDescription(
            "given", CorrelationFilter(properties=_GIVEN, as_given=AS_GIVEN), None, 1_700_000_000_026
        ),
    ),
    RuleStored(
        8,
        RuleDescription(
            "given-sql",
            SqlFilter("a = @short", _GIVEN, AS_GIVEN),
            SqlAction("SET a = @short", _GIVEN, AS_GIVEN),
            1_700_000_000_027,
        ),
    ),
]
LOST = ENQUEUED._replace(type=EventType.LOCK_LAPSED, head=None, connection_lost=1)


def format_6() -> list[Batch]:
    """Return the batches that follow in format 6: messages that were scheduled, values of rules as they were
    given, an event of a lost connection."""
    activated, dead, in_session = (message(n, 8, n - 10) for n in (10, 11, 12))
    activated.was_scheduled = dead.was_scheduled = in_session.was_scheduled = True
    dead.dead_letter_source = "orders"
    dead.overlay = b"\xc1\x01\x00"
    in_session.session_id = "session ☃"
    in_session.hops = 4
    in_session.state = MessageState.DEFERRED
    return [
        Batch(
            57,
            [MessageStored(4, activated), MessageStored(5, dead), MessageStored(16, in_session)],
            {8: PAYLOADS},
        ),
        Batch(58, [*GIVEN_RULES], events=[LOST]),
    ]


FACTS = {"keys/a": '["a \\"key\\" ☃"]', "namespace/é": "{}"}


def format_7() -> list[Batch]:
    """Return the batches that follow in format 7: facts of the process."""
    stored = [FactStored(key, value) for key, value in FACTS.items()]
    return [
        Batch(59, [FactStored("keys/a", "old"), FactStored("gone", "")]),
        Batch(60, [*reversed(stored), FactRemoved("gone")]),
    ]


async def make(folder: Path) -> None:
    store = SqliteStore(folder)
    await store.open()
    for batches in (format_1, format_2, format_3, format_4, format_5, format_6, format_7):
        for batch in batches():
            await store.commit(batch)
    await store.close()
    for name in ("peeklock.lock", "peeklock.witness"):
        (folder / name).unlink()


if __name__ == "__main__":
    asyncio.run(make(Path(sys.argv[1])))
