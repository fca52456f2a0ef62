"""Peeks that leave other clients their time: pages shrink with slow answers and grow with fast ones."""

from __future__ import annotations

from typing import Any

from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.types import Long, Symbol
from peeklock.worker.pacing import PAGE, PAUSE_S_MAX, SLOW_S, paced


class Queue:
    """A queue of messages that takes so long for each answer."""

    def __init__(self, count: int, answers_s: list[float]) -> None:
        self._numbers = range(1, count + 1)
        self._answers_s = answers_s
        self.now_s = 0.0
        self.pages: list[int] = []
        self.pauses: list[float] = []

    def peek(self, number: int, count: int) -> list[bytes]:
        self.now_s += self._answers_s.pop(0) if self._answers_s else 0.0
        found = [each for each in self._numbers if each >= number][:count]
        self.pages.append(count)
        annotation = Symbol("x-opt-sequence-number")
        return [encode_message(message_annotations={annotation: Long(each)}, data=b"") for each in found]

    def read(self) -> int:
        browser: Any = self  # it peeks, as a browser does
        pages = paced(browser, 0, clock_s=lambda: self.now_s, sleep=self.pauses.append)
        return sum(map(len, pages))


def test_pages_grow_to_the_largest_while_answers_are_fast() -> None:
    queue = Queue(300, [])
    assert queue.read() == 300
    assert queue.pages == [PAGE[1]] * 8
    assert queue.pauses == []


def test_a_slow_answer_makes_the_next_page_smaller_and_is_followed_by_a_pause() -> None:
    queue = Queue(300, [SLOW_S + 0.002, 1.0, 1.0])
    assert queue.read() == 300
    assert queue.pages[:5] == [48, 24, 16, 16, 32]
    assert [round(each, 3) for each in queue.pauses] == [0.002, PAUSE_S_MAX, PAUSE_S_MAX]
    assert min(queue.pages) == PAGE[0]


def test_an_empty_queue_is_asked_once() -> None:
    queue = Queue(0, [])
    assert queue.read() == 0
    assert queue.pages == [PAGE[1]]
