"""A driver loop that tells what happens to messages, and when, for spans.

A broker without `--otlp` has a plain `DriverLoop`, so that this costs nothing then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from peeklock.broker.vocabulary.commands import Command
from peeklock.broker.vocabulary.effects import Effect
from peeklock.engine.driver import Action, BodiesRead, Commit, HandOut
from peeklock.server.shard.driver_loop import DriverLoop
from peeklock.store.base import Batch


class Spans(Protocol):
    """Is told what happens, in order."""

    def offered(self, commands: Iterable[Command]) -> None:
        """Commands have been applied; they are in the open batch."""

    def committing(self, batch: Batch) -> None:
        """The commit of the batch begins."""

    def committed(self) -> None:
        """It has ended; the effects of the batch follow."""

    def handed_out(self, connection_id: int, effects: Iterable[Effect]) -> None:
        """Effects are handed to a connection."""

    def bodies_read(self, connection_id: int) -> None:
        """Bodies that deliveries to a connection waited for are in memory."""


class SpannedLoop(DriverLoop):
    """See the module."""

    def __init__(
        self,
        *arguments: Any,
        spans: Spans,
        on_committed: Callable[[Batch, int], None],
        **options: Any,
    ) -> None:
        """Run nothing yet. The arguments that are not named here are those of `DriverLoop`."""

        def committed(batch: Batch, now_ms: int) -> None:
            spans.committed()
            on_committed(batch, now_ms)

        super().__init__(*arguments, on_committed=committed, **options)
        self._spans = spans

    def offer(self, commands: Iterable[Command]) -> None:
        commands = [*commands]
        super().offer(commands)
        self._spans.offered(commands)

    def offer_some(
        self, commands: Sequence[Command], now_ms: int, stop: Callable[[], bool]
    ) -> Sequence[Command]:
        left = super().offer_some(commands, now_ms, stop)
        self._spans.offered(commands[: len(commands) - len(left)])
        return left

    def _do(self, action: Action, now_ms: int) -> int | None:
        if isinstance(action, HandOut):
            if action.connection_id in self._connections:
                self._spans.handed_out(action.connection_id, action.effects)
        elif isinstance(action, Commit):
            self._spans.committing(action.batch)
        elif isinstance(action, BodiesRead):
            self._spans.bodies_read(action.connection_id)
        return super()._do(action, now_ms)
