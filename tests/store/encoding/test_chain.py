"""The chain of frames: a frame that is missing or was replaced between two others is found."""

from __future__ import annotations

import zlib

import pytest

from peeklock.broker.vocabulary.changes import MessageRemoved
from peeklock.broker.vocabulary.message import Message
from peeklock.store.base import Batch, StoreDamaged
from peeklock.store.encoding import frames
from peeklock.store.encoding.fold import Chain


def frames_from(first: int, count: int, previous: int = 0) -> dict[int, bytes]:
    """Return frames that follow one another."""
    made = {}
    for no in range(first, first + count):
        made[no] = frames.encode(Batch(no, []), previous)
        previous = frames.checksum_of(made[no])
    return made


def another(no: int, previous: int = 0) -> bytes:
    """Return a sound frame of another history."""
    return frames.encode(Batch(no, [MessageRemoved(4, Message(1))]), previous)


def of_version_1(no: int, runs: bytes = b"") -> bytes:
    checked = no.to_bytes(8, "little") + runs
    return b"\1" + zlib.crc32(checked, 1).to_bytes(4, "little") + checked


def followed(journal: dict[int, bytes]) -> list[str]:
    """Return what a chain says of a journal, every frame of which is checked."""
    chain = Chain()
    said = []
    for no, meta in journal.items():
        try:
            chain.follow(no, meta)
        except StoreDamaged as error:
            said.append(str(error))
    return said


@pytest.mark.parametrize("first", [1, 7])
def test_frames_that_follow_one_another_are_a_chain_from_whichever_is_the_first(first: int) -> None:
    """Those before it may have been forgotten."""
    journal = frames_from(1, 12)
    assert followed({no: meta for no, meta in journal.items() if no >= first}) == []


def test_a_gap_between_frames_is_found() -> None:
    """Req: R-03."""
    journal = frames_from(5, 9)
    del journal[7], journal[9], journal[10], journal[11]
    assert followed(journal) == [
        "frame 7 is missing from the journal: frame 8 comes next",
        "frames 9 to 11 are missing from the journal: frame 12 comes next",
    ]


def test_a_sound_frame_that_replaces_another_is_found_by_the_one_behind_it() -> None:
    """Req: R-03."""
    journal = frames_from(5, 4)
    was = frames.checksum_of(journal[6])
    journal[6] = another(6, frames.checksum_of(journal[5]))
    assert followed(journal) == [
        f"frame 7 does not follow frame 6: it was written after one with the checksum {was:08x}, "
        f"and frame 6 has {frames.checksum_of(journal[6]):08x}"
    ]


def test_frames_of_another_history_are_found_at_the_first_of_them() -> None:
    """Req: R-03."""
    journal = frames_from(5, 3) | frames_from(8, 3, previous=1)
    [said] = followed(journal)
    assert said.startswith("frame 8 does not follow frame 7")


def test_the_chain_begins_at_the_last_frame_of_version_1() -> None:
    """Req: R-03, R-07."""
    old = {no: of_version_1(no) for no in (1, 2, 3)}
    journal = old | frames_from(4, 2, frames.checksum_of(old[3]))
    assert followed(journal) == []
    journal[3] = of_version_1(3, another(3)[17:])
    [said] = followed(journal)
    assert said.startswith("frame 4 does not follow frame 3")


def test_behind_a_damaged_frame_only_the_number_is_checked() -> None:
    """Its checksum is not known; the frame behind it is no damage of its own. Req: R-03."""
    journal = frames_from(1, 9)
    chain = Chain()
    chain.follow(1, journal[1])
    chain.follow_damaged(2)
    chain.follow(3, another(3))
    with pytest.raises(StoreDamaged, match="frame 4 is missing"):
        chain.follow_damaged(5)
    with pytest.raises(StoreDamaged, match="frame 6 is missing"):
        chain.follow(7, journal[7])
    chain.follow(8, journal[8])
