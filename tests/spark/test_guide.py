"""The Python blocks of the Spark tutorial run with the port and the folders replaced."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from peeklock.demo.broker import BrokerProcess

pytestmark = [pytest.mark.spark, pytest.mark.long]

ROOT = Path(__file__).parents[2]
NAME = "docs/tutorials/spark.md"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    options = [f"--capture={tmp_path / 'events'}", "--capture-interval=1"]
    with BrokerProcess(tmp_path, options) as broker:
        yield broker


def test_the_tutorial_does_what_it_says(
    spark: object, broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Req: X-01, X-05"""
    page = (ROOT / NAME).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == page.count("```python") > 0
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks:
        here = block.replace("5672", str(broker.amqp_port))
        # Java resolves paths by the folder that the tests were started in.
        here = re.sub(r'"(lake/|events\b)', rf'"{tmp_path}/\1', here)
        exec(compile(here, NAME, "exec"), names)
