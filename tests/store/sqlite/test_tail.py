"""The end of the log: what a crash leaves is taken for one, what was lost later is found."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from peeklock.broker.vocabulary.addresses import SequenceNumber
from peeklock.store.base import Batch, StoreDamaged, StoreGone
from peeklock.store.check import DAMAGED, SOUND, check
from peeklock.store.encoding.fold import Chain
from peeklock.store.losses import BATCHES_NAMED_MAX, MESSAGES_NAMED_MAX, NONE_MISSING, Losses
from peeklock.store.rescue import SKIPPED_BATCHES, SKIPPED_NUMBERS, accept_loss
from peeklock.store.sqlite import tail, wal, witness
from peeklock.store.sqlite.opening import Durability
from peeklock.store.sqlite.store import SqliteStore
from tests.store.trials import QUEUE_ID, batch, read_all

DATABASE, WAL, WITNESS = "peeklock.db", "peeklock.db-wal", "peeklock.witness"
COUNT = 20


def killed(folder: Path, *, durability: Durability = "fsync") -> Path:
    """Make a store as a kill left it, all in its log; return its folder."""

    async def make() -> None:
        draw = random.Random(1)
        store = SqliteStore(folder / "live", durability=durability)
        await store.open()
        for no in range(1, COUNT + 1):
            await store.commit(batch(no, draw))
        shutil.copytree(folder / "live", folder / "left", ignore=shutil.ignore_patterns("*-shm", "*.lock"))
        await store.close()

    asyncio.run(make())
    return folder / "left"


def commit_ends(folder: Path) -> list[int]:
    """Return where each commit in the log ends."""
    data = (folder / WAL).read_bytes()
    size = wal.FRAME.size + 4096
    return [at + size for at in range(wal.HEAD.size, len(data), size) if wal.FRAME.unpack_from(data, at)[1]]


def change(file: Path, how: Callable[[bytearray], None]) -> None:
    data = bytearray(file.read_bytes())
    how(data)
    file.write_bytes(data)


def flip_at(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 0x10
    file.write_bytes(data)


def flip_in_all(file: Path, part: bytes, at: int) -> None:
    """Flip a bit in each copy of some bytes: a page stands in the log once for each commit that wrote it."""
    data = file.read_bytes()
    other = bytearray(part)
    other[at] ^= 0x10
    assert part in data
    file.write_bytes(data.replace(part, bytes(other)))


def no_start(folder: Path, says: str) -> None:
    """A start is refused and changes nothing; `check` says the same."""
    before = {file.name: file.read_bytes() for file in folder.iterdir() if not file.name.endswith(".lock")}
    with pytest.raises(StoreDamaged, match=says):
        asyncio.run(SqliteStore(folder).open())
    assert {f.name: f.read_bytes() for f in folder.iterdir() if not f.name.endswith(".lock")} == before
    report = check(folder)
    assert report.exit_status == DAMAGED
    assert report.stops
    assert any(says.replace("\\", "") in damage for damage in report.damages), report.damages


def test_a_store_that_a_kill_left_is_whole(tmp_path: Path) -> None:
    folder = killed(tmp_path)
    assert check(folder).exit_status == SOUND
    assert len(asyncio.run(read_all(folder)).frames) == COUNT


@pytest.mark.parametrize("with_witness", [True, False])
@pytest.mark.parametrize("which", [1, COUNT // 2, COUNT - 3])
def test_a_flipped_bit_with_commits_behind_it_is_found(
    tmp_path: Path, which: int, with_witness: bool
) -> None:
    """The log alone proves it. Req: R-03."""
    folder = killed(tmp_path)
    if not with_witness:
        (folder / WITNESS).unlink()
    flip_at(folder / WAL, commit_ends(folder)[which] + 500)
    no_start(folder, "cannot be read in order")


def test_a_flipped_bit_in_the_last_commit_is_found_after_a_kill(tmp_path: Path) -> None:
    """By the witness: the log alone looks as if the machine had stopped in that commit. Req: R-03."""
    folder = killed(tmp_path)
    flip_at(folder / WAL, commit_ends(folder)[-2] + 500)
    no_start(folder, f"batch {COUNT} is missing")


@pytest.mark.parametrize("left", [0, 1, COUNT - 1])
def test_a_tail_that_was_cut_is_found_after_a_kill(tmp_path: Path, left: int) -> None:
    """At the end of a commit, so that nothing else tells of it. Req: R-03."""
    folder = killed(tmp_path)
    end = commit_ends(folder)[left - 1] if left else 0
    change(folder / WAL, lambda data: data.__delitem__(slice(end, None)))
    no_start(folder, "missing from")


def test_a_database_that_is_gone_is_missed(tmp_path: Path) -> None:
    folder = killed(tmp_path)
    (folder / DATABASE).unlink()
    with pytest.raises(StoreDamaged, match="is missing or empty, and batch 20 was acknowledged"):
        asyncio.run(SqliteStore(folder).open())
    assert check(folder).exit_status == DAMAGED


@pytest.mark.parametrize("is_empty", [False, True])
def test_what_is_said_of_a_database_that_is_gone_names_the_ways_that_work(
    tmp_path: Path, is_empty: bool
) -> None:
    """A rescue is not among them, and says the same. Req: R-03."""
    folder = killed(tmp_path)
    (folder / DATABASE).unlink()
    if is_empty:
        (folder / DATABASE).touch()
    with pytest.raises(StoreGone) as refused:
        asyncio.run(SqliteStore(folder).open())
    said = str(refused.value)
    ways = f"Put back a copy of the whole folder, or remove {folder / WITNESS} to start empty and lose all"
    assert said.count(ways) == 1
    assert "--accept-loss" not in said
    with pytest.raises(StoreGone, match="--accept-loss finds nothing to read") as failed:
        accept_loss(folder)
    assert str(failed.value).count(ways) == 1
    (folder / WITNESS).unlink()
    assert asyncio.run(read_all(folder)).frames == ()


def test_a_damaged_head_of_the_log_is_found(tmp_path: Path) -> None:
    """SQLite takes such a log for an empty one."""
    folder = killed(tmp_path)
    flip_at(folder / WAL, 17)
    no_start(folder, "the head of .*peeklock.db-wal is damaged".replace(".*", f"{folder}/"))


def test_what_a_power_cut_left_of_the_last_commit_is_no_damage(tmp_path: Path) -> None:
    """And nothing of it stays in the log, where it could prove something about later commits."""
    folder = killed(tmp_path)
    (folder / WITNESS).unlink()
    ends = commit_ends(folder)
    flip_at(folder / WAL, ends[-2] + 500)
    assert check(folder).exit_status == SOUND
    tail.verify(folder / DATABASE)
    assert (folder / WAL).stat().st_size == ends[-2]
    assert len(asyncio.run(read_all(folder)).frames) == COUNT - 1


@pytest.mark.parametrize("same_start", [True, False])
def test_without_fsync_a_witness_counts_until_the_machine_starts_anew(
    tmp_path: Path, same_start: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = killed(tmp_path, durability="os")
    flip_at(folder / WAL, commit_ends(folder)[5] + 500)
    if not same_start:
        monkeypatch.setattr(witness, "_machine_start", lambda: b"another start   ")
    report = check(folder)
    assert report.stops == same_start
    if not same_start:
        assert len(asyncio.run(read_all(folder)).frames) == 6


def test_a_log_that_begins_anew_is_no_damage(tmp_path: Path) -> None:
    """Frames of its earlier rounds lie behind those of the latest."""

    async def make() -> None:
        draw = random.Random(1)
        store = SqliteStore(tmp_path / "live")
        await store.open()
        for no in range(1, COUNT + 1):
            await store.commit(batch(no, draw))
        db = store._write_db
        assert db is not None
        assert store._writer is not None
        await store._writer.submit(lambda: db.execute("PRAGMA wal_checkpoint(RESTART)").fetchall())
        await store.commit(batch(COUNT + 1, draw))
        shutil.copytree(
            tmp_path / "live", tmp_path / "left", ignore=shutil.ignore_patterns("*-shm", "*.lock")
        )
        await store.close()

    asyncio.run(make())
    folder = tmp_path / "left"
    assert (
        len({wal.FRAME.unpack_from((folder / WAL).read_bytes(), at)[2] for at in frame_starts(folder)}) == 2
    )
    assert check(folder).damages == []
    assert len(asyncio.run(read_all(folder)).frames) == COUNT + 1


def frame_starts(folder: Path) -> range:
    return range(wal.HEAD.size, (folder / WAL).stat().st_size - 4000, wal.FRAME.size + 4096)


def test_a_replaced_last_frame_is_found(tmp_path: Path) -> None:
    """No frame behind it says what it was; the witness does. Req: R-03."""
    folder = killed(tmp_path)
    found = witness.read(folder)
    assert found is not None
    assert found.no == COUNT
    kept = witness.Witness(folder, synced=True)
    kept.open(COUNT, found.checksum ^ 1)
    kept.close()
    no_start(folder, f"frame {COUNT} is not the one that was acknowledged")


@pytest.mark.parametrize("at", range(0, witness.FILE_BYTES, 5))
def test_a_damaged_witness_says_less_and_nothing_wrong(tmp_path: Path, at: int) -> None:
    noted = witness.Witness(tmp_path, synced=True)
    noted.open(6, 60)
    noted.note(7, 70)
    noted.note(8, 80)
    noted.close()
    flip_at(tmp_path / WITNESS, at)
    found = witness.read(tmp_path)
    assert found is not None
    assert (found.no, found.checksum) in ((8, 80), (7, 70))


@pytest.mark.parametrize("content", [b"", bytes(witness.FILE_BYTES), b"x" * 40])
def test_a_witness_that_a_power_cut_left_empty_says_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / WITNESS).write_bytes(content)
    assert witness.read(tmp_path) is None


# Going on


def test_what_lies_behind_a_flipped_bit_is_kept_when_the_loss_is_accepted(tmp_path: Path) -> None:
    """The pages behind it are sound: one payload is damaged, and nothing else is lost. Req: R-03."""
    folder = killed(tmp_path)
    whole = asyncio.run(read_all(shutil.copytree(folder, tmp_path / "whole")))
    payload = dict(whole.bodies)[6][-1][-20:]
    flip_in_all(folder / WAL, payload, 10)
    assert check(folder).stops
    said = accept_loss(folder)
    kept = f"kept: 4 entities, 0 rules, {COUNT * 5 - 15} messages, 17 body rows, 20 event rows, 0 facts"
    assert kept in said
    assert said[:2] == [
        "bodies that cannot be read: 1, of message 64 of 'queue-1'",
        f"{NONE_MISSING} except those above: all batches up to 20 were found, including those after the "
        "damage",
    ]
    report = check(folder)
    assert not report.stops
    assert [damage.partition(";")[0] for damage in report.damages] == [
        "body row 6 fails the checksum of the payload in slot 4"
    ]


def test_no_number_is_given_again_when_the_loss_is_accepted(tmp_path: Path) -> None:
    """Of messages, batches and entities; the damaged files are kept beside. Req: R-03."""
    folder = killed(tmp_path)
    end = commit_ends(folder)[4]
    change(folder / WAL, lambda data: data.__delitem__(slice(end, None)))
    accept_loss(folder)

    async def look() -> None:
        store = SqliteStore(folder)
        await store.open()
        live = await store.load_live()
        numbers = {each.queue_id: each for _, each in live.numbers}
        assert numbers[QUEUE_ID].next_position == 55 + SKIPPED_NUMBERS
        assert set(numbers) == {first + sub_queue for first in (4, 8, 12, 16) for sub_queue in range(3)}
        assert live.first_no == COUNT + SKIPPED_BATCHES
        assert (await store.load_definitions()).next_entity_id == 5 + SKIPPED_BATCHES
        await store.commit(Batch(live.first_no + len(live.frame_sizes), []))
        await store.close()

    asyncio.run(look())
    assert check(folder).damages == []
    [aside] = folder.glob("damaged-*")
    assert {DATABASE, f"{WAL}.found", WITNESS} <= {file.name for file in aside.iterdir()}


def test_a_frame_that_cannot_be_read_costs_what_it_stored(tmp_path: Path) -> None:
    """Req: R-03."""
    folder = killed(tmp_path)
    whole = asyncio.run(read_all(shutil.copytree(folder, tmp_path / "whole")))
    flip_in_all(folder / WAL, whole.frames[6][:60], 40)
    said = accept_loss(folder)
    assert said[0].startswith("batches that cannot be read: 7; the messages that they stored are lost")
    assert not any(line.startswith(NONE_MISSING) for line in said)
    assert check(folder).damages == []
    assert len(asyncio.run(read_all(folder)).frames) == 1


def test_a_rescue_that_loses_nothing_says_so(tmp_path: Path) -> None:
    """The bit is in a frame's own checksum, and all pages are sound. Req: R-03."""
    folder = killed(tmp_path)
    flip_at(folder / WAL, commit_ends(folder)[8] + wal.FRAME.size - 1)
    assert check(folder).stops
    assert accept_loss(folder)[0] == (
        f"{NONE_MISSING}: all batches up to 20 were found, including those after the damage"
    )


