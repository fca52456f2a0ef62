"""What every store does, whatever it keeps its facts in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict, fields
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from peeklock.broker.vocabulary.addresses import SequenceNumber
from peeklock.broker.vocabulary.changes import (
    Change,
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
    Description,
    EntityStatus,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from peeklock.broker.vocabulary.message import LOST_BODY, Message
from peeklock.rules.filters import (
    AsGiven,
    CorrelationFilter,
    FalseFilter,
    Filter,
    SqlAction,
    SqlFilter,
    Value,
)
from peeklock.store.base import Batch, Definitions, Ends, FrameKeys, Store
from peeklock.store.encoding import body_rows
from peeklock.store.memory import MemoryStore
from peeklock.store.sqlite.store import SqliteStore
from tests.postgres_server import PostgresServer, database_of

QUEUE_ID = 4


class Medium:
    """Where a store keeps its facts; `opened` gives a store on it, as a new process would have it."""

    def __init__(self, make: Callable[[], Store]) -> None:
        self._make = make

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Store]:
        store = self._make()
        await store.open()
        try:
            yield store
        finally:
            await store.close()


@pytest.fixture(params=["memory", "sqlite, fsync", "sqlite, os", "postgres"])
def medium(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Medium]:
    if request.param == "memory":
        only = MemoryStore()
        yield Medium(lambda: only)
    elif request.param == "postgres":
        yield from medium_in(request.getfixturevalue("postgres"), tmp_path.name)
    else:
        durability = request.param.split(", ")[1]
        yield Medium(lambda: SqliteStore(tmp_path / "data", durability=durability))


def medium_in(server: PostgresServer, name: str) -> Iterator[Medium]:
    from peeklock.store.postgres.store import PostgresStore

    databases = []

    def make() -> Store:
        databases.append(database_of(server.url()))
        return PostgresStore(databases[-1], name)

    yield Medium(make)
    for database in databases:
        database.close()


def run(test: Callable[[Medium], Coroutine[Any, Any, None]]) -> Callable[[Medium], None]:
    def runs(medium: Medium) -> None:
        asyncio.run(test(medium))

    runs.__name__ = test.__name__
    runs.__doc__ = test.__doc__
    return runs


def message(position: int, row: int = 1, slot: int = 0, *, overlay: bytes | None = None) -> Message:
    made = Message(100)
    made.position = position
    made.sequence_number = SequenceNumber(position)
    made.body_row, made.body_slot = row, slot
    made.overlay = overlay
    return made


def stored(position: int, row: int = 1, slot: int = 0) -> MessageStored:
    return MessageStored(QUEUE_ID, message(position, row, slot))


async def positions(store: Store) -> dict[int, int]:
    """Return position -> number of the frame with its last record."""
    live = await store.load_live()
    return {c.message.position: c.message.journal_no for _, changes in live.messages for c in changes}


async def frame_numbers(store: Store) -> list[int]:
    return [frame.no async for frame in store.load()]


def entity(entity_id: int, name: str, **settings: Any) -> EntityStored:
    return EntityStored(entity_id, QueueDescription(name, **settings), 1000, 2000)


AUTHORIZATION_RULES = (
    AuthorizationRule("Wörker", ("Listen", "Send"), 'a "key"', "ünother", 1000, 2000),
    AuthorizationRule("root", ("Manage", "Send", "Listen"), "a", "b"),
)


@run
async def test_a_new_store_is_empty(medium: Medium) -> None:
    async with medium.opened() as store:
        assert await store.load_definitions() == Definitions([], [], 1)
        assert await frame_numbers(store) == []
        assert await positions(store) == {}
        assert await store.last_body_row() == 0
        assert await store.list_body_rows(0, 10) == []
        assert await store.read_head(1000) == []


@run
async def test_committed_facts_are_there_after_a_restart(medium: Medium) -> None:
    """Req: R-01, R-02."""
    first: list[Change] = [stored(1), stored(2, slot=1), NumbersIssued(QUEUE_ID, 3, SequenceNumber(3), 77)]
    second: list[Change] = [
        MessageRemoved(QUEUE_ID, message(1)),
        MessageIdSeen(QUEUE_ID, b"d" * 16, 5, SequenceNumber(2)),
    ]
    async with medium.opened() as store:
        sizes = [
            await store.commit(Batch(1, first, {1: [b"one", b"two"]})),
            await store.commit(Batch(2, second)),
        ]
    async with medium.opened() as store:
        live = await store.load_live()
        assert (live.first_no, list(live.frame_sizes)) == (1, sizes)
        assert [(q, [c.message.position for c in changes]) for q, changes in live.messages] == [
            (QUEUE_ID, [2])
        ]
        assert live.numbers == [(1, first[2])]
        assert live.ids == [second[1]]
        assert live.id_frames == {2: 1}
        assert await store.read_body_rows([1]) == {1: [b"one", b"two"]}
        assert [(frame.no, len(frame.changes)) async for frame in store.load()] == [(1, 3), (2, 2)]


@run
async def test_texts_hops_and_partitions_are_there_after_a_restart(medium: Medium) -> None:
    """Records with and without them in one queue, also over several frames. Req: R-01, R-02."""
    first, other, state, dead = message(1), message(2), message(1), message(1)
    first.session_id, first.hops, first.was_scheduled = "session ☃", 4, True
    state.session_id = ""
    dead.session_id, dead.dead_letter_source, dead.overlay = "session ☃", "orders/in", b"overlay"
    dead.was_scheduled = other.was_scheduled = True
    changed = message(1)
    changed.session_id, changed.delivery_count = "session ☃", 3
    counters = NumbersIssued(QUEUE_ID, 3, SequenceNumber(3), 77, tuple(range(2**48, 2**48 + 16)))
    before = NumbersIssued(QUEUE_ID, 2, SequenceNumber(2), 70, (1,) * 16)
    async with medium.opened() as store:
        places = ((0, first), (0, other), (3, state), (2, dead))
        stored_all: list[Change] = [MessageStored(QUEUE_ID + sub, made) for sub, made in places]
        await store.commit(Batch(1, [*stored_all, before], {1: [b"one"]}))
        await store.commit(Batch(2, [MessageStored(QUEUE_ID, changed), counters]))
    async with medium.opened() as store:
        live = await store.load_live()
        found = {
            (queue_id - QUEUE_ID, m.position): (
                *(m.session_id, m.dead_letter_source, m.hops, m.overlay, m.was_scheduled),
            )
            for queue_id, changes in live.messages
            for m in (change.message for change in changes)
        }
        assert found == {
            (0, 1): ("session ☃", None, 0, None, False),
            (0, 2): (None, None, 0, None, True),
            (3, 1): ("", None, 0, None, False),
            (2, 1): ("session ☃", "orders/in", 0, b"overlay", True),
        }
        assert live.numbers == [(2, counters)]
        [head] = await store.read_head(1)
        assert sorted(head.stored) == [
            (QUEUE_ID, (1,)),
            (QUEUE_ID, (2,)),
            (QUEUE_ID + 2, (1,)),
            (QUEUE_ID + 3, (1,)),
        ]


@run
async def test_values_are_taken_when_commit_is_called(medium: Medium) -> None:
    """The next command may change a record before the awaitable is awaited."""
    async with medium.opened() as store:
        change = stored(1)
        committing: Awaitable[int] = store.commit(Batch(1, [change], {1: [b"body"]}))
        change.message.delivery_count = 5
        await committing
    async with medium.opened() as store:
        live = await store.load_live()
        assert [c.message.delivery_count for _, changes in live.messages for c in changes] == [0]


@run
async def test_commits_are_durable_in_the_order_they_were_called(medium: Medium) -> None:
    async with medium.opened() as store:
        await asyncio.gather(*(store.commit(Batch(no, [stored(no)])) for no in range(1, 20)))
        assert await frame_numbers(store) == list(range(1, 20))


@run
async def test_entities_are_kept_with_all_their_settings(medium: Medium) -> None:
    """Req: R-01. Ids are never reused, also when the last entity is deleted."""
    changed = entity(
        1,
        "Órders/in",
        lock_duration_ms=5000,
        max_size_mb=2048,
        requires_duplicate_detection=True,
        requires_session=True,
        default_ttl_ms=1,
        dead_lettering_on_expiration=True,
        duplicate_window_ms=20_000,
        max_delivery_count=3,
        enable_batched_operations=False,
        status=EntityStatus.SEND_DISABLED,
        forward_to="b",
        forward_dead_lettered_to="ünter/b",
        forward_to_given="sb://localhost/a",
        forward_dead_lettered_to_given="https://localhost/b/",
        user_metadata='né "é"',
        auto_delete_on_idle_ms=300_000,
        enable_partitioning=True,
        enable_express=True,
        max_message_size_kb=2048,
        authorization_rules=AUTHORIZATION_RULES,
    )
    standard = asdict(QueueDescription(""))
    assert all(standard[name] != value for name, value in asdict(changed.description).items())
    async with medium.opened() as store:
        await store.commit(Batch(1, [entity(1, "orders"), entity(2, "b"), entity(3, "c")]))
        await store.commit(Batch(2, [changed, EntityRemoved(3)]))
    async with medium.opened() as store:
        assert await store.load_definitions() == Definitions([changed, entity(2, "b")], [], 4)
        await store.commit(Batch(3, [entity(4, "d"), EntityRemoved(4), EntityRemoved(2)]))
    async with medium.opened() as store:
        assert await store.load_definitions() == Definitions([changed], [], 5)


@run
async def test_topics_and_subscriptions_are_kept_with_all_their_settings(medium: Medium) -> None:
    """Req: P-01, R-01."""
    topic = TopicDescription(
        "Évents/all",
        max_size_mb=2048,
        requires_duplicate_detection=True,
        default_ttl_ms=1,
        duplicate_window_ms=20_000,
        enable_batched_operations=False,
        status=EntityStatus.DISABLED,
        user_metadata='né "é"',
        auto_delete_on_idle_ms=300_000,
        enable_partitioning=True,
        enable_express=True,
        support_ordering=False,
        max_message_size_kb=2048,
        authorization_rules=AUTHORIZATION_RULES,
    )
    subscription = SubscriptionDescription(
        "évents/All",
        "Äll",
        lock_duration_ms=5000,
        requires_session=True,
        default_ttl_ms=1,
        dead_lettering_on_expiration=True,
        dead_lettering_on_filter_errors=False,
        max_delivery_count=3,
        enable_batched_operations=False,
        status=EntityStatus.RECEIVE_DISABLED,
        forward_to="b",
        forward_dead_lettered_to="ünter/b",
        forward_to_given="sb://localhost/a",
        forward_dead_lettered_to_given="https://localhost/b/",
        user_metadata="x",
        auto_delete_on_idle_ms=300_000,
    )
    for changed, standard in ((topic, TopicDescription("")), (subscription, SubscriptionDescription("", ""))):
        assert all(asdict(standard)[name] != value for name, value in asdict(changed).items())
    described: list[Description] = [
        TopicDescription("évents/all"),
        topic,
        subscription,
        QueueDescription("q"),
    ]
    stored = [EntityStored(n, each, 1000, 2000) for n, each in zip((1, 1, 2, 3), described, strict=True)]
    stored[1].deleting = True
    async with medium.opened() as store:
        await store.commit(Batch(1, [stored[3], stored[0], stored[2]]))
        await store.commit(Batch(2, [stored[1]]))
        assert await store.load_definitions() == Definitions(stored[1:], [], 4)
    async with medium.opened() as store:
        assert await store.load_definitions() == Definitions(stored[1:], [], 4)


TOPIC = EntityStored(1, TopicDescription("events"), 1000, 2000)
FIRST = EntityStored(2, SubscriptionDescription("events", "first"), 1000, 2000)
SECOND = EntityStored(3, SubscriptionDescription("Events", "second"), 1000, 2000)


def rule(
    name: str, filter_: Filter | None = None, action: SqlAction | None = None, *, entity_id: int = 2
) -> RuleStored:
    if filter_ is None:
        return RuleStored(entity_id, RuleDescription(name, action=action, created_at_ms=77))
    return RuleStored(entity_id, RuleDescription(name, filter_, action, 77))


VALUES: list[Value | None] = [
    None,
    True,
    False,
    0,
    1,
    -(2**63),
    2**63 - 1,
    1.0,
    -0.0,
    0.1,
    1e300,
    5e-324,
    float("inf"),
    float("-inf"),
    "",
    "naïve \0 ☃ '\"",
    b"",
    bytes(range(256)),
    UUID("00112233-4455-6677-8899-aabbccddeeff"),
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(2024, 2, 29, 23, 59, 59, 999_999, tzinfo=UTC),
    datetime(2024, 2, 29, 23, 59, 59),  # noqa: DTZ001 -- it came without a zone
    timedelta(0),
    timedelta.min,
    timedelta.max,
    timedelta(microseconds=-1),
    Decimal("1.10"),
    Decimal("-1E+6"),
    Decimal(2**96),
    Decimal("0.1234567890123456789012345678901234"),
]


@run
async def test_rules_are_kept_with_their_filters_and_actions(medium: Medium) -> None:
    """Values come back as the types that they were. Req: P-02, P-03."""
    pairs = tuple((f"@p{n}", value) for n, value in enumerate(VALUES))
    as_given = tuple(AsGiven(f"d:type{n}", f" {n}") if n % 2 else None for n in range(len(pairs)))
    fields_given: list[Any] = [*(f"é{n}" for n in range(8)), pairs, as_given]
    whole = CorrelationFilter(*fields_given)
    assert all(getattr(whole, field.name) for field in fields(CorrelationFilter))
    rules = [
        rule(DEFAULT_RULE_NAME),
        rule("all", whole),
        rule("empty", CorrelationFilter(label="")),
        rule("Never", FalseFilter()),
        rule("set", None, SqlAction("SET Straße = @p1; REMOVE b", pairs)),
        rule("sql", SqlFilter("a > @p1 AND\n\"b c\" LIKE '%☃'", pairs, as_given), SqlAction("SET c = 1")),
    ]
    async with medium.opened() as store:
        await store.commit(Batch(1, [TOPIC, FIRST, SECOND, *reversed(rules)]))
    async with medium.opened() as store:
        found = await store.load_definitions()
    assert found == Definitions([TOPIC, FIRST, SECOND], rules, 4)
    filters = (found.rules[5].rule.filter, found.rules[4].rule.action, found.rules[1].rule.filter)
    assert isinstance(filters[0], SqlFilter)
    assert isinstance(filters[1], SqlAction)
    assert isinstance(filters[2], CorrelationFilter)
    for values in (filters[0].parameters, filters[1].parameters, filters[2].properties):
        assert [(type(value), repr(value)) for _, value in values] == [
            (type(value), repr(value)) for value in VALUES
        ]
    # What was given does not make two rules differ, so it is compared by itself.
    assert filters[0].as_given == filters[2].as_given == as_given
    assert filters[1].as_given == ()


@run
async def test_a_not_a_number_comes_back(medium: Medium) -> None:
    """It equals nothing, so it has a test of its own."""
    pairs = (("@float", float("nan")), ("@decimal", Decimal("NaN")))
    async with medium.opened() as store:
        await store.commit(Batch(1, [TOPIC, FIRST, rule("sql", SqlFilter("a = @float", pairs))]))
    async with medium.opened() as store:
        [found] = (await store.load_definitions()).rules
    assert isinstance(found.rule.filter, SqlFilter)
    assert [repr(value) for _, value in found.rule.filter.parameters] == ["nan", "Decimal('NaN')"]


@run
async def test_a_rule_is_known_by_its_name_without_regard_to_case(medium: Medium) -> None:
    """The last fact wins, also within a batch. Req: P-03."""
    changed = rule("SQL", FalseFilter())
    async with medium.opened() as store:
        await store.commit(
            Batch(1, [TOPIC, FIRST, SECOND, rule("sql"), rule("sql", entity_id=3), rule("other")])
        )
        await store.commit(Batch(2, [changed, RuleRemoved(2, "OTHER"), RuleRemoved(2, "none")]))
    async with medium.opened() as store:
        assert (await store.load_definitions()).rules == [changed, rule("sql", entity_id=3)]
        await store.commit(
            Batch(3, [RuleRemoved(2, "sql"), changed, rule("new", entity_id=3), RuleRemoved(3, "new")])
        )
        await store.commit(Batch(4, [RuleRemoved(3, "Sql")]))
    async with medium.opened() as store:
        assert (await store.load_definitions()).rules == [changed]


@run
async def test_rules_go_with_their_subscription(medium: Medium) -> None:
    """Those of its neighbours stay, and none is left that came in the same batch. Req: P-03."""
    near = [EntityStored(n, SubscriptionDescription("events", f"s{n}"), 0, 0) for n in (19, 20, 21, 200)]
    kept = [rule(name, entity_id=n) for n in (19, 21, 200) for name in ("$Default", "ünder", "\U0010fffd")]
    gone = [rule(name, entity_id=20) for name in ("$Default", "0", "/", "\U0010fffd")]
    async with medium.opened() as store:
        await store.commit(Batch(1, [TOPIC, *near, *kept, *gone]))
        await store.commit(Batch(2, [rule("late", entity_id=20), EntityRemoved(20)]))
    async with medium.opened() as store:
        assert await store.load_definitions() == Definitions([TOPIC, near[0], *near[2:]], kept, 201)
        await store.commit(Batch(3, [EntityRemoved(n) for n in (19, 21, 200, 1)]))
    async with medium.opened() as store:
        assert await store.load_definitions() == Definitions([], [], 201)


def cursor(name: str, last_no: int = 1, committed_no: int = 0, *, queue_id: int = 4) -> CursorStored:
    owner, unread_from_no = ("host:1", None) if committed_no else (None, None) if last_no else ("host:2", 0)
    return CursorStored(queue_id, name, last_no, committed_no, 1000, 60_000, owner, unread_from_no)


def claim(name: str, no: int, *positions: tuple[int, int], queue_id: int = 4) -> ClaimStored:
    return ClaimStored(queue_id, name, no, positions or ((1, 2),))


@run
async def test_cursors_and_their_claims_are_kept(medium: Medium) -> None:
    """The last fact wins, also within a batch. Req: X-06."""
    long = claim("lake", 10, *((2**63 + 3 * n, 2) for n in range(2000)))
    async with medium.opened() as store:
        await store.commit(
            Batch(1, [entity(1, "a"), cursor("lake"), claim("lake", 1), claim("lake", 2), long])
        )
        await store.commit(Batch(2, [cursor("lake", 10, 1), ClaimRemoved(4, "lake", 1), cursor("other")]))
        await store.commit(
            Batch(
                3, [CursorRemoved(4, "other"), cursor("again", 7), CursorRemoved(4, "again"), cursor("again")]
            )
        )
    async with medium.opened() as store:
        found = await store.load_definitions()
        assert found.cursors == [cursor("again"), cursor("lake", 10, 1)]
        assert found.claims == [claim("lake", 2), long]
        gone: list[Change] = [
            ClaimRemoved(4, "lake", 2),
            ClaimRemoved(4, "lake", 10),
            CursorRemoved(4, "lake"),
        ]
        await store.commit(Batch(4, [*gone, claim("again", 1)]))
    async with medium.opened() as store:
        found = await store.load_definitions()
        assert (found.cursors, found.claims) == ([cursor("again")], [claim("again", 1)])


@run
async def test_cursors_may_have_any_name_and_go_with_their_entity(medium: Medium) -> None:
    """Those of other entities and of other queues of one entity are others. Req: X-06."""
    names = ["a", "A", "a/", "a/b", "a0", "%2F", " ", "né☃", "\U0010fffd", "\0", "x" * 128]
    there = [entity(n, f"q{n}") for n in (1, 2, 11)]
    facts = [
        fact
        for queue_id in (4, 5, 6, 8, 44)
        for name in names
        for fact in (cursor(name, queue_id=queue_id), claim(name, 1, queue_id=queue_id))
    ]
    async with medium.opened() as store:
        await store.commit(Batch(1, [*there, *facts]))
    async with medium.opened() as store:
        found = await store.load_definitions()
        assert len(found.cursors) == len(found.claims) == 5 * len(names)
        assert {(each.queue_id, each.name) for each in found.cursors} == {
            (queue_id, name) for queue_id in (4, 5, 6, 8, 44) for name in names
        }
        await store.commit(Batch(2, [cursor("late"), claim("late", 1), EntityRemoved(1)]))
    async with medium.opened() as store:
        found = await store.load_definitions()
        assert (
            {each.queue_id for each in found.cursors} == {each.queue_id for each in found.claims} == {8, 44}
        )


@run
async def test_facts_of_the_process_are_kept_in_the_order_of_their_keys(medium: Medium) -> None:
    """The last one wins, also within a batch; no frame contains them."""
    keys = ["z", "a", "", "A", "a/", "a/b", "a0", "a=b", "%2F", " ", "né☃", "\U0010fffd", "\0", "x" * 1000]
    values = {key: f"value of {key}=☃\0" for key in keys}
    async with medium.opened() as store:
        await store.commit(Batch(1, [FactStored(key, value) for key, value in values.items()]))
        await store.commit(
            Batch(
                2,
                [
                    FactStored("a", "first"),
                    FactStored("a", "second"),
                    FactStored("a/", "never seen"),
                    FactRemoved("a/"),
                    FactRemoved("z"),
                    FactStored("z", ""),
                    FactRemoved("a/b"),
                    FactRemoved("was never there"),
                ],
            )
        )
    expected = {key: value for key, value in values.items() if not key.startswith("a/")}
    expected |= {"a": "second", "z": ""}
    async with medium.opened() as store:
        found = await store.load_definitions()
        assert list(found.facts.items()) == sorted(expected.items())
        assert found == Definitions([], [], 1, facts=expected)
        assert [frame.changes async for frame in store.load()] == [[], []]
        await store.commit(Batch(3, [FactRemoved(key) for key in expected]))
    async with medium.opened() as store:
        assert await store.load_definitions() == Definitions([], [], 1)


@run
async def test_facts_of_the_process_stay_beside_entities_and_their_removal(medium: Medium) -> None:
    async with medium.opened() as store:
        await store.commit(Batch(1, [entity(1, "a"), cursor("lake"), FactStored("1", "x")]))
        await store.commit(Batch(2, [EntityRemoved(1), FactStored("2", "y")]))
    async with medium.opened() as store:
        assert await store.load_definitions() == Definitions([], [], 2, facts={"1": "x", "2": "y"})


@run
async def test_dropped_rows_are_gone_and_others_stay(medium: Medium) -> None:
    async with medium.opened() as store:
        await store.commit(Batch(1, [], {row: [b"%d" % row] for row in range(1, 8)}))
        await store.commit(Batch(2, [], {}, [2, 3, 5]))
        assert [row for row, _ in await store.list_body_rows(0, 100)] == [1, 4, 6, 7]
        assert await store.read_body_rows([6, 4]) == {4: [b"4"], 6: [b"6"]}
        assert await store.last_body_row() == 7


@run
async def test_each_payload_of_a_missing_row_is_lost(medium: Medium) -> None:
    """Req: R-03."""
    async with medium.opened() as store:
        await store.commit(Batch(1, [], {1: [b"one"]}))
        found = await store.read_body_rows([1, 2])
        assert found[1] == [b"one"]
        assert found[2][7] is LOST_BODY


@run
async def test_rows_are_listed_in_pieces_with_their_sizes(medium: Medium) -> None:
    async with medium.opened() as store:
        await store.commit(Batch(1, [], {row: [b"x" * 100 * row] for row in (3, 5, 9)}))
        first = await store.list_body_rows(0, 2)
        assert [row for row, _ in first] == [3, 5]
        assert all(100 * row <= size <= 100 * row + 64 for row, size in first)
        assert [row for row, _ in await store.list_body_rows(5, 2)] == [9]


@run
async def test_a_reader_has_what_is_committed_in_pieces(medium: Medium) -> None:
    async with medium.opened() as store:
        rows = {3: [b"a" * 500], 5: [b"b"], 9: [b"c"]}
        await store.commit(Batch(1, [entity(1, "q"), stored(1, 3)], rows))
        await store.commit(Batch(2, [stored(2, 11)], {11: [b"d"]}, dropped_rows=[5]))
        reader = store.reader()
        assert reader.ends() == Ends(1, 2, 11)
        assert [no for no, _ in reader.frames(0, 1)] == [1]
        assert [no for no, _ in reader.frames(1, 10_000)] == [2]
        found = reader.body_rows(0, 1) + reader.body_rows(3, 10_000)
        assert [body_rows.unpack(no, data) for no, data in found] == [[b"a" * 500], [b"c"], [b"d"]]
        with reader.at_one_instant():
            assert reader.body_row_numbers() == [3, 9, 11]
            assert (reader.body_row(9), reader.body_row(5)) == (found[1][1], None)
            assert [key for key, _, _ in reader.entries() if key.startswith("entity")]
        reader.close()


@run
async def test_a_back_up_while_commits_go_on_has_one_instant(medium: Medium) -> None:
    """Between two calls of a reader a row is added and another one dropped."""
    async with medium.opened() as store:
        await store.commit(Batch(1, [entity(1, "q"), stored(1, 1)], {1: [b"first"]}))
        await store.commit(Batch(2, [stored(2, 2)], {2: [b"second"]}))
        reader = store.reader()
        found = dict(reader.body_rows(0, 10_000))
        await store.commit(
            Batch(3, [stored(3, 3), MessageRemoved(QUEUE_ID, message(1))], {3: [b"third"]}, dropped_rows=[1])
        )
        with reader.at_one_instant():
            ends, numbers = reader.ends(), reader.body_row_numbers()
            frames = reader.frames(0, 10_000)
            found |= dict(reader.body_rows(2, 10_000))
        assert ends.last_no == frames[-1][0] == (3 if 3 in numbers else 2)
        assert numbers == ([2, 3] if ends.last_no == 3 else [1, 2])
        assert set(numbers) <= found.keys()
        reader.close()


@run
async def test_a_truncated_head_is_gone_and_the_rest_still_loads(medium: Medium) -> None:
    async with medium.opened() as store:
        for no in range(1, 6):
            await store.commit(Batch(no, [stored(no)]))
        await store.commit(Batch(6, [stored(1), stored(2), stored(3)], truncate_before=4))
        assert await frame_numbers(store) == [4, 5, 6]
    async with medium.opened() as store:
        assert await positions(store) == {1: 6, 2: 6, 3: 6, 4: 4, 5: 5}
        live = await store.load_live()
        assert live.first_no == 4
        await store.commit(Batch(7, [stored(7)]))
        assert await frame_numbers(store) == [4, 5, 6, 7]
        await store.commit(Batch(8, [stored(no) for no in range(1, 8)], truncate_before=8))
    async with medium.opened() as store:
        await store.commit(Batch(9, [stored(9)]))
        assert await frame_numbers(store) == [8, 9]
        assert await positions(store) == {**dict.fromkeys(range(1, 8), 8), 9: 9}


@run
async def test_the_head_is_read_up_to_a_size_but_at_least_one_frame(medium: Medium) -> None:
    async with medium.opened() as store:
        seen = MessageIdSeen(QUEUE_ID, b"d" * 16, 5, SequenceNumber(2))
        removed = MessageRemoved(QUEUE_ID, message(9))
        sizes = [
            await store.commit(Batch(no, [stored(no), stored(10 + no), seen, removed])) for no in range(1, 5)
        ]
        assert [keys.no for keys in await store.read_head(1)] == [1]
        assert [keys.no for keys in await store.read_head(sizes[0] + sizes[1])] == [1, 2]
        head = await store.read_head(10**9)
        assert head == [FrameKeys(no, [(QUEUE_ID, (no, 10 + no))], [seen]) for no in range(1, 5)]


@run
async def test_a_batch_as_large_as_a_transaction_may_be_is_whole(medium: Medium) -> None:
    """100 messages, 16 MiB: 64 rows in one commit. Req: F-03, R-02."""
    rows = {row: [bytes([row]) * (256 * 1024)] for row in range(1, 65)}
    changes: list[Change] = [stored(n, n % 64 + 1) for n in range(100)]
    async with medium.opened() as store:
        await store.commit(Batch(1, changes, rows))
    async with medium.opened() as store:
        assert len(await positions(store)) == 100
        assert await store.read_body_rows(range(1, 65)) == rows


@run
async def test_large_and_empty_payloads_come_back(medium: Medium) -> None:
    payloads = [b"", b"x" * 3_000_000, bytes(range(256))]
    async with medium.opened() as store:
        await store.commit(Batch(1, [], {1: payloads}))
    async with medium.opened() as store:
        assert await store.read_body_rows([1]) == {1: payloads}
