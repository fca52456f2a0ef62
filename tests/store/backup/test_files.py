"""Files that are cut, changed, in the wrong order or of another release; and numbers that are used again."""

from __future__ import annotations

import asyncio
import io
import struct
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peeklock.broker.vocabulary.addresses import SequenceNumber
from peeklock.broker.vocabulary.changes import (
    Change,
    ClaimStored,
    CursorStored,
    EntityStored,
    MessageStored,
    NumbersIssued,
)
from peeklock.broker.vocabulary.descriptions import QueueDescription
from peeklock.broker.vocabulary.events import EventType
from peeklock.broker.vocabulary.message import Message
from peeklock.store.backup import format as backup_format
from peeklock.store.backup.format import BackupUnusable, Header, Kind, read_blocks
from peeklock.store.backup.restoring import SKIPPED_BATCHES, SKIPPED_NUMBERS
from peeklock.store.backup.verifying import Backup, chained, verify
from peeklock.store.backup.writing import Writer
from peeklock.store.base import Batch, StoreFailed, StoreUnfinished
from peeklock.store.check import check
from peeklock.store.encoding import event_rows
from peeklock.store.memory import MemoryStore
from peeklock.store.sqlite.filler import SqliteFiller
from peeklock.store.sqlite.format import FORMAT
from peeklock.store.sqlite.reader import SqliteReader
from peeklock.store.sqlite.store import SqliteStore
from tests.engine.rig import at_once
from tests.store.backup.files import back_up, restore
from tests.store.synchronous import Synchronous

QUEUE_ID = 4


def stored(position: int, row: int, slot: int = 0) -> MessageStored:
    message = Message(3)
    message.position = position
    message.sequence_number = SequenceNumber(position)
    message.body_row, message.body_slot = row, slot
    return MessageStored(QUEUE_ID, message)


ENTITY = EntityStored(1, QueueDescription("orders"), 1, 2)


def store_with(*batches: Batch) -> MemoryStore:
    store = MemoryStore()
    for batch in batches:
        at_once(store.commit(batch))
    return store


def first_batch(body: bytes = b"one") -> Batch:
    return Batch(1, [ENTITY, stored(1, 1)], {1: [body]})


def small_backup(path: Path) -> Backup:
    return back_up(store_with(first_batch()).reader(), path)


def restored_bodies(backups: Sequence[Backup]) -> dict[int, bytes]:
    """Restore into memory; return the bodies by position."""
    store = MemoryStore()
    restore(backups, store.filler())
    live = at_once(store.load_live())
    messages = [change.message for _, changes in live.messages for change in changes]
    return {
        each.position: at_once(store.read_body_rows([each.body_row]))[each.body_row][each.body_slot]
        for each in messages
    }


# Files


def test_a_file_that_is_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "whole"
    small_backup(path)
    whole = path.read_bytes()
    for end in range(len(whole)):
        with pytest.raises(BackupUnusable, match=r"cut off|not a back-up"):
            list(read_blocks(io.BytesIO(whole[:end])))
    path.write_bytes(whole + b"more")
    with pytest.raises(BackupUnusable, match="more behind its end"):
        verify(path, FORMAT)


def test_a_flipped_bit_anywhere_is_found(tmp_path: Path) -> None:
    path = tmp_path / "whole"
    small_backup(path)
    whole = path.read_bytes()
    for at in range(len(whole)):
        for bit in range(8):
            changed = bytearray(whole)
            changed[at] ^= 1 << bit
            with pytest.raises(BackupUnusable):
                list(read_blocks(io.BytesIO(changed)))
    path.write_bytes(changed)
    with pytest.raises(BackupUnusable, match=f"{path} cannot be used: its block at byte"):
        verify(path, FORMAT)


def test_a_block_that_is_left_out_or_moved_is_found(tmp_path: Path) -> None:
    path = tmp_path / "whole"
    small_backup(path)
    whole = path.read_bytes()
    with path.open("rb") as file:
        places = [block.at for block in read_blocks(file)]
    for first, second, third in zip(places, places[1:], places[2:], strict=False):
        path.write_bytes(whole[:first] + whole[second:])
        with pytest.raises(BackupUnusable, match="fails its checksum"):
            verify(path, FORMAT)
        path.write_bytes(whole[:first] + whole[second:third] + whole[first:second] + whole[third:])
        with pytest.raises(BackupUnusable, match="fails its checksum"):
            verify(path, FORMAT)


