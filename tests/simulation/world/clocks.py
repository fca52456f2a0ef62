"""What the broker's clocks may have shown at each instant, as far as the world tells.

Owns: the model of clock steps (ARCHITECTURE.md, "Time passes, the wall clock is set"). Must not know: the
broker's structures, what follows from an instant.

The checker's own time passes as the broker's does (`Node.passed_ms`), across restarts too. It measures
durations. UTC is that time plus an offset, which a step changes. The broker shows clients one UTC and uses
one UTC itself; the two differ while a step is taken for an error. A restart adopts the machine's clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from peeklock.broker.queue.wall_clock import CLOCK_STEP_LIMIT_MS

FOREVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Clock:
    """The broker's clocks from an instant on, each as ms ahead of the checker's time."""

    since_ms: int
    epoch: int
    """Number of the process; the first one is 1."""
    offset_ms: int
    """The offset that the core gets; it is constant for the life of a process."""
    shown_ms: int
    believed_ms: int


class Clocks:
    """The history of all clocks."""

    def __init__(self) -> None:
        self._known = [Clock(0, 0, 0, 0, 0)]

    @property
    def now(self) -> Clock:
        return self._known[-1]

    # Events of the world

    def started(self, now_ms: int, offset_ms: int) -> None:
        """Record that a process starts with these offsets."""
        self._known.append(Clock(now_ms, self.now.epoch + 1, offset_ms, offset_ms, offset_ms))

    def stepped(self, now_ms: int, step_ms: int) -> None:
        """Record that the broker has found a step of its wall clock."""
        shown_ms = self.now.shown_ms + step_ms
        believed_ms = self.now.believed_ms
        if shown_ms - believed_ms <= CLOCK_STEP_LIMIT_MS:
            believed_ms = shown_ms
        self._known.append(replace(self.now, since_ms=now_ms, shown_ms=shown_ms, believed_ms=believed_ms))

    def accepted(self, now_ms: int) -> None:
        """Record that an operator has accepted the wall clock."""
        self._known.append(replace(self.now, since_ms=now_ms, believed_ms=self.now.shown_ms))

    # Conclusions

    def earliest_ms(self, from_ms: int, to_ms: int) -> int:
        """Return the least instant that the broker may have taken for the present between two times."""
        return min(start + clock.believed_ms for clock, start, _ in self._spans(from_ms, to_ms))

    def latest_ms(self, from_ms: int, to_ms: int) -> int:
        """Return the greatest instant that the broker may have taken for the present between two times."""
        return max(end + clock.believed_ms for clock, _, end in self._spans(from_ms, to_ms))

    def passed_ms(self, shown_ms: int, lasts_ms: int, epoch: int, from_ms: int, to_ms: int) -> int:
        """Return when something ends, given the instant that was shown for its end and the times between
        which it began in the life of a process. Where the clock was set back, two times can be meant; the
        later one is, since nothing takes that long."""
        ends = [
            end
            for clock, start, until in self._spans(from_ms, to_ms)
            if clock.epoch == epoch and start <= (end := shown_ms - clock.shown_ms) - lasts_ms <= until
        ]
        if ends:
            return max(ends)
        return shown_ms - next(c for c in reversed(self._known) if c.epoch == epoch).shown_ms

    def may_show(self, shown_ms: int, ends_ms: int, epoch: int) -> bool:
        """Return whether a process may have shown an instant for the time at which something ends."""
        return any(ends_ms + clock.shown_ms == shown_ms for clock in self._known if clock.epoch == epoch)

    def last_at_ms(self, instant_ms: int) -> int:
        """Return the latest time at which the broker can have reached an instant."""
        return max(instant_ms - clock.believed_ms for clock in self._known[1:] or self._known)

    def may_last(self, epoch: int, seen_ms: int, seen_instant_ms: int, for_ms: int, at_ms: int) -> bool:
        """Return whether something that has a duration, and was last seen at a time of a process, may still
        last at some time from `at_ms` on. Later processes measure it by the instant that they find in the
        store."""
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
        """Return the clocks in a span of time, each with the part of the span in which they were so."""
        ends = [clock.since_ms for clock in self._known[1:]] + [FOREVER]
        for clock, end_ms in zip(self._known, ends, strict=True):
            if clock.since_ms <= to_ms and end_ms >= from_ms:
                yield clock, max(from_ms, clock.since_ms), min(to_ms, end_ms)
