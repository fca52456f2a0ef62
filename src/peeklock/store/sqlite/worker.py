"""A thread that does one job after the other for the event loop.

While the thread is idle, the loop may do a job itself (`do_now`): the way to the thread and back takes some
40 us of CPU. A lock is held around each job, so that the two never use shared objects at the same time.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

IDLE_AFTER_S = 1.0
"""Longer than the pauses between bursts. Our choice."""
_Job = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class Worker:
    """Runs jobs in their order, and in between `after_each` and `when_idle`, in the thread."""

    def __init__(
        self,
        name: str,
        *,
        after_each: Callable[[], None] | None = None,
        when_idle: Callable[[], float | None] | None = None,
        idle_after_s: float = IDLE_AFTER_S,
    ) -> None:
        """Start the thread; call it on the event loop that it serves.

        Args:
            name: of the thread.
            after_each: called after each job, when its result is on its way.
            when_idle: called after `idle_after_s` without a job; returns the seconds until it is called again
                if no job comes, None = not before the next job.
            idle_after_s: see `when_idle`.
        """
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._after_each = after_each
        self._when_idle = when_idle
        self._idle_after_s = idle_after_s
        self._loop = asyncio.get_running_loop()  # cached: it is a system call in CPython 3.11
        self._at_work = threading.Lock()
        self._unsettled = 0
        """Submitted jobs whose results have not reached the loop."""
        self._woken_at_s = time.monotonic()
        # A daemon: a process that must stop does not wait for a disk that hangs.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], T]) -> asyncio.Future[T]:
        """Queue a job; the future gets its result or exception. Call it on the event loop."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._unsettled += 1
        self._jobs.put((job, future))
        return future

    def do_now(self, job: Callable[[], T]) -> asyncio.Future[T] | None:
        """Do a job now, on the event loop; return a future that is done, or None if the thread is busy."""
        if self._unsettled or not self._at_work.acquire(blocking=False):
            return None
        future: asyncio.Future[T] = self._loop.create_future()
        try:
            future.set_result(job())
        except BaseException as raised:
            future.set_exception(raised)
        finally:
            self._at_work.release()
        now_s = time.monotonic()
        if now_s - self._woken_at_s >= self._idle_after_s / 2:
            # The thread gets no jobs now, but must sometimes run `after_each` and `when_idle`.
            self._woken_at_s = now_s
            self.submit(_nothing)
        return future

    def stop(self) -> None:
        """End the thread after the queued jobs, without waiting."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (item := self._next()) is not None:
            job, future = item
            result: object = None
            error: BaseException | None = None
            with self._at_work:
                try:
                    result = job()
                except BaseException as raised:
                    error = raised
            try:
                self._loop.call_soon_threadsafe(self._settle, future, result, error)
            except RuntimeError:  # the loop is closed
                return
            del item, job, future, result, error
            if self._after_each is not None:
                with self._at_work:
                    self._after_each()

    def _next(self) -> _Job | None:
        timeout: float | None = None if self._when_idle is None else self._idle_after_s
        while True:
            try:
                return self._jobs.get(timeout=timeout)
            except Empty:
                assert self._when_idle is not None
                with self._at_work:
                    timeout = self._when_idle()

    def _settle(self, future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
        self._unsettled -= 1
        if future.cancelled():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


def _nothing() -> None:
    pass
