"""Which messages a command is about: the criteria of a search as options."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from peeklock.cli.options import parsed
from peeklock.cli.places import past_ms

if TYPE_CHECKING:
    from peeklock.search import Search, SearchError

NUMBER: Final = click.IntRange(0, (1 << 63) - 1)

STATE = click.option(
    "--state", type=click.Choice(("active", "deferred", "scheduled")), help="Only messages in this state."
)

_CRITERIA = (
    click.option("--filter", metavar="SQL", help="A filter as of a subscription's rule, such as n > 3."),
    click.option("--text", metavar="TEXT", help="The body contains this."),
    click.option("--regex", metavar="REGEX", help="This expression of Python is found in the body."),
    click.option("-i", "--ignore-case", is_flag=True, help="Of --text and --regex."),
    click.option("--json-path", metavar="PATH", help="The body is JSON with this: '$.order.total > 100'."),
    click.option("--from-number", type=NUMBER, metavar="NUMBER", help="Lowest sequence number."),
    click.option("--to-number", type=NUMBER, metavar="NUMBER", help="Highest sequence number."),
    click.option(
        "--since",
        "since_ms",
        callback=parsed(past_ms),
        metavar="TIME",
        help="Enqueued at this instant or later, or 2h ago or later.",
    ),
    click.option(
        "--until",
        "until_ms",
        callback=parsed(past_ms),
        metavar="TIME",
        help="Enqueued before this instant, or before 2h ago.",
    ),
)
REASON = click.option(
    "--reason", "dead_letter_reason", metavar="TEXT", help="Only with this DeadLetterReason, in full."
)


def by_criteria(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the criteria that all messages have; their names are those of `Criteria`."""
    for option in reversed(_CRITERIA):
        command = option(command)
    return command


def state_of(name: str | None) -> Any:
    """Return the state with a name."""
    from peeklock.search import STATES

    return next((state for state, known in STATES.items() if known == name), None)


def compiled(**criteria: Any) -> Search:
    """Return the search. Raises: click.BadParameter."""
    from peeklock.search import Criteria, Search, SearchError

    try:
        return Search.compile(Criteria(**criteria))
    except SearchError as failure:
        raise bad_criterion(failure) from failure


def bad_criterion(failure: SearchError) -> click.BadParameter:
    """Return the error of an option."""
    return click.BadParameter(str(failure), param_hint=f"--{failure.criterion.replace('_', '-')}")
