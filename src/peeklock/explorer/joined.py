"""The modules of the first view as one file, so that a browser asks once instead of forty times.

Theory of operation. Each module becomes a function that is called once, after those that it imports. What it
exports is an object with a name like its own, and the file exports these objects. Modules of other views are
served as files that take them from there; a stub at the address of a joined module exports the same again. So
no module runs twice. Imports and exports are known in the forms that the page uses, at the start of a line or
behind a statement.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

ENTRY = "app.js"
JOINED = "first.js"

_FROM = re.compile(r'^(import|export) ?(?:(\w+)|(\*)|\{([^}]*)\}) ?from ?"(\.[^"]+)";', re.MULTILINE)
_DECLARED = re.compile(r"^export (?=(?:async )?(?:const|class|function\*?) (\w+))", re.MULTILINE)
_DEFAULT = re.compile(r"export(?<![^\n;]export) default ")
_LISTED = re.compile(r"export(?<![^\n;}]export) ?\{([^}]*)\};")
"""Both begin with letters, which the search finds quickly; the look behind them is for the begin."""


class _Module:
    """One module as a function."""

    def __init__(self, name: str, text: str, imported: dict[str, _Module]) -> None:
        """`imported`: the modules that it imports, by name."""
        self.name = name
        self.identifier = "$" + re.sub(r"\W", "_", name.rpartition(".")[0])
        self._imported = imported
        self.exports: dict[str, str] = {}
        """Expressions by the exported name."""
        text = _FROM.sub(self._brought, text)
        self.exports |= {declared: declared for declared in _DECLARED.findall(text)}
        if _DEFAULT.search(text):
            self.exports["default"] = "$default"
        for listed in _LISTED.findall(text):
            self.exports |= {shown: own for own, shown in _pairs(listed)}
        self.body = _LISTED.sub("", _DEFAULT.sub("const $default = ", _DECLARED.sub("", text)))

    def _brought(self, found: re.Match[str]) -> str:
        """Return what stands for a line that imports, or exports what another module has."""
        word, _, star, listed, address = found.groups()
        other = self._imported[_resolved(self.name, address)]
        if word == "import":
            return other.taken(found)
        names = [(name, name) for name in other.exports] if star else [*_pairs(listed)]
        self.exports |= {shown: f"{other.identifier}.{there}" for there, shown in names}
        return ""

    def taken(self, found: re.Match[str]) -> str:
        """Return what stands for a line that imports from this module."""
        _, default, _, listed, _ = found.groups()
        names = [("default", default)] if default else [*_pairs(listed)]
        shown = (there if there == here else f"{there}: {here}" for there, here in names)
        return f"const {{ {', '.join(shown)} }} = {self.identifier};"

    def function(self) -> str:
        """Return the statement that runs the module."""
        exports = ", ".join(f"{shown}: {own}" for shown, own in self.exports.items())
        head = f"// {self.name}\nconst {self.identifier} = (() => {{\n"
        return f"{head}{self.body}\nreturn {{ {exports} }};\n}})();\n"

    def stub(self) -> str:
        """Return a module that exports the same."""
        lines = [_import(self.name, [self.identifier])]
        if names := [name for name in self.exports if name != "default"]:
            lines.append(f"export const {{ {', '.join(names)} }} = {self.identifier};")
        if "default" in self.exports:
            lines.append(f"export default {self.identifier}.default;")
        return "\n".join(lines) + "\n"


class Joined:
    """The file, and what is served at the addresses of modules."""

    def __init__(self, modules: dict[str, _Module]) -> None:
        """`modules`: by name, in the order in which they run."""
        self._modules = modules
        functions = "".join(module.function() for module in modules.values())
        identifiers = ", ".join(module.identifier for module in modules.values())
        self.content = f"{functions}export {{ {identifiers} }};\n"

    def served(self, name: str, text: str) -> str:
        """Return a module as it is served: a stub for a joined one; another one takes these from the file."""
        if name in self._modules:
            return self._modules[name].stub()
        used: dict[str, None] = {}

        def take(found: re.Match[str]) -> str:
            module = self._modules.get(_resolved(name, found[5]))
            if module is None or found[1] != "import":
                return found[0]
            used[module.identifier] = None
            return module.taken(found)

        text = _FROM.sub(take, text)
        return f"{_import(name, used)} {text}" if used else text


def join(page: Path) -> Joined:
    """Join the modules that `ENTRY` needs; `page`: their folder."""
    modules: dict[str, _Module] = {}

    def add(name: str) -> None:
        text = (page / name).read_text(encoding="utf-8")
        imported = [_resolved(name, found[5]) for found in _FROM.finditer(text)]
        for other in imported:
            if other not in modules:
                add(other)
        modules[name] = _Module(name, text, {other: modules[other] for other in imported})

    add(ENTRY)
    return Joined(modules)


def _import(name: str, identifiers: Iterable[str]) -> str:
    up = "../" * name.count("/") or "./"
    return f'import {{ {", ".join(identifiers)} }} from "{up}{JOINED}";'


def _resolved(name: str, address: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), address))


def _pairs(listed: str) -> Iterator[tuple[str, str]]:
    """Yield (name there, name here) of `a, b as c`."""
    for part in listed.split(","):
        if words := part.split():
            yield words[0], words[-1]
