"""`peeklock queues | topics | subscriptions`: list, show, create, update and delete them."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from peeklock.cli.entity_options import option_of, setting_options, settings_of, shown, size_text
from peeklock.cli.options import reported
from peeklock.cli.running import BrokerError, RunningBroker, to_a_running_broker
from peeklock.cli.tables import table
from peeklock.cli.tasks import Group
from peeklock.client.entities import COUNTS, Entity, Kind, Value, subscription_path
from peeklock.client.requests import AdministrationError

if TYPE_CHECKING:
    from peeklock.client.administration import Administration

WATCH_S = 2.0
"""Between two pictures of `--watch`. Our choice."""

EXIT = (
    "Exit status: 0 done; 1 refused or failed, with the reason on standard error; 2 wrong options; 130 "
    "interrupted."
)

JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, an object a line.")
DRY_RUN = click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
YES = click.option("--yes", is_flag=True, help="Delete messages too, without asking.")
NAME = click.argument("name")
TOPIC = click.argument("topic")


class Refused(Exception):
    """The command is not carried out; the text says why, and what to do."""


def failures() -> AbstractContextManager[None]:
    """Report what may go wrong, with exit status 1."""
    return reported(AdministrationError, BrokerError, Refused)


def administration_of(broker: RunningBroker) -> Administration:
    """Return the administration of the namespace."""
    from peeklock.client.administration import Administration

    return Administration(broker.requests())


def nearest(name: str, names: Iterable[str]) -> str:
    """Return advice for a name that is not there."""
    from peeklock.cli import message_text

    return message_text.did_you_mean(message_text.nearest(name, names))


def found(administration: Administration, kind: Kind, name: str, topic: str | None = None) -> Entity:
    """Return an entity. Raises: Refused: there is none; the text has the nearest names."""
    if topic is not None:
        found(administration, "topic", topic)
    entity = administration.entity(name if topic is None else subscription_path(topic, name))
    if entity is not None and entity.kind == kind:
        return entity
    names = [_name(each) for each in _all(administration, kind, topic)]
    where = "" if topic is None else f" of topic '{topic}'"
    raise Refused(f"there is no {kind} '{name}'{where}{nearest(name, names)}")


def _name(entity: Entity) -> str:
    return entity.path.rpartition("/Subscriptions/")[2]


def _all(administration: Administration, kind: Kind, topic: str | None) -> Iterator[Entity]:
    """Yield all entities of a kind; subscriptions of one topic, or of all."""
    if kind == "queue":
        yield from administration.queues()
    elif kind == "topic":
        yield from administration.topics()
    else:
        for name in [each.path for each in administration.topics()] if topic is None else [topic]:
            yield from administration.subscriptions(name)


# Showing

_OLDEST = re.compile(
    r'peeklock_oldest_message_age_seconds\{namespace="[^"]*",entity="((?:[^"\\]|\\.)*)"\} ([0-9.e+-]+)'
)


def _oldest(broker: RunningBroker) -> dict[str, float] | None:
    """Return the age of the oldest active message by path, s; None = the broker does not say."""
    status, body, _ = broker.exchange("GET", "/metrics/entities", b"", {})
    ages = _OLDEST.findall(body.decode(errors="replace")) if status == 200 else []
    return {re.sub(r"\\(.)", r"\1", path): float(age) for path, age in ages} or None


def _as_json(entity: Entity, ages: dict[str, float] | None) -> str:
    topic, _, name = entity.path.rpartition("/Subscriptions/")
    row: dict[str, Any] = {"kind": entity.kind, **({"topic": topic} if topic else {}), "name": name}
    row |= {_key(element): _json_value(value) for element, value in entity.settings.items()}
    row["countDetails"] = {_key(count): entity.counts[count] for count in COUNTS}
    if entity.size_bytes is not None:
        row["sizeInBytes"] = entity.size_bytes
    if entity.subscriptions is not None:
        row["subscriptionCount"] = entity.subscriptions
    row |= {_key(which): text for which, text in entity.times.items()}
    if ages is not None:
        row["oldestMessageAgeSeconds"] = ages.get(entity.path, 0.0)
    return json.dumps(row, ensure_ascii=False)


def _key(element: str) -> str:
    return element[0].lower() + element[1:]


def _json_value(value: Value) -> Any:
    from peeklock.client.durations import iso_duration

    return iso_duration(value) if isinstance(value, timedelta) else value


_HEADS = dict(zip(COUNTS, ("ACTIVE", "DEAD-LETTER", "SCHEDULED", "TRANSFER", "TRANSFER-DEAD"), strict=True))


def _lines(entities: list[Entity], ages: dict[str, float] | None) -> list[str]:
    head = ["NAME", "STATUS", *_HEADS.values(), "SIZE"] + ([] if ages is None else ["OLDEST"])
    rows = []
    for entity in entities:
        row = [entity.path, str(entity.settings.get("Status", ""))]
        row += [f"{entity.counts[count]:,}" for count in COUNTS]
        row.append("" if entity.size_bytes is None else size_text(entity.size_bytes))
        if ages is not None:
            age = round(ages.get(entity.path, 0.0))
            row.append(shown("", timedelta(seconds=age)) if age else "")
        rows.append(row)
    return list(table(head, rows, head[2:]))


def _watch(picture: Callable[[], list[str]]) -> None:
    """Redraw until it is interrupted."""
    from rich.live import Live
    from rich.text import Text

    with Live(Text("\n".join(picture())), auto_refresh=False) as live:
        while True:
            time.sleep(WATCH_S)
            live.update(Text("\n".join(picture())), refresh=True)


def _show(entity: Entity) -> None:
    rows = [[option_of(name)[2:], shown(name, value)] for name, value in entity.settings.items()]
    rows += [[f"{_HEADS[count].lower()} messages", f"{entity.counts[count]:,}"] for count in COUNTS]
    if entity.size_bytes is not None:
        rows.append(["size", size_text(entity.size_bytes)])
    if entity.subscriptions is not None:
        rows.append(["subscriptions", str(entity.subscriptions)])
    rows += [[which.removesuffix("At").lower(), text] for which, text in entity.times.items()]
    for line in table(["name", entity.path], rows):
        click.echo(line)


# Deleting


def confirm(what: str, messages: int, *, dry_run: bool, yes: bool) -> bool:
    """Return whether to delete. Raises: Refused: there are messages, and nobody can be asked."""
    full = what if not messages else f"{what} with {messages:,} messages"
    if dry_run:
        click.echo(f"would delete {full}")
        return False
    if not messages or yes:
        return True
    if not sys.stdin.isatty():
        raise Refused(f"{full} is not deleted without --yes")
    return click.confirm(f"Delete {full}?")


def _messages_in(administration: Administration, entity: Entity) -> int:
    if entity.kind != "topic":
        return entity.messages
    return entity.messages + sum(each.messages for each in administration.subscriptions(entity.path))


# Commands


def _group(kind: Kind) -> click.Group:
    """Return the commands of a kind."""

    @click.group(
        f"{kind}s",
        cls=Group,
        help=f"List, show, create, update and delete {kind}s.\n\n"
        "Any Service Bus namespace: --data DIR or --url of a peeklock broker, or --connection-string with a "
        "key that has Manage. A SPAN is 30s, 5m, 1h30m, 7d, never or ISO 8601; a SIZE is 512m or 5g."
        f"\n\n{EXIT}",
    )
    def group() -> None:
        pass

    for add in (_add_list, _add_show, _add_create, _add_update, _add_delete):
        add(group, kind)
    return group


def _named(kind: Kind) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return (lambda command: TOPIC(NAME(command))) if kind == "subscription" else NAME


def _add_list(group: click.Group, kind: Kind) -> None:
    def list_(broker: RunningBroker, as_json: bool, watch: bool, topic: str | None = None) -> None:
        if as_json and watch:
            raise click.UsageError("give one of --json and --watch.")
        with failures():
            administration = administration_of(broker)
            if topic is not None:
                found(administration, "topic", topic)

            def picture() -> list[str]:
                return _lines(list(_all(administration, kind, topic)), _oldest(broker))

            if watch:
                _watch(picture)
            elif as_json:
                ages = _oldest(broker)
                for entity in _all(administration, kind, topic):
                    click.echo(_as_json(entity, ages))
            else:
                click.echo("\n".join(picture()))

    watching = click.option("--watch", is_flag=True, help=f"Redraw every {WATCH_S:.0f} s until Ctrl-C.")
    command = JSON(watching(to_a_running_broker(list_)))
    if kind == "subscription":
        command = click.argument("topic", required=False)(command)
    text = (
        f"Show all {kind}s: messages by state, size and, of a peeklock broker, age of the oldest message.\n\n"
    )
    group.command("list", help=f"{text}{EXIT}")(command)


def _add_show(group: click.Group, kind: Kind) -> None:
    @group.command("show", help=f"Show a {kind}: its settings and figures.\n\n{EXIT}")
    @_named(kind)
    @JSON
    @to_a_running_broker
    def show(broker: RunningBroker, name: str, as_json: bool, topic: str | None = None) -> None:
        with failures():
            entity = found(administration_of(broker), kind, name, topic)
            if as_json:
                click.echo(_as_json(entity, _oldest(broker)))
            else:
                _show(entity)


def _add_create(group: click.Group, kind: Kind) -> None:
    @group.command("create", help=f"Create a {kind}. What is not given gets the service's default.\n\n{EXIT}")
    @_named(kind)
    @setting_options(kind)
    @to_a_running_broker
    def create(broker: RunningBroker, name: str, topic: str | None = None, **given: Any) -> None:
        with failures():
            administration = administration_of(broker)
            if topic is not None:
                found(administration, "topic", topic)
            path = name if topic is None else subscription_path(topic, name)
            administration.create(kind, path, settings_of(given))
            click.echo(f"created {kind} '{path}'")


def _add_update(group: click.Group, kind: Kind) -> None:
    @group.command("update", help=f"Change settings of a {kind}; the others stay.\n\n{EXIT}")
    @_named(kind)
    @setting_options(kind, update=True)
    @DRY_RUN
    @to_a_running_broker
    def update(
        broker: RunningBroker, name: str, dry_run: bool, topic: str | None = None, **given: Any
    ) -> None:
        settings = settings_of(given)
        if not settings:
            raise click.UsageError(f"give a setting to change; see peeklock {kind}s update --help.")
        with failures():
            administration = administration_of(broker)
            entity = found(administration, kind, name, topic)
            new = {each: value for each, value in settings.items() if entity.settings.get(each, "") != value}
            old = {each: shown(each, entity.settings.get(each)) for each in new}
            if new and not dry_run:
                administration.update(entity, new)
            for each, value in new.items():
                click.echo(f"{option_of(each)[2:]}: {old[each]} -> {shown(each, value)}")
            if not new:
                click.echo("nothing to change")
            elif not dry_run:
                click.echo(f"updated {kind} '{entity.path}'")


def _add_delete(group: click.Group, kind: Kind) -> None:
    @group.command("delete", help=f"Delete a {kind}, with its messages if you agree.\n\n{EXIT}")
    @_named(kind)
    @DRY_RUN
    @YES
    @to_a_running_broker
    def delete(broker: RunningBroker, name: str, dry_run: bool, yes: bool, topic: str | None = None) -> None:
        with failures():
            administration = administration_of(broker)
            entity = found(administration, kind, name, topic)
            count = _messages_in(administration, entity)
            if confirm(f"{kind} '{entity.path}'", count, dry_run=dry_run, yes=yes):
                administration.delete(entity.path)
                click.echo(f"deleted {kind} '{entity.path}'")


queues, topics, subscriptions = _group("queue"), _group("topic"), _group("subscription")
