"""The tables of docs/reference/entities.md and config-json.md are what the broker does."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

from peeklock.admin.elements import (
    AUTHORIZATION_RULES,
    QUEUE_ELEMENTS,
    SUBSCRIPTION_ELEMENTS,
    TOPIC_ELEMENTS,
    Setting,
)
from peeklock.broker.vocabulary.descriptions import (
    KINDS,
    UNLIMITED_MS,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from peeklock.broker.vocabulary.quotas import BASIC, PREMIUM, STANDARD, TierLimits
from peeklock.config.file import parse_config
from peeklock.config.hosts import HostNames
from peeklock.config.reconcile import reconcile
from peeklock.config.settings import IMMUTABLE as FIXED
from peeklock.config.settings import PROPERTIES

REFERENCE = Path(__file__).parents[2] / "docs/reference"
PAGE = (REFERENCE / "entities.md").read_text(encoding="utf-8")
CONFIG_PAGE = (REFERENCE / "config-json.md").read_text(encoding="utf-8")
TIERS = (BASIC, STANDARD, PREMIUM)
IN_ADMINISTRATION = {
    kind: {row.element: row for row in table if isinstance(row, Setting)}
    for kind, table in (
        (QueueDescription, QUEUE_ELEMENTS),
        (TopicDescription, TOPIC_ELEMENTS),
        (SubscriptionDescription, SUBSCRIPTION_ELEMENTS),
    )
}
NOT_IN_FILE = AUTHORIZATION_RULES.element


def rows(heading: str) -> dict[str, list[str]]:
    """First cell -> other cells of the first table below a heading, without its head."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^\|(.*)\|$", section, flags=re.MULTILINE)[2:]
    found = [[cell.strip() for cell in line.split("|")] for line in lines]
    return {first: rest for first, *rest in found}


def test_every_setting_has_its_row() -> None:
    table = rows("Settings")
    settings = {setting for elements in IN_ADMINISTRATION.values() for setting in elements}
    assert set(table) == {f"`{setting}`" for setting in settings}
    for setting in settings:
        of, *_, changes = table[f"`{setting}`"]
        has = [kind for kind, elements in IN_ADMINISTRATION.items() if setting in elements]
        assert of == ", ".join(KINDS[kind].value for kind in has)
        assert (setting in FIXED) == (changes == "no"), setting


def test_settings_have_one_name_in_the_file_and_in_the_administration() -> None:
    """Req: A-02"""
    for kind, elements in IN_ADMINISTRATION.items():
        in_administration = {name: row.field for name, row in elements.items() if name != NOT_IN_FILE}
        assert {setting: field for setting, (field, _) in PROPERTIES[kind].items()} == in_administration
        kept = {name for name, row in elements.items() if row.kept} - {NOT_IN_FILE}
        assert kept == {setting for setting in FIXED if setting in PROPERTIES[kind]}


def test_the_configuration_on_the_page_is_taken() -> None:
    """Req: A-02"""
    (example,) = re.findall(r"^```json\n(.*?)^```", CONFIG_PAGE, re.MULTILINE | re.DOTALL)
    assert len(reconcile(parse_config(example.encode())[0], [], {}, STANDARD, HostNames())) == 5


def _yes(field: str) -> Callable[[TierLimits], str]:
    return lambda tier: "yes" if getattr(tier, field) else "no"


def _kib(size_bytes: int) -> str:
    return f"{size_bytes // 1024:,} KiB"


CELLS: dict[str, tuple[str, Callable[[TierLimits], str]]] = {
    "largest message, unless the queue says otherwise": (
        "message_size_kb_default",
        lambda tier: _kib(tier.message_size_kb_default * 1024),
    ),
    "largest `MaxMessageSizeInKilobytes`": (
        "message_size_kb_max",
        lambda tier: (
            f"{tier.message_size_kb_max:,}"
            if tier.message_size_kb_max > tier.message_size_kb_default
            else "cannot be set"
        ),
    ),
    "largest `MaxSizeInMegabytes`": ("max_size_mb_max", lambda tier: f"{tier.max_size_mb_max:,}"),
    "`MaxSizeInMegabytes` is a multiple of": ("size_mb_step", lambda tier: f"{tier.size_mb_step:,}"),
    "queues and topics with `--enforce-quotas`": ("queues_max", lambda tier: f"{tier.queues_max:,}"),
    "subscriptions of a topic with `--enforce-quotas`": (
        "subscriptions_max",
        lambda tier: f"{tier.subscriptions_max:,}",
    ),
    "SQL, true and false filters of a topic with `--enforce-quotas`": (
        "sql_filters_max",
        lambda tier: f"{tier.sql_filters_max:,}",
    ),
    "correlation filters of a topic with `--enforce-quotas`": (
        "correlation_filters_max",
        lambda tier: f"{tier.correlation_filters_max:,}",
    ),
    "largest time-to-live": (
        "ttl_ms_max",
        lambda tier: "any" if tier.ttl_ms_max == UNLIMITED_MS else f"{tier.ttl_ms_max // 86_400_000} days",
    ),
    "largest state of a session": (
        "session_state_bytes_max",
        lambda tier: _kib(tier.session_state_bytes_max),
    ),
    "topics": ("topics", _yes("topics")),
    "duplicate detection": ("duplicate_detection", _yes("duplicate_detection")),
    "deferral": ("deferral", _yes("deferral")),
    "sessions": ("sessions", _yes("sessions")),
    "forwarding": ("forwarding", _yes("forwarding")),
    "transactions": ("transactions", _yes("transactions")),
    "partitioning of one queue or topic": ("partitioning", _yes("partitioning")),
    "idle deletion": ("idle_deletion", _yes("idle_deletion")),
}
"""First cell of a row -> the field that it shows, and how."""


def test_the_table_of_tiers_is_what_the_broker_holds_to() -> None:
    """Req: A-05"""
    assert {field for field, _ in CELLS.values()} == {field.name for field in fields(TierLimits)} - {"name"}
    assert rows("Tiers") == {first: [show(tier) for tier in TIERS] for first, (_, show) in CELLS.items()}
