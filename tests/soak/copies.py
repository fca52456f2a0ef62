"""Copies of the data folder: back-ups and restores, and copies that are damaged.

Owns: what must be found in a copy. Must not know: when one is made.

A queue holds `KEPT` messages that nobody ever takes: each copy must have all of them.
"""

from __future__ import annotations

import shutil
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from peeklock.amqp.types import Int, Long
from peeklock.client import (
    BlockingConnection,
    ConnectionString,
    Properties,
    ReceiveMode,
    encode_message,
    scan,
)
from peeklock.demo.broker import BrokerProcess
from tests.kill.ledger import Broken, Ledger
from tests.soak.features import number_of
from tests.soak.site import Site

KEPT = 20
KEPT_BYTES = 3000
PAGE = 250


@dataclass(slots=True)
class Moment:
    """What a back-up must have of the busiest queue, and must not."""

    taken: set[int]
    """Completed before it began."""
    pending: set[int]
    """Accepted before it began; no completion was sent by its end."""


def begin(ledger: Ledger) -> Moment:
    """Return what is known before a back-up."""
    fates = list(ledger.fates.values())
    return Moment(
        {fate.uid for fate in fates if fate.completed},
        {fate.uid for fate in fates if fate.accepted and not fate.completing},
    )


def finish(moment: Moment, ledger: Ledger) -> Moment:
    """Leave out what changed while the back-up was made."""
    left = {uid for uid in moment.pending if not ledger.fates[uid].completing}
    return Moment(moment.taken, left)


@dataclass(slots=True)
class Chain:
    """A full back-up and the increments that follow it."""

    files: list[Path] = field(default_factory=list)
    moment: Moment | None = None


