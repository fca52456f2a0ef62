"""The Python blocks of pages in docs/ run as they stand there, but for the port."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from peeklock.demo.broker import BrokerProcess

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", ["guide-python.md", "entities.md", "topics.md"])
def test_a_page_does_what_it_says(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Req: T-11"""
    page = (DOCS / name).read_text(encoding="utf-8")
    found = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(found) == page.count("```python") > 4
    monkeypatch.chdir(tmp_path)
    with BrokerProcess(tmp_path) as broker:
        names: dict[str, object] = {}
        for block in found:
            exec(compile(block.replace("5672", str(broker.amqp_port)), name, "exec"), names)
