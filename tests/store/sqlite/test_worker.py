"""A thread whose jobs the event loop may do itself while it rests."""

from __future__ import annotations

import asyncio
import threading

import pytest

from peeklock.store.sqlite.worker import Worker


def test_a_job_is_done_on_the_loop_while_the_thread_rests() -> None:
    async def test() -> None:
        worker = Worker("test")
        in_thread = await worker.submit(threading.get_ident)
        on_loop = worker.do_now(threading.get_ident)
        assert on_loop is not None
        assert on_loop.result() == threading.get_ident() != in_thread
        worker.stop()

    asyncio.run(test())


def test_a_job_does_not_pass_by_those_that_wait_for_the_thread() -> None:
    """Not even one whose result the loop has not taken yet."""

    async def test() -> None:
        worker = Worker("test")
        done: list[int] = []
        first = worker.submit(lambda: done.append(1))
        while not done:  # done in the thread; its result comes with a later turn of the loop
            pass
        assert worker.do_now(lambda: done.append(3)) is None
        second = worker.submit(lambda: done.append(2))
        await first
        await second
        assert done == [1, 2]
        assert worker.do_now(lambda: done.append(3)) is not None
        assert done == [1, 2, 3]
        worker.stop()

    asyncio.run(test())


def test_nothing_is_done_on_the_loop_while_the_thread_does_something_by_itself() -> None:
    entered, leave = threading.Event(), threading.Event()

    def tidy() -> None:
        entered.set()
        assert leave.wait(20)

    async def test() -> None:
        worker = Worker("test", when_idle=tidy, idle_after_s=0)
        assert entered.wait(20)
        assert worker.do_now(int) is None
        leave.set()
        assert await worker.submit(int) == 0
        worker.stop()

    asyncio.run(test())


def test_a_job_that_fails_on_the_loop_fails_as_in_the_thread() -> None:
    def fail() -> None:
        raise OSError("the disk is gone")

    async def test() -> None:
        worker = Worker("test")
        failed = worker.do_now(fail)
        assert failed is not None
        with pytest.raises(OSError, match="the disk is gone"):
            failed.result()
        with pytest.raises(OSError, match="the disk is gone"):
            await worker.submit(fail)
        assert worker.do_now(int) is not None
        worker.stop()

    asyncio.run(test())


@pytest.mark.parametrize("which", ["after_each", "when_idle"])
def test_what_follows_jobs_is_done_in_the_thread_though_the_loop_does_them_all(which: str) -> None:
    done = threading.Event()
    threads: set[int] = set()

    def note() -> None:
        threads.add(threading.get_ident())
        done.set()

    async def test() -> None:
        after_each, when_idle = (note, None) if which == "after_each" else (None, note)
        worker = Worker("test", after_each=after_each, when_idle=when_idle, idle_after_s=0.01)
        if which == "when_idle":
            assert done.wait(20)
            done.clear()
        while worker.do_now(int) is not None:  # until the thread has been woken
            pass
        assert done.wait(20)
        assert threading.get_ident() not in threads
        worker.stop()

    asyncio.run(test())
