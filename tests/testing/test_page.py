"""docs/reference/testing.md has each public member of the broker for tests."""

from __future__ import annotations

import re
from pathlib import Path

from peeklock.testing.served import ServedBroker

PAGE = (Path(__file__).parents[2] / "docs/reference/testing.md").read_text(encoding="utf-8")


def test_each_member_has_its_row() -> None:
    with ServedBroker() as broker:
        members = {name for name in dir(broker) if not name.startswith("_")}
    assert set(re.findall(r"^\| `(\w+)", PAGE, re.MULTILINE)) == members
