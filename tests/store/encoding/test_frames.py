"""Frames: what goes in comes out, and nothing else ever does."""

from __future__ import annotations

import zlib
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peeklock.broker.vocabulary.addresses import SequenceNumber
from peeklock.broker.vocabulary.changes import (
    Change,
    MessageIdSeen,
    MessageRemoved,
    MessageStored,
    NumbersIssued,
)
from peeklock.broker.vocabulary.message import COPIES_FOLLOWING_MAX, FIELDS, Message, MessageState
from peeklock.engine import journal
from peeklock.store.base import Batch, LiveFacts, StoreDamaged
from peeklock.store.encoding import frames
from peeklock.store.encoding.fold import Fold
from tests.golden.stores.make import format_1
from tests.store.damage import frames_of

NUMBER = st.integers(0, 2**63 - 1)
POSITION = st.integers(0, 2**64 - 1) | st.integers(0, 5)
SMALL = st.integers(0, 2**32 - 1)
QUEUE_ID = st.integers(4, 11)
TEXT = st.none() | st.text(max_size=5) | st.sampled_from(["session", "\0", "sëssion ☃ 𝄞", "x" * 128])


@st.composite
def messages(draw: st.DrawFn) -> Message:
    message = Message(
        draw(SMALL),
        bare_offset=draw(SMALL),
        ttl_ms=draw(st.none() | NUMBER),
        scheduled_at_ms=draw(st.none() | NUMBER),
    )
    message.position = draw(POSITION)
    message.sequence_number = SequenceNumber(draw(NUMBER))
    message.enqueued_sequence_number = SequenceNumber(draw(NUMBER))
    message.enqueued_at_ms = draw(NUMBER)
    message.expires_at_ms = draw(NUMBER)
    message.state = draw(st.sampled_from(MessageState))
    message.delivery_count = draw(SMALL)
    message.overlay = draw(st.none() | st.binary(max_size=40))
    message.session_id = draw(TEXT)
    message.dead_letter_source = draw(TEXT)
    message.hops = draw(st.integers(0, 4))
    message.was_scheduled = draw(st.booleans())
    # It never changes where a message is.
    message.copies_left = (0, 1, COPIES_FOLLOWING_MAX - 1, COPIES_FOLLOWING_MAX)[message.position % 4]
    message.body_row = draw(NUMBER)
    message.body_slot = draw(SMALL)
    return message


CHANGE = st.one_of(
    st.builds(MessageStored, QUEUE_ID, messages()),
    st.builds(MessageRemoved, QUEUE_ID, messages()),
    st.builds(NumbersIssued, QUEUE_ID, POSITION, NUMBER, NUMBER),
    st.builds(NumbersIssued, QUEUE_ID, POSITION, NUMBER, NUMBER, st.tuples(*[POSITION] * 16)),
    st.builds(MessageIdSeen, QUEUE_ID, st.binary(min_size=16, max_size=16), NUMBER, NUMBER),
)


def stored(changes: list[Change]) -> list[tuple[object, ...]]:
    """Return the fields of stored records that a frame keeps."""
    return [
        (c.queue_id, *(getattr(c.message, name) for name in STORED_FIELDS))
        for c in changes
        if type(c) is MessageStored
    ]


STORED_FIELDS = tuple(name for name in FIELDS if name not in ("lock", "routing", "journal_no", "queue_id"))


@given(st.lists(CHANGE, max_size=30), st.integers(1, 2**60), SMALL)
def test_a_frame_gives_back_every_fact(changes: list[Change], no: int, previous: int) -> None:
    """All fields at the ends of their ranges; positions run on where sequence numbers roll over."""
    meta = frames.encode(Batch(no, changes), previous)
    assert frames.previous_of(meta) == previous
    frame = frames.decode(no, meta)
    # Records are grouped by queue, in their order; the order of different keys means nothing.
    assert sorted(map(repr, stored(frame.changes))) == sorted(map(repr, stored(last_overlays(changes))))
    for kind in (MessageStored, MessageRemoved):
        for change in frame.changes:
            if type(change) is kind:
                assert change.message.queue_id == change.queue_id
    assert sorted(
        (c.queue_id, c.message.position) for c in frame.changes if type(c) is MessageRemoved
    ) == sorted((c.queue_id, c.message.position) for c in changes if type(c) is MessageRemoved)
    for plain in (NumbersIssued, MessageIdSeen):
        assert sorted(map(repr, (c for c in frame.changes if type(c) is plain))) == sorted(
            map(repr, (c for c in changes if type(c) is plain))
        )
    assert all(c.message.journal_no == no for c in frame.changes if type(c) is MessageStored)


