"""`peeklock deferred`: the deferred messages of an entity, listed, and received by their numbers."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from peeklock.cli.browsing import show
from peeklock.cli.criteria import compiled, state_of
from peeklock.cli.message_output import FULL, JSON, Output
from peeklock.cli.outcomes import NOTHING, Outcome, Printing, check_sub_queue, stop_with, with_outcome
from peeklock.cli.places import Place, at_a_place
from peeklock.cli.stopping import INTERRUPTED, Stop, stopping
from peeklock.cli.tasks import Group
from peeklock.cli.visible import visible

if TYPE_CHECKING:
    from peeklock.client.connection import BlockingConnection
    from peeklock.client.deferred import DeferredMessages, Received
    from peeklock.client.sessions import SessionLock

NAMED_COUNT: Final = 10
"""Numbers that an error names."""

NAME_A_SESSION: Final = "Say which session: --session ID."
NO_SESSION: Final = "Leave out --session."


@click.group(cls=Group)
def deferred() -> None:
    """List deferred messages, and receive them by their sequence numbers.

    A deferred message is not delivered until a receiver asks for its number. Works with any Service Bus.
    """


@deferred.command("list")
@at_a_place
@FULL
@JSON
def list_deferred(place: Place, full: bool, as_json: bool) -> None:
    """Show the deferred messages of ENTITY without taking them.

    \b
    Of a queue:     peeklock deferred list orders
    Of a session:   peeklock deferred list chats --session ann
    Their numbers:  peeklock deferred list orders --json | jq .sequenceNumber

    All messages are read, from the lowest number on.

    Exit status: 0 shown; 1 refused, or no broker answers; 2 wrong options.
    """
    search = compiled(session_id=place.session, state=state_of("deferred"))
    with place.browser(by_session=True) as browser:
        show(browser, search, Output(as_json=as_json, full=full), 0, None, ahead=True)


@deferred.command("receive")
@at_a_place
@click.argument("numbers", nargs=-1, type=click.IntRange(0, (1 << 63) - 1), metavar="NUMBER...")
@click.option("--all", "every", is_flag=True, help="All deferred messages.")
@with_outcome
@FULL
@JSON
def receive_deferred(
    place: Place, numbers: tuple[int, ...], every: bool, outcome: Outcome, full: bool, as_json: bool
) -> None:
    """Receive deferred messages of ENTITY by their sequence numbers, print each, and complete it.

    \b
    Some:               peeklock deferred receive orders 17 18
    All:                peeklock deferred receive orders --all
    Of a session:       peeklock deferred receive chats 17 --session ann
    To dead letters:    peeklock deferred receive orders 17 --then dead-letter --reason BadPrice
    Back to the queue:  peeklock deferred receive orders --all --json | peeklock send orders

    A message is settled after it is printed. With --then abandon, and after Ctrl-C or a closed pipe, messages
    stay deferred, and are counted as delivered.

    Exit status: 0 received; 1 refused, no broker answers, there is no such message, or not all are settled; 2
    wrong options; 3 with --all: there is none; 130 stopped by Ctrl-C.
    """
    from peeklock.client.errors import ServiceBusError

    if every == bool(numbers):
        raise click.UsageError("give sequence numbers or --all.")
    check_sub_queue(place, outcome, has_session=place.session is not None)
    with stopping() as stop, place.connected() as broker:
        taking = _Taking(place, outcome, Printing(Output(as_json=as_json, full=full), stop, outcome))
        try:
            taking.run(broker, stop, numbers)
        except ServiceBusError as failure:
            place.report(failure, NAME_A_SESSION if place.session is None else NO_SESSION)
            stop_with(1, taking.summary() if taking.printing.count else None)
        taking.printing.end(taking.summary())
    if stop.is_asked:
        stop_with(INTERRUPTED, taking.summary())
    _conclude(place, taking, every, is_table=not as_json and not full)


def _conclude(place: Place, taking: _Taking, every: bool, is_table: bool) -> None:
    """Print what became of the messages, and of those that are not there."""
    name = visible(place.path)
    if taking.printing.count and is_table:
        click.echo(taking.summary())
    if taking.absent:
        text = (
            f"'{name}' has no deferred message {_listed(taking.absent)}, or another receiver has locked it."
        )
        stop_with(1, f"peeklock: {text} `peeklock deferred list` shows what is there.")
    if every and not taking.printing.count:
        stop_with(NOTHING, f"peeklock: '{name}' has no deferred message.")


def _listed(numbers: list[int]) -> str:
    text = ", ".join(map(str, numbers[:NAMED_COUNT]))
    further = len(numbers) - NAMED_COUNT
    return f"{text} and {further:,} more" if further > 0 else text


class _Taking:
    """Deferred messages on their way to standard output, and settled."""

    def __init__(self, place: Place, outcome: Outcome, printing: Printing) -> None:
        self._place = place
        self._outcome = outcome
        self.printing = printing
        self.absent: list[int] = []
        """Numbers without a message."""
        self._settled = 0

    def run(self, broker: BlockingConnection, stop: Stop, numbers: Sequence[int]) -> None:
        """Receive the messages with these numbers; none = all. Raises: ServiceBusError."""
        from peeklock.client.deferred import DeferredMessages

        place = self._place
        with stop.waiting():
            lock = _session_lock(broker, place)
        there = DeferredMessages(broker, place.path, place.session)
        for step in iter([[*numbers]]) if numbers else there.numbers():
            left = step
            while left and not self.printing.is_over:
                if lock is not None:
                    lock.keep()
                left = self._take(there, left)

    def summary(self) -> str:
        """Return what became of the messages."""
        return self.printing.summary(self._settled)

    def _take(self, there: DeferredMessages, numbers: list[int]) -> list[int]:
        """Receive, print and settle the first of these messages; return the numbers that are left."""
        from peeklock.client.browsing import sequence_number

        at_once = self._outcome.taken_count
        found, absent = there.receive(numbers[:at_once], self._outcome.mode())
        self.absent += absent
        count = self.printing.show([each.payload for each in found])
        printed, others = found[:count], found[count:]
        try:
            there.settle(printed, self._outcome.state())
            self._settled += count
        finally:
            _put_back(there, others)
        return [sequence_number(each.payload) for each in others] + numbers[at_once:]


def _session_lock(broker: BlockingConnection, place: Place) -> SessionLock | None:
    """Lock the session of the place, if it names one. Raises: ServiceBusError."""
    from peeklock.client.links import ReceiveMode
    from peeklock.client.sessions import SessionLock

    if place.session is None:
        return None
    receiver = broker.receiver(place.path, ReceiveMode.PEEK_LOCK, place.session)
    receiver.start()
    return SessionLock(broker, receiver)


def _put_back(there: DeferredMessages, received: list[Received]) -> None:
    """Have messages be deferred as before; those whose lock is lost are that already."""
    from peeklock.client.errors import ServiceBusError
    from peeklock.client.links import ABANDON

    with contextlib.suppress(ServiceBusError):
        there.settle(received, ABANDON)
