"""`peeklock peek`, `tail` and `search`: messages seen without being taken, at any Service Bus."""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import click

from peeklock.cli.criteria import NUMBER, REASON, STATE, by_criteria, compiled, state_of
from peeklock.cli.message_output import FULL, JSON, Output
from peeklock.cli.places import Place, at_a_place
from peeklock.cli.visible import visible
from peeklock.worker.priority import yield_to_clients

if TYPE_CHECKING:
    from peeklock.client.browsing import Browser
    from peeklock.search import Search

POLL_S: Final = 0.5
"""How often `tail` looks for new messages. Our choice: at once, to a person; and few requests to pay for."""


@click.command()
@at_a_place
@click.option("--from-number", type=NUMBER, default=0, metavar="NUMBER", help="First number.")
@click.option(
    "--count", type=click.IntRange(1), metavar="N", help="Messages to show.", show_default="20; 1 with --full"
)
@STATE
@FULL
@JSON
def peek(
    place: Place, from_number: int, count: int | None, state: str | None, full: bool, as_json: bool
) -> None:
    """Show messages of ENTITY without taking them.

    \b
    The oldest:           peeklock peek orders
    From a number on:     peeklock peek orders --from-number 1200
    One message whole:    peeklock peek orders --from-number 1234 --full
    A subscription:       peeklock peek news/Subscriptions/sport
    Dead letters:         peeklock peek orders --dead-letter
    For a program:        peeklock peek orders --json | jq .sequenceNumber

    Nothing is locked or counted. Works with any Service Bus. In a table, characters that a terminal would not
    show are escaped; columns that do not fit are left out.

    Exit status: 0 shown; 1 refused, or no broker answers; 2 wrong options.
    """
    search = compiled(session_id=place.session, state=state_of(state))
    left = count or (1 if full else 20)
    output = Output(as_json=as_json, full=full)
    with place.browser(by_session=True) as browser:
        show(browser, search, output, from_number, left, ahead=False)
    if not output.shown and not as_json and place.is_topic():
        click.echo(
            f"'{visible(place.entity)}' is a topic, and has no scheduled messages. The others are in its "
            f"subscriptions: peeklock peek {visible(place.entity)}/Subscriptions/NAME",
            err=True,
        )


@click.command()
@at_a_place
@FULL
@JSON
def tail(place: Place, full: bool, as_json: bool) -> None:
    """Show new messages of ENTITY as they come, without taking them, until it is stopped.

    \b
    Follow a queue:       peeklock tail orders
    Follow dead letters:  peeklock tail orders --dead-letter
    For a program:        peeklock tail orders --json

    It peeks from the last number on, twice a second. A message that a receiver completes before that is not
    seen.

    Exit status: 130 stopped by Ctrl-C; 1 refused, or no broker answers; 2 wrong options.
    """
    search = compiled(session_id=place.session)
    output = Output(as_json=as_json, full=full)
    with place.browser(by_session=True) as browser:
        last_numbers = browser.last_numbers()
        output.begin()
        while True:
            for messages in browser.read_new(last_numbers):
                output.show(search.among(messages))
            time.sleep(POLL_S)


@click.command()
@at_a_place
@by_criteria
@STATE
@REASON
@click.option("--count", type=click.IntRange(1), metavar="N", help="Stop after so many.", show_default="all")
@FULL
@JSON
def search(
    place: Place, state: str | None, count: int | None, full: bool, as_json: bool, **criteria: Any
) -> None:
    """Find messages of ENTITY without taking them. All criteria that are given must be true of a message.

    \b
    By properties:   peeklock search orders --filter "sys.Label = 'pizza' AND n > 2"
    By the body:     peeklock search orders --text banana -i
    In JSON:         peeklock search orders --json-path '$.items[*].sku == "A1"'
    By time:         peeklock search orders --since 2h --state deferred
    Dead letters:    peeklock search orders --dead-letter --reason MaxDeliveryCountExceeded

    All messages are read, from the lowest number on; memory does not grow. Works with any Service Bus. TIME
    is ISO 8601, in UTC if it has no zone, or a span before now: 30m, 2h, 7d.

    Exit status: 0 searched, also if nothing is found; 1 refused, or no broker answers; 2 wrong options.
    """
    wanted = compiled(session_id=place.session, state=state_of(state), **criteria)
    output = Output(as_json=as_json, full=full)
    yield_to_clients()
    with place.browser() as browser:
        show(browser, wanted, output, criteria["from_number"] or 0, count, ahead=True)


def show(
    browser: Browser, search: Search, output: Output, number: int, left: int | None, *, ahead: bool
) -> None:
    """Show the messages from a number on that match, at most `left`; `ahead`: expect to read many."""
    from peeklock.client.browsing import PAGE_COUNT, sequence_number

    last = search.criteria.to_number
    count = 0
    first = PAGE_COUNT if ahead or left is None else min(left, PAGE_COUNT)
    for messages in browser.read(number, first):
        found = search.among(messages)
        if left is None:
            output.show(found)
        else:
            some = list(islice(found, left))
            output.show(some)
            left -= len(some)
        count += len(messages)
        output.progress(count)
        if left == 0 or (last is not None and sequence_number(messages[-1]) >= last):
            break
    output.begin()
    output.clear()
