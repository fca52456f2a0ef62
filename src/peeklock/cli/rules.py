"""`peeklock rules`: the rules of a subscription."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from peeklock.cli.entities import (
    DRY_RUN,
    EXIT,
    JSON,
    NAME,
    TOPIC,
    Refused,
    administration_of,
    confirm,
    failures,
    found,
    nearest,
)
from peeklock.cli.running import RunningBroker, to_a_running_broker
from peeklock.cli.tables import table
from peeklock.cli.tasks import Group

if TYPE_CHECKING:
    from peeklock.client.administration import Administration
    from peeklock.client.rules import Filter, Rule, Typed

_SUBSCRIPTION = click.argument("subscription")


@click.group(
    cls=Group,
    help="List, show, create, update and delete the rules of a subscription.\n\n"
    "A subscription gets a message that any of its rules matches. A new subscription has the rule $Default, "
    f"which matches all: delete it when you create another.\n\n{EXIT}",
)
def rules() -> None:
    pass


def _filtering(command: Any) -> Any:
    for option in reversed(
        (
            click.option("--filter", "sql", metavar="SQL", help="Match messages for which this is true."),
            click.option(
                "--correlation",
                multiple=True,
                metavar="KEY=VALUE",
                help="Match messages with this value; repeatable. KEY is a system property, such as Label, "
                "or an application property, prop:KEY if it has a system property's name. KEY:=VALUE is a "
                "number, true or false.",
            ),
            click.option("--all", "every", is_flag=True, help="Match all messages."),
            click.option("--none", "no", is_flag=True, help="Match no message."),
            click.option("--action", metavar="SQL", help="Change the copy, as SET x = 1; '' = do not."),
        )
    ):
        command = option(command)
    return command


@rules.command("list", help=f"Show the rules of a subscription.\n\n{EXIT}")
@TOPIC
@_SUBSCRIPTION
@JSON
@to_a_running_broker
def list_rules(broker: RunningBroker, topic: str, subscription: str, as_json: bool) -> None:
    with failures():
        administration = administration_of(broker)
        found(administration, "subscription", subscription, topic)
        there = list(administration.rules(topic, subscription))
    if as_json:
        for rule in there:
            click.echo(_as_json(rule))
        return
    rows = [[rule.name, _filter_text(rule.filter), _action_text(rule)] for rule in there]
    click.echo("\n".join(table(["NAME", "FILTER", "ACTION"], rows)))


@rules.command("show", help=f"Show a rule.\n\n{EXIT}")
@TOPIC
@_SUBSCRIPTION
@NAME
@JSON
@to_a_running_broker
def show_rule(broker: RunningBroker, topic: str, subscription: str, name: str, as_json: bool) -> None:
    with failures():
        rule = _found(administration_of(broker), topic, subscription, name)
    if as_json:
        click.echo(_as_json(rule))
    else:
        rows = [["filter", _filter_text(rule.filter)], ["action", _action_text(rule) or "none"]]
        click.echo("\n".join(table(["name", rule.name], [*rows, ["created", rule.created_at]])))


@rules.command("create", help=f"Create a rule; without a filter it matches all messages.\n\n{EXIT}")
@TOPIC
@_SUBSCRIPTION
@NAME
@_filtering
@to_a_running_broker
def create_rule(
    broker: RunningBroker, topic: str, subscription: str, name: str, action: str | None, **given: Any
) -> None:
    from peeklock.client.rules import Rule, Sql

    asked = _filter_of(**given)
    with failures():
        administration = administration_of(broker)
        found(administration, "subscription", subscription, topic)
        rule = Rule(name, True if asked is None else asked, Sql(action) if action else None)
        administration.create_rule(topic, subscription, rule)
        click.echo(f"created rule '{name}' of '{topic}/Subscriptions/{subscription}'")


@rules.command("update", help=f"Change the filter, the action, or both; the other stays.\n\n{EXIT}")
@TOPIC
@_SUBSCRIPTION
@NAME
@_filtering
@DRY_RUN
@to_a_running_broker
def update_rule(
    broker: RunningBroker,
    topic: str,
    subscription: str,
    name: str,
    action: str | None,
    dry_run: bool,
    **given: Any,
) -> None:
    from peeklock.client.rules import Rule, Sql

    asked = _filter_of(**given)
    if asked is None and action is None:
        raise click.UsageError("give a filter, an --action, or both.")
    with failures():
        administration = administration_of(broker)
        old = _found(administration, topic, subscription, name)
        new_action = old.action if action is None else Sql(action) if action else None
        new = Rule(old.name, old.filter if asked is None else asked, new_action)
        click.echo(f"filter: {_filter_text(old.filter)} -> {_filter_text(new.filter)}")
        click.echo(f"action: {_action_text(old) or 'none'} -> {_action_text(new) or 'none'}")
        if not dry_run:
            administration.update_rule(topic, subscription, new)
            click.echo(f"updated rule '{old.name}'")


@rules.command("delete", help=f"Delete a rule.\n\n{EXIT}")
@TOPIC
@_SUBSCRIPTION
@NAME
@DRY_RUN
@to_a_running_broker
def delete_rule(broker: RunningBroker, topic: str, subscription: str, name: str, dry_run: bool) -> None:
    with failures():
        administration = administration_of(broker)
        rule = _found(administration, topic, subscription, name)
        if confirm(f"rule '{rule.name}'", 0, dry_run=dry_run, yes=True):
            administration.delete_rule(topic, subscription, rule.name)
            click.echo(f"deleted rule '{rule.name}'")


def _found(administration: Administration, topic: str, subscription: str, name: str) -> Rule:
    found(administration, "subscription", subscription, topic)
    rule = administration.rule(topic, subscription, name)
    if rule is None:
        near = nearest(name, (each.name for each in administration.rules(topic, subscription)))
        raise Refused(f"subscription '{subscription}' of topic '{topic}' has no rule '{name}'{near}")
    return rule


def _filter_of(sql: str | None, correlation: tuple[str, ...], every: bool, no: bool) -> Filter | None:
    """Return the filter that is given; None = none is. Raises: click.UsageError."""
    from peeklock.client.rules import SYSTEM_PROPERTIES, Correlation, Sql

    if sum((sql is not None, bool(correlation), every, no)) > 1:
        raise click.UsageError("give one of --filter, --correlation, --all and --none.")
    if sql is not None:
        return Sql(sql)
    if not correlation:
        return True if every else False if no else None
    by_lower = {name.lower(): name for name in SYSTEM_PROPERTIES}
    system, properties = [], []
    for pair in correlation:
        key, value = _pair(pair)
        known = by_lower.get(key.replace("-", "").lower())
        if known is not None and value.type == "string":
            system.append((known, value.text))
        else:
            properties.append((key.removeprefix("prop:"), value))
    return Correlation(tuple(system), tuple(properties))


def _pair(pair: str) -> tuple[str, Typed]:
    """Return name and value. Raises: click.UsageError."""
    from peeklock.client.rules import Typed

    key, separator, text = pair.partition("=")
    if not separator or not key.rstrip(":"):
        raise click.UsageError(f"--correlation {pair}: give KEY=VALUE, such as Label=paid.")
    if not key.endswith(":"):
        return key, Typed(text)
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, (bool, int, float)):
        raise click.UsageError(f"--correlation {pair}: {text!r} is not a number, true or false.")
    kind = "boolean" if isinstance(value, bool) else "double" if isinstance(value, float) else "long"
    if kind == "long" and -(2**31) <= value < 2**31:
        kind = "int"
    return key[:-1], Typed(text, kind)


def _filter_text(given: Filter) -> str:
    from peeklock.client.rules import Sql

    if isinstance(given, bool):
        return "all" if given else "none"
    if isinstance(given, Sql):
        return given.expression
    pairs = [f"{key}={text}" for key, text in given.system]
    return " ".join(
        pairs
        + [f"{key}{'' if value.type == 'string' else ':'}={value.text}" for key, value in given.properties]
    )


def _action_text(rule: Rule) -> str:
    return "" if rule.action is None else rule.action.expression


def _as_json(rule: Rule) -> str:
    from peeklock.client.rules import Sql

    row: dict[str, Any] = {"name": rule.name}
    if isinstance(rule.filter, bool):
        row["filter"] = {"type": "true" if rule.filter else "false"}
    elif isinstance(rule.filter, Sql):
        row["filter"] = {"type": "sql", "sqlExpression": rule.filter.expression}
    else:
        properties = {key: value.text for key, value in rule.filter.properties}
        system = {key[0].lower() + key[1:]: text for key, text in rule.filter.system}
        row["filter"] = {"type": "correlation", **system, "properties": properties}
    row["action"] = None if rule.action is None else rule.action.expression
    row["createdAt"] = rule.created_at
    return json.dumps(row, ensure_ascii=False)