def last_overlays(changes: list[Change]) -> list[Change]:
    """Let records of one key in one batch agree on the overlay, as records of one message do."""
    overlays: dict[tuple[int, int], bytes] = {}
    for c in changes:
        if type(c) is MessageStored and c.message.overlay is not None:
            overlays[c.queue_id, c.message.position] = c.message.overlay
    for c in changes:
        if type(c) is MessageStored and c.message.overlay is not None:
            c.message.overlay = overlays[c.queue_id, c.message.position]
    return changes


def test_values_are_those_of_the_moment_of_encoding() -> None:
    """The record of a message changes with the next command; a batch must not."""
    message = Message(10)
    message.position = 1
    meta = frames.encode(Batch(1, [MessageStored(4, message)]))
    message.delivery_count = 9
    [change] = frames.decode(1, meta).changes
    assert isinstance(change, MessageStored)
    assert change.message.delivery_count == 0


def test_a_removal_has_the_last_word_in_its_batch() -> None:
    """Stored and removed in one batch, in either order of queues: it is gone."""
    message = Message(10)
    message.position = 7
    fold = Fold()
    fold.add(1, frames.encode(Batch(1, [MessageStored(4, message), MessageRemoved(4, message)])))
    assert list(fold.finish().messages) == []


@given(st.lists(st.lists(CHANGE, max_size=12), max_size=8), st.integers(1, 2**60))
def test_a_fold_is_a_replay_of_all_frames(batches: list[list[Change]], first_no: int) -> None:
    """Last record wins, by key."""
    fold = Fold()
    records: dict[tuple[int, int], tuple[object, ...]] = {}
    numbers: dict[int, tuple[int, NumbersIssued]] = {}
    ids: dict[tuple[int, bytes], MessageIdSeen] = {}
    for no, changes in enumerate(batches, first_no):
        meta = frames.encode(Batch(no, last_overlays(changes)))
        fold.add(no, meta)
        for change in frames.decode(no, meta).changes:
            if isinstance(change, MessageStored):
                records[change.queue_id, change.message.position] = (no, *stored([change])[0])
            elif isinstance(change, MessageRemoved):
                records.pop((change.queue_id, change.message.position), None)
            elif isinstance(change, NumbersIssued):
                numbers[change.queue_id] = (no, change)
            elif isinstance(change, MessageIdSeen):
                ids[change.queue_id, change.digest] = change
    live: LiveFacts = fold.finish()
    found = {
        (queue_id, c.message.position): (c.message.journal_no, *stored([c])[0])
        for queue_id, changes in live.messages
        for c in changes
    }
    assert found == records
    assert {n.queue_id: (no, n) for no, n in live.numbers} == numbers
    assert {(seen.queue_id, seen.digest): seen for seen in live.ids} == ids
    assert live.id_frames == {
        no: count
        for no, changes in enumerate(batches, first_no)
        if (count := sum(type(c) is MessageIdSeen for c in changes))
    }


def some_frame() -> bytes:
    changes: list[Change] = []
    for position in range(1, 4):
        message = Message(100)
        message.position = position
        message.overlay = b"overlay" if position == 2 else None
        message.session_id = "sëssion" if position > 2 else None
        message.dead_letter_source = "orders" if position > 2 else None
        changes.append(MessageStored(4, message))
    changes.append(MessageRemoved(5, message))
    changes.append(NumbersIssued(4, 4, SequenceNumber(4), 0))
    changes.append(NumbersIssued(8, 4, SequenceNumber(4), 0, tuple(range(16))))
    changes.append(MessageIdSeen(4, bytes(16), 0, SequenceNumber(1)))
    return frames.encode(Batch(3, changes))


