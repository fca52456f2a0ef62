"""The Python blocks of the Spark guide and of the README run as they stand there, but for the port and the
folders."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from peeklock.demo.broker import BrokerProcess

pytestmark = [pytest.mark.spark, pytest.mark.long]

ROOT = Path(__file__).parents[2]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```json\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    (tmp_path / "Config.json").write_text(example, encoding="utf-8")
    options = [f"--capture={tmp_path / 'events'}", "--capture-interval=1"]
    with BrokerProcess(tmp_path, [f"--config={tmp_path / 'Config.json'}", *options]) as broker:
        yield broker


@pytest.mark.parametrize("name", ["docs/tutorials/spark.md", "README.md"])
def test_a_page_does_what_it_says(
    name: str, spark: object, broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Req: X-01, X-05"""
    page = (ROOT / name).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == page.count("```python") > 0
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks:
        here = block.replace("5672", str(broker.amqp_port))
        # Java resolves paths by the folder that the tests were started in.
        here = re.sub(r'"(lake/|events\b)', rf'"{tmp_path}/\1', here)
        exec(compile(here, name, "exec"), names)
