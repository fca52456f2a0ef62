"""The audit over logs of a broker whose wall clock was set: no alarm is raised for that."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from peeklock.pipeline.audit.checks import Check
from tests.pipeline.handmade import START, Hand

pytestmark = [pytest.mark.spark, pytest.mark.long]

HOUR_S = 3600


class Story:
    """A message at second 0; each event at a second by the clock of the log."""

    def __init__(self, namespace: str, ttl_s: int | None = None) -> None:
        self.hand = Hand()
        self.namespace = namespace
        self.token = ""
        self.expires = None if ttl_s is None else START + timedelta(seconds=ttl_s)
        self.add("epoch_started", 0, reason='{"lock_grace_ms":5000}')
        self.add("entity_created", 0, "orders", reason="{}")
        self.add("enqueued", 0, "orders", 1, expires_at=self.expires)

    def add(
        self, kind: str, second: float, entity: str | None = None, number: int | None = None, **given: Any
    ) -> None:
        at = START + timedelta(seconds=second)
        self.hand.add(kind, entity, number, **{"event_time": at, **given})
        self.hand.rows[-1]["namespace"] = self.namespace

    def restart(self, second: float) -> None:
        """From now on it is another process."""
        self.hand.epoch = self.hand.batch
        self.add("epoch_started", second, reason='{"lock_grace_ms":5000}')

    def step(self, second: float, step_s: int) -> None:
        told = {"step_ms": step_s * 1000, "ahead_ms": step_s * 1000, "due_ahead_ms": step_s * 1000}
        self.add("clock_stepped", second, reason=json.dumps(told))

    def deliver(self, second: float, until_s: float, count: int = 0) -> None:
        until = START + timedelta(seconds=until_s)
        self.token = f"{second}, {count}"
        self.add(
            "delivered", second, "orders", 1, connection_id=7, link_name="r", lock_token=self.token,
            locked_until=until, expires_at=self.expires, delivery_count=count,
        )  # fmt: skip

    def end(self, kind: str, second: float, count: int = 0) -> None:
        self.add(
            kind, second, "orders", 1, lock_token=self.token, connection_id=7, expires_at=self.expires,
            delivery_count=count,
        )  # fmt: skip


def stories() -> dict[Story, set[Check]]:
    """Write the logs, with what must be found in each."""
    told: dict[Story, set[Check]] = {}

    def story(name: str, *found: Check, ttl_s: int | None = None) -> Story:
        made = Story(name, ttl_s)
        told[made] = set(found)
        return made

    forwards = story("forwards")  # settled in time, as its length goes
    forwards.deliver(10, 70)
    forwards.step(20 + HOUR_S, HOUR_S)
    forwards.end("completed", 30 + HOUR_S)

    backwards = story("backwards")  # the log's time stands still
    backwards.deliver(10, 70)
    backwards.step(20, -HOUR_S)
    backwards.end("lock_lapsed", 20, 1)
    backwards.deliver(20, 120 - HOUR_S, 1)
    backwards.end("completed", 20, 1)

    not_yet = story("not-yet", ttl_s=600)  # its end is over by the log's last time, and not by the clock
    not_yet.add("enqueued", 1200, "orders", 2)
    not_yet.step(1200, -HOUR_S)

    arrival = story("arrival", ttl_s=2 * HOUR_S)  # expires by its arrival, an hour before its stamp says
    arrival.step(0, -HOUR_S)
    arrival.add("expired", HOUR_S, "orders", 1, expires_at=arrival.expires)

    early = story("early", Check.EXPIRED_EARLY, ttl_s=3 * HOUR_S)
    early.add("expired", HOUR_S, "orders", 1, expires_at=early.expires)

    aged = story("aged")  # older than the default by the log's time, and not by the clock
    aged.add("entity_updated", 0, "orders", reason='{"default_ttl_ms":600000}')
    aged.add("enqueued", 1200, "orders", 2)
    aged.step(1200, -HOUR_S)
    aged.add(
        "delivered", 1200, "orders", 1, connection_id=7, link_name="r", lock_token="t", enqueued_time=START,
        locked_until=START + timedelta(seconds=1260 - HOUR_S),
    )  # fmt: skip

    restarted = story("restarted")  # by a clock behind: a stamp stands still, a time to live does not
    restarted.add("enqueued", HOUR_S, "orders", 2)
    restarted.restart(60)
    expires = START + timedelta(seconds=HOUR_S + 600)
    stamp = START + timedelta(seconds=HOUR_S)
    restarted.add("enqueued", 70, "orders", 3, expires_at=expires, enqueued_time=stamp)
    restarted.add("expired", 670, "orders", 3, expires_at=expires)

    waiting = story("waiting", ttl_s=1800)  # by the clock of now its time is not over
    waiting.add("enqueued", HOUR_S, "orders", 2)
    waiting.restart(60)

    later = story("later", Check.LOCK_ENDED)  # long after the step all is judged as before
    later.step(20 + HOUR_S, HOUR_S)
    later.deliver(500 + HOUR_S, 560 + HOUR_S)
    later.end("completed", 570 + HOUR_S)

    return told


def test_a_clock_that_is_set_raises_no_alarm(spark: Any, tmp_path: Path) -> None:
    """Each log is right but for what its name says. Req: S-04, X-04"""
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
