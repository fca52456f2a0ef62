"""The Python blocks of the Spark guide run as they stand there, but for the port and the folders."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from peeklock.demo.broker import BrokerProcess

pytestmark = pytest.mark.spark

GUIDE = Path(__file__).parents[2] / "docs/guide-spark.md"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path, [f"--capture={tmp_path / 'events'}", "--capture-interval=1"]) as broker:
        yield broker


def test_the_guide_does_what_it_says(
    spark: object, broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Req: X-01, X-05"""
    page = GUIDE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == page.count("```python") >= 8
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks:
        here = block.replace("5672", str(broker.amqp_port))
        # Java resolves paths by the folder that the tests were started in.
        here = re.sub(r'"(lake/|events\b)', rf'"{tmp_path}/\1', here)
        exec(compile(here, GUIDE.name, "exec"), names)
