"""A thread that does one job after the other for the event loop.

Owns: the thread, its queue, the way back to the loop, and that no two jobs are done at the same time. Must
not know: what the jobs are.

While the thread rests, the loop may do a job itself (`do_now`): the way to the thread and back takes some
40 us of CPU. One lock is held around all that either of them does, so that what the jobs share is never used
by both.
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
"""Shorter than the pause after which one notices a full disk, longer than those between bursts."""
_Job = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class Worker:
    """Runs jobs in the order in which they came; in between `after_each` and `when_idle`, in the thread."""

    def __init__(
        self,
        name: str,
        *,
        after_each: Callable[[], None] | None = None,
        when_idle: Callable[[], float | None] | None = None,
        idle_after_s: float = IDLE_AFTER_S,
    ) -> None:
        """Start the thread; to be called on the event loop that is to be served.

        Args:
            name: of the thread.
            after_each: called after each job, when its result is on its way.
            when_idle: called when no job came for a while; answers after how many seconds to call it again
                if still none has come, None = not before the next job.
            idle_after_s: how long that while is.
        """
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._after_each = after_each
        self._when_idle = when_idle
        self._idle_after_s = idle_after_s
        self._loop = asyncio.get_running_loop()  # asked for once: CPython 3.11 makes a system call of it
        self._at_work = threading.Lock()
        self._unsettled = 0
        """Jobs that were submitted and whose results have not reached the loop."""
        self._woken_at_s = time.monotonic()
        # A daemon: a process that must stop at once does not wait for a disk that hangs.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], T]) -> asyncio.Future[T]:
        """Queue a job; the future gets its result or exception. Call on the event loop's thread."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._unsettled += 1
        self._jobs.put((job, future))
        return future

    def do_now(self, job: Callable[[], T]) -> asyncio.Future[T] | None:
        """Do a job on the calling thread, which is the event loop's; the future is done.

        None: the thread has jobs or does something by itself, so nothing was done.
        """
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
            # At times, for what the thread does after jobs and when none comes, though it has none.
            self._woken_at_s = now_s
            self.submit(_nothing)
        return future

    def stop(self) -> None:
        """End the thread after the jobs queued so far; does not wait."""
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
            except RuntimeError:  # the loop is closed: nobody waits any more
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
