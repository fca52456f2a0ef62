"""What becomes of the messages that a command receives: its options, and the order of print and settle.

A message is settled after it is printed, never before. It knows no link: `receiving` and `deferred` settle.
"""

from __future__ import annotations

import errno
import functools
import io
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from peeklock.cli.message_output import Output, counted
from peeklock.cli.places import Place
from peeklock.cli.stopping import Stop

if TYPE_CHECKING:
    from peeklock.client import links

COMPLETE: Final = "complete"
ABANDON: Final = "abandon"
DEFER: Final = "defer"
DEAD_LETTER: Final = "dead-letter"

_PAST: Final = {
    COMPLETE: "completed",
    ABANDON: "abandoned",
    DEFER: "deferred",
    DEAD_LETTER: "dead-lettered",
}

TAKEN_COUNT: Final = 100
"""Messages received at a time. Our choice: more is not faster, and their locks have begun."""

NOTHING: Final = 3
"""Exit status if no message came."""

PRINT_S: Final = 2.5
"""How long messages that were received together may take to print. Source: half the shortest lock, 5 s."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What becomes of each message once it is printed."""

    then: str
    reason: str | None
    description: str | None
    deletes: bool

    @property
    def past(self) -> str:
        """What the messages are then."""
        return "deleted" if self.deletes else _PAST[self.then]

    @property
    def taken_count(self) -> int:
        """How many messages are received at a time: those that are deleted unprinted would be lost."""
        return 1 if self.deletes else TAKEN_COUNT

    def mode(self) -> links.ReceiveMode:
        """Return how messages are received."""
        from peeklock.client.links import ReceiveMode

        return ReceiveMode.RECEIVE_AND_DELETE if self.deletes else ReceiveMode.PEEK_LOCK

    def state(self) -> links.Outcome:
        """Return what settles them."""
        from peeklock.client import links

        if self.then == DEAD_LETTER:
            return links.dead_letter(self.reason, self.description)
        return {COMPLETE: links.COMPLETE, ABANDON: links.ABANDON, DEFER: links.DEFER}[self.then]


_OPTIONS = (
    click.option(
        "--then",
        type=click.Choice([*_PAST]),
        help="What becomes of each message once it is printed.",
        show_default=COMPLETE,
    ),
    click.option("--reason", metavar="TEXT", help="DeadLetterReason, of --then dead-letter."),
    click.option("--description", metavar="TEXT", help="DeadLetterErrorDescription, of --then dead-letter."),
    click.option(
        "--delete", is_flag=True, help="Receive and delete: without a lock, gone before it is printed."
    ),
)


def with_outcome(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of an outcome; the command gets it as `outcome`."""

    @functools.wraps(command)
    def decided(
        *arguments: Any,
        then: str | None,
        reason: str | None,
        description: str | None,
        delete: bool,
        **options: Any,
    ) -> None:
        if delete and then is not None:
            raise click.UsageError("give --then or --delete, not both.")
        if then != DEAD_LETTER and (reason is not None or description is not None):
            raise click.UsageError("--reason and --description are of --then dead-letter.")
        command(*arguments, outcome=Outcome(then or COMPLETE, reason, description, delete), **options)

    for option in reversed(_OPTIONS):
        decided = option(decided)
    return decided


def check_sub_queue(place: Place, outcome: Outcome, *, has_session: bool) -> None:
    """Refuse what a sub-queue does not have. Raises: click.UsageError."""
    if place.is_sub_queue and has_session:
        raise click.UsageError("a dead-letter queue has no sessions: name none.")
    if place.is_sub_queue and outcome.then == DEAD_LETTER:
        raise click.UsageError("a dead letter cannot be dead-lettered: choose another outcome.")


class Printing:
    """Messages on standard output, one by one, and what to say about them at the end."""

    def __init__(self, output: Output, stop: Stop, outcome: Outcome) -> None:
        self._output = output
        self._stop = stop
        self._outcome = outcome
        self._failure: OSError | None = None
        self.count = 0
        """Messages that are printed."""
        _prepare_output()

    @property
    def is_over(self) -> bool:
        """No more are wanted: after Ctrl-C, or because standard output failed."""
        return self._stop.is_asked or self._failure is not None

    def show(self, payloads: Sequence[bytes]) -> int:
        """Print encoded messages; return how many, the first ones, were printed.

        It ends early if no more are wanted, and before the locks of the others can expire; messages that are
        deleted are printed all the same.
        """
        from peeklock.search import Peeked

        until = time.monotonic() + PRINT_S
        for number, payload in enumerate(payloads):
            if self._failure or (not self._outcome.deletes and self._ends(number, until)):
                return number
            try:
                self._output.show([Peeked(payload)])
            except OSError as failure:
                self._failure = failure
                return number
            self.count += 1
        return len(payloads)

    def _ends(self, number: int, until: float) -> bool:
        return self._stop.is_asked or (number > 0 and time.monotonic() > until)

    def end(self, summary: str) -> None:
        """End the command if standard output failed: at a closed pipe silently, else with a summary."""
        if self._failure is None:
            return
        if self._failure.errno == errno.EPIPE:
            raise self._failure
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the rest fails again at the end
        stop_with(1, f"peeklock: standard output: {self._failure.strerror}. {summary}")

    def summary(self, settled: int) -> str:
        """Return what became of the messages; `settled`: of how many that is confirmed."""
        text = f"{counted(settled)} {self._outcome.past}."
        if settled < self.count:
            left = self.count - settled
            text += (
                f" {counted(left)} printed, but not known to be {self._outcome.past}: "
                f"{'it' if left == 1 else 'they'} may be received again."
            )
        return text


def _prepare_output() -> None:
    """Have standard output write each text whole, or fail, and escape what its encoding lacks.

    With PYTHONUNBUFFERED, Python drops the rest of a write that Ctrl-C interrupts, and raises nothing.
    """
    stream = sys.stdout
    raw = getattr(stream, "buffer", None)
    if isinstance(raw, io.RawIOBase):
        stream = sys.stdout = io.TextIOWrapper(io.BufferedWriter(raw), encoding=stream.encoding)
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")


def stop_with(status: int, text: str | None) -> NoReturn:
    """Print a text on standard error, if there is one, and exit."""
    if text is not None:
        click.echo(text, err=True)
    raise SystemExit(status)
