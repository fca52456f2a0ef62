"""Checks of settings: ranges that are the same in every tier, the form of names, what is fixed at creation.

Source: wire contract 7.8 and 10.1; Learn "Service Bus quotas and limits".
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import TypeVar

from peeklock.broker.vocabulary.descriptions import (
    KINDS,
    RIGHTS,
    UNLIMITED_MS,
    AuthorizationRule,
    Description,
    EntityKind,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from peeklock.broker.vocabulary.durations import format_duration
from peeklock.broker.vocabulary.errors import ArgumentInvalid, ArgumentOutOfRange, NameInvalid, NotSupported
from peeklock.broker.vocabulary.quotas import TierLimits
from peeklock.rules.filters import CorrelationFilter, SqlFilter

NAME_LENGTH_MAX = 260
LOCK_DURATION_MS_MIN = 5_000
LOCK_DURATION_MS_MAX = 5 * 60_000
MAX_DELIVERY_COUNT_MIN = 1
MAX_DELIVERY_COUNT_MAX = 2**31 - 1
"""Source: wire contract C33: a framework creates each queue and subscription with it."""
DEFAULT_TTL_MS_MIN = 1_000
DUPLICATE_WINDOW_MS_MIN = 20_000
DUPLICATE_WINDOW_MS_MAX = 7 * 86_400_000
AUTO_DELETE_ON_IDLE_MS_MIN = 5 * 60_000
MAX_SIZE_MB_MIN = 1024
MESSAGE_SIZE_KB_MIN = 1024
USER_METADATA_LENGTH_MAX = 1024
"""Source: Learn, `QueueDescription.UserMetadata`: "The value cannot exceed 1024 bytes"; characters here."""

RULE_BYTES_MAX = 64 * 1024
"""Names, expressions, parameters and properties of one rule. Our choice: as for properties of a message."""

AUTHORIZATION_RULES_MAX = 12
"""Of one entity. Source: Learn "Service Bus access control with Shared Access Signatures"."""

RULE_NAME_LENGTH_MAX = 256
"""Of an authorization rule's name; the next is that of its keys. Source: Learn, REST API, "Authorization
rules": keyName and keys have up to 256 characters."""

KEY_LENGTH_MAX = 256

PART_NAME_LENGTH_MAX = 50
"""Of subscriptions and rules. Source: wire contract 7.8, 10.1."""

