"""What the broker's clocks were when: the one that only passes, what it shows, which instants it believes.

Owns: the model of steps (ARCHITECTURE.md, "Time passes, the wall clock is set"), as far as the world tells
what it did. Must not know: the broker's structures, what follows from an instant.

The checker's own time passes as the broker's does (`Node.passed_ms`), over restarts too. What lasts for a
while is measured by it. UTC is that time and a difference, which a step changes; the broker tells clients one
UTC and believes one: they differ while a step is taken for an error. A restart believes the machine's clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from peeklock.broker.queue.wall_clock import CLOCK_STEP_LIMIT_MS

FOREVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Clock:
    """How the broker's clocks are from an instant on, all in ms ahead of the checker's time."""

    since_ms: int
    epoch: int
    """Which process it is: the first one is 1."""
    offset_ms: int
    """What the core is given; it stays for the life of a process."""
    shown_ms: int
    believed_ms: int


class Clocks:
    """All that the clocks ever were."""

    def __init__(self) -> None:
        self._known = [Clock(0, 0, 0, 0, 0)]

    @property
    def now(self) -> Clock:
        return self._known[-1]

    # What the world did

    def started(self, now_ms: int, offset_ms: int) -> None:
        """A process starts: all its clocks are so far ahead."""
        self._known.append(Clock(now_ms, self.now.epoch + 1, offset_ms, offset_ms, offset_ms))

    def stepped(self, now_ms: int, step_ms: int) -> None:
        """The broker has found that its wall clock was set."""
        shown_ms = self.now.shown_ms + step_ms
        believed_ms = self.now.believed_ms
        if shown_ms - believed_ms <= CLOCK_STEP_LIMIT_MS:
            believed_ms = shown_ms
        self._known.append(replace(self.now, since_ms=now_ms, shown_ms=shown_ms, believed_ms=believed_ms))

    def accepted(self, now_ms: int) -> None:
        """An operator has said that the wall clock is right."""
        self._known.append(replace(self.now, since_ms=now_ms, believed_ms=self.now.shown_ms))

    # What follows

    def earliest_ms(self, from_ms: int, to_ms: int) -> int:
        """Return the least instant that the broker believed it to be, from a time to another."""
        return min(start + clock.believed_ms for clock, start, _ in self._spans(from_ms, to_ms))

    def latest_ms(self, from_ms: int, to_ms: int) -> int:
        """Return the greatest instant that the broker believed it to be, from a time to another."""
        return max(end + clock.believed_ms for clock, _, end in self._spans(from_ms, to_ms))

    def passed_ms(self, shown_ms: int, lasts_ms: int, epoch: int, from_ms: int, to_ms: int) -> int:
        """Return when something ends that is shown to end at an instant, and that began to last for so long
        at some time between two in the life of a process. Where the clock was set back two times may be
        meant: the later one is, since nothing is under way for long."""
        ends = [
            end
            for clock, start, until in self._spans(from_ms, to_ms)
            if clock.epoch == epoch and start <= (end := shown_ms - clock.shown_ms) - lasts_ms <= until
        ]
        if ends:
            return max(ends)
        return shown_ms - next(c for c in reversed(self._known) if c.epoch == epoch).shown_ms

    def may_show(self, shown_ms: int, ends_ms: int, epoch: int) -> bool:
        """Tell whether a process may have shown an instant for the time at which something ends."""
        return any(ends_ms + clock.shown_ms == shown_ms for clock in self._known if clock.epoch == epoch)

    def last_at_ms(self, instant_ms: int) -> int:
        """Return the latest time at which the broker can have believed an instant to come."""
        return max(instant_ms - clock.believed_ms for clock in self._known[1:] or self._known)

    def may_last(self, epoch: int, seen_ms: int, seen_instant_ms: int, for_ms: int, at_ms: int) -> bool:
        """Tell whether something that lasts for a while, and was last seen at a time of a process, may still
        last at some time from `at_ms` on. Later processes measure it by the instant that they find stored."""
        starts = [
            clock
            for clock, before in zip(self._known[1:], self._known, strict=False)
            if clock.epoch > before.epoch
        ]
        for clock in starts:
            end_ms = next((c.since_ms for c in starts if c.epoch == clock.epoch + 1), FOREVER)
            now_ms = max(at_ms, clock.since_ms)
            if clock.epoch < epoch or end_ms < at_ms:
                continue
            if clock.epoch == epoch and now_ms <= seen_ms + for_ms:
                return True
            if clock.epoch > epoch and now_ms + clock.offset_ms <= seen_instant_ms + for_ms:
                return True
        return not starts and at_ms <= seen_ms + for_ms

    def _spans(self, from_ms: int, to_ms: int) -> Iterator[tuple[Clock, int, int]]:
        """Give the clocks of a time, each with when it began and ended to be so within that."""
        ends = [clock.since_ms for clock in self._known[1:]] + [FOREVER]
        for clock, end_ms in zip(self._known, ends, strict=True):
            if clock.since_ms <= to_ms and end_ms >= from_ms:
                yield clock, max(from_ms, clock.since_ms), min(to_ms, end_ms)
