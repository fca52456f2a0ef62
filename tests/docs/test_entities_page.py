"""The tables of docs/entities.md are what the broker does."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

from peeklock.admin.queues import IMMUTABLE, SETTINGS
from peeklock.broker.descriptions import UNLIMITED_MS
from peeklock.broker.quotas import BASIC, PREMIUM, STANDARD, TierLimits
from peeklock.server.config import QUEUE_PROPERTIES

PAGE = (Path(__file__).parents[2] / "docs/entities.md").read_text(encoding="utf-8")
TIERS = (BASIC, STANDARD, PREMIUM)


def rows(heading: str) -> dict[str, list[str]]:
    """First cell -> other cells of the first table below a heading, without its head."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^\|(.*)\|$", section, flags=re.MULTILINE)[2:]
    found = [[cell.strip() for cell in line.split("|")] for line in lines]
    return {first: rest for first, *rest in found}


def test_every_setting_has_its_row() -> None:
    table = rows("Every setting")
    assert set(table) == {f"`{setting}`" for setting in SETTINGS}
    for setting in SETTINGS:
        *_, changes = table[f"`{setting}`"]
        assert (changes == "yes") is (setting not in IMMUTABLE), setting


def test_settings_have_one_name_in_the_file_and_in_the_administration() -> None:
    """Req: A-02"""
    in_administration = {setting: field for setting, (field, _) in SETTINGS.items()}
    assert {setting: field for setting, (field, _) in QUEUE_PROPERTIES.items()} == in_administration


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
    "queues with `--enforce-quotas`": ("queues_max", lambda tier: f"{tier.queues_max:,}"),
    "largest time-to-live": (
        "ttl_ms_max",
        lambda tier: "any" if tier.ttl_ms_max == UNLIMITED_MS else f"{tier.ttl_ms_max // 86_400_000} days",
    ),
    "most messages of one batch delete": ("batch_delete_max", lambda tier: f"{tier.batch_delete_max:,}"),
    "largest state of a session": (
        "session_state_bytes_max",
        lambda tier: _kib(tier.session_state_bytes_max),
    ),
    "duplicate detection": ("duplicate_detection", _yes("duplicate_detection")),
    "deferral": ("deferral", _yes("deferral")),
    "sessions": ("sessions", _yes("sessions")),
    "forwarding": ("forwarding", _yes("forwarding")),
    "transactions": ("transactions", _yes("transactions")),
    "partitioning of one queue": ("partitioning", _yes("partitioning")),
    "idle deletion": ("idle_deletion", _yes("idle_deletion")),
}
"""First cell of a row -> the field that it shows, and how."""


def test_the_table_of_tiers_is_what_the_broker_holds_to() -> None:
    """Req: A-05"""
    assert {field for field, _ in CELLS.values()} == {field.name for field in fields(TierLimits)} - {"name"}
    assert rows("Tiers") == {first: [show(tier) for tier in TIERS] for first, (_, show) in CELLS.items()}