def test_every_flipped_bit_of_a_frame_is_found() -> None:
    """Req: R-03."""
    meta = some_frame()
    for at in range(len(meta)):
        for bit in range(8):
            broken = bytearray(meta)
            broken[at] ^= 1 << bit
            with pytest.raises(StoreDamaged, match="frame 3 "):
                frames.decode(3, bytes(broken))


def test_every_cut_of_a_frame_is_found() -> None:
    """Req: R-03."""
    meta = some_frame()
    for length in range(len(meta)):
        with pytest.raises(StoreDamaged, match="frame 3 "):
            frames.decode(3, meta[:length])


def test_a_frame_in_the_place_of_another_is_found() -> None:
    """Req: R-03."""
    with pytest.raises(StoreDamaged, match="frame 4 was replaced by another frame: it has the number 3"):
        frames.decode(4, some_frame())


def with_checksum(version: int, no: int, rest: bytes) -> bytes:
    checked = no.to_bytes(8, "little") + rest
    return bytes([version]) + zlib.crc32(checked, version).to_bytes(4, "little") + checked


@given(st.binary(max_size=200))
def test_garbage_gives_only_store_damaged(data: bytes) -> None:
    """Req: R-03."""
    with pytest.raises(StoreDamaged):
        frames.decode(1, data)


@given(st.binary(max_size=300) | st.builds(lambda tail: some_frame()[13:34] + tail, st.binary(max_size=300)))
def test_garbage_under_a_right_checksum_gives_facts_or_store_damaged(rest: bytes) -> None:
    """Whatever a wrong writer left behind, nothing else is raised."""
    meta = with_checksum(frames.FRAME_VERSION, 1, rest)
    with suppress(StoreDamaged):
        assert frames.decode(1, meta).size_bytes == len(meta)


def test_a_frame_of_another_version_is_named() -> None:
    """Req: R-07."""
    with pytest.raises(StoreDamaged, match="frame 1 has version 9; this release knows 1 to 2"):
        frames.decode(1, with_checksum(9, 1, b""))


def with_session(position: int, session_id: str | None) -> Message:
    message = Message(1)
    message.position = position
    message.session_id = session_id
    return message


def test_a_text_stands_once_in_a_frame_however_many_messages_have_it() -> None:
    """A session id may be 128 characters long, and a session of thousands of messages."""
    sizes = [
        len(
            frames.encode(
                Batch(1, [MessageStored(4, with_session(n, f"{n % 3:0100}")) for n in range(count)])
            )
        )
        for count in (3, 13)
    ]
    assert sizes[1] - sizes[0] == 10 * (journal.STORED_RECORD_BYTES + journal.TEXT_PLACES_BYTES)


def test_equal_texts_are_one_object_after_a_restart() -> None:
    """Over frames, queues and places. A million messages of some sessions must not cost a million texts."""
    fold = Fold()
    for no in (1, 2):
        changes: list[Change] = []
        for queue_id in (4, 5, 7):
            message = with_session(no, "".join(["sess", "ion"]))
            message.dead_letter_source = "".join(["ses", "sion"])
            changes.append(MessageStored(queue_id, message))
        fold.add(no, frames.encode(Batch(no, changes)))
    messages = [c.message for _, changes in fold.finish().messages for c in changes]
    assert len(messages) == 6
    assert len({id(text) for m in messages for text in (m.session_id, m.dead_letter_source)}) == 1


def test_the_texts_of_records_that_were_replaced_are_not_looked_at() -> None:
    """A start reads what lasts; the journal may be three times that."""
    fold = Fold()
    fold.add(1, frames.encode(Batch(1, [MessageStored(4, with_session(1, "first"))])))
    fold.add(2, frames.encode(Batch(2, [MessageStored(4, with_session(1, "second"))])))
    [(_, [change])] = fold.finish().messages
    assert change.message.session_id == "second"
    assert isinstance(fold._texts[1], bytes)


