"""`peeklock receive`: messages taken from a queue, printed and settled, at any Service Bus."""

from __future__ import annotations

import contextlib
import math
import time
from typing import TYPE_CHECKING, Final

import click

from peeklock.cli.message_output import FULL, JSON, Output
from peeklock.cli.options import parsed
from peeklock.cli.outcomes import (
    ABANDON,
    NOTHING,
    Outcome,
    Printing,
    check_sub_queue,
    stop_with,
    with_outcome,
)
from peeklock.cli.places import TIMEOUT_S, Place, at_a_place
from peeklock.cli.stopping import INTERRUPTED, Stop, stopping
from peeklock.cli.visible import visible

if TYPE_CHECKING:
    from peeklock.client.connection import BlockingConnection
    from peeklock.client.links import Delivery
    from peeklock.client.sessions import SessionLock

WAIT_S: Final = 5.0
"""How long to wait for a message, unless --wait says it. Our choice."""

ACCEPT_S: Final = (1.0, 5.0)
"""Shortest and longest wait of the broker for the next session in one request. Our choice: half of what a
request may take."""

RELEASED_S: Final = 0.2
"""Pause before a session is asked for again that was held before a break. Our choice."""

NAME_A_SESSION: Final = "Say which session: --session ID, or --next-session."


def _span_s(given: str) -> float:
    """Return a span in seconds; it may be 0. Raises: ValueError."""
    from peeklock.client.durations import UNLIMITED, parse_duration

    span = parse_duration(given)
    return math.inf if span == UNLIMITED else span.total_seconds()


@click.command()
@at_a_place
@click.option("--next-session", is_flag=True, help="Messages of the next available session.")
@click.option("--count", type=click.IntRange(1), metavar="N", help="Messages to receive.", show_default="1")
@click.option(
    "--wait",
    "wait_s",
    callback=parsed(_span_s),
    metavar="SPAN",
    help="How long to wait for a message: 0s, 30s, 5m.",
    show_default="5s",
)
@click.option("--follow", is_flag=True, help="Receive all, and go on until it is stopped.")
@with_outcome
@FULL
@JSON
def receive(
    place: Place,
    next_session: bool,
    count: int | None,
    wait_s: float | None,
    follow: bool,
    outcome: Outcome,
    full: bool,
    as_json: bool,
) -> None:
    """Receive messages of ENTITY, print each, and complete it.

    \b
    One message:          peeklock receive orders
    Whole:                peeklock receive orders --full
    All that is there:    peeklock receive orders --count 1000000 --wait 0s
    Work that goes on:    peeklock receive orders --follow --json
    Set aside:            peeklock receive orders --then defer
    To dead letters:      peeklock receive orders --then dead-letter --reason BadPrice
    Dead letters:         peeklock receive orders --dead-letter --count 10
    Of a session:         peeklock receive chats --session ann --count 10
    To another queue:     peeklock receive orders --json --count 10 | peeklock send backup

    A message is settled after it is printed. Ctrl-C and a closed pipe release those that are not printed;
    Ctrl-C twice ends at once. --then abandon settles all at the end, so that none comes twice. Works with any
    Service Bus.

    Exit status: 0 received; 1 refused, no broker answers, or not all are settled; 2 wrong options; 3 no
    message came; 130 stopped by Ctrl-C.
    """
    from peeklock.client.errors import ServiceBusError

    _check(place, next_session, wait_s, follow, outcome)
    output = Output(as_json=as_json, full=full)
    wait_s = math.inf if follow and not next_session else WAIT_S if wait_s is None else wait_s
    with stopping() as stop, place.connected() as broker:
        printing = Printing(output, stop, outcome)
        taking = _Taking(broker, place, next_session, outcome, printing, stop)
        try:
            if follow:
                taking.follow(math.inf if count is None else count, wait_s, output)
            else:
                taking.run(count or 1, wait_s)
                taking.close()
        except ServiceBusError as failure:
            without = place.session is None and not next_session
            place.report(failure, NAME_A_SESSION if without else "Leave out --session and --next-session.")
            stop_with(1, f"{taking.summary()} Run it again to go on." if printing.count else None)
        printing.end(taking.summary())
    if stop.is_asked:
        stop_with(INTERRUPTED, taking.summary())
    if not printing.count:
        stop_with(NOTHING, f"peeklock: no message came from '{visible(place.path)}'.")
    if not as_json and not full:
        click.echo(taking.summary())


def _check(place: Place, next_session: bool, wait_s: float | None, follow: bool, outcome: Outcome) -> None:
    """Refuse options that do not go together. Raises: click.UsageError."""
    if next_session and place.session is not None:
        raise click.UsageError("give --session or --next-session, not both.")
    check_sub_queue(place, outcome, has_session=next_session or place.session is not None)
    if follow and wait_s is not None and not next_session:
        raise click.UsageError("--follow waits until it is stopped: leave out --wait.")
    if follow and outcome.then == ABANDON:
        raise click.UsageError(
            "--follow with --then abandon would receive the same messages again and again."
        )


