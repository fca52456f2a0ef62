"""`peeklock check`, and with `--repair` offline and at once what a broker does when it meets a damaged
body."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from peeklock.broker.content.overlay import is_bodiless
from peeklock.broker.namespace import Namespace
from peeklock.broker.vocabulary.commands import NOWHERE, LockToken, LoseBodies
from peeklock.broker.vocabulary.effects import BodiesLost, LostBody
from peeklock.broker.vocabulary.quotas import PREMIUM
from peeklock.engine.bodies import BodyCache
from peeklock.engine.driver import Commit, Driver, HandOut
from peeklock.engine.engine import Engine
from peeklock.store import check as store_check
from peeklock.store.base import Store, StoreUnfinished
from peeklock.store.check import Report
from peeklock.store.sqlite.folder import require_finished
from peeklock.store.sqlite.store import SqliteStore

ROWS_A_TIME = 16
"""Body rows read at a time: some 4 MB."""


def check(folder: Path, *, repair_follows: bool = False) -> Report:
    """Verify the store in a folder; `repair_follows`: do not report that nothing was changed."""
    try:
        require_finished(folder)
    except StoreUnfinished as unfinished:
        report = Report(is_gone=True)
        report.damage(str(unfinished))
        return report
    return store_check.check(folder, is_bodiless, repair_follows=repair_follows)


def repair(folder: Path) -> list[LostBody]:
    """Dead-letter each message of a folder whose body is damaged, and return them.

    Raises: StoreInUse, StoreDamaged for anything but bodies, StoreFailed.
    """
    return asyncio.run(_repair(folder))


async def _repair(folder: Path) -> list[LostBody]:
    store = SqliteStore(folder)
    await store.open()
    try:
        now_ms = time.time_ns() // 1_000_000
        namespace = Namespace(limits=PREMIUM, tokens=lambda: LockToken(os.urandom(16)), digest_key=b"")
        engine = Engine(namespace, BodyCache())
        await engine.recover(store, now_ms)
        driver = Driver(engine)
        driver.rest()  # nothing else may happen to the messages
        lost: list[LostBody] = []
        rows = sorted(engine.ledger.rows())
        for first in range(0, len(rows), ROWS_A_TIME):
            found = await store.read_body_rows(rows[first : first + ROWS_A_TIME])
            needing = engine.needing(found)
            if needing:
                places = [(message.queue_id, message.position) for message in needing]
                driver.offer([LoseBodies(places, NOWHERE)], now_ms)
                lost += await _commit(driver, store, now_ms)
        return lost
    finally:
        await store.close()


async def _commit(driver: Driver, store: Store, now_ms: int) -> list[LostBody]:
    lost: list[LostBody] = []
    while not driver.idle:
        for action in driver.step(now_ms):
            match action:
                case Commit(batch):
                    driver.committed(batch.no, await store.commit(batch), now_ms)
                case HandOut(_, effects):
                    for effect in effects:
                        if isinstance(effect, BodiesLost):
                            lost += effect.lost
    return lost
