"""A client's program with its own broker, or with another Service Bus: features in, outcomes out.

Owns: the broker process and its keys, the program's process group, the lines between us and it, and every
time-out. Must not know: what a feature does, and the program's language.

A line to the program is `{"feature": NAME}`; its answer is an `Outcome`. In between it may request a restart
of the broker by `{"ask": "restart"}`, and gets `{"done": "restart"}`. programs/README.md has the whole
protocol. A program that ends, writes another line or takes too long fails the feature and is started again
for the next one.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

from peeklock.auth import Right, SasRule
from peeklock.demo.broker import BrokerProcess
from tests.interop.builds import ROOT, Client, environment
from tests.kept_keys import write_keys

FEATURE_S_MAX = 60.0
"""From the request to the answer, including the program's start. A program ends a feature itself at 30 s."""

END_S_MAX = 60.0
"""How long a program may take to remove its entities and to end once its input is closed; then it is killed.
Our choice: 300 entities over a slow path."""

STATUSES = ("works", "differs", "not offered", "failed")

WORDS_MAX = 60
"""Lines of a program's log that are shown with a failure."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a feature: one of `STATUSES`, and how it differs or why it failed, empty where nothing
    needs saying."""

    status: str
    how: str = ""

    def __str__(self) -> str:
        return f"{self.status}: {self.how}" if self.how else self.status


class Program:
    """One client's program, and its own broker.

    Use it as a context manager; both end with it.
    """

    def __init__(
        self,
        client: Client,
        built: Path,
        folder: Path,
        elsewhere: str = "",
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Set up. `built` is the folder of the build; `folder` gets data, logs and whatever else is made.

        `elsewhere` is the connection string of the Service Bus to try; empty = its own broker process.
        `environment` is added to the program's environment.
        """
        self._environment = environment
        self._client = client
        self._built = built
        self._elsewhere = elsewhere
        self._broker = None if elsewhere else BrokerProcess(folder, ("--auth", "sas"))
        self._rules: list[SasRule] = []
        self.log = folder / "program.log"
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def __enter__(self) -> Program:
        if self._broker is not None:
            self._rules = write_keys(self._broker.data, listener=[Right.LISTEN])
            self._broker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        if self._broker is not None:
            self._broker.kill()

    def try_feature(self, feature: str) -> Outcome:
        """Run a feature in the program.

        Whatever goes wrong with the program is an outcome; only a broker that ends by itself is an error.

        Raises: BrokerFailed.
        """
        if self._process is None:
            self._start()
        start = self.log.stat().st_size
        try:
            outcome = self._ask(feature)
        except _Misbehaved as error:
            self._kill()
            outcome = Outcome("failed", str(error))
        if self._broker is not None:
            self._broker.check()
        if outcome.status == "failed":
            outcome = Outcome("failed", outcome.how + self._log_end(start))
        return outcome

    def _ask(self, feature: str) -> Outcome:
        ends_at = time.monotonic() + FEATURE_S_MAX
        self._write({"feature": feature})
        while True:
            line = self._read(ends_at)
            try:
                answer = json.loads(line)
            except ValueError:
                answer = None
            match answer:
                case {"ask": "restart"}:
                    self._restart_broker()
                    self._write({"done": "restart"})
                case {"feature": str(name), "status": str(status)} if name == feature and status in STATUSES:
                    return Outcome(status, str(answer.get("error") or answer.get("how") or ""))
                case _:
                    raise _Misbehaved(f"no answer to {feature!r} is this line: {line[:500]!r}")

    def _restart_broker(self) -> None:
        if self._broker is None:
            raise _Misbehaved("it asks for a restart of a Service Bus that is not ours")
        self._broker.stop()
        self._broker.start()

    def _start(self) -> None:
        self._lines = queue.SimpleQueue()
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                ["sh", str(self._client.folder / "run.sh"), str(self._built), *self._client.arguments],
                cwd=self._client.folder,
                env={**environment(), **self._surroundings()},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        threading.Thread(target=_forward, args=(self._process, self._lines), daemon=True).start()

    def _surroundings(self) -> dict[str, str]:
        shared = {"PYTHONPATH": str(ROOT), **self._environment}
        if self._broker is None:
            return {**shared, "PEEKLOCK_TEST_CONNECTION_STRING": self._elsewhere}
        endpoint = f"Endpoint=sb://localhost:{self._broker.amqp_port}"
        root, listener = (
            f"{endpoint};SharedAccessKeyName={rule.name};SharedAccessKey={rule.primary_key}"
            for rule in self._rules
        )
        return {
            **shared,
            "PEEKLOCK_TEST_CONNECTION_STRING": root,
            "PEEKLOCK_LISTEN_CONNECTION_STRING": listener,
            "PEEKLOCK_CA": str(self._broker.authority()),
        }

    def _write(self, line: dict[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(line) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the reader has seen its end, and reports it

    def _read(self, ends_at: float) -> str:
        try:
            line = self._lines.get(timeout=max(0.0, ends_at - time.monotonic()))
        except queue.Empty:
            raise _Misbehaved(f"the program did not answer within {FEATURE_S_MAX:g} s") from None
        if not line:
            assert self._process is not None
            raise _Misbehaved(f"the program ended with status {self._process.wait()}")
        return line

    def _end(self) -> None:
        """Close the program's input, which ends it, and kill what is left."""
        if self._process is not None:
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S_MAX)
            self._kill()

    def _kill(self) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):  # the whole group has ended
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def _log_end(self, start: int) -> str:
        with self.log.open(errors="replace") as log:
            log.seek(start)
            lines = log.read().splitlines()
        words = "".join(f"\n  {line}" for line in lines[-WORDS_MAX:])
        return f"\nits log:{words}" if words else ""


class _Misbehaved(Exception):
    """The program's output is no answer; it cannot be used any more."""


def _forward(process: subprocess.Popen[str], lines: queue.SimpleQueue[str]) -> None:
    """Pass on each line of the program's output, and an empty one at its end."""
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            lines.put(line)
    lines.put("")
