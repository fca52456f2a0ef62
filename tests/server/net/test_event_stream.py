"""An answer that is a stream of events: its heartbeats, and the end of a client that does not read."""

from __future__ import annotations

from typing import Any

import h11

from peeklock.server.net import http_wait
from peeklock.server.net.http_wait import HEARTBEAT_S, EventStream


class Deadline:
    """Takes what is to happen, and lets it happen when the test says so."""

    def __init__(self) -> None:
        self.then: Any = None
        self.seconds = 0.0

    def set(self, seconds: float, then: Any) -> None:
        self.seconds, self.then = seconds, then

    def clear(self) -> None:
        self.then = None


class Scene:
    """A stream; this is its transport and its hub too."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.done: list[str] = []
        self.was_slow: list[bool] = []
        self.beats = 0
        self.deadline = Deadline()
        parts: Any = self, self.events.append, self.deadline, self, lambda: 0
        self.stream = EventStream(*parts)

    def close(self) -> None:
        self.done.append("closed")

    def abort(self) -> None:
        self.done.append("aborted")

    def slow(self, number: int, *, is_slow: bool) -> None:
        self.was_slow.append(is_slow)

    def beat(self, number: int) -> None:
        self.beats += 1


def test_the_head_comes_with_the_first_event_and_the_end_closes() -> None:
    made = Scene()
    made.stream.take(b"event: a\n\n")
    made.stream.take(b"event: b\n\n")
    assert [type(event) for event in made.events] == [h11.Response, h11.Data, h11.Data]
    assert made.deadline.seconds == HEARTBEAT_S
    made.stream.take(None)
    assert isinstance(made.events[-1], h11.EndOfMessage)
    assert (made.done, made.deadline.then) == (["closed"], None)


def test_a_heartbeat_is_a_comment() -> None:
    made = Scene()
    made.stream.take(b"event: a\n\n")
    for _ in range(3):
        made.deadline.then()
    assert [bytes(event.data) for event in made.events[-3:]] == [b":\n\n"] * 3
    assert made.beats == 3


def test_a_client_that_does_not_read_for_long_is_let_go() -> None:
    """Req: T-08."""
    made = Scene()
    made.stream.take(b"event: a\n\n")
    made.stream.slow(is_slow=True)
    for _ in range(http_wait.SLOW_BEATS_MAX):
        made.deadline.then()
    assert made.done == []
    assert len(made.events) == 2
    made.deadline.then()
    assert made.done == ["aborted"]


def test_a_client_that_reads_again_is_kept() -> None:
    made = Scene()
    made.stream.take(b"event: a\n\n")
    for _ in range(5):
        made.stream.slow(is_slow=True)
        made.deadline.then()
        made.stream.slow(is_slow=False)
        made.deadline.then()
    assert made.done == []
    assert made.was_slow == [True, False] * 5
