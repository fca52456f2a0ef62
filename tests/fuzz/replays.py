"""The frames of the .NET client in its scenarios, with boundary values put in: none makes the broker's code
fail.

The corpus is what the player of `tests.interop.dotnet` wrote in each scenario. A replay is one of them, with
its own broker, whose lock tokens and numbers are those of the first time: so it goes as deep as the scenario.
Some of its frames are changed: a field, the channel, the order, or whether they are sent. The same seed
writes the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from random import Random
from typing import Any

from peeklock.amqp.codec import decode_typed
from peeklock.amqp.composites import composite
from peeklock.amqp.frames import frame
from peeklock.amqp.types import Described, UByte, UInt, ULong, UShort
from peeklock.testing.inprocess import InProcessBroker
from tests.fuzz.performatives import EDGES, SIZES, Failed, check, play, shown
from tests.interop.dotnet.drivers import create, play_in_memory
from tests.interop.dotnet.scenario import load, names

REPLAYS = 4
"""Replays of a seed, each with its own broker."""

BYTES_MAX = 300_000
"""Size of a scenario's frames: larger ones are left out, which add nothing here and take long."""

CHANGED = 0.06
"""How often a frame is changed. Our choice: some frames of each scenario, and most of it as it was."""


@cache
def corpus() -> dict[str, list[list[bytes]]]:
    """Play the scenarios. Return the frames of their connections by name of the scenario."""
    played = {name: play_in_memory(load(name)).connections for name in names()}
    return {
        name: [list(units(b"".join(writes))) for writes in connections]
        for name, connections in played.items()
        if sum(len(write) for writes in connections for write in writes) <= BYTES_MAX
    }


def units(data: bytes) -> Iterator[bytes]:
    """Split a stream into headers and frames."""
    at = 0
    while at < len(data):
        size = 8 if data[at : at + 4] == b"AMQP" else int.from_bytes(data[at : at + 4], "big")
        yield data[at : at + size]
        at += size


class Replay:
    """Writes the frames of a connection, some of them changed."""

    def __init__(self, random: Random, recorded: list[bytes]) -> None:
        self.random = random
        self._recorded = recorded

    def reads(self) -> Iterator[bytes]:
        """Yield the frames as they are read: some together, and some cut."""
        pending = b""
        for unit in self._frames():
            pending += unit
            if self.random.random() < 0.7:
                cut = len(pending) if self.random.random() < 0.9 else self.random.randrange(len(pending))
                yield pending[:cut]
                pending = pending[cut:]
        yield pending

    def learn(self, answer: bytes) -> None:
        """Ignore the broker's output."""

    def _frames(self) -> Iterator[bytes]:
        held: bytes | None = None
        for unit in self._recorded:
            made = [unit]
            if self.random.random() < CHANGED and unit[:4] != b"AMQP":
                match self.random.randrange(8):
                    case 0:
                        made = []
                    case 1:
                        made = [unit, unit]
                    case 2:
                        made, held = [], unit
                    case 3:
                        made = [unit[:6] + self.random.choice((0, 1, 2, 4_999)).to_bytes(2, "big") + unit[8:]]
                    case _:
                        made = [self._changed(unit)]
            yield from made
            if made and held is not None:
                yield held
                held = None

    def _changed(self, unit: bytes) -> bytes:
        """Put a boundary value, or null, into a field, or into one of a composite in it."""
        described, at = decode_typed(unit, 8)
        fields = self._with_edge(described.value)
        return frame(
            int.from_bytes(unit[6:8], "big"), composite(described.descriptor, fields) + unit[at:], unit[5]
        )

    def _with_edge(self, fields: list[Any]) -> list[Any]:
        if not fields:
            return fields
        index = self.random.randrange(len(fields))
        return [*fields[:index], self._edge(fields[index]), *fields[index + 1 :]]

    def _edge(self, value: Any) -> Any:
        random = self.random
        if random.random() < 0.3:
            return None
        match value:
            case bool():
                return not value
            case UInt():
                return UInt(random.choice((*EDGES, (value + 1) % 2**32, (value - 1) % 2**32)))
            case ULong():
                return ULong(random.choice(SIZES))
            case UShort():
                return UShort(random.choice((0, 1, 65_534, 65_535)))
            case UByte():
                return UByte(random.choice((0, 1, 2, 255)))
            case bytes():
                return random.choice((b"", value[:-1], value + b"\0", b"t" * 33))
            case str():
                return type(value)(random.choice(("", value[:-1], value + "x", value * 20)))
            case Described() if isinstance(value.value, list):
                return Described(value.descriptor, self._with_edge(value.value))
            case None:
                return random.choice((UInt(random.choice(EDGES)), True, False, b"", "", {}, []))
        return value


def run_replays(seed: int, replays: int = REPLAYS) -> None:
    """Replay scenarios of a seed. Raises: Failed, from what went wrong, with the reads up to it."""
    random = Random(seed)
    for _ in range(replays):
        name = random.choice(sorted(corpus()))
        broker = InProcessBroker(body_cache_bytes=0)
        create(broker, load(name).entities)
        for number, recorded in enumerate(corpus()[name]):
            reads: list[bytes] = []
            try:
                play(broker, Replay(random, recorded), reads)
            except Exception as failure:
                failed = Failed(f"connection {number} of {name}, in: python -m tests.fuzz --seed {seed}")
                failed.add_note("\n".join(shown(read) for read in reads))
                raise failed from failure
        broker.create_queue("orders")
        check(broker)
