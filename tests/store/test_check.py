"""`check`: it says what is damaged and changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from peeklock import __version__
from peeklock.broker.vocabulary.addresses import SequenceNumber
from peeklock.broker.vocabulary.changes import (
    Change,
    EntityStored,
    MessageRemoved,
    MessageStored,
    NumbersIssued,
)
from peeklock.broker.vocabulary.descriptions import QueueDescription
from peeklock.broker.vocabulary.message import Message
from peeklock.store import rescue
from peeklock.store.base import Batch, Definitions, StoreDamaged
from peeklock.store.check import DAMAGED, NOT_CHECKED, PAYLOADS_NAMED_MAX, SOUND, Report, check
from peeklock.store.encoding import frames
from peeklock.store.losses import Losses
from peeklock.store.sqlite.format import FORMAT
from peeklock.store.sqlite.store import SqliteStore
from tests.store.damage import flip, format_of, frames_of, meddle, put_frame, write_entry

QUEUE_ID = 4
FRAMES = 6


def message(position: int, row: int, slot: int) -> Message:
    made = Message(100)
    made.position = position
    made.sequence_number = SequenceNumber(position)
    made.body_row, made.body_slot = row, slot
    return made


def batches() -> Iterator[Batch]:
    """Batch 1 makes the queue, 2 to 5 store three messages each in one row, 6 removes those of row 2."""
    yield Batch(1, [EntityStored(1, QueueDescription("orders"), 0, 0)])
    for no in range(2, FRAMES):
        changes: list[Change] = [
            MessageStored(QUEUE_ID, message(10 * no + slot, no, slot)) for slot in range(3)
        ]
        changes.append(MessageStored(QUEUE_ID + 1, message(no, no, 0)))
        yield Batch(no, changes, {no: [b"payload %d" % slot * 20 for slot in range(3)]})
    gone: list[Change] = [MessageRemoved(QUEUE_ID, message(20 + slot, 2, slot)) for slot in range(3)]
    yield Batch(FRAMES, [*gone, MessageRemoved(QUEUE_ID + 1, message(2, 2, 0))])


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound")

    async def make() -> None:
        store = SqliteStore(folder)
        await store.open()
        for batch in batches():
            await store.commit(batch)
        await store.close()

    asyncio.run(make())
    return folder


@pytest.fixture
def path(sound: Path, tmp_path: Path) -> Path:
    """Return a database to damage."""
    shutil.copytree(sound, tmp_path / "data")
    return tmp_path / "data" / "peeklock.db"


@contextmanager
def untouched(folder: Path) -> Iterator[None]:
    """Make sure that no file in a folder changes, comes or goes."""
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    yield
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def checked(path: Path) -> Report:
    with untouched(path.parent):
        return check(path.parent)


def test_a_sound_store_is_described(path: Path) -> None:
    """Req: R-03."""
    report = checked(path)
    assert report.damages == []
    assert report.exit_status == SOUND
    assert report.lines[0] == f"store {path}, format {FORMAT}"
    assert report.lines[1:3] == [
        "entities: 1, rules: 0",
        f"journal: frames 1 to 6, {journal_bytes(path):,} bytes",
    ]
    assert report.lines[3:6] == ["messages: 12", "  'orders': 9", "  'orders' (dead letters): 3"]
    assert report.lines[6].startswith("bodies: 4 rows, ")
    assert report.lines[6].endswith(" bytes, 1 of them unused")
    assert report.lines[7:] == ["no damage found"]


def journal_bytes(path: Path) -> int:
    async def read() -> int:
        store = SqliteStore(path.parent)
        await store.open()
        sizes = (await store.load_live()).frame_sizes
        await store.close()
        return sum(sizes)

    return asyncio.run(read())


def test_a_flipped_byte_in_a_frame_is_named(path: Path) -> None:
    """What the messages need is not known then, and not guessed. Req: R-03."""
    flip(path, "journal", 3, 40)
    report = checked(path)
    assert report.exit_status == DAMAGED
    [damage] = report.damages
    assert damage.startswith("frame 3 fails its checksum")
    assert any(line.startswith("messages: not counted") for line in report.lines)
    assert report.lines[-1] == "1 damage found; nothing was changed"


def test_a_flipped_byte_in_a_body_is_named_with_who_needs_it(path: Path) -> None:
    """Req: R-03."""
    flip(path, "body", 3, 20)
    flip(path, "body", 2, 20)
    report = checked(path)
    assert report.damages[0].startswith("body row 2 fails its checksum")
    assert report.damages[1].startswith("body row 3 fails its checksum")
    assert "need it" not in report.damages[0]
    assert report.damages[1].endswith("; 4 messages of 'orders', 'orders' (dead letters) need it")
    assert report.lines[-1] == "2 damages found; nothing was changed"


def test_a_damaged_payload_is_named_with_the_messages_that_need_it(path: Path) -> None:
    """Req: R-03."""
    first = 17 + 3 * 8  # behind the head, the lengths and the checksums
    flip(path, "body", 2, first)
    flip(path, "body", 3, first)
    flip(path, "body", 3, first + 2 * 180)
    assert checked(path).damages == [
        "body row 2 fails the checksum of the payload in slot 0",
        "body row 3 fails the checksum of the payload in slot 0; message 30 of 'orders', "
        "message 3 of 'orders' (dead letters) need it",
        "body row 3 fails the checksum of the payload in slot 2; message 32 of 'orders' needs it",
    ]


def test_damaged_payloads_are_not_named_with_messages_while_the_journal_is_damaged(path: Path) -> None:
    """What is not known is not guessed. Req: R-03."""
    flip(path, "body", 3, 41)
    flip(path, "journal", 6, 40)
    report = checked(path)
    assert report.damages[0].startswith("frame 6 fails its checksum")
    assert report.damages[1:] == ["body row 3 fails the checksum of the payload in slot 0"]


@pytest.mark.parametrize(("sharing", "end"), [(5, "message 5"), (6, "message 5 of 'orders' and 1 more")])
def test_of_many_messages_that_share_a_damaged_payload_some_are_named(
    tmp_path: Path, sharing: int, end: str
) -> None:
    """At the limit and one past."""
    changes: list[Change] = [EntityStored(1, QueueDescription("orders"), 0, 0)]
    changes += [MessageStored(QUEUE_ID, message(n, 1, 0)) for n in range(1, sharing + 1)]
    path = made(tmp_path, Batch(1, changes, {1: [b"payload"]}))
    flip(path, "body", 1, 25)
    [damage] = checked(path).damages
    assert damage.endswith(f"{end} need it") == (sharing == 6)
    assert damage.endswith(f"{end} of 'orders' need it") == (sharing == 5)


@pytest.mark.parametrize(("count", "more"), [(PAYLOADS_NAMED_MAX, 0), (PAYLOADS_NAMED_MAX + 1, 1)])
def test_of_many_damaged_payloads_some_are_named_and_the_rest_is_counted(
    tmp_path: Path, count: int, more: int
) -> None:
    """At the limit and one past."""
    path = made(tmp_path, Batch(1, [], {1: [b"x"] * 60, 2: [b"x"] * (count - 60)}))
    for row, payloads in ((1, 60), (2, count - 60)):
        for slot in range(payloads):
            flip(path, "body", row, 17 + 8 * payloads + slot)
    damages = checked(path).damages
    assert len(damages) == PAYLOADS_NAMED_MAX + more
    last = "body row 2 fails the checksum of the payload in slot"
    assert damages[-1] == f"{last} {PAYLOADS_NAMED_MAX - 60 if more else PAYLOADS_NAMED_MAX - 61}"


def made(folder: Path, *batches: Batch) -> Path:
    """Make a store, and give its database."""

    async def make() -> None:
        store = SqliteStore(folder)
        await store.open()
        for batch in batches:
            await store.commit(batch)
        await store.close()

    asyncio.run(make())
    return folder / "peeklock.db"


def test_a_sound_frame_that_replaces_another_is_named(path: Path) -> None:
    """As one that was put back from an older copy of the file. Req: R-03."""
    put_frame(path, 4, frames.encode(Batch(4, []), frames.checksum_of(frames_of(path)[3])))
    report = checked(path)
    [damage] = report.damages
    assert damage.startswith("frame 5 does not follow frame 4")
    assert any(line.startswith("messages: not counted") for line in report.lines)


def test_a_damaged_frame_and_a_missing_one_are_both_named(path: Path) -> None:
    """Req: R-03."""
    flip(path, "journal", 4, 2)
    meddle(path, "DELETE FROM journal WHERE no = 3")
    damages = checked(path).damages
    assert len(damages) == 2
    assert damages[0].startswith("frame 4 fails its checksum")
    assert damages[1] == "frame 3 is missing from the journal: frame 4 comes next"


def test_a_missing_frame_is_named(path: Path) -> None:
    """Req: R-03."""
    meddle(path, "DELETE FROM journal WHERE no IN (3, 4)")
    report = checked(path)
    assert report.damages == ["frames 3 to 4 are missing from the journal: frame 5 comes next"]
    assert report.exit_status == DAMAGED


def test_a_missing_body_row_is_named_with_who_needs_it(path: Path) -> None:
    """Req: R-03."""
    meddle(path, "DELETE FROM body WHERE no IN (2, 4)")
    report = checked(path)
    assert report.damages == [
        "body row 4 is missing; 4 messages of 'orders', 'orders' (dead letters) need it"
    ]


def test_a_changed_definition_is_named(path: Path) -> None:
    """Req: R-03."""
    meddle(path, "UPDATE kv SET v = replace(v, 'orders', 'odders')")
    report = checked(path)
    [damage] = report.damages
    assert damage.startswith("the entry entity/000000000001 fails its checksum")


ENTITY = '{"entity_id":%d,"created_at_ms":0,"updated_at_ms":0,%s}'
QUEUE = '"queue":{"name":"orders"}'
TOPIC = '"topic":{"name":"Events"}'
SUBSCRIPTION = '"subscription":{"topic_name":"events","subscription_name":"all"}'
RULE = '{"entity_id":%d,"name":"SQL","created_at_ms":0,"filter":%s,"action":null}'
SQL = '{"kind":"sql","expression":"a = @a","parameters":[["@a",%s]]}'

CURSOR_KEY = "cursor/000000000001/0/lake"
CURSOR = '{"queue_id":%d,"name":"lake","last_no":1,"committed_no":0,"used_at_ms":1,"expires_after_ms":60000}'
CLAIM_KEY = "claim/000000000001/0/lake/00000000000000000001"
CLAIM = '{"queue_id":4,"cursor":"lake","no":%d,"positions":[%s]}'
DAMAGES = [
    ({"stray": "x"}, "the entry stray is of an unknown kind: 'x'"),
    ({"next_entity_id": "x"}, "the entry next_entity_id is of an unknown kind: 'x'"),
    ({"next_entity_id": "1"}, "next_entity_id is 1, but there is an entity with the id 1"),
    ({"entity/000000000001": "{"}, "the definition entity/000000000001 cannot be read: Expecting property"),
    ({"entity/000000000001": "7"}, "the definition entity/000000000001 cannot be read: "),
    (
        {"entity/000000000001": '{"entity_id":1}'},
        "the definition entity/000000000001 cannot be read: it has no 'created_at_ms'",
    ),
    (
        {"entity/000000000001": ENTITY % (1, '"stream":{"name":"orders"}')},
        "the definition entity/000000000001 cannot be read: it is of the unknown kind 'stream'",
    ),
    (
        {"entity/000000000001": ENTITY % (1, f"{QUEUE},{TOPIC}")},
        "the definition entity/000000000001 cannot be read: ",
    ),
    (
        {"entity/000000000001": ENTITY % (1, '"queue":{"name":"orders","colour":"red"}')},
        "the definition entity/000000000001 cannot be read: ",
    ),
    (
        {"entity/000000000001": ENTITY % (2, QUEUE)},
        "the definition entity/000000000001 contains entity/000000000002",
    ),
    (
        {"entity/000000000002": ENTITY % (2, SUBSCRIPTION)},
        "entity/000000000002 is a subscription of the topic 'events', which does not exist",
    ),
    (
        {"rule/000000000001/sql": RULE % (1, '{"kind":"true"}')},
        "rule/000000000001/sql is a rule of 'orders', which is not a subscription",
    ),
    (
        {"rule/000000000002/sql": RULE % (2, '{"kind":"true"}')},
        "rule/000000000002/sql is a rule of entity 2, which does not exist",
    ),
    ({"rule/000000000001/sql": "{"}, "the rule rule/000000000001/sql cannot be read: Expecting property"),
    ({"rule/000000000001/sql": "{}"}, "the rule rule/000000000001/sql cannot be read: it has no 'action'"),
    ({"rule/000000000001/sql": "[]"}, "the rule rule/000000000001/sql cannot be read: "),
    (
        {"rule/000000000001/sql": RULE % (1, '"true"')},
        "the rule rule/000000000001/sql cannot be read: ",
    ),
    (
        {"rule/000000000001/sql": RULE % (1, '{"kind":"xpath"}')},
        "the rule rule/000000000001/sql cannot be read: its filter is of the unknown kind 'xpath'",
    ),
    (
        {"rule/000000000001/sql": RULE % (1, SQL % '{"colour":"red"}')},
        "the rule rule/000000000001/sql cannot be read: it has a value of the unknown type 'colour'",
    ),
    (
        {"rule/000000000001/sql": RULE % (1, SQL % '{"uuid":"red"}')},
        "the rule rule/000000000001/sql cannot be read: badly formed",
    ),
    (
        {"rule/000000000001/sql": RULE % (1, SQL % '{"decimal":"red"}')},
        "the rule rule/000000000001/sql cannot be read: ",
    ),
    ({"rule/000000000001/sql": RULE % (1, SQL % "[1]")}, "the rule rule/000000000001/sql cannot be read: "),
    (
        {"rule/000000000001/sql": RULE % (2, '{"kind":"true"}')},
        "the rule rule/000000000001/sql contains rule/000000000002/sql",
    ),
    ({CURSOR_KEY: "{"}, f"the cursor {CURSOR_KEY} cannot be read: Expecting property"),
    ({CURSOR_KEY: "{}"}, f"the cursor {CURSOR_KEY} cannot be read: it has no 'queue_id'"),
    ({CURSOR_KEY: CURSOR % 5}, f"the cursor {CURSOR_KEY} contains cursor/000000000001/1/lake"),
    (
        {"cursor/000000000002/0/lake": CURSOR % 8},
        "cursor/000000000002/0/lake is a cursor of entity 2, which does not exist",
    ),
    (
        {CURSOR_KEY: CURSOR % 4, CLAIM_KEY: CLAIM % (1, "1")},
        f"the claim {CLAIM_KEY} cannot be read: ",
    ),
    ({CURSOR_KEY: CURSOR % 4, CLAIM_KEY: "{}"}, f"the claim {CLAIM_KEY} cannot be read: it has no "),
    (
        {CURSOR_KEY: CURSOR % 4, CLAIM_KEY: CLAIM % (2, "[1,2]")},
        f"the claim {CLAIM_KEY} contains claim/000000000001/0/lake/00000000000000000002",
    ),
    (
        {CLAIM_KEY: CLAIM % (1, "[1,2]")},
        f"{CLAIM_KEY} is a claim of the cursor 'lake', which does not exist",
    ),
    (
        {CURSOR_KEY: (CURSOR % 4).replace('"last_no":1', '"last_no":0'), CLAIM_KEY: CLAIM % (1, "[1,2]")},
        f"{CLAIM_KEY} is claim 1 of a cursor whose last one is 0",
    ),
]


@pytest.mark.parametrize(("entries", "expected"), DAMAGES)
def test_a_definition_that_cannot_be_is_named(path: Path, entries: dict[str, str], expected: str) -> None:
    """By the check, and by a start, which goes no further. Req: R-03."""
    for key, text in entries.items():
        write_entry(path, key, text)
    if "next_entity_id" not in entries:
        write_entry(path, "next_entity_id", "5")
    [damage] = checked(path).damages
    assert damage.startswith(expected)
    with pytest.raises(StoreDamaged) as start:
        load(path)
    assert str(start.value) == damage


def test_cursors_are_counted(path: Path) -> None:
    """Req: X-06."""
    write_entry(path, CURSOR_KEY, CURSOR % 4)
    write_entry(path, CLAIM_KEY, CLAIM % (1, "[1,2]"))
    report = checked(path)
    assert report.damages == []
    assert "cursors: 1, claims: 1" in report.lines


def test_facts_of_the_process_are_counted_and_a_changed_one_is_named(path: Path) -> None:
    """Req: R-03."""
    write_entry(path, "fact/keys/a", "any text")
    report = checked(path)
    assert report.damages == []
    assert "facts: 1" in report.lines
    meddle(path, "UPDATE kv SET v = 'another text' WHERE k = 'fact/keys/a'")
    [damage] = checked(path).damages
    assert damage.startswith("the entry fact/keys/a fails its checksum")
    with pytest.raises(StoreDamaged, match="fact/keys/a fails its checksum"):
        load(path)


def test_what_a_damaged_definition_leaves_alone_is_not_damage_of_its_own(path: Path) -> None:
    """Req: R-03."""
    write_entry(path, "next_entity_id", "5")
    write_entry(path, "entity/000000000002", ENTITY % (2, TOPIC))
    write_entry(path, "entity/000000000003", ENTITY % (3, SUBSCRIPTION))
    write_entry(path, "rule/000000000003/sql", RULE % (3, SQL % "1"))
    report = checked(path)
    assert report.damages == []
    assert "entities: 3, rules: 1" in report.lines
    assert len(load(path).rules) == 1
    write_entry(path, "entity/000000000002", "{")
    [damage] = checked(path).damages
    assert damage.startswith("the definition entity/000000000002 cannot be read: ")


def load(path: Path) -> Definitions:
    async def read() -> Definitions:
        store = SqliteStore(path.parent)
        await store.open()
        try:
            return await store.load_definitions()
        finally:
            await store.close()

    return asyncio.run(read())


def test_damaged_pages_are_found(path: Path) -> None:
    """Whatever 64 wrong bytes stand at the start of whichever page, it is said and nothing is raised. Req:
    R-03."""
    whole = path.read_bytes()
    for page in range(len(whole) // 4096):
        damaged = bytearray(whole)
        damaged[page * 4096 : page * 4096 + 64] = b"\x5a" * 64
        path.write_bytes(damaged)
        report = checked(path)
        assert report.exit_status == DAMAGED, f"page {page + 1}"
        assert report.damages


def test_a_store_that_a_kill_left_is_checked_through_its_wal(path: Path) -> None:
    """The database, the WAL and the absence of an index of it stay as they are."""

    async def leave(store: SqliteStore) -> None:
        await store.open()
        await store.commit(Batch(FRAMES + 1, [MessageStored(QUEUE_ID, message(99, 5, 1))]))
        shutil.copytree(path.parent, path.parent / "left", ignore=shutil.ignore_patterns("*-shm", "left"))
        await store.close()

    asyncio.run(leave(SqliteStore(path.parent)))
    left = path.parent / "left" / "peeklock.db"
    assert left.with_name("peeklock.db-wal").stat().st_size > 0
    report = checked(left)
    assert report.damages == []
    assert "  'orders': 10" in report.lines


def test_messages_are_counted_by_queue_also_session_states(path: Path) -> None:
    """Req: R-03."""

    async def add(store: SqliteStore) -> None:
        await store.open()
        changes: list[Change] = []
        for queue_id, position in ((QUEUE_ID, 99), (QUEUE_ID + 2, 1), (QUEUE_ID + 3, 1), (QUEUE_ID + 3, 2)):
            made = message(position, 5, 1)
            made.session_id = "session"
            changes.append(MessageStored(queue_id, made))
        changes.append(NumbersIssued(QUEUE_ID, 100, SequenceNumber(100), 0, (1,) * 16))
        await store.commit(Batch(FRAMES + 1, changes))
        await store.close()

    asyncio.run(add(SqliteStore(path.parent)))
    report = checked(path)
    assert report.damages == []
    assert report.lines[4:8] == [
        "  'orders': 10",
        "  'orders' (dead letters): 3",
        "  'orders' (transfer dead letters): 1",
        "  'orders' (session states): 2",
    ]


def test_a_store_that_a_newer_release_took_over_and_was_killed_is_not_checked(path: Path) -> None:
    """The new format's number may stand in the WAL alone. Req: R-07."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL").fetchall()
    db.execute(f"PRAGMA user_version = {FORMAT + 1}")
    (path.parent / "left").mkdir()
    left = path.parent / "left" / "peeklock.db"
    for name in ("peeklock.db", "peeklock.db-wal"):
        shutil.copy(path.with_name(name), left.with_name(name))
    db.close()
    assert format_of(left) == FORMAT
    report = checked(left)
    assert report.exit_status == NOT_CHECKED
    assert f"has format {FORMAT + 1}, written by release {__version__}; this release" in report.lines[-1]


