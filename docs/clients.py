"""`python -m docs.clients [--check]`: write docs/reference/clients.md from what came out of tests/interop.

Owns the page's text. Clients and features come from clients.toml and features.toml, what came out from
results/CLIENT.json, what users of a client have to know from its program's notes.md. Nothing is run, and
nothing imported from the tests: `./run interop` writes the results, and test runs compare with them.
"""

from __future__ import annotations

import json
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGE = Path(__file__).with_name("reference") / "clients.md"
INTEROP = Path("tests/interop")
STATUSES = ("works", "differs", "not offered")

INTRODUCTION = """\
Each client has a test program that uses a real broker process, with `--auth sas` and a certificate of the
broker's local authority. The tables show the results.

- `works`: the program did everything that the line says, and checked it.
- `differs`: the client does it, but a user would notice a difference from Azure. The footnote names it.
- `not offered`: the client has no such feature.
- `not tried`: the test program leaves it out.

The programs are in [tests/interop/programs](../../tests/interop/programs/README.md). A test run fails when
their results differ from this page. [compatibility.md](compatibility.md) lists what the broker does,
independent of the client."""


BY_HAND = """\
.NET is not installed on the test machines. Instead, each test run sends the frames that its client sends. The
live tests of the client and of five frameworks were run by hand;
[the .NET page](../how-to/dotnet.md#what-was-run) has the results.

| client or framework | package | tested |
|---|---|---|
| .NET | `Azure.Messaging.ServiceBus` | [frames of 7.19.0; live tests by hand](../how-to/dotnet.md) |
| .NET, retired | `Microsoft.Azure.ServiceBus` | [live tests by hand](../how-to/dotnet.md#what-was-run) |
| MassTransit | `MassTransit.Azure.ServiceBus.Core` | [by hand](../how-to/masstransit.md) |
| NServiceBus | `NServiceBus.Transport.AzureServiceBus` | [by hand](../how-to/nservicebus.md) |
| Rebus | `Rebus.AzureServiceBus` | [by hand](../how-to/rebus.md) |
| Wolverine | `WolverineFx.AzureServiceBus` | [by hand](../how-to/wolverine.md) |
| Durable Task Framework | `DurableTask.ServiceBus` | [by hand](../how-to/durable-task.md) |"""


class BadSource(Exception):
    """A file says what cannot be: names the file and the value."""


@dataclass(frozen=True, slots=True)
class Client:
    """One column of the page; `results` are `(status, how)` by feature."""

    name: str
    title: str
    package: str
    notes: Path
    versions: dict[str, str]
    results: dict[str, tuple[str, str]]


class Footnotes:
    """Numbers texts in the order in which they are first needed; equal texts are one footnote."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def mark(self, text: str) -> str:
        """Give the mark that stands for a text."""
        return f"[^{self._numbers.setdefault(text, len(self._numbers) + 1)}]"

    def lines(self) -> list[str]:
        """Write them down."""
        return [f"[^{number}]: {text}" for text, number in self._numbers.items()]


def load(root: Path) -> tuple[dict[str, Any], list[Client]]:
    """Read `(sections, clients)` of a work tree; a client that never ran is left out.

    Raises:
        BadSource: a result without its feature, a feature without its result, or a status that is none.
    """
    interop = root / INTEROP
    sections = tomllib.loads((interop / "features.toml").read_text(encoding="utf-8"))
    features = {name for section in sections.values() for name in section["features"]}
    told = tomllib.loads((interop / "programs/clients.toml").read_text(encoding="utf-8"))
    clients = []
    for name, fields in told.items():
        path = interop / f"results/{name}.json"
        if not path.exists():
            continue
        written = json.loads(path.read_text(encoding="utf-8"))
        results = {
            feature: (result["status"], result.get("how", ""))
            for feature, result in written["features"].items()
        }
        source = "clients.toml" if "only" in fields else "features.toml"
        for feature in sorted(set(fields.get("only", features)) ^ set(results)):
            raise BadSource(f"{path.name} and {source} do not both have {feature!r}")
        for feature, (status, how) in results.items():
            if status not in STATUSES or (status == "differs" and not how):
                raise BadSource(f"{path.name}: {feature!r} has the status {status!r} and says how: {how!r}")
        notes = interop / "programs" / fields["folder"] / "notes.md"
        clients.append(Client(name, fields["title"], fields["package"], notes, written["versions"], results))
    return sections, clients


def render(root: Path) -> str:
    """Return the page for a work tree. Raises: BadSource."""
    sections, clients = load(root)
    footnotes = Footnotes()
    lines = [
        "# Clients",
        "",
        "<!-- Written by `python -m docs.clients` from tests/interop; do not edit. -->",
        "",
        INTRODUCTION,
        "",
        "| client | package | tested with |",
        "|---|---|---|",
    ]
    for client in clients:
        versions = ", ".join(f"{name} {version}" for name, version in client.versions.items())
        lines.append(f"| {client.title} | `{client.package}` | {versions} |")
    lines += ["", BY_HAND]
    for section in sections.values():
        titles = [client.title for client in clients]
        lines += ["", f"## {section['title']}", "", _row(["", *titles]), _row(["---"] * (len(titles) + 1))]
        for name, feature in section["features"].items():
            cells = [_cell(client.results.get(name), footnotes) for client in clients]
            lines.append(_row([f"**{feature['title']}**: {feature['shows']}", *cells]))
    lines += ["", "## Notes on each client"]
    for notes in dict.fromkeys(client.notes for client in clients):
        titles = [client.title for client in clients if client.notes == notes]
        lines += ["", f"### {titles[0]}", "", notes.read_text(encoding="utf-8").strip()]
    return "\n".join([*lines, "", *footnotes.lines()]).rstrip() + "\n"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(result: tuple[str, str] | None, footnotes: Footnotes) -> str:
    if result is None:
        return "not tried"
    status, how = result
    return status + (footnotes.mark(how) if how else "")


def main(arguments: list[str]) -> int:
    """Write the page, or with `--check` say whether it is current."""
    try:
        page = render(ROOT)
    except BadSource as error:
        print(f"docs.clients: {error}", file=sys.stderr)
        return 1
    if arguments == ["--check"]:
        current = PAGE.exists() and PAGE.read_text(encoding="utf-8") == page
        if not current:
            print("docs/reference/clients.md is not current: run `python -m docs.clients`", file=sys.stderr)
        return int(not current)
    PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