@pytest.mark.parametrize("place", [2, 2**32 - 1])
def test_a_place_without_a_text_is_damage(place: int) -> None:
    """Whatever a wrong writer left behind. Req: R-03."""
    meta = frames.encode(Batch(1, [MessageStored(4, with_session(1, "only one"))]))
    broken = with_checksum(2, 1, meta[13:-8] + place.to_bytes(4, "little") + bytes(4))
    with pytest.raises(StoreDamaged, match="frame 1 lacks texts that its messages refer to"):
        frames.decode(1, broken)
    fold = Fold()
    fold.add(1, broken)
    with pytest.raises(StoreDamaged, match="frame 1 lacks texts that its messages refer to"):
        list(fold.finish().messages)


def test_a_text_that_is_not_utf_8_is_damage() -> None:
    """Req: R-03."""
    meta = frames.encode(Batch(1, [MessageStored(4, with_session(1, "text"))]))
    broken = with_checksum(2, 1, meta[13:].replace(b"text", b"t\xffxt"))
    with pytest.raises(StoreDamaged, match="frame 1 has a text that is not UTF-8"):
        frames.decode(1, broken)


def test_runs_without_anything_new_are_what_format_1_had() -> None:
    """Byte for byte, so that a store of format 1 is taken over as it is. Req: R-07."""
    golden = frames_of(Path(__file__).parents[2] / "golden/stores/format-1/peeklock.db")
    assert len(golden) == 4
    for batch in format_1():
        if batch.no in golden:
            ours = frames.encode(batch)
            assert frames.runs(batch.no, golden[batch.no]) == frames.runs(batch.no, ours)
            assert golden[batch.no][13:] == ours[17:]


def test_a_frame_of_version_1_names_no_frame_before_it() -> None:
    """Req: R-07."""
    meta = with_checksum(1, 1, b"")
    assert frames.previous_of(meta) is None
    assert frames.decode(1, meta).changes == []


def test_the_longest_head_that_is_cut_off_is_found() -> None:
    """A right checksum does not make it a frame. Req: R-03."""
    with pytest.raises(StoreDamaged, match="frame 1 ends within its header"):
        frames.decode(1, with_checksum(2, 1, b"\0" * 3))


def test_the_ledger_knows_the_width_of_the_records() -> None:
    """The ledger may not look into frames; its constants are compared here."""

    def grows_by(change: Change) -> int:
        return len(frames.encode(Batch(1, [change, change]))) - len(frames.encode(Batch(1, [change])))

    assert grows_by(MessageStored(4, Message(1))) == journal.STORED_RECORD_BYTES
    with_overlay = Message(1)
    with_overlay.overlay = b"12345"
    more = grows_by(MessageStored(4, with_overlay)) - journal.STORED_RECORD_BYTES
    assert more == journal.OVERLAY_RECORD_BYTES + 5 == journal.extra_bytes(with_overlay, set())
    texts = Message(1)
    texts.session_id, texts.dead_letter_source = "sëssion", "orders"
    assert grows_by(MessageStored(4, texts)) == journal.STORED_RECORD_BYTES + journal.TEXT_PLACES_BYTES
    assert journal.extra_bytes(texts, {"sëssion", "orders"}) == journal.TEXT_PLACES_BYTES
    other = with_session(1, "sëssion 2")
    frame = [
        len(frames.encode(Batch(1, [MessageStored(4, m) for m in ms]))) for ms in ([other], [other, texts])
    ]
    assert frame[1] - frame[0] == journal.STORED_RECORD_BYTES + journal.extra_bytes(texts, {"sëssion 2"})
    for numbers in (
        NumbersIssued(4, 1, SequenceNumber(1), 0),
        NumbersIssued(4, 1, SequenceNumber(1), 0, (1,) * 16),
    ):
        assert grows_by(numbers) == journal.numbers_bytes(numbers)
    assert grows_by(MessageIdSeen(4, bytes(16), 0, SequenceNumber(0))) == journal.ID_RECORD_BYTES