@pytest.mark.parametrize("with_witness", [True, False])
def test_a_rescue_says_which_batches_a_cut_took(tmp_path: Path, with_witness: bool) -> None:
    """How many messages these stored cannot be known; nor, without a witness, which batches there were. Req:
    R-03."""
    folder = killed(tmp_path)
    if not with_witness:
        (folder / WITNESS).unlink()
    end = commit_ends(folder)[4]
    change(folder / WAL, lambda data: data.__delitem__(slice(end, None)))
    said = accept_loss(folder)
    if with_witness:
        assert said[0].startswith("acknowledged batches that are missing: 6 to 20; the messages")
    else:
        assert said[0] == "there is no witness: whether more than batch 5 was acknowledged is unknown"
    assert not any(line.startswith(NONE_MISSING) for line in said)


def test_a_rescue_doubts_a_frame_that_was_replaced(tmp_path: Path) -> None:
    folder = killed(tmp_path)
    kept = witness.Witness(folder, synced=True)
    kept.open(COUNT, 1)
    kept.close()
    assert accept_loss(folder)[0] == f"frame {COUNT} is not the one that was acknowledged"


def test_a_rescue_tells_bodies_that_were_known_to_be_damaged_apart(tmp_path: Path) -> None:
    folder = killed(tmp_path)
    whole = asyncio.run(read_all(shutil.copytree(folder, tmp_path / "whole")))
    flip_in_all(folder / WAL, dict(whole.bodies)[6][-1][-20:], 10)
    said = accept_loss(folder, lambda message: message.sequence_number == 64)
    assert said[0] == "dead letters whose bodies were already known to be damaged: 1"