def test_other_versions_and_other_files_are_named(tmp_path: Path) -> None:
    """Req: R-07."""
    path = tmp_path / "file"
    small_backup(path)
    whole = path.read_bytes()
    magic = len(backup_format.MAGIC)
    path.write_bytes(whole[:magic] + struct.pack("<H", 9) + whole[magic + 2 :])
    with pytest.raises(BackupUnusable, match="it has version 9, of a newer release; this one reads 1"):
        verify(path, FORMAT)
    path.write_bytes(whole)
    with pytest.raises(BackupUnusable, match=f"its facts have format {FORMAT}, written by release 0; this"):
        verify(path, FORMAT - 1)
    path.write_bytes(b"SQLite format 3\0" + bytes(100))
    with pytest.raises(BackupUnusable, match="not a back-up of peeklock"):
        verify(path, FORMAT)
    with pytest.raises(BackupUnusable, match=r"cannot read .*: No such file"):
        verify(tmp_path / "missing", FORMAT)


@given(st.lists(st.tuples(st.integers(0, 2**63), st.binary(max_size=60))))
def test_frames_and_rows_come_back_as_they_were(blobs: list[tuple[int, bytes]]) -> None:
    assert list(backup_format.unpack_blobs(backup_format.pack_blobs(blobs))) == blobs


@given(st.binary(max_size=300))
def test_garbage_raises_its_own_error_alone(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("garbage") / "file"
    path.write_bytes(backup_format.MAGIC + struct.pack("<H", 1) + data)
    with pytest.raises(BackupUnusable):
        verify(path, FORMAT)


def test_members_of_a_later_release_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "file"
    small = small_backup(path)
    with path.open("wb") as file, Writer(file.write) as writer:
        record = b'{"id":"a","follows":null,"taken_at_ms":1,"release":"9","store_format":1,"later":true}'
        writer.add(Kind.HEADER, record)
        with (tmp_path / "other").open("w+b") as other:
            again = small_backup(Path(other.name))
            for block in read_blocks(other):
                if block.kind is not Kind.HEADER:
                    writer.add(block.kind, block.unpacked())
        writer.end()
    found = verify(path, FORMAT)
    assert found.header == Header("a", None, 1, "9", 1)
    assert found.stores.keys() == small.stores.keys() == again.stores.keys()


# Chains


def three(tmp_path: Path) -> list[Backup]:
    store = store_with(first_batch())
    chain = [back_up(store.reader(), tmp_path / "full")]
    for no in (2, 3):
        at_once(store.commit(Batch(no, [stored(no, no)], {no: [b"body %d" % no]})))
        chain.append(back_up(store.reader(), tmp_path / f"increment {no}", chain[-1]))
    assert [next(iter(each.stores.values())).head.after_no for each in chain] == [0, 1, 2]
    return chain


def test_increments_have_what_is_new_alone(tmp_path: Path) -> None:
    chain = three(tmp_path)
    assert restored_bodies(chain) == {1: b"one", 2: b"body 2", 3: b"body 3"}
    assert restored_bodies(chain[:2]) == {1: b"one", 2: b"body 2"}


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ((0, 2, 1), "increment 3 .* does not follow .*full .*, but .*increment 2: name the"),
        ((0, 2), "increment 3 .* does not follow .*full .*, but another back-up: name the full"),
        ((1, 0, 2), "full .* does not follow .*increment 2 .*, but no other one, as it is full"),
        ((1, 2), "increment 2 is an increment of 'default': name the full back-up"),
        ((2, 1, 0), "does not follow"),
    ],
)
def test_a_wrong_order_says_which_file_is_wrong(tmp_path: Path, order: tuple[int, ...], said: str) -> None:
    chain = three(tmp_path)
    with pytest.raises(BackupUnusable, match=said):
        chained([chain[at] for at in order])


