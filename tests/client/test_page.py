"""The client's page in docs/, its map and its cost for others."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import peeklock.client
from peeklock.testing.served import ServedBroker

[PAGE] = (Path(__file__).parents[2] / "docs").rglob("client.md")


def test_the_page_does_what_it_says(broker: ServedBroker, administration: Any) -> None:
    administration.create_queue("orders")
    administration.create_queue("archive")
    administration.create_queue("chats", requires_session=True)
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == text.count("```python") > 5
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block.replace(":5672;", f":{broker.port};"), PAGE.name, "exec"), names)


def test_the_example_of_the_package_runs(
    broker: ServedBroker, administration: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    administration.create_queue("fruit")
    found = re.search(r"^    connection = .*?^    connection\.close\(\)$", _doc(), re.MULTILINE | re.DOTALL)
    assert found is not None
    example = re.sub("^    ", "", found[0], flags=re.MULTILINE).replace("orders", "fruit")
    names = {name: getattr(peeklock.client, name) for name in peeklock.client.__all__}
    exec(compile(example, "peeklock.client", "exec"), {**names, "text": broker.connection_string})
    assert "[('data', b'1 banana')]" in capsys.readouterr().out


def test_each_public_name_has_a_docstring() -> None:
    for name in peeklock.client.__all__:
        value = getattr(peeklock.client, name)
        if callable(value):
            assert value.__doc__, name


def test_the_package_does_not_load_the_client() -> None:
    code = "import sys, peeklock; print(*(name for name in sys.modules if name.startswith('peeklock')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) - {"peeklock_core__mypyc"} == {"peeklock", "peeklock.form"}


def _doc() -> str:
    return peeklock.client.__doc__ or ""
