"""The event logs that one process writes: one thread does a step of each in turn.

Owns: whose turn it is, and what all logs together may hold open and in memory. Must not know: how a log is
written, and where requests come from. pyarrow is loaded with the first log.

The step that is due first comes first, so a log with much to write comes last after each of its steps. What
makes one log fail ends that log alone.
"""

from __future__ import annotations

import contextlib
import heapq
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from peeklock.capture.folder import LogRefused
from peeklock.store.base import StoreError

if TYPE_CHECKING:
    from peeklock.capture.exporter import Exporter

OPEN_MAX = 64
"""Logs with open files between steps: three of the store, one to three of the log. So 390 files at most in a
step, where a process may usually have 1024. To open one for a look takes 1 ms."""

MEMORY_BYTES_MAX = 128 * 1024 * 1024
"""What all logs together may keep of rows that were read and not written. Our choice: the libraries alone
take half of that."""

NO_PYARROW = "the event log needs more packages: pip install 'peeklock[capture]'"


class Note(Protocol):
    """Writes a log line."""

    def __call__(self, level: str, event: str, **fields: object) -> None:
        """Write the line, with these fields."""


class Logs:
    """The logs, each with an id that whoever adds it chooses."""

    def __init__(
        self,
        say: Callable[[str, int, str], None],
        note: Note,
        *,
        clock_s: Callable[[], float] = time.monotonic,
        open_max: int = OPEN_MAX,
        memory_bytes_max: int = MEMORY_BYTES_MAX,
    ) -> None:
        """Begin without logs.

        Args:
            say: takes a word, the id of a log and a text: `exported` with the last batch in the log, `failed`
                with the reason, `removed` when all is exported. The last two are the last of this log.
            note: writes a log line.
            clock_s: monotonic, seconds.
            open_max: logs with open files.
            memory_bytes_max: of rows that were read and not written.
        """
        self._say = say
        self._note = note
        self._clock_s = clock_s
        self._open_max = open_max
        self._memory_bytes_max = memory_bytes_max
        self._logs: dict[int, _Log] = {}
        self._due: list[tuple[float, int]] = []  # a heap; an entry counts while its log is due then
        self._open: dict[int, _Log] = {}  # the one that was served longest ago first
        self._memory_bytes = 0

    def __len__(self) -> int:
        return len(self._logs)

    @property
    def open_count(self) -> int:
        """How many logs have open files."""
        return len(self._open)

    def add(self, log_id: int, source: Mapping[str, Any], to: str, namespace: str, **options: Any) -> None:
        """Begin to export a store to the folder `to`.

        `source`: as of `source_of`; `options`: those of `ExportOptions`.
        """
        listener = _Listener(log_id, namespace, self._say, self._note)
        try:
            exporter = _exporter(listener, source, to, namespace, options)
        except ImportError as missing:
            self._tell_failure(listener, f"{missing}: {NO_PYARROW}")
            return
        except StoreError as failure:
            self._tell_failure(listener, str(failure))
            return
        log = self._logs[log_id] = _Log(listener, exporter, to)
        self._schedule(log, 0.0)

    def remove(self, log_id: int) -> None:
        """Export what is in the store, then forget the log; one that has failed is forgotten already."""
        log = self._logs.get(log_id)
        if log is not None:
            log.exporter.finish()
            self._schedule(log, 0.0)

    def finish(self) -> None:
        """Remove all logs."""
        for log_id in self._logs:
            self.remove(log_id)

    def serve(self) -> float | None:
        """Do the step that is due first; return the seconds until the next one, None if there are no logs."""
        log = self._first()
        if log is None:
            return None
        now_s = self._clock_s()
        if log.due_s > now_s:
            return log.due_s - now_s
        self._attempt(log, self._step)
        if self._memory_bytes > self._memory_bytes_max:
            largest = max(self._logs.values(), key=lambda log: log.memory_bytes)
            self._attempt(largest, lambda log: log.exporter.spill(self._clock_s()))
        return 0.0

    def _schedule(self, log: _Log, due_s: float) -> None:
        log.due_s = due_s
        heapq.heappush(self._due, (due_s, log.listener.log_id))

    def _first(self) -> _Log | None:
        """Return the log that is due first."""
        while self._due:
            due_s, log_id = self._due[0]
            log = self._logs.get(log_id)
            if log is not None and log.due_s == due_s:
                return log
            heapq.heappop(self._due)
        return None

    def _step(self, log: _Log) -> None:
        due_s = log.exporter.step(self._clock_s())
        if due_s is None:
            self._drop(log)
            self._say("removed", log.listener.log_id, "")
        else:
            self._schedule(log, due_s)

    def _attempt(self, log: _Log, work: Callable[[_Log], None]) -> None:
        """Do something with a log, which may open its files; what it raises ends this log alone."""
        log_id = log.listener.log_id
        self._open.pop(log_id, None)
        self._guard(log, work)
        if log_id in self._logs and log.exporter.is_open:
            self._open[log_id] = log
        if len(self._open) > self._open_max:
            oldest = self._open.pop(next(iter(self._open)))
            self._guard(oldest, lambda log: log.exporter.rest())

    def _guard(self, log: _Log, work: Callable[[_Log], None]) -> None:
        try:
            work(log)
        except (LogRefused, StoreError) as failure:
            self._fail(log, str(failure))
        except OSError as failure:
            self._fail(
                log,
                f"cannot write the event log at {failure.filename or log.to}: "
                f"{failure.strerror or failure}; free some space or repair the folder",
            )
        except Exception as defect:  # of ours or of a library; the other logs go on
            self._fail(log, f"a defect: {defect!r}", trace=traceback.format_exc())
        else:
            memory_bytes = log.exporter.memory_bytes if log.listener.log_id in self._logs else 0
            self._memory_bytes += memory_bytes - log.memory_bytes
            log.memory_bytes = memory_bytes

    def _fail(self, log: _Log, why: str, **fields: object) -> None:
        self._drop(log)
        self._memory_bytes -= log.memory_bytes
        self._tell_failure(log.listener, why, **fields)

    def _tell_failure(self, listener: _Listener, why: str, **fields: object) -> None:
        listener.note("error", "the event log cannot be written", reason=why, **fields)
        self._say("failed", listener.log_id, " ".join(why.split()))

    def _drop(self, log: _Log) -> None:
        del self._logs[log.listener.log_id]
        with contextlib.suppress(OSError):  # it failed already
            log.exporter.close()


@dataclass(frozen=True, slots=True)
class _Listener:
    """Passes on what the exporter of one log reports."""

    log_id: int
    namespace: str
    say: Callable[[str, int, str], None]
    write_note: Note

    def exported(self, no: int) -> None:
        self.say("exported", self.log_id, str(no))

    def note(self, level: str, event: str, **fields: object) -> None:
        self.write_note(level, event, namespace=self.namespace, **fields)


@dataclass(eq=False, slots=True)
class _Log:
    """A log, and when it is served."""

    listener: _Listener
    exporter: Exporter
    to: str
    due_s: float = 0.0
    """Monotonic."""
    memory_bytes: int = 0
    """When it was last looked at."""


def _exporter(
    listener: _Listener, source: Mapping[str, Any], to: str, namespace: str, options: Mapping[str, Any]
) -> Exporter:
    """Raises: ImportError, StoreError."""
    import pyarrow as pa

    from peeklock.capture.exporter import Exporter, ExportOptions
    from peeklock.capture.source import source_of

    pa.set_cpu_count(1)  # the other one is the broker's
    pa.set_io_thread_count(1)
    return Exporter(ExportOptions(source_of(source), Path(to), namespace, **options), listener)