def test_a_running_store_is_checked_without_disturbing_it(path: Path) -> None:
    async def test(store: SqliteStore) -> None:
        await store.open()
        await store.commit(Batch(FRAMES + 1, [MessageStored(QUEUE_ID, message(99, 5, 1))]))
        report = check(path.parent)
        assert report.damages == []
        assert ", in use by process " in report.lines[0]
        assert "  'orders': 10" in report.lines
        await store.commit(Batch(FRAMES + 2, []))
        await store.close()

    asyncio.run(test(SqliteStore(path.parent)))


def test_what_is_no_store_is_not_checked(path: Path, tmp_path: Path) -> None:
    """Req: R-07 for the newer format."""
    report = check(tmp_path / "nowhere")
    assert (report.exit_status, report.damages) == (NOT_CHECKED, [])
    assert "there is no store in" in report.lines[0]
    meddle(path, f"PRAGMA user_version = {FORMAT + 1}")
    report = checked(path)
    assert report.exit_status == NOT_CHECKED
    assert (
        f"has format {FORMAT + 1}, written by release {__version__}; this release, {__version__}, reads up "
        f"to {FORMAT}: start" in report.lines[0]
    )
    path.write_bytes(b"\0" * 5000)
    report = checked(path)
    assert report.exit_status == DAMAGED
    assert "is not a SQLite database" in report.lines[0]


def test_rows_of_damaged_numbers_are_passed_over_by_a_rescue() -> None:
    """They are not counted up to, nor read again and again. Req: R-03."""
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.execute("CREATE TABLE journal (no INTEGER PRIMARY KEY, meta BLOB)")
        db.executemany("INSERT INTO journal VALUES (?, x'00')", [(1,), (1 << 34,), (1 << 50,)])
        assert [no for no, _ in rescue.readable(db, "journal", "meta")] == [1, 1 << 34]
        losses = Losses()
        rescue._fold(db, None, losses)
        assert (losses.batches, losses.last_no) == ([1, 1 << 34], 0)
