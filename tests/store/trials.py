"""Trials of damage: `python -m tests.store.trials [COUNT [SEED]]`.

Each takes a store as a kill, a power cut or a clean stop left it, damages one of its files at random (a
flipped bit, a cut, zeros, two swapped pieces), and looks what comes of it. What has to hold: `check` finds
the damage, or nothing that was stored has changed, or it is one of the cases that nothing can find; and a
start that goes on has all facts.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from peeklock.broker.vocabulary.addresses import SequenceNumber
from peeklock.broker.vocabulary.changes import (
    QUEUES_PER_ENTITY,
    Change,
    EntityStored,
    MessageRemoved,
    MessageStored,
    NumbersIssued,
)
from peeklock.broker.vocabulary.descriptions import QueueDescription
from peeklock.broker.vocabulary.message import Message
from peeklock.engine.bodies import has_lost
from peeklock.store.base import Batch, StoreDamaged, StoreError
from peeklock.store.check import SOUND, check
from peeklock.store.encoding import entities, event_rows, frames
from peeklock.store.encoding.fold import Fold
from peeklock.store.losses import NONE_MISSING
from peeklock.store.rescue import accept_loss
from peeklock.store.sqlite import wal
from peeklock.store.sqlite.store import SqliteStore

QUEUE_ID = 4
BATCHES = 150
DATABASE, WITNESS = "peeklock.db", "peeklock.witness"
WAL = f"{DATABASE}-wal"


@dataclass(frozen=True)
class Facts:
    """All that is read of a store."""

    frames: tuple[bytes, ...]
    bodies: tuple[tuple[int, tuple[bytes, ...]], ...]
    """Of the rows that messages need; others wait for being freed, and nobody reads them."""
    entries: tuple[tuple[str, str], ...]
    events: tuple[tuple[int, bytes], ...]


@dataclass(frozen=True)
class Left:
    """A folder as something left it."""

    name: str
    folder: Path
    facts: Facts
    written: frozenset[bytes]
    """Each frame that there was once."""
    has_witness: bool


def message(position: int, row: int, slot: int) -> Message:
    made = Message(100)
    made.position = position
    made.sequence_number = SequenceNumber(position)
    made.body_row, made.body_slot = row, slot
    return made


def batch(no: int, draw: random.Random) -> Batch:
    """Return a batch like those of a broker: it stores some messages, removes others, frees a row."""
    changes: list[Change] = []
    if no == 1:
        changes += [EntityStored(n, QueueDescription(f"queue-{n}"), 0, 0) for n in range(1, 5)]
    changes += [MessageStored(QUEUE_ID, message(10 * no + slot, no, slot)) for slot in range(5)]
    changes.append(NumbersIssued(QUEUE_ID, 10 * no + 5, SequenceNumber(10 * no + 5), 0))
    payloads = [draw.randbytes(draw.choice((20, 200, 2000))) for _ in range(5)]
    made = Batch(no, changes, {no: payloads}, events=[])
    if no > 10 and no % 3 == 0:
        gone = no - 10
        changes += [MessageRemoved(QUEUE_ID, message(10 * gone + slot, gone, slot)) for slot in range(5)]
        made.dropped_rows = [gone]
    if no % 50 == 0:
        made.truncate_before = no - 40
    return made


def made(folder: Path) -> list[Left]:
    """Make the folders to damage, in `folder`."""
    written = asyncio.run(_run(folder))
    shutil.copytree(folder / "killed", folder / "power cut")
    (folder / "power cut" / WITNESS).unlink()
    found = []
    for name in ("killed", "killed soon", "power cut", "stopped"):
        copy = folder / f"{name}, to read"
        shutil.copytree(folder / name, copy)
        facts = asyncio.run(read_all(copy))
        found.append(Left(name, folder / name, facts, written, name != "power cut"))
    return found


async def _run(folder: Path) -> frozenset[bytes]:
    draw = random.Random(1)
    ignored = shutil.ignore_patterns("*-shm", "*.lock")
    store = SqliteStore(folder / "live")
    await store.open()
    written = [b""]
    for no in range(1, BATCHES + 1):
        made = batch(no, draw)
        written.append(frames.encode(made, frames.checksum_of(written[-1])))
        await store.commit(made)
        if no == 20:
            shutil.copytree(folder / "live", folder / "killed soon", ignore=ignored)
    shutil.copytree(folder / "live", folder / "killed", ignore=ignored)
    await store.close()
    shutil.copytree(folder / "live", folder / "stopped", ignore=ignored)
    return frozenset(written)


async def recovered(folder: Path) -> Facts:
    """Open a store as a start does and read all but bodies. Raises: StoreError."""
    return await read_all(folder, with_bodies=False)


async def read_all(folder: Path, *, with_bodies: bool = True) -> Facts:
    """Open a store as a start does and read all of it. Raises: StoreError."""
    store = SqliteStore(folder)
    await store.open()
    try:
        await store.load_definitions()
        live = await store.load_live()
        needed = {change.message.body_row for _, changes in live.messages for change in changes}
        rows = await store._read("SELECT no, meta FROM journal ORDER BY no")
        bodies = []
        for no in sorted(needed) if with_bodies else ():
            payloads = (await store.read_body_rows([no]))[no]
            if has_lost(payloads):
                raise StoreDamaged(f"body row {no} is damaged")
            bodies.append((no, tuple(payloads)))
        entries = await store._read("SELECT k, v FROM kv ORDER BY k")
        events = await store._read("SELECT no, data FROM event ORDER BY no")
        for no, data in events:
            event_rows.unpack(no, data)
        return Facts(tuple(meta for _, meta in rows), tuple(bodies), tuple(entries), tuple(events))
    finally:
        await store.close()


# What goes wrong

PIECE = 4096


def flip(data: bytearray, draw: random.Random) -> str:
    at = draw.randrange(len(data))
    data[at] ^= 1 << draw.randrange(8)
    return f"a bit flipped at {at}"


def cut(data: bytearray, draw: random.Random) -> str:
    at = draw.randrange(len(data))
    del data[at:]
    return f"cut at {at}"


def zero(data: bytearray, draw: random.Random) -> str:
    at = draw.randrange(len(data))
    count = min(len(data) - at, draw.choice((1, 8, 512, 4096, 20_000)))
    data[at : at + count] = bytes(count)
    return f"{count} zeros at {at}"


def swap(data: bytearray, draw: random.Random) -> str:
    size, first = (PIECE, 0) if len(data) % PIECE == 0 else (PIECE + wal.FRAME.size, wal.HEAD.size)
    pieces = max(2, (len(data) - first) // size)
    one, two = (first + size * n for n in sorted(draw.sample(range(pieces), 2)))
    data[one : one + size], data[two : two + size] = data[two : two + size], data[one : one + size]
    return f"pieces at {one} and {two} swapped"


DAMAGES: tuple[Callable[[bytearray, random.Random], str], ...] = (flip, cut, zero, swap)


# What comes of it


@dataclass(frozen=True)
class Outcome:
    """Of one trial."""

    what: str
    verdict: str
    """`found`, `harmless`, `end lost` (nothing can find it), or what is wrong."""


def trial(left: Left, draw: random.Random, folder: Path) -> Outcome:
    """Damage a copy of a folder, made at `folder`."""
    shutil.copytree(left.folder, folder)
    files = sorted(file for file in folder.iterdir() if file.stat().st_size)
    sizes = [file.stat().st_size for file in files]
    file = draw.choice(files) if draw.random() < 0.3 else draw.choices(files, sizes)[0]
    data = bytearray(file.read_bytes())
    before = bytes(data)
    what = f"{left.name}, {file.name}: {draw.choice(DAMAGES)(data, draw)}"
    if bytes(data) == before:
        return Outcome(what, "harmless")
    file.write_bytes(data)
    return Outcome(what, verdict(left, folder))


def verdict(left: Left, folder: Path) -> str:
    try:
        report = check(folder)
    except Exception as error:
        return f"WRONG: check ends with a defect: {error!r}"
    found = report.exit_status != SOUND
    if found and not (report.damages or report.lines):
        return "WRONG: check does not say what it found"
    try:
        facts = asyncio.run(read_all(folder))
    except StoreError as error:
        if not found:
            return f"WRONG: check does not find what the start does: {error}"
        return rescued(left, folder) if report.stops else "found"
    except Exception as error:
        return f"WRONG: a start ends with a defect: {error!r}"
    if facts == left.facts:
        return "found" if found else "harmless"
    if found:
        return f"WRONG: check finds it, but a start and all that it reads do not: {report.damages}"
    if not left.has_witness and _lacks_end(facts, left):
        return "end lost"
    return "WRONG: nobody finds it"


def rescued(left: Left, folder: Path) -> str:
    """Go on with what can be read; say what came of it."""
    try:
        said = accept_loss(folder)
    except StoreError:
        return "found, beyond rescue"
    except Exception as error:
        return f"WRONG: a rescue ends with a defect: {error!r}"
    report = check(folder)
    if report.stops:
        return f"WRONG: a rescued store is damaged: {report.damages}"
    facts = asyncio.run(recovered(folder))
    if not facts.frames:
        return "WRONG: a rescued store has no frame"
    fold, old = Fold(), Fold()
    for meta in facts.frames:
        fold.add(frames.number_of(meta), meta)
    for meta in left.facts.frames:
        old.add(frames.number_of(meta), meta)
    live, before = fold.finish(), old.finish()
    if live.first_no <= BATCHES:
        return "WRONG: a number of a batch is given again"
    numbers = {each.queue_id: each.next_position for _, each in live.numbers}
    kept = {key for key, _ in facts.entries}
    if any(
        numbers.get(each.queue_id, 0) <= each.next_position
        for _, each in before.numbers
        if entities.key_of(each.queue_id // QUEUES_PER_ENTITY) in kept  # else its definition is lost
    ):
        return "WRONG: a sequence number is given again"
    stored = {(queue_id, each.message.position) for queue_id, found in live.messages for each in found}
    known = {(queue_id, each.message.position) for queue_id, found in before.messages for each in found}
    if stored != known and any(line.startswith(NONE_MISSING) for line in said):
        return f"WRONG: a rescue says that it lost nothing: {said}"
    lacks_bodies = any(" need" in damage for damage in report.damages)
    if lacks_bodies != any(line.startswith("bodies that cannot be read") for line in said):
        return f"WRONG: a rescue does not say which bodies it lost: {said}, {report.damages}"
    return "found, rescued whole" if stored == known else "found, rescued in part"


def _lacks_end(facts: Facts, left: Left) -> bool:
    """Whether a store is as it was some commits before."""
    return facts.frames[-1:] != left.facts.frames[-1:] and left.written.issuperset(facts.frames)


def run(count: int, seed: int, folder: Path) -> Iterator[Outcome]:
    """Make so many trials."""
    draw = random.Random(seed)
    (folder / "left").mkdir()
    lefts = made(folder / "left")
    for number in range(count):
        place = folder / f"trial {number}"
        yield trial(draw.choice(lefts), draw, place)
        shutil.rmtree(place)


def main(arguments: list[str]) -> int:
    count, seed = (int(arguments[n]) if len(arguments) > n else given for n, given in enumerate((1000, 0)))
    verdicts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="peeklock-trials-") as folder:
        for outcome in run(count, seed, Path(folder)):
            verdicts[outcome.verdict.partition(":")[0]] += 1
            if outcome.verdict.startswith("WRONG"):
                print(outcome.what, outcome.verdict, sep="\n    ")
    print(*(f"{number:6} {name}" for name, number in verdicts.most_common()), sep="\n")
    return int(verdicts["WRONG"] > 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
