"""Requests for the rules of a subscription: from HTTP to a command, from its effect to an answer.

Source: wire contract 7.1, 7.2, 7.6.
"""

from __future__ import annotations

from peeklock.admin import atom
from peeklock.admin.exchange import AdminEffect, Exchange, Pending, Response
from peeklock.admin.reading import read_description
from peeklock.admin.rules import read_rule, write_rule
from peeklock.admin.typed_texts import cut
from peeklock.broker.vocabulary.commands import AddRule, FindRule, ListRules, RemoveRule, UpdateRule
from peeklock.broker.vocabulary.descriptions import RuleDescription, subscription_path
from peeklock.broker.vocabulary.effects import Failed, RulesFound
from peeklock.broker.vocabulary.errors import ArgumentInvalid


class RuleRequests:
    """Requests for one path that names a rule."""

    def __init__(self, exchange: Exchange, topic: str, subscription: str, name: str) -> None:
        self._exchange = exchange
        self._subscription = subscription_path(topic, subscription)
        self._name = name

    def get(self) -> Response | Pending:
        """Look a rule up."""
        return Pending(
            FindRule(self._subscription, self._name, self._exchange.reply_to),
            lambda effect: self._answer(200, effect),
        )

    def put(self) -> Response | Pending:
        """Add or update a rule. Raises: ArgumentInvalid."""
        given = read_description(self._exchange.request.body)
        if given.kind != "RuleDescription":
            raise ArgumentInvalid(f"The content is a {cut(given.kind)!r}, not a RuleDescription.")
        rule = read_rule(given, self._name)
        reply_to = self._exchange.reply_to
        if self._exchange.updates:
            return Pending(
                UpdateRule(self._subscription, rule, reply_to, self._exchange.if_match),
                lambda effect: self._answer(200, effect),
            )
        return Pending(AddRule(self._subscription, rule, reply_to), lambda effect: self._answer(201, effect))

    def delete(self) -> Response | Pending:
        """Remove a rule."""
        return Pending(
            RemoveRule(self._subscription, self._name, self._exchange.reply_to, self._exchange.if_match),
            self._exchange.deleted,
        )

    def _answer(self, status: int, effect: AdminEffect) -> Response:
        if isinstance(effect, Failed):
            return self._exchange.refusal(effect.error)
        assert isinstance(effect, RulesFound)
        (rule,) = effect.rules
        return self._exchange.entry(status, _entry(self._exchange, self._subscription, rule), rule.version)


def list_rules(exchange: Exchange, topic: str, subscription: str) -> Pending:
    """Answer with a page of a subscription's rules. Raises: ArgumentInvalid, ArgumentOutOfRange."""
    page = exchange.asked_page()
    path = subscription_path(topic, subscription)

    def listed(effect: AdminEffect) -> Response:
        if isinstance(effect, Failed):
            return exchange.refusal(effect.error)
        assert isinstance(effect, RulesFound)
        entries = (_entry(exchange, path, rule) for rule in effect.rules)
        return exchange.page("Rules", f"{path}/Rules", page, entries, effect.more)

    return Pending(ListRules(path, *page, exchange.reply_to), listed)


def _entry(exchange: Exchange, subscription: str, rule: RuleDescription) -> atom.Entry:
    return atom.Entry(
        title=rule.name,
        href=exchange.href(f"{subscription}/Rules/{rule.name}"),
        published_ms=rule.created_at_ms,
        updated_ms=rule.created_at_ms,
        content=write_rule(rule),
    )
