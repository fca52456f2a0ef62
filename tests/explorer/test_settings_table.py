"""The table of settings in the page has what the API has, for each kind, with the same defaults."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import pytest

from peeklock.api.entity_settings import SETTINGS
from peeklock.broker.vocabulary.descriptions import (
    UNLIMITED_MS,
    EntityStatus,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from peeklock.explorer.files import PAGE

KINDS = {
    "ALL": {"queue", "topic", "subscription"},
    "HOLDERS": {"queue", "subscription"},
    "SENT_TO": {"queue", "topic"},
    '["topic"]': {"topic"},
    '["subscription"]': {"subscription"},
}
LINE = re.compile(r'\{ name: "(?P<name>\w+)",.* kinds: (?P<kinds>[\w"\[\]]+),(?: .*)?')
STANDARD = re.compile(r"\bstandard: ([^,]+),")


def table() -> dict[str, tuple[set[str], str | None]]:
    """Return kinds and the default of each setting of the page."""
    text = (PAGE / "settings_form.js").read_text(encoding="utf-8")
    found = {}
    for line in LINE.finditer(text):
        standard = STANDARD.search(line[0])
        found[line["name"]] = (KINDS[line["kinds"]], standard and standard[1])
    return found


@pytest.mark.parametrize(
    ("kind", "description"),
    [("queue", QueueDescription), ("topic", TopicDescription), ("subscription", SubscriptionDescription)],
)
def test_a_kind_has_the_settings_and_defaults_of_the_api(kind: str, description: type) -> None:
    defaults: dict[str, Any] = {field.name: field.default for field in fields(description)}
    known = {name: setting.field for name, setting in SETTINGS.items() if setting.field in defaults}
    shown = {name: standard for name, (kinds, standard) in table().items() if kind in kinds}
    assert shown.keys() == known.keys()
    for name, field in known.items():
        default = defaults[field]
        if default is None or default == UNLIMITED_MS:
            expected = None
        elif isinstance(default, EntityStatus):
            expected = f'"{default.value}"'
        elif isinstance(default, bool):
            expected = str(default).lower()
        else:
            expected = str(default // 1000 if field.endswith("_ms") else default)
        assert shown[name] == expected, name
