"""Planted bugs in steps of the wall clock: each subclasses the real namespace."""

from __future__ import annotations

from peeklock.broker.namespace import Namespace
from peeklock.broker.vocabulary.changes import Change
from peeklock.broker.vocabulary.commands import ClockStepped, Command
from peeklock.broker.vocabulary.effects import Effect

Answer = tuple[list[Change], list[Effect]]


class Stepped(Namespace):
    """Does something wrong after each step of the wall clock."""

    def apply(self, command: Command, now_ms: int) -> Answer:
        done = super().apply(command, now_ms)
        if type(command) is ClockStepped:
            self.spoil(command.delta_ms, now_ms)
            for queue in self._queues.values():
                queue.set_timer()
        return done

    def spoil(self, step_ms: int, now_ms: int) -> None:
        """Do it."""
        raise NotImplementedError


class DueBackwards(Stepped):
    """Treats a step backwards like a step forwards: timed things fall due."""

    def spoil(self, step_ms: int, now_ms: int) -> None:
        if step_ms < 0:
            self.wall.due_ahead_ms -= 2 * step_ms


class ForgottenWindows(Stepped):
    """Forgets the message ids in the duplicate window."""

    def spoil(self, step_ms: int, now_ms: int) -> None:
        for queue in self._queues.values():
            if queue.duplicates is not None:
                queue.duplicates.count = 0
                queue.duplicates._reset(now_ms)


class ShortenedLocks(Stepped):
    """Counts a step forwards as time that a lock has lasted."""

    def spoil(self, step_ms: int, now_ms: int) -> None:
        for queue in self._queues.values():
            for lock in queue.locks.values():
                if lock.session is None and step_ms > 0:
                    lock.locked_until_ms = max(now_ms, lock.locked_until_ms - step_ms)


class StaleEnds(Stepped):
    """Reports the ends of locks by the clock before the step."""

    def spoil(self, step_ms: int, now_ms: int) -> None:
        self.wall.ahead_ms -= step_ms