def test_a_store_that_is_not_the_same_is_backed_up_in_full(tmp_path: Path) -> None:
    first = store_with(first_batch(), Batch(2, [stored(2, 2)], {2: [b"two"]}))
    base = back_up(first.reader(), tmp_path / "base")

    def reason(store: MemoryStore) -> str | None:
        made = back_up(store.reader(), tmp_path / "next", base)
        return next(iter(made.stores.values())).head.full_because

    assert reason(first) is None
    assert reason(store_with(first_batch())) == "the store ends at batch 1, before 2: it is an older copy"
    other = store_with(first_batch(), Batch(2, [stored(3, 2)], {2: [b"two"]}))
    assert reason(other) == "batch 2 is another one: the store was restored or replaced"
    at_once(first.commit(Batch(3, [], truncate_before=3)))
    assert reason(first) is None, "the next frame still says which one was before it"
    at_once(first.commit(Batch(4, [stored(1, 1), stored(2, 2)], truncate_before=4)))
    assert reason(first) == "the journal was cut past batch 2: it begins at 4"


def test_a_row_whose_number_is_used_again_is_in_the_increment(tmp_path: Path) -> None:
    """A start goes on after the highest row that there is, and the rows after it may have been dropped."""
    store = store_with(first_batch(), Batch(2, [stored(2, 2)], {2: [b"two"]}))
    chain = [back_up(store.reader(), tmp_path / "full")]
    at_once(store.commit(Batch(3, [stored(1, 1)], {}, dropped_rows=[2])))
    at_once(store.commit(Batch(4, [stored(2, 2)], {2: [b"TWO"]})))
    chain.append(back_up(store.reader(), tmp_path / "increment", chain[-1]))
    assert restored_bodies(chain) == {1: b"one", 2: b"TWO"}


# Restored stores


def test_numbers_skip_ahead_and_an_event_says_so(tmp_path: Path) -> None:
    """Req: R-02, R-07."""
    cursor = CursorStored(QUEUE_ID, "reader", 7, 5, 1, 1000)
    facts: list[Change] = [cursor, ClaimStored(QUEUE_ID, "reader", 7, ((1, 1),))]
    numbers = NumbersIssued(QUEUE_ID, 9, SequenceNumber(9), 100)
    store = store_with(first_batch(), Batch(2, [*facts, numbers]))
    backup = back_up(store.reader(), tmp_path / "full")
    target = MemoryStore()
    restored = restore([backup], target.filler())

    found = at_once(target.load_definitions())
    assert found.cursors == [
        replace(cursor, last_no=7 + SKIPPED_NUMBERS, undone=(8, 6 + SKIPPED_NUMBERS)),
    ]
    assert found.claims == facts[1:]
    issued = {each.queue_id: each.next_position for _, each in at_once(target.load_live()).numbers}
    assert issued == {QUEUE_ID: 9 + SKIPPED_NUMBERS, 5: 1 + SKIPPED_NUMBERS, 6: 1 + SKIPPED_NUMBERS}
    assert restored.first_no == 2 + SKIPPED_BATCHES
    [(no, data)] = target.event_rows.items()
    [event] = event_rows.unpack(no, data)
    assert (event.type, event.sequence_number, event.related_number) == (EventType.RESTORED, 2, no)
    assert no == restored.first_no
    assert '"backed_up_at": "2023-11-14T22:13:20Z"' in str(event.reason)
    at_once(target.commit(Batch(no + 1, [stored(10, 3)], {3: [b"new"]})))


def test_claims_of_an_owner_that_has_not_read_are_given_up(tmp_path: Path) -> None:
    """The numbers of such claims are used again, so they must not be those of the life before."""
    cursor = CursorStored(QUEUE_ID, "reader", 7, 5, 1, 1000, "owner", 6)
    claims = [ClaimStored(QUEUE_ID, "reader", no, ((no, 1),)) for no in (6, 7)]
    backup = back_up(store_with(first_batch(), Batch(2, [cursor, *claims])).reader(), tmp_path / "full")
    target = MemoryStore()
    restore([backup], target.filler())
    found = at_once(target.load_definitions())
    assert found.claims == claims[:1]
    assert found.cursors[0].unread_from_no == found.cursors[0].last_no == 7 + SKIPPED_NUMBERS


