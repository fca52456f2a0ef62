"""A client's program with a broker of its own, or with another Service Bus: features in, outcomes out.

Owns: the broker process and its keys, the program's process group, the lines between us and it, and every
time-out. Must not know: what a feature does, and what a client is written in.

A line to the program is `{"feature": NAME}`; its answer is an `Outcome`. In between it may ask for a restart
of the broker by `{"ask": "restart"}`, and is told `{"done": "restart"}`. programs/README.md has the whole of
it. A program that ends, says something else or takes too long fails the feature and is started anew for the
next one.
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
from peeklock.server.keys.keys import KeyFile
from tests.interop.builds import ROOT, Client, environment

FEATURE_S_MAX = 60.0
"""From the request to the answer, the start of the program included. A program ends a feature itself at
30 s."""

END_S_MAX = 60.0
"""How long a program may take to remove its entities and to end once its input is closed; then it is killed.
Our choice: 300 entities over a slow path."""

STATUSES = ("works", "differs", "not offered", "failed")

WORDS_MAX = 60
"""So many lines of a program's log are shown with a failure."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a feature: one of `STATUSES`, and how it differs or why not, empty where that is plain."""

    status: str
    how: str = ""

    def __str__(self) -> str:
        return f"{self.status}: {self.how}" if self.how else self.status


class Program:
    """One client's program, and the broker that it has for itself.

    Use it as a context manager; both end with it.
    """

    def __init__(
        self,
        client: Client,
        built: Path,
        folder: Path,
        elsewhere: str = "",
        told: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`built` is the folder of the build; `folder` gets data, logs and whatever else is made.

        `elsewhere` is the connection string of the Service Bus to try; empty = a broker process of its own.
        `told` is what else stands in the program's environment.
        """
        self._told = told
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
            keys = KeyFile(self._broker.data)
            self._rules = [*keys.load_or_make(), keys.add("listener", [Right.LISTEN.value])]
            self._broker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        if self._broker is not None:
            self._broker.kill()

    def try_feature(self, feature: str) -> Outcome:
        """Have the program show a feature.

        Whatever goes wrong with the program is an outcome; only a broker that ends by itself is an error.

        Raises: BrokerFailed.
        """
        if self._process is None:
            self._start()
        told = self.log.stat().st_size
        try:
            outcome = self._ask(feature)
        except _Misbehaved as error:
            self._kill()
            outcome = Outcome("failed", str(error))
        if self._broker is not None:
            self._broker.check()
        if outcome.status == "failed":
            outcome = Outcome("failed", outcome.how + self._words(told))
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
        shared = {"PYTHONPATH": str(ROOT), **self._told}
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
            pass  # the reader has seen its end, and says so

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
        """Close the program's input, which tells it to end, and kill what is left."""
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

    def _words(self, told: int) -> str:
        with self.log.open(errors="replace") as log:
            log.seek(told)
            lines = log.read().splitlines()
        words = "".join(f"\n  {line}" for line in lines[-WORDS_MAX:])
        return f"\nits log:{words}" if words else ""


class _Misbehaved(Exception):
    """The program did something that no answer is; it cannot be asked again."""


def _forward(process: subprocess.Popen[str], lines: queue.SimpleQueue[str]) -> None:
    """Hand on each line that the program writes, and an empty one at its end."""
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            lines.put(line)
    lines.put("")
