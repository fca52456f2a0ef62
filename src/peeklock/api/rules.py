"""Operations on the rules of a subscription, and the check of a rule."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from peeklock.api.definitions import BODY_BYTES_MAX, entity_path
from peeklock.api.entities import CURSOR, LIMIT
from peeklock.api.exchange import Answer, Ask, answer_json, done, from_cursor, to_cursor
from peeklock.api.messages import PAGE_BYTES_MAX
from peeklock.api.rule_json import read_action, read_filter, read_rule, rule_json
from peeklock.api.schema import Schema, page, record, ref
from peeklock.api.table import Call, Operation
from peeklock.auth.rights import Right
from peeklock.broker.entities.validation import check_rule_size, rule_bytes
from peeklock.broker.vocabulary.commands import AddRule, ListRules, RemoveRule, UpdateRule
from peeklock.broker.vocabulary.descriptions import RuleDescription
from peeklock.broker.vocabulary.effects import RulesFound
from peeklock.broker.vocabulary.errors import (
    ArgumentInvalid,
    RuleAlreadyExists,
    RuleNotFound,
    ServiceBusError,
)
from peeklock.rules.compiled import compile_action, compile_filter
from peeklock.rules.errors import RuleError
from peeklock.rules.filters import TrueFilter

CHECKED: Schema = record(
    {
        "isGood": {"type": "boolean"},
        "member": {"type": "string", "enum": ["filter", "action"], "description": "What is wrong."},
        "problem": {"type": "string"},
        "position": {
            "type": "integer",
            "minimum": 1,
            "description": "Of the character in the expression, from 1. Absent if there is no single place.",
        },
    },
    ["isGood"],
    description="Whether a rule is good.",
)

NAMED = {"Rules": page("rules", ref("Rule")), "RuleChecked": CHECKED}


def list_rules(call: Call) -> Answer:
    """List the rules of a subscription."""
    path, skip, limit, exchange = entity_path(call), 0, call.given["limit"], call.exchange
    if "cursor" in call.given:
        (skip,) = from_cursor(call.given["cursor"], int)

    def render(effect: RulesFound) -> Answer:
        sizes = accumulate(rule_bytes(rule) for rule in effect.rules)
        fitting = max(sum(size <= PAGE_BYTES_MAX for size in sizes), 1)
        shown = effect.rules[:fitting]
        found: dict[str, Any] = {"rules": [rule_json(rule) for rule in shown]}
        if effect.more or len(shown) < len(effect.rules):
            found["next"] = to_cursor(skip + len(shown))
        return answer_json(found)

    return Ask(exchange, ListRules(path, skip, limit, exchange.reply_to), render)


def put_rule(call: Call) -> Answer:
    """Add a rule, or replace its filter and action."""
    path, exchange = entity_path(call), call.exchange
    rule = read_rule(call.given["rule"], call.body)

    def render(effect: RulesFound) -> Answer:
        return answer_json(rule_json(effect.rules[0]))

    def add(error: ServiceBusError) -> Answer | None:
        # Another client may remove it meanwhile.
        command = AddRule(path, rule, exchange.reply_to)
        return Ask(exchange, command, render, instead=replace) if type(error) is RuleNotFound else None

    def replace(error: ServiceBusError) -> Answer | None:
        command = UpdateRule(path, rule, exchange.reply_to)
        return Ask(exchange, command, render, instead=add) if type(error) is RuleAlreadyExists else None

    return Ask(exchange, UpdateRule(path, rule, exchange.reply_to), render, instead=add)


def remove_rule(call: Call) -> Answer:
    """Remove a rule."""
    command = RemoveRule(entity_path(call), call.given["rule"], call.exchange.reply_to)
    return Ask(call.exchange, command, done)


def check_rule(call: Call) -> Answer:
    """Compile a rule, without a subscription. Raises: ArgumentInvalid."""
    given = call.body
    filter = read_filter(given["filter"], "filter") if "filter" in given else TrueFilter()
    action = read_action(given, "")
    member = "filter"
    try:
        check_rule_size(RuleDescription("rule", filter, action))
        compile_filter(filter)
        member = "action"
        if action is not None:
            compile_action(action)
    except RuleError as failure:
        place = {} if failure.position is None else {"position": failure.position}
        return answer_json({"isGood": False, "member": member, "problem": failure.what, **place})
    except ArgumentInvalid as failure:
        return answer_json({"isGood": False, "member": member, "problem": str(failure)})
    return answer_json({"isGood": True})


OPERATIONS = (
    Operation(
        "listRules",
        "GET",
        "/entities/{entity}/rules",
        "List the rules of a subscription by name",
        Right.MANAGE,
        list_rules,
        query=(LIMIT, CURSOR),
        answer=ref("Rules"),
    ),
    Operation(
        "putRule",
        "PUT",
        "/entities/{entity}/rules/{rule}",
        "Add a rule to a subscription, or replace it",
        Right.MANAGE,
        put_rule,
        "It applies to messages that are sent from now on.",
        body=ref("RuleToPut"),
        body_bytes_max=BODY_BYTES_MAX,
        answer=ref("Rule"),
    ),
    Operation(
        "removeRule",
        "DELETE",
        "/entities/{entity}/rules/{rule}",
        "Remove a rule from a subscription",
        Right.MANAGE,
        remove_rule,
        "Messages in the subscription stay.",
        status=204,
    ),
    Operation(
        "checkRule",
        "POST",
        "/rules/check",
        "Check a filter and an action, without a subscription",
        None,
        check_rule,
        body=ref("RuleToPut"),
        body_bytes_max=BODY_BYTES_MAX,
        answer=ref("RuleChecked"),
        problems=(),
    ),
)
