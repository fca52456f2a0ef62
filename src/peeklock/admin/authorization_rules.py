"""AuthorizationRules: the shared access rules of an entity in XML. Source: wire contract 7.3."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from peeklock.admin.atom import Markup, timestamp, write_children
from peeklock.admin.reading import Description
from peeklock.admin.typed_texts import cut
from peeklock.broker.vocabulary.descriptions import AuthorizationRule
from peeklock.broker.vocabulary.errors import ArgumentInvalid

_TYPE = "SharedAccessAuthorizationRule"
_CLAIM_TYPE = "SharedAccessKey"
_CLAIM_VALUE = "None"


def read_authorization_rules(given: Description, name: str) -> tuple[AuthorizationRule, ...]:
    """Read the rules; a key that is left out is empty, times are ignored.

    Raises: ArgumentInvalid, without keys in its text.
    """
    return tuple(_read(rule) for rule in given.child(name).items("AuthorizationRule"))


def with_keys(
    rules: Iterable[AuthorizationRule], existing: Iterable[AuthorizationRule], fresh: Callable[[], str]
) -> tuple[AuthorizationRule, ...]:
    """Return the rules with the existing key, or a fresh one, where one is missing."""
    known = {rule.name.lower(): rule for rule in existing}

    def completed(rule: AuthorizationRule) -> AuthorizationRule:
        old = known.get(rule.name.lower())
        return replace(
            rule,
            primary_key=rule.primary_key or (old.primary_key if old else fresh()),
            secondary_key=rule.secondary_key or (old.secondary_key if old else fresh()),
        )

    return tuple(completed(rule) for rule in rules)


def write_authorization_rules(rules: Iterable[AuthorizationRule], *, with_times: bool) -> Markup:
    """Write the rules with their keys.

    `with_times`: with CreatedTime and ModifiedTime, which the answer to a PUT lacks (wire contract C16).
    """
    written = "".join(_write(rule, with_times) for rule in rules)
    return Markup(
        f"<AuthorizationRules>{written}</AuthorizationRules>" if written else "<AuthorizationRules/>"
    )


def _read(given: Description) -> AuthorizationRule:
    if given.type not in ("", _TYPE):
        raise ArgumentInvalid(
            f"The type {cut(given.type)!r} of an AuthorizationRule is not supported; use {_TYPE}."
        )
    if given.has("ClaimType") and given.text("ClaimType") not in ("", _CLAIM_TYPE):
        raise ArgumentInvalid(
            f"The ClaimType {cut(given.text('ClaimType'))!r} of an AuthorizationRule is not supported; "
            f"use {_CLAIM_TYPE}."
        )
    if not given.has("KeyName"):
        raise ArgumentInvalid("An AuthorizationRule has no KeyName.")
    rights = given.child("Rights").items("AccessRights") if given.has("Rights") else []
    return AuthorizationRule(
        given.text("KeyName"),
        tuple(dict.fromkeys(right.content.strip() for right in rights)),
        given.text("PrimaryKey") if given.has("PrimaryKey") else "",
        given.text("SecondaryKey") if given.has("SecondaryKey") else "",
    )


def _write(rule: AuthorizationRule, with_times: bool) -> str:
    rights = "".join(f"<AccessRights>{right}</AccessRights>" for right in rule.rights)
    children = write_children(
        (
            ("ClaimType", _CLAIM_TYPE),
            ("ClaimValue", _CLAIM_VALUE),
            ("Rights", Markup(f"<Rights>{rights}</Rights>")),
            ("CreatedTime", timestamp(rule.created_at_ms) if with_times else None),
            ("ModifiedTime", timestamp(rule.modified_at_ms) if with_times else None),
            ("KeyName", rule.name),
            ("PrimaryKey", rule.primary_key),
            ("SecondaryKey", rule.secondary_key),
        )
    )
    return f'<AuthorizationRule i:type="{_TYPE}">{children}</AuthorizationRule>'