_SEGMENT = r"(?!\.\.?(?:/|\Z))[A-Za-z0-9._-]+"
"""Part of a name between slashes. Clients remove `.` and `..` from URLs."""
_NAME = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})*")
_PART_NAME = re.compile(rf"{_SEGMENT}|\$[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_FORBIDDEN = re.compile(r"[^A-Za-z0-9._/-]")

D = TypeVar("D", bound=Description)


def is_name(name: str) -> bool:
    """Return whether a queue or topic may have this name. Source: wire contract 7.8, C32."""
    return len(name) <= NAME_LENGTH_MAX and _NAME.fullmatch(name) is not None


def is_part_name(name: str) -> bool:
    """Return whether a rule may have this name; a subscription's has no `$`. Source: wire contract 7.8,
    C32."""
    return len(name) <= PART_NAME_LENGTH_MAX and _PART_NAME.fullmatch(name) is not None


def checked_name(name: str) -> str:
    """Return the name of a queue or topic. Raises: NameInvalid. Source: wire contract 7.8, C32."""
    _check_length(name, NAME_LENGTH_MAX)
    if _NAME.fullmatch(name) is None:
        raise _malformed(name, name)
    if "/subscriptions/" in name.lower():
        raise NameInvalid(
            f"the name {name!r} is not allowed: a path with '/Subscriptions/' names a subscription"
        )
    return name


def checked_part_name(name: str) -> str:
    """Return the name of a subscription or rule. Raises: NameInvalid. Source: wire contract 7.8, C32."""
    _check_length(name, PART_NAME_LENGTH_MAX)
    if _PART_NAME.fullmatch(name) is None:
        raise _malformed(name, name.replace("/", "$"))  # it has one segment
    return name


def _malformed(name: str, text: str) -> NameInvalid:
    """Return the refusal of a name; `text` may hold letters, digits and slashes. The service's sentence comes
    first.
    Source: wire contract C32."""
    if _FORBIDDEN.search(text):
        return NameInvalid(
            f"{name!r} contains character(s) that is not allowed by Service Bus. Entity segments can contain "
            f"only letters, numbers, periods (.), hyphens (-), and underscores (_)."
        )
    return NameInvalid(
        f"the name {name!r} is not allowed: no part of a name is empty, '.' or '..', which URLs cannot carry"
    )


def check_texts(name: str, value: object) -> None:
    """Check that the strings of a description can be encoded: JSON may hold unpaired surrogates.

    Args:
        name: of what is described.
        value: a description, or a part of one.

    Raises: ArgumentInvalid.
    """
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ArgumentInvalid(f"{value[:80]!r} of {name!r} contains an unpaired surrogate") from None
    elif isinstance(value, tuple):
        for part in value:
            check_texts(name, part)
    elif is_dataclass(value):
        for field in fields(value):
            check_texts(name, getattr(value, field.name))


def _check_length(name: str, length_max: int) -> None:
    if len(name) > length_max:
        raise NameInvalid(
            f"the name '{name[:40]}...' has {len(name)} characters, at most {length_max} are allowed"
        )


def checked(description: D, limits: TierLimits) -> D:
    """Return the description of a new entity, checked, with the tier's defaults.

    Raises:
        NameInvalid: no entity of this kind may have the name.
        ArgumentInvalid, ArgumentOutOfRange: no entity of this kind and tier may have a value.
        NotSupported: the tier lacks a feature; the message names the setting.
    """
    if isinstance(description, SubscriptionDescription):
        if description.subscription_name.startswith("$"):
            raise NameInvalid(f"the name {description.subscription_name!r} is not allowed: '$' is reserved")
        checked_part_name(description.subscription_name)
    else:
        checked_name(description.name)
    _check_size(description, limits)
    return _checked_settings(description, limits)


def _checked_settings(description: D, limits: TierLimits) -> D:
    """Check all but name and size, for which earlier releases had other rules; see `checked`."""
    for setting, value, least, most in (
        ("LockDuration", description.lock_duration_ms, LOCK_DURATION_MS_MIN, LOCK_DURATION_MS_MAX),
        ("MaxDeliveryCount", description.max_delivery_count, MAX_DELIVERY_COUNT_MIN, MAX_DELIVERY_COUNT_MAX),
        (
            "DuplicateDetectionHistoryTimeWindow",
            description.duplicate_window_ms,
            DUPLICATE_WINDOW_MS_MIN,
            DUPLICATE_WINDOW_MS_MAX,
        ),
        ("AutoDeleteOnIdle", description.auto_delete_on_idle_ms, AUTO_DELETE_ON_IDLE_MS_MIN, UNLIMITED_MS),
    ):
        _check_range(description.name, setting, value, least, most)
    if description.user_metadata is not None:
        check_texts(description.name, description.user_metadata)
        _check_range(
            description.name,
            "length of UserMetadata",
            len(description.user_metadata),
            0,
            USER_METADATA_LENGTH_MAX,
        )
    if not isinstance(description, TopicDescription):
        # Clients send the empty string for "not set".
        to, dead_to = description.forward_to or None, description.forward_dead_lettered_to or None
        description = replace(
            description,
            forward_to=to,
            forward_dead_lettered_to=dead_to,
            forward_to_given=to and description.forward_to_given,
            forward_dead_lettered_to_given=dead_to and description.forward_dead_lettered_to_given,
        )
    _check_authorization_rules(description)
    _check_message_size(description, limits)
    _check_features(description, limits)
    default_ttl_ms = description.default_ttl_ms
    if default_ttl_ms >= UNLIMITED_MS:
        # Clients send the largest span for "not set", also in the basic tier.
        return replace(description, default_ttl_ms=limits.ttl_ms_max)
    _check_range(
        description.name, "DefaultMessageTimeToLive", default_ttl_ms, DEFAULT_TTL_MS_MIN, limits.ttl_ms_max
    )
    return description


def checked_update(old: Description, new: Description, limits: TierLimits) -> Description:
    """Return the new description of an entity, checked; its name keeps the first spelling.

    Raises: as `checked`; ArgumentInvalid also for a setting that is fixed at creation.
    Source: wire contract 7.3, column "mutable".
    """
    if type(old) is not type(new):
        raise ArgumentInvalid(
            f"'{old.name}' is a {KINDS[type(old)].value}: it cannot be changed as a {KINDS[type(new)].value}"
        )
    for setting, before, after in (
        ("RequiresSession", old.requires_session, new.requires_session),
        ("RequiresDuplicateDetection", old.requires_duplicate_detection, new.requires_duplicate_detection),
        ("EnablePartitioning", old.enable_partitioning, new.enable_partitioning),
    ):
        if before != after:
            raise ArgumentInvalid(
                f"{_fixed(setting, KINDS[type(old)])} "
                f"{setting} of '{old.name}' is {before}, requested: {after}."
            )
    if isinstance(old, SubscriptionDescription) and isinstance(new, SubscriptionDescription):
        new = replace(new, topic_name=old.topic_name, subscription_name=old.subscription_name)
    elif not isinstance(new, SubscriptionDescription):
        new = replace(new, name=old.name)
    if new.max_size_mb != old.max_size_mb:
        _check_size(new, limits)
    return _checked_settings(new, limits)


def _fixed(setting: str, kind: EntityKind) -> str:
    """Return the service's sentence about a setting that is fixed at creation. Source: wire contract C19."""
    if kind is EntityKind.TOPIC and setting == "EnablePartitioning":
        return "Partitioning cannot be changed for Topic."
    return f"The value for the {setting} property of an existing {kind.value.capitalize()} cannot be changed."


def drops_locks(old: Description, new: Description) -> bool:
    """Return whether a change drops locks: any, but of authorization rules, of user metadata and of the
    spelling of a forward (L-12)."""
    return _about_messages(old) != _about_messages(new)


def _about_messages(description: Description) -> Description:
    description = replace(description, user_metadata=None)
    if not isinstance(description, TopicDescription):
        description = replace(description, forward_to_given=None, forward_dead_lettered_to_given=None)
    if isinstance(description, SubscriptionDescription):
        return description
    return replace(description, authorization_rules=())


def stamped(old: Description | None, new: D, now_ms: int) -> D:
    """Return a description whose authorization rules have their times; `old` = None: all are new."""
    if isinstance(new, SubscriptionDescription):
        return new
    before = {rule.name.lower(): rule for rule in (() if old is None else old.authorization_rules)}
    rules = tuple(_stamped(before.get(rule.name.lower()), rule, now_ms) for rule in new.authorization_rules)
    return replace(new, authorization_rules=rules)


def _stamped(old: AuthorizationRule | None, new: AuthorizationRule, now_ms: int) -> AuthorizationRule:
    if old is None:
        return replace(new, created_at_ms=now_ms, modified_at_ms=now_ms)
    new = replace(new, created_at_ms=old.created_at_ms, modified_at_ms=old.modified_at_ms)
    return new if new == old else replace(new, modified_at_ms=now_ms)


def _check_range(name: str, setting: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ArgumentOutOfRange(
            f"{setting} of '{name}' is {_shown(setting, value)}; allowed: {_allowed(setting, least, most)}"
        )


def _allowed(setting: str, least: int, most: int) -> str:
    if setting in _IN_MS and most >= UNLIMITED_MS:
        return f"{format_duration(least)} or longer"
    return f"{_shown(setting, least)} to {_shown(setting, most)}"


def _shown(setting: str, value: int) -> str:
    return format_duration(value) if setting in _IN_MS else str(value)


_IN_MS = frozenset(
    {"LockDuration", "DuplicateDetectionHistoryTimeWindow", "AutoDeleteOnIdle", "DefaultMessageTimeToLive"}
)
"""Settings that are durations; all others are numbers."""


def _check_size(description: Description, limits: TierLimits) -> None:
    """Check the size of an entity. Raises: ArgumentOutOfRange. Source: wire contract C44."""
    size_mb, most, step = description.max_size_mb, limits.max_size_mb_max, limits.size_mb_step
    if MAX_SIZE_MB_MIN <= size_mb <= most and size_mb % step == 0:
        return
    sizes = range(MAX_SIZE_MB_MIN, most + 1, step)
    allowed = f"{sizes[0]} to {sizes[-1]}" if step == 1 else ", ".join(map(str, sizes))
    raise ArgumentOutOfRange(f"MaxSizeInMegabytes of '{description.name}' is {size_mb}; allowed: {allowed}")


def _check_message_size(description: Description, limits: TierLimits) -> None:
    size_kb = description.max_message_size_kb
    if size_kb is None:
        return
    if limits.message_size_kb_max == limits.message_size_kb_default:
        # [T] the service refuses the element in these tiers (wire contract 7.8)
        raise ArgumentInvalid(
            f"MaxMessageSizeInKilobytes of '{description.name}' cannot be set in tier {limits.name}"
        )
    if not MESSAGE_SIZE_KB_MIN <= size_kb <= limits.message_size_kb_max:
        # The service's text. Source: wire contract C19.
        raise ArgumentOutOfRange(
            f"The specified value for 'MaxMessageSizeInKilobytes' must be between {MESSAGE_SIZE_KB_MIN} and "
            f"{limits.message_size_kb_max}. '{description.name}' has {size_kb}."
        )


def _check_authorization_rules(description: Description) -> None:
    """Check the authorization rules; no message shows a key. Raises: ArgumentInvalid."""
    rules = description.authorization_rules
    if len(rules) > AUTHORIZATION_RULES_MAX:
        raise ArgumentInvalid(
            f"'{description.name}' has {len(rules)} authorization rules, at most {AUTHORIZATION_RULES_MAX} "
            f"are allowed"
        )
    names: set[str] = set()
    for rule in rules:
        if not 1 <= len(rule.name) <= RULE_NAME_LENGTH_MAX:
            raise ArgumentInvalid(
                f"the name of an authorization rule of '{description.name}' has {len(rule.name)} characters; "
                f"allowed: 1 to {RULE_NAME_LENGTH_MAX}"
            )
        check_texts(description.name, rule.name)
        where = f"the authorization rule '{rule.name}' of '{description.name}'"
        if rule.name.lower() in names:
            raise ArgumentInvalid(f"{where} is given twice: names compare case-insensitively")
        names.add(rule.name.lower())
        _check_rights(where, rule.rights)
        for kind, key in (("primary", rule.primary_key), ("secondary", rule.secondary_key)):
            if not 1 <= len(key) <= KEY_LENGTH_MAX:
                raise ArgumentInvalid(
                    f"the {kind} key of {where} has {len(key)} characters; allowed: 1 to {KEY_LENGTH_MAX}"
                )


def _check_rights(where: str, rights: tuple[str, ...]) -> None:
    known = ", ".join(RIGHTS)
    if not rights:
        raise ArgumentInvalid(f"{where} has no rights: use some of {known}")
    for right in rights:
        if right not in RIGHTS:
            raise ArgumentInvalid(f"{where} has the right {right[:80]!r}: known are {known}")
    if len(set(rights)) < len(rights):
        raise ArgumentInvalid(f"{where} has a right twice: {', '.join(rights)}")
    if "Manage" in rights and len(rights) < len(RIGHTS):
        # [T] the service refuses a rule with Manage but not Send and Listen (wire contract 7.3)
        raise ArgumentInvalid(f"{where} has Manage: it needs Send and Listen as well")


def rule_bytes(rule: RuleDescription) -> int:
    """Return about the size of a rule's names and values."""
    pairs: list[tuple[str, object]] = []
    if isinstance(rule.filter, SqlFilter | CorrelationFilter):
        pairs += [(each.name, getattr(rule.filter, each.name)) for each in dataclasses.fields(rule.filter)]
        pairs += rule.filter.parameters if isinstance(rule.filter, SqlFilter) else rule.filter.properties
        pairs += [("", given.text) for given in rule.filter.as_given if given]
    if rule.action is not None:
        pairs += [("action", rule.action.expression), *rule.action.parameters]
        pairs += [("", given.text) for given in rule.action.as_given if given]
    return sum(len(name) + (len(value) if isinstance(value, str | bytes) else 16) for name, value in pairs)


def check_rule_size(rule: RuleDescription) -> None:
    """Check the size of a rule's values: pages of rules are built in memory. Raises: ArgumentInvalid."""
    size_bytes = rule_bytes(rule)
    if size_bytes > RULE_BYTES_MAX:
        raise ArgumentInvalid(
            f"the names and values of rule '{rule.name}' take {size_bytes} bytes, at most "
            f"{RULE_BYTES_MAX} are allowed"
        )


def check_forwarding(description: Description, exists: Callable[[str], bool]) -> None:
    """Check that each target exists, which may be the entity itself or forward back to it.

    Args:
        description: the new one.
        exists: whether there is a queue or topic of this name.

    Raises: ArgumentInvalid.
    Source: semantics F-01; wire contract 7.8, C15. The limit of hops ends a cycle.
    """
    # "Destination must exist" wire contract 7.8; a new queue counts as its own
    own = None if isinstance(description, SubscriptionDescription) else description.name.lower()
    for setting, target in _forwards(description):
        if target.lower() != own and not exists(target):
            raise ArgumentInvalid(
                f"{setting} of '{description.name}' names '{target}', and there is no such queue or topic"
            )


def forwards_of(description: Description) -> list[str]:
    """Return the targets of an entity's messages and dead letters."""
    return [target for _, target in _forwards(description)]


def _forwards(description: Description) -> list[tuple[str, str]]:
    settings = (
        ("ForwardTo", description.forward_to),
        ("ForwardDeadLetteredMessagesTo", description.forward_dead_lettered_to),
    )
    return [(setting, target) for setting, target in settings if target is not None]


def _check_features(description: Description, limits: TierLimits) -> None:
    kind = KINDS[type(description)]
    if kind is not EntityKind.QUEUE and not limits.topics:
        raise NotSupported(f"'{description.name}' is a {kind.value}: tier {limits.name} has no {kind.value}s")
    for setting, wanted, offered in (
        ("RequiresSession", description.requires_session, limits.sessions),
        ("RequiresDuplicateDetection", description.requires_duplicate_detection, limits.duplicate_detection),
        ("EnablePartitioning", description.enable_partitioning, limits.partitioning),
        ("ForwardTo", description.forward_to is not None, limits.forwarding),
        (
            "ForwardDeadLetteredMessagesTo",
            description.forward_dead_lettered_to is not None,
            limits.forwarding,
        ),
        ("AutoDeleteOnIdle", description.auto_delete_on_idle_ms < UNLIMITED_MS, limits.idle_deletion),
    ):
        if wanted and not offered:
            raise NotSupported(f"'{description.name}' sets {setting}, which tier {limits.name} does not have")