class Copies:
    """Back-ups and damaged copies of one site."""

    def __init__(self, site: Site, seed: int) -> None:
        self._site = site
        self._folder = site.folder / "copies"
        self._folder.mkdir()
        self._random = Random(seed)
        self._made = 0
        self.chain = Chain()
        self.kept: dict[bytes, int] = {}
        """Number of each kept body."""

    def keep(self) -> None:
        """Send the kept messages."""
        connection = self._connect(self._site.connection_string())
        sender = connection.sender("kept")
        for number in range(KEPT):
            body = b"kept=%04d;" % number + self._random.randbytes(KEPT_BYTES)
            sender.send(encode_message(properties=Properties(message_id=str(number)), data=body))
            self.kept[body] = number
        sender.flush()
        connection.close()

    # Back-ups

    def back_up(self, ledger: Ledger, *, full: bool) -> None:
        """Make a back-up, or an increment of the last one, while the broker works."""
        self._made += 1
        target = self._folder / f"{self._made:04}.backup"
        since = [] if full or not self.chain.files else ["--since", str(self.chain.files[-1])]
        before = begin(ledger)
        self._site.run("backup", "--data", str(self._site.broker.data), "--to", str(target), *since)
        moment = finish(before, ledger)
        if not since:
            for old in self.chain.files:
                old.unlink()
            self.chain = Chain()
        self.chain.files.append(target)
        self.chain.moment = moment

    def restore(self) -> None:
        """Restore the last chain to another folder, and compare it with the ledger. Raises: Broken."""
        chain, folder = self.chain, self._folder / "restored"
        folder.mkdir()
        assert chain.moment is not None
        self._site.run("restore", *map(str, chain.files), "--data", str(folder / "data"))
        self._site.run("check", str(folder / "data"))
        with BrokerProcess(folder, ("--auth=off",)) as broker:
            connection = self._connect(_with_key(broker.connection_string))
            found = {
                int(scan(payload).decode_properties().message_id) for payload in browse(connection, "work")
            }
            self._check_kept(connection)
            connection.close()
        if missing := chain.moment.pending - found:
            raise Broken(f"{len(missing)} messages are missing in a restored back-up: {sorted(missing)[:5]}")
        if back := chain.moment.taken & found:
            raise Broken(f"{len(back)} completed messages are in a restored back-up: {sorted(back)[:5]}")
        shutil.rmtree(folder)

    def _check_kept(self, connection: BlockingConnection) -> None:
        bodies = [scan(payload).decode_body()[0][1] for payload in browse(connection, "kept")]
        if {self.kept.get(body) for body in bodies} != set(range(KEPT)) or len(bodies) != KEPT:
            raise Broken(f"a copy has {len(bodies)} of {KEPT} kept messages, or others")

    # Damage

    def copy(self) -> Path:
        """Copy the data folder of the stopped broker; return the folder with the copy."""
        folder = self._folder / "damaged"
        shutil.copytree(
            self._site.broker.data,
            folder / "data",
            ignore=lambda _, names: [name for name in names if name.endswith((".sock", ".ballast"))],
        )
        return folder

    def damage(self, folder: Path) -> None:
        """Damage the body of a kept message in a copy. Raises: Broken, unless `check` names it and the broker
        makes a dead letter of it and delivers all others (R-03).
        """
        data = folder / "data"
        self._site.run("check", str(data))
        number = self._random.randrange(KEPT)
        with closing(sqlite3.connect(data / "peeklock.db")) as database:
            row, body = _row_with(database, b"kept=%04d;" % number)
            at = body.index(b"kept=%04d;" % number) + self._random.randrange(20, KEPT_BYTES)
            damaged = bytearray(body)
            damaged[at] ^= 1 << self._random.randrange(8)
            database.execute("UPDATE body SET data = ? WHERE no = ?", (bytes(damaged), row))
            database.commit()
        said = self._site.run("check", str(data), expect=(1,))
        if "DAMAGED" not in said:
            raise Broken(f"a damaged body is not named: {said[-500:]}")
        with BrokerProcess(folder, ("--auth=off",)) as broker:
            connection = self._connect(_with_key(broker.connection_string))
            receiver = connection.receiver("kept", ReceiveMode.PEEK_LOCK)
            found: set[int | None] = set()
            deadline = time.monotonic() + 20
            while len(found) < KEPT - 1 and time.monotonic() < deadline:
                for delivery in receiver.receive(KEPT, 1):
                    found.add(self.kept.get(scan(delivery.payload).decode_body()[0][1]))
            receiver.close()
            dead = [
                scan(payload).decode_application_properties()["DeadLetterReason"]
                for payload in browse(connection, "kept/$DeadLetterQueue")
            ]
            connection.close()
        if found != set(range(KEPT)) - {number} or dead != ["StoreDamaged"]:
            raise Broken(f"with a damaged body {number}: {found} came, {dead} are dead letters")
        shutil.rmtree(folder)

    def _connect(self, connection_string: str) -> BlockingConnection:
        return BlockingConnection(ConnectionString.parse(connection_string, timeout_s=30))


def browse(connection: BlockingConnection, path: str) -> list[bytes]:
    """Return all messages of an entity."""
    found: list[bytes] = []
    start = 0
    while True:
        page = connection.management(path).request(
            "com.microsoft:peek-message", {"from-sequence-number": Long(start), "message-count": Int(PAGE)}
        )
        if page.status == 204 or not page.body["messages"]:
            return found
        found += [one["message"] for one in page.body["messages"]]
        start = number_of(found[-1]) + 1


def _row_with(database: sqlite3.Connection, wanted: bytes) -> tuple[int, bytes]:
    """Return the body row that has some bytes."""
    for no, data in database.execute("SELECT no, data FROM body ORDER BY no"):
        if wanted in data:
            return int(no), bytes(data)
    raise Broken(f"no body row has {wanted!r}")


def _with_key(connection_string: str) -> str:
    """Add a key, which clients ask for and the broker does not."""
    if "SharedAccessKey=" in connection_string:
        return connection_string
    return f"{connection_string};SharedAccessKeyName=any;SharedAccessKey=any".replace(";;", ";")
