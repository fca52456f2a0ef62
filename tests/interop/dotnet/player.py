"""Plays a scenario as the .NET client would, and compares the broker's answers with what the client relies
on.

Owns: the order of the steps, and those of the world. Sans-IO: `play` yields what the world does next,
`received` and `ended` report bytes. Must not know sockets. scenarios/README.md describes the steps.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.interop.dotnet.connecting import Connecting
from tests.interop.dotnet.scenario import BROKER, CLIENT, WORLD, Step
from tests.interop.dotnet.sending import Sending
from tests.interop.dotnet.stage import Action, Cut, Pass, Waits, Write
from tests.interop.dotnet.taking import Taking
from tests.interop.dotnet.words import BadWords


class Player(Connecting, Sending, Taking):
    """The player of one scenario."""

    def play(self) -> Iterator[Action]:
        """Play all steps. Raises: PlayFailed."""
        for step in self.scenario.steps:
            self._step = step
            method = getattr(self, f"{_WHO[step.who]}_{step.verb.replace('-', '_')}", None)
            if method is None:
                raise BadWords(f"no such step: {step.text!r}")
            yield from method(step) or ()
            if self.client.output:
                yield Write()
        self._nothing_left()

    # The world

    def world_pass(self, step: Step) -> Waits:
        """Let seconds pass."""
        yield Pass(round(float(step.words[0].removesuffix("s")) * 1_000))

    def world_cut(self, step: Step) -> Waits:
        """Break the connection."""
        self.client.output.clear()
        yield Cut()

    def world_keep(self, step: Step) -> None:
        """Keep a value, also for later connections: NAME VALUE."""
        self.kept[step.words[0]] = self._value(step.words[1])

    def broker_empty_frames(self, step: Step) -> Waits:
        """Check that so many frames without a body came, or more, since the connection began."""
        least = int(step.words[0])
        yield from self.until(lambda: self.client.empty_frames >= least, f"{least} empty frames")


_WHO = {CLIENT: "client", BROKER: "broker", WORLD: "world"}
