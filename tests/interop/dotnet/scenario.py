"""Files of scenarios: a title, the entities that a scenario needs, and its steps.

Owns: the files. Must not know what a step does. scenarios/README.md has the format.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.interop.dotnet.words import BadWords, arrange, split

FOLDER = Path(__file__).parent / "scenarios"
TRY_MS = 60_000
"""The client's TryTimeout unless a scenario sets another."""

CLIENT, BROKER, WORLD = "->", "<-", "*"


@dataclass(frozen=True, slots=True)
class Step:
    """One line: the actor, the action, its words."""

    line: int
    text: str
    who: str
    verb: str
    words: list[str]
    options: dict[str, str]
    parts: list[dict[str, str]]
    """Options of further messages of a batch, which follow `|`."""


@dataclass(frozen=True, slots=True)
class Entity:
    """A queue or a topic; the subscriptions of a topic are entities too."""

    kind: str
    name: str
    settings: dict[str, str]
    topic: str = ""


@dataclass(slots=True)
class Scenario:
    name: str
    title: str = ""
    entities: list[Entity] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    try_ms: int = TRY_MS
    moved: bool = False
    """Whether time has to be moved: it cannot be played against a process."""


def load(name: str) -> Scenario:
    """Read one scenario. Raises: BadWords."""
    made = Scenario(name)
    lines = enumerate((FOLDER / f"{name}.txt").read_text().splitlines(), 1)
    for number, line in _repeated(lines):
        words = split(line)
        if not words or words[0] == "--":
            continue
        if words[0] == "#":
            made.title = line[2:]
        elif words[0] in (CLIENT, BROKER, WORLD):
            made.steps.append(_step(number, line, words))
        else:
            _declare(made, words)
    return made


def names() -> list[str]:
    """Return the names of all scenarios, in order."""
    return sorted(path.stem for path in FOLDER.glob("*.txt"))


def _repeated(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Repeat the lines between `* repeat TIMES` and `* so far`; `{n}` is the number of the repetition."""
    block: list[tuple[int, str]] | None = None
    times = 0
    for number, line in lines:
        if line.startswith("* repeat "):
            block, times = [], int(line.split()[2])
        elif line == "* so far":
            assert block is not None
            for time in range(times):
                yield from ((at, one.replace("{n}", str(time))) for at, one in block)
            block = None
        elif block is not None:
            block.append((number, line))
        else:
            yield number, line


OPTIONS = {
    "annotations",
    "app",
    "at",
    "body",
    "changes",
    "condition",
    "count",
    "delivery-annotations",
    "delivery-count",
    "footer",
    "header",
    "id",
    "in",
    "info",
    "key",
    "limit",
    "link",
    "messages",
    "properties",
    "rules",
    "sequence",
    "session",
    "tags",
    "timeout",
    "value",
    "window",
}
"""Options of all steps."""


def _step(number: int, line: str, words: list[str]) -> Step:
    who, verb, *rest = words
    parts: list[list[str]] = [[]]
    for word in rest:
        if word == "|":
            parts.append([])
        else:
            parts[-1].append(word)
    plain, options = arrange(parts[0])
    if not OPTIONS.issuperset(options):
        raise BadWords(f"line {number}: no such option: {sorted(set(options) - OPTIONS)}")
    return Step(number, line, who, verb, plain, options, [arrange(part)[1] for part in parts[1:]])


def _declare(made: Scenario, words: list[str]) -> None:
    plain, options = arrange(words)
    match plain:
        case ["queue" | "topic" as kind, name]:
            made.entities.append(Entity(kind, name, options))
        case ["subscription", topic, name]:
            made.entities.append(Entity("subscription", name, options, topic))
        case ["try", ms]:
            made.try_ms = int(ms)
        case ["moved"]:
            made.moved = True
        case _:
            raise BadWords(f"no such line in {made.name}: {' '.join(words)}")
