"""Runs of clients on features, several clients side by side; tests wait for the outcomes.

Owns: which client runs when. Must not know: what the outcomes are used for. A client's features are tried in
the given order, by one program with one broker; clients begin in the given order, too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from tests.interop.builds import Client, build
from tests.interop.program import Outcome, Program

CLIENTS_AT_ONCE = 9
"""Programs mostly wait, so that more than the cores pay. Our choice."""


class Trials:
    """Runs clients' programs in threads from `with` on; its end stops them after the current feature."""

    def __init__(self, wanted: Mapping[Client, Sequence[str]], folder: Path, elsewhere: str = "") -> None:
        """Set up. `wanted`: features by client. `folder` gets a folder for each client, with data and logs.

        `elsewhere`: see `Program`.
        """
        self.outcomes: dict[tuple[str, str], Future[Outcome]] = {
            (client.name, feature): Future() for client, features in wanted.items() for feature in features
        }
        """By client and feature; an exception stopped the client, BuildFailed for example."""
        self.seconds: dict[str, float] = {}
        """How long each finished client took."""
        self._wanted = wanted
        self._folder = folder
        self._elsewhere = elsewhere
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(CLIENTS_AT_ONCE)

    def __enter__(self) -> Trials:
        for client, features in self._wanted.items():
            self._pool.submit(self._try, client, features)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._pool.shutdown()

    def _try(self, client: Client, features: Sequence[str]) -> None:
        started = time.monotonic()
        waiting = [self.outcomes[client.name, feature] for feature in features]
        try:
            folder = self._folder / client.name
            folder.mkdir()
            with Program(client, build(client), folder, self._elsewhere) as program:
                for feature, future in zip(features, tuple(waiting), strict=True):
                    if self._stopped.is_set():
                        return
                    outcome = program.try_feature(feature)
                    if len(waiting) == 1:
                        self.seconds[client.name] = time.monotonic() - started
                    waiting.remove(future)
                    future.set_result(outcome)
        except Exception as error:  # releases the waiting test
            for future in waiting:
                future.set_exception(error)
        finally:
            for future in waiting:
                future.cancel()
