"""What happens to the broker, and when: a pure function of seed and length.

Owns: kinds of events, how often each comes. Must not know: how one is carried out.

Theory of operation. A run is cut into blocks of a quarter of an hour. In the first half of a block the broker
dies and is restarted; in the second half it lives on, so that what grows within a life can be seen. What does
not end a life happens at any time.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from random import Random


class Kind(StrEnum):
    """Kinds of events."""

    KILL = "kill"
    RESTART = "restart"
    RELOAD = "reload"
    ROTATE = "key rotation"
    BACKUP = "back-up"
    INCREMENT = "increment"
    RESTORE = "restore"
    CLOCK = "clock step"
    DAMAGE = "damaged copy"
    BANK = "bank judged"


ENDS_LIFE = frozenset({Kind.KILL, Kind.RESTART, Kind.DAMAGE, Kind.BANK})
"""Kinds that end the broker's process."""

PERIODS_S = {
    Kind.KILL: 60,
    Kind.RESTART: 150,
    Kind.RELOAD: 75,
    Kind.ROTATE: 100,
    Kind.BACKUP: 300,
    Kind.INCREMENT: 75,
    Kind.RESTORE: 300,
    Kind.CLOCK: 90,
    Kind.DAMAGE: 300,
    Kind.BANK: 600,
}
"""One event in so many seconds on average; at least one in each run. Our choice: in an hour every kind meets
each phase of the broker, and a back-up has a few increments."""

BLOCK_S = 900
LEAD_S, TAIL_S = 4.0, 3.0
"""Nothing happens at the very beginning and end of a run."""


@dataclass(frozen=True, slots=True, order=True)
class Event:
    """One event, `at_s` after the start."""

    at_s: float
    kind: Kind


def plan(seed: int, minutes: float) -> list[Event]:
    """Return the events of a run, in their order: each kind, and a back-up before what needs one."""
    random = Random(seed)
    span_s = minutes * 60 - LEAD_S - TAIL_S
    events = []
    for kind, period_s in PERIODS_S.items():
        count = max(1, round(minutes * 60 / period_s))
        for place in range(count):
            share = (place + random.random()) / count
            if kind in ENDS_LIFE:
                share = _squeezed(share, minutes)
            events.append(Event(LEAD_S + share * span_s, kind))
    events.sort()
    first = min(event for event in events if event.kind is Kind.BACKUP)
    earliest_s = LEAD_S + random.random()
    events[events.index(first)] = Event(earliest_s, Kind.BACKUP)
    return sorted(_after_the_first(events, earliest_s, span_s))


def _squeezed(share: float, minutes: float) -> float:
    """Move a share of the run into the first half of its block."""
    blocks = max(1, round(minutes * 60 / BLOCK_S))
    block, within = divmod(share * blocks, 1)
    return (block + within / 2) / blocks


def _after_the_first(events: list[Event], earliest_s: float, span_s: float) -> list[Event]:
    """Move increments and restores behind the first back-up."""
    needy = (Kind.INCREMENT, Kind.RESTORE)
    return [
        Event(earliest_s + span_s * 0.05, event.kind)
        if event.kind in needy and event.at_s <= earliest_s
        else event
        for event in events
    ]
