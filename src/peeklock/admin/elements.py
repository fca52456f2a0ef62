"""How the settings and figures of entities stand in XML: one table for each kind, read in both directions.

Owns: the rows of these tables, the forms of values. Must not know: which kinds there
are, HTTP, ranges of values (the broker's). Source: wire contract 7.3 to 7.5.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from peeklock.admin.atom import timestamp
from peeklock.admin.authorization_rules import read_authorization_rules, write_authorization_rules
from peeklock.admin.forwards import read_forward
from peeklock.admin.markup import Markup, Text, write_element
from peeklock.admin.reading import Description, cut
from peeklock.broker.entities.validation import MAX_SIZE_MB_MIN
from peeklock.broker.queue.sequence_numbers import PARTITION_COUNT
from peeklock.broker.vocabulary.descriptions import GIVEN_FORWARDS, EntityStatus, SubscriptionDescription
from peeklock.broker.vocabulary.descriptions import Description as EntityDescription
from peeklock.broker.vocabulary.durations import format_duration
from peeklock.broker.vocabulary.effects import EntityView
from peeklock.broker.vocabulary.errors import ArgumentInvalid


@dataclass(frozen=True, slots=True)
class Shown:
    """An entity and what its description needs to know of where it is shown."""

    view: EntityView
    host: str
    message_size_kb_default: int
    """The tier's."""
    after_put: bool = False
    """Whether this answers a PUT."""


@dataclass(frozen=True, slots=True)
class Form:
    """How values of one kind are read and shown."""

    read: Callable[[Description, str], Any]
    show: Callable[[Any, Shown], Text] = lambda value, _: value


@dataclass(frozen=True, slots=True)
class Setting:
    """An element that clients set."""

    element: str
    field: str
    """Of the broker's description."""
    form: Form
    kept: bool = False
    """An update that leaves it out means what is there; all others have their default then."""


@dataclass(frozen=True, slots=True)
class Figure:
    """An element that is the broker's own; what clients send is passed over."""

    element: str
    show: Callable[[EntityView], Text]


Table: TypeAlias = tuple[Setting | Figure, ...]
"""All elements of a description, in the service's order."""


def kept_of(table: Table) -> tuple[str, ...]:
    """Give the elements that an update may leave out, and then means what is there."""
    return tuple(row.element for row in table if isinstance(row, Setting) and row.kept)


def read_settings(
    table: Table,
    given: Description,
    message_size_kb_default: int,
    existing: EntityDescription | None,
) -> dict[str, Any]:
    """Read what was given, by field; of what is kept and left out, what `existing` has.

    `message_size_kb_default`: the tier's; clients that update what they have read send it back, where
    setting it would be refused.

    Raises: ArgumentInvalid.
    """
    found: dict[str, Any] = {}
    for row in table:
        if isinstance(row, Setting):
            if given.has(row.element):
                found[row.field] = row.form.read(given, row.element)
            elif row.kept and existing is not None:
                found[row.field] = getattr(existing, row.field)
    for field, address in GIVEN_FORWARDS.items():
        if field in found:
            found[field], found[address] = found[field]
    if found.get("max_message_size_kb") == message_size_kb_default:
        del found["max_message_size_kb"]
    size_mb = found.get("max_size_mb", 0)
    is_total = size_mb >= MAX_SIZE_MB_MIN * PARTITION_COUNT and size_mb % PARTITION_COUNT == 0
    if found.get("enable_partitioning") and is_total:
        # As it is shown. No partition may be so large, so that nobody can have meant the size of one.
        found["max_size_mb"] = size_mb // PARTITION_COUNT
    return found


def write_description(kind: str, table: Table, shown: Shown) -> str:
    """Write an entity's settings and figures."""
    about = shown.view.description
    return write_element(
        kind,
        (
            (
                row.element,
                row.form.show(getattr(about, row.field), shown)
                if isinstance(row, Setting)
                else row.show(shown.view),
            )
            for row in table
        ),
    )


# Forms


def _status(given: Description, name: str) -> EntityStatus:
    text = given.text(name)
    for status in EntityStatus:
        if status.value == text:
            return status
    raise ArgumentInvalid(
        f"The value {cut(text)!r} of {name} is none of {', '.join(s.value for s in EntityStatus)}."
    )


