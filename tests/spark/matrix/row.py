"""One Spark with one table format: messages are sent, drivers die, tables are compared with what was sent.

Owns: what is sent, how often a driver is killed, what makes a cell of the matrix. Must not know: how a query
is made (`driver`).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from peeklock.amqp.message_writing import encode_message
from peeklock.client.connection import BlockingConnection
from peeklock.client.connection_string import ConnectionString
from peeklock.demo.broker import BrokerProcess
from tests.kill.ledger import Broken
from tests.kill.loop import PROPERTIES, broker_on
from tests.kill.spark_loop import messages_of, require_once
from tests.spark.matrix.driver import (
    BROWSE,
    CURSOR,
    MERGED,
    PEEK_LOCK,
    ROOT,
    WORKS,
    WRITTEN,
    Plan,
    last,
)
from tests.spark.matrix.environments import PARQUET, Table

MESSAGES = 240
MORE = 60
"""What comes while nobody runs, after each kill."""

CUSTOMERS = 10
DRIVER_S_MAX = 500.0
GAP_TRIES_MAX = 5
"""Kills until one hits the instant between the table's commit and Spark's."""

BUSY = "Python worker failed to connect back"
"""Spark gives a worker 10 s to start, which no option changes. On a busy machine that is too short."""
BUSY_TRIES_MAX = 6

FINE = "works"
MISSING = (
    "NoSuchMethodError",
    "NoSuchFieldError",
    "NoClassDefFoundError",
    "AbstractMethodError",
    "IncompatibleClassChangeError",
    "VerifyError",
)
"""What Java says of a jar that is made for another Spark."""

Cells = dict[str, str]
"""For each query `works`, or why it does not."""


class Row:
    """One run over one folder."""

    def __init__(self, python: Path, table: Table, jars: Sequence[Path], folder: Path) -> None:
        self._python = python
        self._table = table
        self._jars = [str(jar) for jar in jars]
        self._folder = folder
        queues = [*WORKS, "copies"]
        self._broker: BrokerProcess = broker_on(
            folder, queues={name: PROPERTIES | {"LockDuration": "PT5M"} for name in queues}
        )
        self._sent: Counter[str] = Counter()
        self.kills = 0

    def run(self) -> Cells:
        """Kill a driver in a batch of each kind of writing, then let another do all that is left."""
        works = [CURSOR, PEEK_LOCK, BROWSE, *([WRITTEN] if self._table.format == PARQUET else [MERGED])]
        cells: Cells = {}
        self._broker.start()
        settings = ConnectionString.parse(self._broker.connection_string)
        try:
            with contextlib.closing(BlockingConnection(settings)) as connected:
                for work in works:
                    self._send(connected, work, MESSAGES)
                for work in (CURSOR, MERGED):
                    killed = [one for one in (CURSOR, MERGED) if one in works and one not in cells]
                    if work in killed:
                        cells |= self._kill_in(work, killed)
                        for one in killed:
                            self._send(connected, one, MORE)
                left = [work for work in works if work not in cells]
                cells |= self._judge(connected, left, self._drive(left))
        finally:
            self._broker.kill()
        return {work: cells[work] for work in works}

    def _kill_in(self, work: str, works: list[str]) -> Cells:
        """Kill drivers until one has died between the two commits; return the cells that fail."""
        cells: Cells = {}
        for _ in range(GAP_TRIES_MAX):
            said = self._drive([one for one in works if one not in cells], die_in=work)
            if failed := {line["work"]: cause(line["failure"]) for line in said if line["failure"]}:
                cells |= failed
                if work in failed:
                    return cells
                continue
            self.kills += 1
            if said[-1]["dies_in"] > last(self._folder / f"checkpoint-{work}" / "commits"):
                return cells
        raise Broken(f"{work}: no kill of {GAP_TRIES_MAX} came between the two commits")

    def _drive(self, works: list[str], die_in: str | None = None) -> list[dict[str, Any]]:
        """Run drivers until one ends that the machine was not too busy for; return its lines."""
        for _ in range(BUSY_TRIES_MAX):
            lines = self._run_driver(works, die_in)
            if not any(BUSY in (line["failure"] or "") for line in lines):
                return lines
        raise Broken(f"{BUSY_TRIES_MAX} drivers ended with: {BUSY}")

    def _run_driver(self, works: list[str], die_in: str | None) -> list[dict[str, Any]]:
        plan = Plan(self._broker.connection_string, self._table.format, self._jars, works, die_in)
        file = self._folder / "plan.json"
        file.write_text(json.dumps(asdict(plan)))
        errors = self._folder / "driver.log"
        with errors.open("ab") as log:
            driver = subprocess.Popen(
                [str(self._python), "-m", "tests.spark.matrix.driver", str(file)],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # so that it can end all of its own
            )
        try:
            output, _ = driver.communicate(timeout=DRIVER_S_MAX)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
        lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        if not lines:
            raise Broken(f"the driver said nothing: {errors.read_text(errors='replace')[-3000:]}")
        return lines

    def _send(self, connected: BlockingConnection, queue: str, count: int) -> None:
        sender = connected.sender(queue)
        for number in range(self._sent[queue], self._sent[queue] + count):
            sender.send(encode_message(data=body_of(queue, number).encode()))
        sender.flush()
        sender.close()
        self._sent[queue] += count

    # The judge

    def _judge(self, connected: BlockingConnection, works: list[str], lines: list[dict[str, Any]]) -> Cells:
        said = {line["work"]: line for line in lines}
        cells = {}
        for work in works:
            if work not in said:
                cells[work] = "the driver ended before"
            elif said[work]["failure"]:
                cells[work] = cause(said[work]["failure"])
            else:
                self._require(connected, work, said[work])
                cells[work] = FINE
        return cells

    def _require(self, connected: BlockingConnection, work: str, line: dict[str, Any]) -> None:
        """Raises: Broken."""
        name = f"{self._table.format}, {work}"
        bodies = [body_of(work, number) for number in range(self._sent[work])]
        if work == MERGED:
            totals = dict(line["rows"])
            if totals != Counter(bodies) or len(totals) != len(line["rows"]):
                raise Broken(f"{name}: {line['rows']} for {Counter(bodies)}")
        elif work == WRITTEN:
            require_once(name, {*bodies}, [body for body, _ in messages_of(connected, "copies")])
        else:
            require_once(name, {*bodies}, line["rows"])
        if work != WRITTEN:
            require_transactions(name, [tuple(one) for one in line["transactions"]])
        left = messages_of(connected, work)
        if len(left) != (len(bodies) if work == BROWSE else 0):
            raise Broken(f"{name}: {len(left)} messages are in the queue: {left[:3]}")


def body_of(queue: str, number: int) -> str:
    """Return the body of a message: for merges the customer, else what tells it from all others."""
    return f"customer-{number % CUSTOMERS}" if queue == MERGED else f"{queue} {number}"


def require_transactions(name: str, transactions: Sequence[tuple[str, int]]) -> None:
    """Require that the format has recorded each batch once, in order, of one query. Raises: Broken."""
    batches = [batch for _, batch in transactions]
    if not batches or sorted(set(batches)) != batches or len({query for query, _ in transactions}) != 1:
        raise Broken(f"{name}: transactions of the table: {transactions}")


def cause(text: str) -> str:
    """Return the error of a jar that is made for another Spark. Raises: Broken, if it is another failure."""
    for line in text.splitlines():
        for known in MISSING:
            if known in line:
                return f"{known}{line.partition(known)[2]}"[:300]
    # A query passes on only the message of its error: of NoSuchMethodError, a signature in quotes.
    if method := re.search(r"'\S+ [\w.$<>]+\([\w.$, ]*\)'", text):
        return f"NoSuchMethodError: {method[0]}"[:300]
    raise Broken(f"a query ended: {text[:1500]} ... {text[-1500:]}")


def run_row(python: Path, table: Table, jars: Sequence[Path]) -> tuple[Cells, int]:
    """Run one row in a folder of its own; return its cells, and how many drivers were killed."""
    with tempfile.TemporaryDirectory(prefix="peeklock-matrix-") as folder:
        row = Row(python, table, jars, Path(folder))
        return row.run(), row.kills
