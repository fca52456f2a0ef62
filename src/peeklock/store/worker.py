"""Threads that do jobs for the event loop: few threads for many workers.

A worker has the jobs of one store and one kind, such as its commits. They are done in order, never two at the
same time, but by any thread of the pool: a worker with jobs waits among those that are ready, a thread that
is free takes it, does one job, and puts it back behind the others if it has more. So a job that hangs
occupies one thread, and holds up no worker but its own.

While a worker has no job, the loop may do one itself (`do_now`): the way to a thread and back takes some
40 us of CPU. Only the loop adds jobs, so no thread can begin one meanwhile.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

IDLE_AFTER_S = 1.0
"""Longer than the pauses between bursts. Our choice."""
_Job = tuple[Callable[[], Any], "asyncio.Future[Any] | None"]


class Pool:
    """A fixed number of threads, and the workers that are ready for one."""

    def __init__(self, name: str, threads: int) -> None:
        """Start so many threads of this name."""
        self.ready: SimpleQueue[Worker | None] = SimpleQueue()
        self._threads = threads
        for _ in range(threads):
            # A daemon: a process that must stop does not wait for a disk that hangs.
            threading.Thread(target=self._run, name=name, daemon=True).start()

    def stop(self) -> None:
        """End the threads, without waiting; no worker may have a job left."""
        for _ in range(self._threads):
            self.ready.put(None)

    def _run(self) -> None:
        while (worker := self.ready.get()) is not None:
            worker.do_one()
            del worker  # this thread may rest for long


class Worker:
    """Does jobs in their order, and in between `after_each` and `when_idle`, in threads of a pool."""

    def __init__(
        self,
        pool: Pool,
        *,
        after_each: Callable[[], None] | None = None,
        when_idle: Callable[[], float | None] | None = None,
        idle_after_s: float = IDLE_AFTER_S,
    ) -> None:
        """Make a worker; call it on the event loop that it serves.

        Args:
            pool: whose threads do the jobs.
            after_each: called after each job, when its result is on its way.
            when_idle: called `idle_after_s` after the last job; returns the seconds until it is called again
                if no job comes, None = not before the next job.
            idle_after_s: see `when_idle`.
        """
        self._ready = pool.ready
        self._jobs: deque[_Job] = deque()
        self._after_each = after_each
        self._when_idle = when_idle
        self._idle_after_s = idle_after_s
        self._loop = asyncio.get_running_loop()  # cached: it is a system call in CPython 3.11
        self._changing = threading.Lock()
        """Held while `_is_taken` follows from `_jobs`."""
        self._is_taken = False
        """Whether the worker is ready, or in the hands of a thread: the loop sets it, a thread clears it."""
        self._unsettled = 0
        """Jobs whose results have not reached the loop."""
        self._woken_at_s = self._used_at_s = time.monotonic()
        self._idle_timer: asyncio.TimerHandle | None = None
        """Of the loop, which has one queue of timers for all. None while no job has come for long."""

    def submit(self, job: Callable[[], T]) -> asyncio.Future[T]:
        """Queue a job; the future gets its result or exception. Call it on the event loop."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._put(job, future)
        return future

    def do_now(self, job: Callable[[], T]) -> asyncio.Future[T] | None:
        """Do a job now, on the event loop; return a future that is done, or None if the worker has jobs."""
        if self._unsettled or self._is_taken:
            return None
        future: asyncio.Future[T] = self._loop.create_future()
        try:
            future.set_result(job())
        except BaseException as raised:
            future.set_exception(raised)
        self._note_use()
        if self._used_at_s - self._woken_at_s >= self._idle_after_s / 2:
            # A thread gets no jobs now, but must sometimes run `after_each`.
            self._woken_at_s = self._used_at_s
            self.submit(_nothing)
        return future

    def stop(self) -> None:
        """Forget `when_idle`; all jobs must be done."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    def do_one(self) -> None:
        """Do the oldest job; for a thread of the pool."""
        job, future = self._jobs.popleft()
        result: object = None
        error: BaseException | None = None
        try:
            result = job()
        except BaseException as raised:
            error = raised
        try:
            self._loop.call_soon_threadsafe(self._settle, future, result, error)
            del job, future, result, error
            if self._after_each is not None:
                self._follow_up(self._after_each)
        except RuntimeError:  # the loop is closed
            return
        with self._changing:
            has_more = self._is_taken = bool(self._jobs)
        if has_more:
            self._ready.put(self)

    def _follow_up(self, action: Callable[[], None]) -> None:
        try:
            action()
        except BaseException as raised:  # a defect, for the loop to report: other stores need the thread
            self._loop.call_soon_threadsafe(_raise, raised)

    def _put(self, job: Callable[[], Any], future: asyncio.Future[Any] | None) -> None:
        self._unsettled += 1
        with self._changing:
            self._jobs.append((job, future))
            was_taken, self._is_taken = self._is_taken, True
        if not was_taken:
            self._ready.put(self)

    def _settle(self, future: asyncio.Future[Any] | None, result: Any, error: BaseException | None) -> None:
        self._unsettled -= 1
        if future is None:  # that was `when_idle`
            if error is not None:
                raise error
            if result is not None:
                self._idle_timer = self._loop.call_later(result, self._look_whether_idle)
            return
        self._note_use()
        if future.cancelled():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def _note_use(self) -> None:
        self._used_at_s = time.monotonic()
        if self._idle_timer is None and self._when_idle is not None:
            self._idle_timer = self._loop.call_later(self._idle_after_s, self._look_whether_idle)

    def _look_whether_idle(self) -> None:
        self._idle_timer = None
        if self._unsettled:
            return  # the wait begins again when they are done
        left_s = self._used_at_s + self._idle_after_s - time.monotonic()
        if left_s > 0:
            self._idle_timer = self._loop.call_later(left_s, self._look_whether_idle)
        elif self._when_idle is not None:
            self._put(self._when_idle, None)


def _nothing() -> None:
    pass


def _raise(error: BaseException) -> None:
    raise error