def _forward(given: Description, name: str) -> tuple[str | None, str | None]:
    """Read the target's name and the address by which it is given."""
    text = given.text(name)
    try:
        return read_forward(text)
    except ValueError as failure:
        raise ArgumentInvalid(f"The value {cut(text)!r} of {name} {failure}.") from failure


def _show_forward(field: str) -> Callable[[Any, Shown], Text]:
    """Show an address as it was given, and a name alone as one."""

    def show(name: Any, shown: Shown) -> Text:
        address: str | None = getattr(shown.view.description, GIVEN_FORWARDS[field])
        return None if name is None else address or f"sb://{shown.host}/{name}"

    return show


BOOLEAN = Form(Description.boolean)
WHOLE_NUMBER = Form(Description.whole_number)
DURATION = Form(Description.duration, lambda value, _: format_duration(value))
STATUS = Form(_status, lambda value, _: value.value)
NOTE = Form(lambda given, name: given.exact_text(name) or None)
# Asked for is the size of one partition, shown that of all. Source: wire contract 7.3.
SIZE_MB = Form(
    Description.whole_number,
    lambda value, shown: value * (PARTITION_COUNT if shown.view.description.enable_partitioning else 1),
)
MESSAGE_SIZE_KB = Form(Description.whole_number, lambda value, shown: value or shown.message_size_kb_default)


# Rows that more than one kind has


def message_count(view: EntityView) -> int:
    """Count an entity's messages, whatever their state."""
    return view.active_count + view.scheduled_count + view.dead_letter_count + view.transfer_dead_letter_count


def _count_details(view: EntityView) -> Markup:
    # The JavaScript client expects one attribute here, a prefix, and children that carry this prefix.
    counts = [
        ("ActiveMessageCount", view.active_count),
        ("DeadLetterMessageCount", view.dead_letter_count),
        ("ScheduledMessageCount", view.scheduled_count),
        ("TransferMessageCount", 0),  # a message is passed on in the moment it arrives
        ("TransferDeadLetterMessageCount", view.transfer_dead_letter_count),
    ]
    return Markup(
        '<CountDetails xmlns:d2p1="http://schemas.microsoft.com/netservices/2011/06/servicebus">'
        + "".join(f"<d2p1:{name}>{count}</d2p1:{name}>" for name, count in counts)
        + "</CountDetails>"
    )


def _accessed_at_ms(view: EntityView) -> int:
    """Return the time of the last use; 0 = never. Source: wire contract C16."""
    if view.accessed_at_ms == 0 and isinstance(view.description, SubscriptionDescription):
        return view.created_at_ms
    return view.accessed_at_ms


SIZE_IN_BYTES = Figure("SizeInBytes", lambda view: view.size_bytes)
MESSAGE_COUNT = Figure("MessageCount", message_count)
FORWARD_TO = Setting("ForwardTo", "forward_to", Form(_forward, _show_forward("forward_to")))
FORWARD_DEAD_LETTERED_TO = Setting(
    "ForwardDeadLetteredMessagesTo",
    "forward_dead_lettered_to",
    Form(_forward, _show_forward("forward_dead_lettered_to")),
)
IS_ANONYMOUS_ACCESSIBLE = Figure("IsAnonymousAccessible", lambda _: False)
AUTHORIZATION_RULES = Setting(
    "AuthorizationRules",
    "authorization_rules",
    Form(
        read_authorization_rules,
        lambda rules, shown: write_authorization_rules(rules, with_times=not shown.after_put),
    ),
    kept=True,  # who leaves them out did not mean to lock anybody out
)
CREATED_AT = Figure("CreatedAt", lambda view: timestamp(view.created_at_ms))
UPDATED_AT = Figure("UpdatedAt", lambda view: timestamp(view.updated_at_ms))
ACCESSED_AT = Figure("AccessedAt", lambda view: timestamp(_accessed_at_ms(view)))
COUNT_DETAILS = Figure("CountDetails", _count_details)
AVAILABILITY = Figure("EntityAvailabilityStatus", lambda _: "Available")