@pytest.mark.parametrize("more", [0, 1])
def test_of_many_losses_some_are_named_and_the_rest_is_counted(more: int) -> None:
    """At the limits and one past."""
    last = 2 * (BATCHES_NAMED_MAX + more)
    lost = [(4, SequenceNumber(number)) for number in range(MESSAGES_NAMED_MAX + more)]
    losses = Losses(last, list(range(1, last, 2)), bodies=lost)
    batches, bodies = losses.lines(last, {1: "orders"})
    assert f", {2 * BATCHES_NAMED_MAX - 1}{' and 1 more' if more else ''}; the messages" in batches
    assert bodies.endswith(f"message {MESSAGES_NAMED_MAX - 1} of 'orders'{' and 1 more' if more else ''}")


def test_skipping_the_check_of_the_chain_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: then a frame of another copy passes, which the check finds."""
    from peeklock.store.encoding import frames

    first = frames.encode(Batch(1, []))
    second = frames.encode(Batch(2, []), frames.checksum_of(first))
    third = frames.encode(Batch(3, []), frames.checksum_of(second) ^ 1)

    def follow_all() -> None:
        chain = Chain()
        for no, meta in enumerate((first, second, third), 1):
            chain.follow(no, meta)

    with pytest.raises(StoreDamaged):
        follow_all()
    monkeypatch.setattr(frames, "previous_of", lambda meta: None)
    follow_all()
