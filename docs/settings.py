"""`python -m docs.settings [--check]`: write the tables of docs/reference/settings.md.

The table of settings in `peeklock.cli.settings_table` is the source. The text before the mark on the page is
written by hand.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from docs.generated import GeneratedPage
from peeklock.cli.setting import Setting
from peeklock.cli.settings_table import SETTINGS


def _tables() -> Iterator[str]:
    for number, topic in enumerate(dict.fromkeys(setting.topic for setting in SETTINGS)):
        if number:
            yield ""
        yield f"## {topic}"
        yield ""
        yield "| setting | variable | default | of | meaning |"
        yield "|---|---|---|---|---|"
        for setting in SETTINGS:
            if setting.topic == topic:
                yield _row(setting)


def _row(setting: Setting) -> str:
    variable = f"`{setting.variable}`"
    if setting.secret:
        variable += f", `{setting.variable}_FILE`"
    meaning = " ".join(part for part in (setting.help, setting.more) if part).replace("|", "\\|")
    reload_note = " Followed while the broker runs." if setting.reloads else ""
    return (
        f"| {_name(setting)} | {variable} | {_default(setting)} | {setting.scope} | {meaning}{reload_note} |"
    )


def _name(setting: Setting) -> str:
    if setting.flag or setting.secret:
        return f"`{setting.name}`"
    choices = getattr(setting.type, "choices", None)
    if choices:
        return f"`{setting.name}` {' '.join(f'`{choice}`' for choice in choices)}"
    placeholder = setting.metavar or ("PATH" if setting.is_path else setting.name.rpartition("-")[2].upper())
    return f"`{setting.name}` *{placeholder}*"


def _default(setting: Setting) -> str:
    if setting.flag:
        return "off"
    return setting.default_text or ("none" if setting.default is None else f"`{setting.default}`")


PAGE = GeneratedPage("settings", _tables)

if __name__ == "__main__":
    raise SystemExit(PAGE.main(sys.argv[1:]))
