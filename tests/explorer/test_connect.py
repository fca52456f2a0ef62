"""How programs connect: the key is hidden until asked for, and the program shown runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.explorer.brokers import ExploredBroker
from tests.explorer.conftest import OpenPage, Visit

pytestmark = pytest.mark.page


def test_the_key_is_hidden_until_asked_for(broker: ExploredBroker, visit: Visit) -> None:
    page = visit(broker.at("connect"))
    shown = page.get_by_test_id("connection-string")
    shown.wait_for()
    assert "SAS_KEY_VALUE" not in page.content()
    page.get_by_role("button", name="Show the key").click()
    assert shown.inner_text() == (
        f"Endpoint=sb://localhost:{broker.http_port}/;SharedAccessKeyName=RootManageSharedAccessKey;"
        "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true"
    )
    page.get_by_role("button", name="Hide the key").click()
    assert "SAS_KEY_VALUE" not in page.content()


def test_the_program_in_python_runs(broker: ExploredBroker, open_page: OpenPage, tmp_path: Path) -> None:
    page = open_page(broker.at("connect"))
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    copied = "() => navigator.clipboard.readText()"
    page.get_by_role("button", name="Copy the connection string").click()
    connection_string = page.evaluate(copied)
    page.get_by_role("button", name="Copy: Program in Python").click()
    program = tmp_path / "program.py"
    program.write_text(page.evaluate(copied).replace('"orders"', '"letters"'))
    result = subprocess.run(
        [sys.executable, program],
        env={**os.environ, "SERVICEBUS_CONNECTION_STRING": connection_string},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stdout) == (0, "a coffee, please\n"), result.stderr


def test_an_empty_line_is_as_high_as_the_others(broker: ExploredBroker, visit: Visit) -> None:
    page = visit(broker.at("connect"))
    lines = page.get_by_role("region", name="Program in Python").locator(".code-line")
    expect(lines.nth(1)).to_have_text("")
    heights = {round(box["height"]) for line in lines.all() if (box := line.bounding_box())}
    assert heights == {20}


def test_each_language_has_its_program(broker: ExploredBroker, visit: Visit) -> None:
    page = visit(broker.at("connect"))
    for language in ("Python", ".NET", "Java", "JavaScript", "Go"):
        page.get_by_role("tab", name=language, exact=True).click()
        text = page.get_by_role("region", name=f"Program in {language}").inner_text()
        assert "SERVICEBUS_CONNECTION_STRING" in text
        assert "a coffee, please" in text
    page.keyboard.press("ArrowRight")
    assert page.get_by_role("tab", selected=True).inner_text() == "Python"
