"""A PostgreSQL server for tests: in a temporary folder, with real fsync, on the loopback."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from peeklock.store.postgres.database import Database

START_S = 60
USER = "postgres"


def binaries() -> Path | None:
    """Return the folder of PostgreSQL's programs, the newest; None = it is not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    if found:
        return found[-1]
    initdb = shutil.which("initdb")
    return None if initdb is None else Path(initdb).resolve().parent


def _unless_gone(function: object, path: str, failure: tuple[Any, BaseException, Any]) -> None:
    """Raise the failure to remove a file, unless a program that ends has just removed it."""
    if not isinstance(failure[1], FileNotFoundError):
        raise failure[1]


class PostgresServer:
    """One server; `start` and `stop` may follow each other."""

    def __init__(self, *settings: str, primary: PostgresServer | None = None) -> None:
        """Make its folder; each setting is a line such as `max_connections = 20`.

        `primary`: it is to be a standby of this one.
        """
        found = binaries()
        assert found is not None
        self._binaries = found
        self.folder = Path(tempfile.mkdtemp(prefix="peeklock-pg-"))
        self._as_owner: list[str] = []
        if os.geteuid() == 0:  # the server refuses to run as root
            shutil.chown(self.folder, USER, USER)
            self._as_owner = ["runuser", "-u", USER, "--"]
        self.port = free_port()
        self._watch: subprocess.Popen[bytes] | None = None
        if primary is None:
            self._run("initdb", "-D", self._data, "-U", USER, "-A", "trust", "-E", "UTF8", "--no-locale")
        else:
            self._run("pg_basebackup", "-D", self._data, "-d", primary.url(), "-R", "-c", "fast")
        lines = [
            "listen_addresses = '127.0.0.1'",
            f"port = {self.port}",
            f"unix_socket_directories = '{self.folder}'",
            "shared_buffers = 32MB",
            "recovery_init_sync_method = syncfs",  # else each file of a new standby is synced by itself
            "logging_collector = off",
            *settings,
        ]
        with Path(self._data, "postgresql.conf").open("a") as file:
            file.write("\n".join(["", *lines, ""]))

    @property
    def _data(self) -> str:
        return str(self.folder / "data")

    def url(self, database: str = USER, user: str = USER) -> str:
        """Return the URL of a database, over the loopback port."""
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def socket_url(self, database: str = USER) -> str:
        """Return the URL of a database, over the Unix socket."""
        return f"postgresql://{USER}@/{database}?host={self.folder}&port={self.port}"

    def execute(self, sql: str, database: str = USER) -> list[tuple[object, ...]]:
        """Return the rows of a statement of the administrator."""
        import psycopg  # not everywhere installed

        with psycopg.connect(self.url(database), autocommit=True) as db:
            cursor = db.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def new_database(self, name: str) -> str:
        """Make a database; return its URL."""
        self.execute(f'CREATE DATABASE "{name}"')
        return self.url(name)

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        log = str(self.folder / "log")
        self._run("pg_ctl", "-D", self._data, "-l", log, "-w", "-t", str(START_S), "start")
        pid = Path(self._data, "postmaster.pid").read_text().split()[0]
        # Its input ends with this process, also where that is killed: no server is left behind.
        self._watch = subprocess.Popen(
            ["sh", "-c", 'read -r line; kill -QUIT "$1"; sleep 1; rm -rf "$2"', "sh", pid, str(self.folder)],
            stdin=subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C is for the tests
        )

    def stop(self, mode: str = "fast") -> None:
        """Stop it; `immediate` is what a kill does."""
        self._end_watch()
        self._run("pg_ctl", "-D", self._data, "-w", "-m", mode, "stop")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all its processes."""
        pid = int(Path(self._data, "postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for each in (pid, *map(int, children)):
            with contextlib.suppress(ProcessLookupError):  # a child may have ended by itself
                os.kill(each, number)

    def kill(self) -> None:
        """Kill all its processes (SIGKILL), as the loss of its machine does. It does not start again."""
        self._end_watch()
        self.signal(signal.SIGKILL)
        Path(self._data, "postmaster.pid").unlink()

    def _end_watch(self) -> None:
        if self._watch is not None:
            self._watch.kill()
            self._watch.communicate()
            self._watch = None

    def make_standby(self, *settings: str) -> PostgresServer:
        """Return a standby that runs, and has all that there is."""
        standby = PostgresServer(*settings, primary=self)
        standby.start()
        until_s = time.monotonic() + START_S
        while not self.execute("SELECT 1 FROM pg_stat_replication WHERE state = 'streaming'"):
            assert time.monotonic() < until_s
            time.sleep(0.05)
        return standby

    def wait_for_standby(self, names: str = "ANY 1 (*)") -> None:
        """Have each commit wait for a standby of these names from now on; for none if that is empty."""
        self.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
        self.execute("SELECT pg_reload_conf()")

    def promote(self) -> None:
        """Make a standby the primary."""
        self._run("pg_ctl", "-D", self._data, "-w", "promote")

    def remove(self) -> None:
        """Stop it if it runs, and remove its folder."""
        if Path(self._data, "postmaster.pid").exists():
            self.stop("immediate")
        shutil.rmtree(self.folder, onerror=_unless_gone)

    def write(self, name: str, text: str) -> None:
        """Write a file into its folder, which its owner can read."""
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o644)

    def popen(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a program as its owner."""
        # Not by `runuser`, which would get the signals in its place.
        user = USER if self._as_owner else None
        return subprocess.Popen(command, user=user, cwd=self.folder)

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self._as_owner, str(self._binaries / program), *arguments]
        # Files, not pipes: the server inherits them and would keep a pipe open.
        with tempfile.TemporaryFile() as said:
            done = subprocess.run(command, stdout=said, stderr=said, cwd=self.folder, check=False)
            said.seek(0)
            assert done.returncode == 0, f"{program}: {said.read().decode(errors='replace')}"


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server for all tests of a session."""
    require_postgres()
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.remove()


def require_postgres() -> None:
    """Skip a test where no server can run."""
    if importlib.util.find_spec("psycopg") is None:
        # The reason: it is an extra, and the rest of the broker is tested without it; CI has it.
        pytest.skip("psycopg is not installed: pip install 'peeklock[postgres]'")
    if binaries() is None:
        # The reason: no package of Python brings a server; CI installs Debian's.
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")


def database_of(
    url: str, *, instance: str = "one", ttl_s: float = 5.0, session: str | None = None
) -> Database:
    """Return a database for stores, as a new process has it; `close` it."""
    from peeklock.store.postgres.address import Address
    from peeklock.store.postgres.database import CONNECTIONS_MIN, Database
    from peeklock.store.postgres.leases import Owner

    owner = Owner(f"process {instance}", instance, session or uuid.uuid4().hex)
    return Database(Address(url), owner, connections=CONNECTIONS_MIN, ttl_s=ttl_s)


def free_port() -> int:
    """Return a port of the loopback that nobody uses now."""
    with closing(socket.socket()) as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
