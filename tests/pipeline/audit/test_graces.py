"""The audit over hand-made logs of broken connections: a lock lapses with the grace of its connection."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from peeklock.pipeline.audit.checks import Check
from tests.pipeline.handmade import START, Hand

pytestmark = [pytest.mark.spark, pytest.mark.long]

GRACE_S = 5
LOCK_S = 60


class Story:
    """A message that connection 7 locks at second 0; each event at another second."""

    def __init__(self, namespace: str, setting: str | None = '{"lock_grace_ms":5000}') -> None:
        self.hand = Hand()
        self.namespace = namespace
        self.add("epoch_started", 0, reason=setting)
        self.add("entity_created", 0, "orders", reason="{}")
        self.add("enqueued", 0, "orders", 1)
        self.lock("delivered", 0, 7, link_name="receiver")

    def add(
        self, kind: str, second: float, entity: str | None = None, number: int | None = None, **given: Any
    ) -> None:
        at = START + timedelta(seconds=second)
        self.hand.add(kind, entity, number, **{"event_time": at, **given})
        self.hand.rows[-1]["namespace"] = self.namespace

    def lock(
        self, kind: str, second: float, connection: int, *, lasts_s: float = LOCK_S, **given: Any
    ) -> None:
        until = START + timedelta(seconds=second + lasts_s)
        self.add(
            kind, second, "orders", 1, connection_id=connection, lock_token="t", locked_until=until, **given
        )

    def lose(self, second: float, connection: int) -> None:
        self.add("connection_lost", second, connection_id=connection)

    def end(self, kind: str, second: float, *, broke: int | None = None) -> None:
        reason = None if broke is None else "the connection broke"
        self.add(
            kind, second, "orders", 1, lock_token="t", connection_id=broke, reason=reason,
            connection_lost=broke is not None or None, delivery_count=int(kind == "lock_lapsed"),
        )  # fmt: skip


def stories() -> dict[Story, set[Check]]:
    """Write the logs, with what must be found in each."""
    told: dict[Story, set[Check]] = {}

    def story(name: str, *found: Check, setting: str | None = '{"lock_grace_ms":5000}') -> Story:
        made = Story(name, setting)
        told[made] = set(found)
        return made

    on_time = story("on-time")
    on_time.lose(10, 7)
    on_time.end("lock_lapsed", 15, broke=7)

    in_slices = story("in-slices")
    in_slices.lose(10, 7)
    in_slices.end("lock_lapsed", 17, broke=7)

    early = story("early", Check.LOCK_CUT_SHORT)
    early.lose(10, 7)
    early.end("lock_lapsed", 14.9, broke=7)

    stalled = story("stalled")  # the machine slept, say
    stalled.lose(10, 7)
    stalled.end("lock_lapsed", 45, broke=7)

    late = story("late", Check.LOCK_OVERDUE)
    late.lock("renewed", 5, 7, lasts_s=300)
    late.lose(10, 7)
    late.end("lock_lapsed", 75.1, broke=7)

    unbroken = story("unbroken", Check.LOCK_CUT_SHORT)
    unbroken.lose(10, 8)
    unbroken.end("lock_lapsed", 15, broke=7)

    own_end = story("own-end")
    own_end.lose(58, 7)
    own_end.end("lock_lapsed", 60)

    moved = story("moved")
    moved.lock("renewed", 5, 8)
    moved.lose(10, 7)
    moved.end("completed", 50)

    unmoved = story("unmoved", Check.LOCK_CUT_SHORT)
    unmoved.lock("renewed", 5, 8)
    unmoved.lose(10, 7)
    unmoved.end("lock_lapsed", 15, broke=7)

    both = story("both")
    both.lose(10, 7)
    both.lock("renewed", 12, 8)
    both.lose(20, 8)
    both.end("lock_lapsed", 25, broke=8)

    kept = story("kept", Check.LOCK_OVERDUE)
    kept.lock("renewed", 5, 8)
    kept.lose(10, 8)
    kept.end("lock_lapsed", 65)

    overslept = story("overslept")
    overslept.lock("renewed", 5, 8)
    overslept.lose(10, 8)
    overslept.end("lock_lapsed", 3_600)

    settled_late = story("settled-late", Check.LOCK_ENDED)
    settled_late.lock("renewed", 5, 8)
    settled_late.lose(10, 8)
    settled_late.end("completed", 15)

    settled = story("settled")
    settled.lock("renewed", 5, 8)
    settled.lose(10, 8)
    settled.end("completed", 14.9)

    closed_link = story("closed-link")  # before its connection broke: that is not told
    closed_link.lose(10, 7)
    closed_link.end("completed", 50)

    at_once = story("at-once", setting='{"lock_grace_ms":0}')
    at_once.lose(10, 7)
    at_once.end("lock_lapsed", 10, broke=7)

    lapses = story("lapses", setting='{"lock_grace_ms":null}')
    lapses.lock("renewed", 5, 8)
    lapses.lose(10, 8)
    lapses.end("lock_lapsed", 65)

    never = story("never", Check.LOCK_CUT_SHORT, setting='{"lock_grace_ms":null}')
    never.lose(10, 7)
    never.end("lock_lapsed", 15, broke=7)

    older = story("older", setting=None)
    older.end("lock_lapsed", 10, broke=7)

    return told


def test_a_lock_lapses_with_the_grace_of_its_connection(spark: Any, tmp_path: Path) -> None:
    """Each log is right but for what its name says. Req: C26, X-04"""
    from peeklock.pipeline.audit.job import AuditOptions, run

    told = stories()
    for story in told:
        story.hand.write(tmp_path / story.namespace)
    verdict = run(spark, AuditOptions(tuple(str(folder) for folder in sorted(tmp_path.iterdir()))))
    found: dict[str, set[Check]] = {story.namespace: set() for story in told}
    for check, finding in verdict.findings.items():
        for namespace in finding.by_namespace:
            found[namespace].add(check)
    assert found == {story.namespace: checks for story, checks in told.items()}
