"""Reading the rows of a table that is damaged."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from peeklock.store.rescue import readable

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
