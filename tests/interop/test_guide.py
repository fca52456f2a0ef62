"""The blocks of docs/guide-python.md run as they stand there, but for the port."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from peeklock.demo.broker import BrokerProcess

GUIDE = Path(__file__).parents[2] / "docs/guide-python.md"


def test_the_guide_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Req: T-11"""
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 5
    monkeypatch.chdir(tmp_path)
    with BrokerProcess(tmp_path) as broker:
        names: dict[str, object] = {}
        for block in blocks:
            exec(compile(block.replace("5672", str(broker.amqp_port)), str(GUIDE), "exec"), names)
