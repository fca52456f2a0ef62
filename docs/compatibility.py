"""`python -m docs.compatibility [--check]`: write docs/reference/compatibility.md from the tests.

Owns the table's text. What is to be done comes from requirements.toml, what is done from the `Req:` in the
docstrings of tests, what no test can say from choices.toml. Nothing is imported from the tests: they are read
as text.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGE = Path(__file__).with_name("reference") / "compatibility.md"
REQ = re.compile(r"\bReq:\s*([A-Z]-?\d+(?:\s*,\s*[A-Z]-?\d+)*)?")


class BadSource(Exception):
    """A test or a data file says what cannot be: names the place and the value."""


@dataclass(frozen=True, slots=True)
class Proof:
    """A test that proves a requirement; `path` is relative to the top of the work tree."""

    path: str
    test: str


@dataclass(slots=True)
class Requirement:
    """One line of the page."""

    id: str
    title: str
    proofs: list[Proof] = field(default_factory=list)
    differs: str = ""
    missing: str = ""
    azure: str = "never run"
    """Where and when its tests ran against Azure Service Bus."""

    @property
    def status(self) -> str:
        """works, works in part, differs, or not yet: without a test nothing is claimed."""
        if not self.proofs:
            return "not yet"
        if self.missing:
            return f"works in part, missing: {self.missing}"
        return "differs" if self.differs else "works"

    @property
    def kind(self) -> str:
        """The status as it is counted."""
        if not self.proofs:
            return "not yet"
        if self.missing:
            return "work in part"
        return "differ" if self.differs else "work"


def load(root: Path) -> tuple[dict[str, str], dict[str, Requirement], list[dict[str, str]]]:
    """Read `(sections, requirements, choices)` of a work tree.

    Raises:
        BadSource: an id that is not in requirements.toml, or a field that is missing.
    """
    told = tomllib.loads((root / "docs/requirements.toml").read_text())
    requirements = {id_: Requirement(id_, title) for id_, title in told["requirements"].items()}
    for proof, id_ in read_proofs(root):
        _find(requirements, id_, f"{proof.path}::{proof.test}").proofs.append(proof)
    choices = tomllib.loads((root / "docs/choices.toml").read_text())
    for entry in choices.get("differs", []):
        how, why, source = _fields(entry, "differs", "how", "why", "source")
        text = f"{how} {why} What Azure does: {source}."
        _find(requirements, entry.get("id", ""), "choices.toml").differs = text
    for entry in choices.get("partly", []):
        (missing,) = _fields(entry, "partly", "missing")
        _find(requirements, entry.get("id", ""), "choices.toml").missing = missing
    for entry in choices.get("azure", []):
        (run,) = _fields(entry, "azure", "run")
        _find(requirements, entry.get("id", ""), "choices.toml").azure = run
    for entry in choices.get("choice", []):
        _fields(entry, "choice", "about", "choice", "why")
    return told["sections"], requirements, choices.get("choice", [])


def read_proofs(root: Path) -> Iterator[tuple[Proof, str]]:
    """Find each `Req: X-01, X-02` of a test function or class: `(proof, id)`, in order of path and place."""
    for path in sorted((root / "tests").rglob("*.py")):
        relative = path.relative_to(root).as_posix()
        for name, docstring in _docstrings(ast.parse(path.read_text(encoding="utf-8")), ""):
            for ids in REQ.findall(docstring):
                for id_ in re.split(
                    r"[,\s]+", ids
                ):  # a `Req:` without an id gives "", which is no requirement
                    yield Proof(relative, name), id_


def _docstrings(node: ast.AST, prefix: str) -> Iterator[tuple[str, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield prefix + child.name, ast.get_docstring(child) or ""
            if isinstance(child, ast.ClassDef):
                yield from _docstrings(child, f"{prefix}{child.name}::")


def _find(requirements: dict[str, Requirement], id_: str, where: str) -> Requirement:
    if id_ not in requirements:
        raise BadSource(f"{where}: no requirement {id_!r} in docs/requirements.toml")
    return requirements[id_]


def _fields(entry: dict[str, Any], kind: str, *names: str) -> tuple[str, ...]:
    for name in names:
        if not isinstance(entry.get(name), str):
            raise BadSource(f"choices.toml: [[{kind}]] {entry!r} has no text {name!r}")
    return tuple(entry[name] for name in names)


def render(root: Path) -> str:
    """Return the page for a work tree."""
    sections, requirements, choices = load(root)
    counts = dict.fromkeys(("work", "work in part", "differ", "not yet"), 0)
    for requirement in requirements.values():
        counts[requirement.kind] += 1
    lines = [
        "# Compatibility",
        "",
        "<!-- Written by `python -m docs.compatibility` from the tests; do not edit. -->",
        "",
        "Each requirement has [tests that prove it](#tests). Without a test nothing is claimed.",
        "[Clients](clients.md) lists what each client does.",
        "",
        "The tests run against this broker. What Azure does is known from its documentation, the sources of",
        "its clients and their live suites. The column *Azure* says whether the tests of a line ran against",
        "Azure itself; `./run compare` runs the programs of all clients against two endpoints.",
        "",
        f"{len(requirements)} requirements: " + ", ".join(f"{n} {kind}" for kind, n in counts.items()) + ".",
    ]
    for letter, title in sections.items():
        lines += [
            "",
            f"## {letter}. {title}",
            "",
            "| id | requirement | status | Azure | proof |",
            "|---|---|---|---|---|",
        ]
        lines += [_row(r) for r in requirements.values() if re.match(rf"{letter}-?\d", r.id)]
    differing = [r for r in requirements.values() if r.differs]
    if differing:
        lines += ["", "## Differences from Azure", "", *(f"- **{r.id}**: {r.differs}" for r in differing)]
    if choices:
        lines += [
            "",
            "## Our choices",
            "",
            "Azure's documentation is silent about these, or leaves them open.",
            "",
        ]
        lines += ["| question | choice | why |", "|---|---|---|"]
        lines += [f"| {_cell(c['about'])} | {_cell(c['choice'])} | {_cell(c['why'])} |" for c in choices]
    lines += ["", "## Tests"]
    for requirement in requirements.values():
        if requirement.proofs:
            lines += ["", f"### {requirement.id}", "", *_tests(requirement)]
    return "\n".join(lines) + "\n"


def _row(requirement: Requirement) -> str:
    count = len(set(requirement.proofs))
    proof = f"[{count} {'test' if count == 1 else 'tests'}](#{requirement.id.lower()})" if count else ""
    azure = requirement.azure if count else ""
    cells = (requirement.id, _cell(requirement.title), _cell(requirement.status), _cell(azure), proof)
    return f"| {' | '.join(cells)} |"


def _tests(requirement: Requirement) -> Iterator[str]:
    """List a requirement's tests, a line for each file."""
    names: dict[str, list[str]] = {}
    for proof in dict.fromkeys(requirement.proofs):
        names.setdefault(proof.path, []).append(f"`{proof.test}`")
    for path, tests in names.items():
        yield f"- [{path}](../../{path}): {', '.join(tests)}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def main(arguments: list[str]) -> int:
    """Write the page, or with `--check` say whether it is current."""
    try:
        page = render(ROOT)
    except BadSource as error:
        print(f"docs.compatibility: {error}", file=sys.stderr)
        return 1
    if arguments == ["--check"]:
        current = PAGE.exists() and PAGE.read_text(encoding="utf-8") == page
        if not current:
            print(
                "docs/reference/compatibility.md is not current: run `python -m docs.compatibility`",
                file=sys.stderr,
            )
        return int(not current)
    PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
