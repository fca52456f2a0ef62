"""Jobs of many workers in the threads of a pool, and on the loop while a worker has none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from peeklock.store.worker import Pool, Worker


@contextmanager
def pool_of(threads: int) -> Iterator[Pool]:
    pool = Pool("test", threads)
    yield pool
    pool.stop()


class Gate:
    """A job that hangs until it is let go."""

    def __init__(self) -> None:
        self.entered, self.leave = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.entered.set()
        assert self.leave.wait(20)


def run(test: Callable[[Pool], Coroutine[Any, Any, None]], threads: int = 1) -> None:
    with pool_of(threads) as pool:
        asyncio.run(asyncio.wait_for(test(pool), 20))


# In the threads


def test_jobs_of_a_worker_are_done_in_order_and_never_at_the_same_time() -> None:
    done: list[int] = []
    at_work = threading.Lock()

    def job(no: int) -> None:
        assert at_work.acquire(blocking=False)
        done.append(no)
        at_work.release()

    async def test(pool: Pool) -> None:
        worker = Worker(pool)
        await asyncio.gather(*(worker.submit(partial(job, no)) for no in range(500)))
        assert done == list(range(500))

    run(test, threads=4)


def test_jobs_of_a_worker_wait_for_what_follows_the_one_before() -> None:
    """Also while other threads are free."""
    gate = Gate()
    done: list[str] = []

    def follow() -> None:
        gate()
        done.append("after")

    async def test(pool: Pool) -> None:
        worker = Worker(pool, after_each=follow)
        await worker.submit(lambda: done.append("first"))
        second = worker.submit(lambda: done.append("second"))
        await Worker(pool).submit(int)  # a thread is free, and has had its turn
        assert done == ["first"]
        gate.leave.set()
        await second
        assert done[:3] == ["first", "after", "second"]

    run(test, threads=2)


def test_workers_take_turns_though_one_has_many_jobs() -> None:
    gate = Gate()
    done: list[str] = []

    async def test(pool: Pool) -> None:
        first, second = Worker(pool), Worker(pool)
        jobs: list[asyncio.Future[None]] = [first.submit(gate)]
        assert gate.entered.wait(20)
        jobs += [first.submit(lambda: done.append("first")) for _ in range(3)]
        jobs += [second.submit(lambda: done.append("second")) for _ in range(2)]
        gate.leave.set()
        await asyncio.gather(*jobs)
        assert done == ["second", "first", "second", "first", "first"]

    run(test)


def test_jobs_that_hang_hold_up_no_other_worker_while_a_thread_is_left() -> None:
    """Nor do jobs that wait behind them occupy a thread."""
    gates = [Gate() for _ in range(3)]

    async def test(pool: Pool) -> None:
        stuck = [Worker(pool) for _ in gates]
        hanging = [worker.submit(gate) for worker, gate in zip(stuck, gates, strict=True)]
        behind = [worker.submit(int) for worker in stuck for _ in range(10)]
        others = [Worker(pool) for _ in range(20)]
        assert await asyncio.gather(*(other.submit(int) for other in others for _ in range(5))) == [0] * 100
        assert all(gate.entered.is_set() for gate in gates)
        assert not any(job.done() for job in hanging)
        assert not any(job.done() for job in behind)
        for gate in gates:
            gate.leave.set()
        await asyncio.gather(*behind)

    run(test, threads=4)


def test_a_defect_behind_a_job_is_reported_and_costs_no_thread() -> None:
    reported: list[Any] = []

    def fail() -> None:
        raise ValueError("a defect")

    async def test(pool: Pool) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        worker = Worker(pool, after_each=fail)
        assert [await worker.submit(int) for _ in range(3)] == [0] * 3
        assert await Worker(pool).submit(int) == 0
        await asyncio.sleep(0)
        assert {repr(context["exception"]) for context in reported} == {"ValueError('a defect')"}
        assert len(reported) == 3

    run(test)


def test_threads_go_on_when_a_loop_is_closed() -> None:
    """A worker of that loop is given up, and no other."""
    gate = Gate()
    with pool_of(1) as pool:

        async def leave() -> None:
            worker = Worker(pool)
            worker.submit(gate)
            worker.submit(int)

        asyncio.run(leave())
        gate.leave.set()

        async def go_on() -> None:
            assert await Worker(pool).submit(int) == 0

        asyncio.run(asyncio.wait_for(go_on(), 20))


# On the loop


def test_a_job_is_done_on_the_loop_while_the_worker_has_none() -> None:
    async def test(pool: Pool) -> None:
        worker = Worker(pool)
        in_thread = await worker.submit(threading.get_ident)
        await asyncio.wait_for(resting(worker), 20)
        on_loop = worker.do_now(threading.get_ident)
        assert on_loop is not None
        assert on_loop.result() == threading.get_ident() != in_thread

    run(test)


async def resting(worker: Worker) -> None:
    """Wait until a worker can do a job on the loop: its thread lets go of it soon after a result."""
    while worker.do_now(int) is None:
        await worker.submit(int)


def test_a_job_does_not_pass_by_those_that_wait_for_a_thread() -> None:
    """Not even one whose result the loop has not taken yet."""

    async def test(pool: Pool) -> None:
        worker = Worker(pool)
        done: list[int] = []
        first = worker.submit(lambda: done.append(1))
        while not done:  # done in the thread; its result comes with a later turn of the loop
            pass
        assert worker.do_now(lambda: done.append(3)) is None
        second = worker.submit(lambda: done.append(2))
        await first
        await second
        assert done == [1, 2]
        await resting(worker)
        assert worker.do_now(lambda: done.append(3)) is not None
        assert done == [1, 2, 3]

    run(test)


@pytest.mark.parametrize("which", ["after_each", "when_idle"])
def test_nothing_is_done_on_the_loop_while_a_thread_does_what_follows(which: str) -> None:
    gate = Gate()

    async def test(pool: Pool) -> None:
        after_each, when_idle = (gate, None) if which == "after_each" else (None, gate)
        worker = Worker(pool, after_each=after_each, when_idle=when_idle, idle_after_s=0)
        await worker.submit(int)
        await reached(gate.entered)
        assert worker.do_now(int) is None
        gate.leave.set()
        assert await worker.submit(int) == 0
        worker.stop()

    run(test)


async def reached(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, 20)


def test_a_job_that_fails_on_the_loop_fails_as_in_a_thread() -> None:
    def fail() -> None:
        raise OSError("the disk is gone")

    async def test(pool: Pool) -> None:
        worker = Worker(pool)
        failed = worker.do_now(fail)
        assert failed is not None
        with pytest.raises(OSError, match="the disk is gone"):
            failed.result()
        with pytest.raises(OSError, match="the disk is gone"):
            await worker.submit(fail)
        await resting(worker)

    run(test)


@pytest.mark.parametrize("which", ["after_each", "when_idle"])
def test_what_follows_jobs_is_done_in_a_thread_though_the_loop_does_them_all(which: str) -> None:
    done = threading.Event()
    threads: set[int] = set()

    def note() -> None:
        threads.add(threading.get_ident())
        done.set()

    async def test(pool: Pool) -> None:
        after_each, when_idle = (note, None) if which == "after_each" else (None, note)
        worker = Worker(pool, after_each=after_each, when_idle=when_idle, idle_after_s=0.01)
        if which == "after_each":
            while worker.do_now(int) is not None:  # until a thread has got a job
                pass
        else:
            assert worker.do_now(int) is not None
        await reached(done)
        assert threading.get_ident() not in threads
        worker.stop()

    run(test)


# While no job comes


def test_an_idle_worker_is_called_again_as_it_says_and_then_not_before_the_next_job() -> None:
    calls: list[float | None] = []
    answers: list[float | None] = [None, 0, 0, None]

    async def test(pool: Pool) -> None:
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()

        def when_idle() -> float | None:
            calls.append(answers.pop())
            if calls[-1] is None:
                loop.call_soon_threadsafe(ended.set)
            return calls[-1]

        worker = Worker(pool, when_idle=when_idle, idle_after_s=0)
        # The first call ends the work of the first job, and the others follow the second.
        for expected in ([None], [None, 0, 0, None]):
            await worker.submit(int)
            await ended.wait()
            ended.clear()
            await Worker(pool).submit(int)  # the answer has reached the loop
            assert calls == expected
            assert worker._idle_timer is None  # nothing wakes a thread, nor the loop
        worker.stop()

    run(test)


def test_a_job_puts_off_what_is_done_when_idle() -> None:
    calls: list[int] = []

    async def test(pool: Pool) -> None:
        worker = Worker(pool, when_idle=lambda: calls.append(1), idle_after_s=3600)
        await worker.submit(int)
        assert worker._idle_timer is not None
        worker._look_whether_idle()  # as the timer does, but long before
        assert worker._idle_timer is not None
        assert await worker.submit(int) == 0
        assert not calls
        worker.stop()
        assert worker._idle_timer is None

    run(test)