def in_a_loop(test: Callable[[Path], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    def runs(tmp_path: Path) -> None:
        asyncio.run(test(tmp_path))

    runs.__name__, runs.__doc__ = test.__name__, test.__doc__
    return runs


@in_a_loop
async def test_a_store_on_disk_becomes_one_in_memory_and_back(tmp_path: Path) -> None:
    """Both while it is open and while it is not."""
    store = SqliteStore(tmp_path / "data")
    await store.open()
    await store.commit(first_batch())
    backup = back_up(store.reader(), tmp_path / "open")
    await store.close()
    assert back_up(store.reader(), tmp_path / "closed", backup).stores["default/default"].head.after_no == 1
    assert restored_bodies([backup]) == {1: b"one"}

    filler = SqliteFiller(tmp_path / "restored")
    restore([backup], filler)
    assert check(tmp_path / "restored").damages == []
    other = SqliteStore(tmp_path / "restored")
    await other.open()
    assert other.created_at_ms == store.created_at_ms
    assert (await other.load_definitions()).entities == [ENTITY]
    assert await other.read_body_rows([1]) == {1: [b"one"]}
    await other.close()


@in_a_loop
async def test_a_store_is_none_before_its_restore_ends(tmp_path: Path) -> None:
    filler = SqliteFiller(tmp_path)
    filler.abandon()
    with pytest.raises(StoreUnfinished, match=f"{tmp_path} is not whole: a restore into it runs, or was int"):
        await SqliteStore(tmp_path).open()
    with pytest.raises(StoreUnfinished):
        SqliteStore(tmp_path).reader()
    with pytest.raises(StoreFailed, match="exists: restore into an empty folder"):
        SqliteFiller(tmp_path)
    memory = MemoryStore()
    memory.filler().abandon()
    with pytest.raises(StoreUnfinished):
        await memory.open()


@in_a_loop
async def test_a_damaged_body_is_damaged_after_a_restore_too(tmp_path: Path) -> None:
    """Its bytes stay for a rescue, and the broker dead-letters the message when it meets it. Req: R-03."""
    store = store_with(first_batch(), Batch(2, [stored(2, 2)], {2: [b"two"]}))
    store._bodies.add(2, (store._bodies.get(2) or b"")[:-1] + b"?")
    backup = back_up(store.reader(), tmp_path / "full")
    filler = SqliteFiller(tmp_path / "data")
    assert restore([backup], filler).damaged_rows == [2]
    report = check(tmp_path / "data")
    assert not report.stops
    assert [damage.partition(";")[0] for damage in report.damages] == [
        "body row 2 fails the checksum of the payload in slot 0"
    ]


def test_rows_that_are_dropped_while_they_are_read_do_no_harm(tmp_path: Path) -> None:
    """Commits between the pieces of a back-up: it has the state of its last look."""
    store = Synchronous(tmp_path / "data")
    at_once(store.open())
    at_once(store.commit(first_batch()))
    for no in range(2, 8):
        at_once(store.commit(Batch(no, [stored(no, no)], {no: [b"%d" % no * 3_000_000]})))
    reader: SqliteReader = store.reader()
    reading, last_look = reader.body_rows, reader.at_one_instant
    is_last = False

    def and_commit(after: int, bytes_max: int) -> list[tuple[int, bytes]]:
        found = reading(after, bytes_max)
        no = reader.ends().last_no + 1
        if not is_last and no < 12:
            moved = stored(no - 6, no)
            at_once(store.commit(Batch(no, [moved], {no: [b"moved"]}, dropped_rows=[no - 6])))
        return found

    def at_one_instant() -> AbstractContextManager[None]:
        nonlocal is_last
        is_last = True
        return last_look()

    reader.body_rows, reader.at_one_instant = and_commit, at_one_instant  # type: ignore[method-assign, assignment]  # commits that come between
    found = restored_bodies([back_up(reader, tmp_path / "full")])
    last_no = reader.ends().last_no
    assert last_no > 9, "some came between"
    reader.close()
    store.end()
    whole = {1: b"one", **{no: b"%d" % no * 3_000_000 for no in range(2, 8)}}
    whole.update({no - 6: b"moved" for no in range(8, last_no + 1)})
    assert found == whole