class _Taking:
    """Messages on their way from a receiver to standard output, and settled."""

    def __init__(
        self,
        broker: BlockingConnection,
        place: Place,
        next_session: bool,
        outcome: Outcome,
        printing: Printing,
        stop: Stop,
    ) -> None:
        from peeklock.client.links import NEXT

        self._broker = broker
        self._receiver = broker.receiver(place.path, outcome.mode(), NEXT if next_session else place.session)
        self._outcome = outcome
        self._printing = printing
        self._stop = stop
        self._lock: SessionLock | None = None
        self._abandoned: list[Delivery] = []
        self._released = 0

    def follow(self, total: float, wait_s: float, output: Output) -> None:
        """Receive until Ctrl-C, or `total` messages, also over a break. Raises: ServiceBusError."""
        from peeklock.client.errors import ServiceBusError

        while self._printing.count < total and not self._printing.is_over:
            if not self._start(math.inf):
                continue  # Ctrl-C
            output.begin()
            try:
                self.run(total - self._printing.count, wait_s)
                self.close()
            except ServiceBusError as failure:
                # A receiver without a session has tried again already.
                is_broken = failure.retryable and self._lock is not None
                if not is_broken or self._settled() < self._printing.count:
                    raise

    def run(self, left: float, wait_s: float) -> None:
        """Receive up to `left` messages, and wait for each. Raises: ServiceBusError."""
        if not self._start(wait_s):
            return
        while left > 0 and not self._printing.is_over:
            found = self._receive(int(min(left, self._outcome.taken_count)), wait_s)
            if not found:
                return
            left -= self._take(found)

    def close(self) -> None:
        """Settle what is left to the end, and close the link. Raises: ServiceBusError."""
        for each in self._abandoned:
            self._receiver.settle(each, self._outcome.state())
        self._abandoned = []
        self._receiver.flush()
        self._receiver.close()

    def summary(self) -> str:
        """Return what became of the messages."""
        return self._printing.summary(self._settled())

    def _settled(self) -> int:
        """Return of how many messages it is confirmed that they are settled."""
        if self._outcome.deletes:
            return self._printing.count
        return self._receiver.settled_count - self._released

    def _start(self, wait_s: float) -> bool:
        """Open the link; return whether it is open: the next session may not be available in time."""
        from peeklock.client.errors import SESSION_CANNOT_BE_LOCKED, TIMEOUT, ServiceBusError
        from peeklock.client.sessions import SessionLock

        receiver = self._receiver
        if receiver.is_open:
            return True
        until = time.monotonic() + wait_s
        until_released = time.monotonic() + (0 if self._lock is None else TIMEOUT_S)
        while True:
            left_s = until - time.monotonic()
            receiver.session_wait_ms = int(1000 * min(max(left_s, ACCEPT_S[0]), ACCEPT_S[1]))
            try:
                with self._stop.waiting():
                    receiver.start()
                break
            except ServiceBusError as failure:
                if failure.condition == SESSION_CANNOT_BE_LOCKED and time.monotonic() < until_released:
                    time.sleep(RELEASED_S)  # after a break our own lock is released, once the broker sees it
                elif failure.condition != TIMEOUT:
                    raise
                elif time.monotonic() >= until:
                    return False
            except KeyboardInterrupt:
                return False
            if self._stop.is_asked:
                return False
        self._lock = None if receiver.session_id is None else SessionLock(self._broker, receiver)
        return True

    def _receive(self, count: int, wait_s: float) -> list[Delivery]:
        """Return up to `count` messages, after a wait for one; none = none came, or Ctrl-C."""
        until = time.monotonic() + wait_s
        while True:
            left_s = max(0.0, until - time.monotonic())
            if self._lock is not None:
                self._lock.keep()
                left_s = min(left_s, self._lock.left_s())
            found = self._receiver.receive(count, left_s, lambda: self._stop.is_asked)
            if found or self._printing.is_over or time.monotonic() >= until:
                return found

    def _take(self, found: list[Delivery]) -> int:
        """Print messages and settle those that are printed, and return how many; release the others."""
        shown = self._printing.show([each.payload for each in found])
        if self._outcome.deletes:
            return shown
        try:
            if self._outcome.then == ABANDON:
                self._abandoned += found[:shown]
            else:
                for each in found[:shown]:
                    self._receiver.settle(each, self._outcome.state())
                self._receiver.flush()
        finally:
            self._release(found[shown:])
        return shown

    def _release(self, left: list[Delivery]) -> None:
        """Release messages; a lock that is lost has released its own."""
        from peeklock.client.errors import ServiceBusError
        from peeklock.client.links import RELEASE

        before = self._receiver.settled_count
        with contextlib.suppress(ServiceBusError):
            for each in left:
                self._receiver.settle(each, RELEASE)
            self._receiver.flush()
        self._released += self._receiver.settled_count - before
