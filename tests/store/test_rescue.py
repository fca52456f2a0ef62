"""Reading the rows of a table that is damaged, and the facts that a rescue keeps."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from peeklock import __version__
from peeklock.broker.vocabulary.changes import FactStored
from peeklock.store.base import Batch, StoreDamaged
from peeklock.store.check import SOUND, check
from peeklock.store.rescue import accept_loss, readable
from peeklock.store.sqlite.store import SqliteStore
from tests.store.damage import meddle, release_of

PAGE_BYTES = 4096
LEAF_OF_TABLE = 0x0D


@pytest.mark.timeout(20)
@pytest.mark.parametrize(("one", "other"), [(0, -1), (1, 2), (0, 1), (-2, -1)])
def test_swapped_pages_do_not_make_rows_come_again_and_again(tmp_path: Path, one: int, other: int) -> None:
    """SQLite returns the rows of a page that stands in the place of another, out of order. Req: R-03."""
    path = tmp_path / "swapped.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        db.execute("CREATE TABLE journal(no INTEGER PRIMARY KEY, meta BLOB NOT NULL)")
        db.executemany("INSERT INTO journal VALUES (?, ?)", ((no, bytes(500)) for no in range(1, 61)))
        db.commit()
    pages = [path.read_bytes()[at : at + PAGE_BYTES] for at in range(0, path.stat().st_size, PAGE_BYTES)]
    leaves = [at for at, page in enumerate(pages) if at > 0 and page[0] == LEAF_OF_TABLE]
    first, second = leaves[one], leaves[other]
    pages[first], pages[second] = pages[second], pages[first]
    path.write_bytes(b"".join(pages))

    with closing(sqlite3.connect(path)) as db:
        found = [no for no, _ in readable(db, "journal", "meta")]
    assert found == sorted(set(found))
    assert 0 < len(found) <= 60


def test_facts_of_the_process_are_kept_except_the_unreadable_one(tmp_path: Path) -> None:
    """Req: R-03."""

    async def make() -> None:
        store = SqliteStore(tmp_path)
        await store.open()
        await store.commit(Batch(1, [FactStored(key, f"value of {key}") for key in ("a", "a key", "é")]))
        await store.close()

    async def facts() -> dict[str, str]:
        store = SqliteStore(tmp_path)
        await store.open()
        try:
            return (await store.load_definitions()).facts
        finally:
            await store.close()

    asyncio.run(make())
    meddle(tmp_path / "peeklock.db", "UPDATE kv SET v = 'x' WHERE k = 'fact/a key'")
    with pytest.raises(StoreDamaged, match="fact/a key fails its checksum"):
        asyncio.run(facts())
    said = accept_loss(tmp_path)
    assert said[0].startswith("not copied: the entry fact/a key fails its checksum")
    assert any(line.endswith(" 2 facts") for line in said)
    assert asyncio.run(facts()) == {"a": "value of a", "é": "value of é"}
    assert check(tmp_path).exit_status == SOUND
    assert release_of(tmp_path / "peeklock.db") == __version__
