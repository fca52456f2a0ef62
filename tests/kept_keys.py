"""The shared access keys of a data folder, for tests: written before the first start, then asked for."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from peeklock.auth import ALL_RIGHTS, Right, SasRule
from peeklock.cli.running import find
from peeklock.server.keys.rules import ROOT_RULE, new_rule, read_rules, rule_json

PAGE = "/$api/v1/keys"


def write_keys(folder: Path, **added: Sequence[Right]) -> list[SasRule]:
    """Write `keys.json` as earlier releases did, which a first start takes over; return its rules.

    It has a rule with all rights, and one of each name in `added`.
    """
    rules = [new_rule(ROOT_RULE, ALL_RIGHTS, os.urandom)]
    rules += [new_rule(name, frozenset(rights), os.urandom) for name, rights in added.items()]
    write_rules(folder / "keys.json", rules)
    return rules


def write_rules(path: Path, rules: Sequence[SasRule]) -> None:
    """Write a file of rules in the place of another."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = path.with_name("keys.new")
    made.write_text(json.dumps({"rules": [rule_json(rule) for rule in rules]}))
    made.chmod(0o600)
    made.replace(path)


class KeptKeys:
    """The keys of a broker that runs on a folder."""

    def __init__(self, data: Path, namespace: str = "") -> None:
        self._broker = find(data)
        if namespace:
            self._broker.headers["Host"] = f"{namespace}.localhost"

    def load(self) -> list[SasRule]:
        return read_rules(self._broker.value("GET", PAGE)["keys"])

    def add(self, name: str, rights: Sequence[str]) -> SasRule:
        return self._changed("PUT", f"{quote(name)}?rights={','.join(rights)}")

    def rotate(self, name: str, *, revoke: bool) -> SasRule:
        return self._changed("POST", f"{quote(name)}?revoke={str(revoke).lower()}")

    def remove(self, name: str) -> None:
        self._broker.value("DELETE", f"{PAGE}/{quote(name)}")

    def _changed(self, method: str, path: str) -> SasRule:
        (rule,) = read_rules([self._broker.value(method, f"{PAGE}/{path}")])
        return rule
