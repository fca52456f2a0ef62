"""docs/reference/settings.md is what the table of settings says, and its example is one."""

from __future__ import annotations

import re
from pathlib import Path

from docs.settings import PAGE
from peeklock.cli.settings_table import SETTINGS
from peeklock.cli.sources import read_settings_file


def test_the_page_is_current() -> None:
    text = PAGE.file.read_text()
    assert text == PAGE.written(text), "run python -m docs.settings"


def test_the_example_is_a_settings_file(tmp_path: Path) -> None:
    found = re.search(r"```toml\n(.*?)```", PAGE.file.read_text(), re.DOTALL)
    assert found is not None
    file = tmp_path / "settings.toml"
    file.write_text(found.group(1))
    values, _ = read_settings_file(file)
    assert values["auth"] == ["sas"]
    assert values["tls_cert"] == str(tmp_path / "tls/broker.pem")
    assert set(values) <= {setting.field for setting in SETTINGS}
