"""A thread that does one job after the other for the event loop.

Owns: the thread, its queue, the way back to the loop. Must not know: what the jobs are.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

IDLE_AFTER_S = 1.0
"""Shorter than the pause after which one notices a full disk, longer than those between bursts."""
_Job = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class Worker:
    """Runs jobs in the order they were submitted; in between `after_each` and `when_idle`."""

    def __init__(
        self,
        name: str,
        *,
        after_each: Callable[[], None] | None = None,
        when_idle: Callable[[], float | None] | None = None,
        idle_after_s: float = IDLE_AFTER_S,
    ) -> None:
        """Start the thread.

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
        # A daemon: a process that must stop at once does not wait for a disk that hangs.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], T]) -> asyncio.Future[T]:
        """Queue a job; the future gets its result or exception. Call on the event loop's thread."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.put((job, loop, future))
        return future

    def stop(self) -> None:
        """End the thread after the jobs queued so far; does not wait."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (item := self._next()) is not None:
            job, loop, future = item
            result: object = None
            error: BaseException | None = None
            try:
                result = job()
            except BaseException as raised:
                error = raised
            try:
                loop.call_soon_threadsafe(_settle, future, result, error)
            except RuntimeError:  # the loop is closed: nobody waits any more
                return
            del item, job, future, result, error
            if self._after_each is not None:
                self._after_each()

    def _next(self) -> _Job | None:
        timeout: float | None = None if self._when_idle is None else self._idle_after_s
        while True:
            try:
                return self._jobs.get(timeout=timeout)
            except Empty:
                assert self._when_idle is not None
                timeout = self._when_idle()


def _settle(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
