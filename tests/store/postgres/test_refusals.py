"""Databases that cannot keep what a broker promises: each refusal says what to do."""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from peeklock.store.base import StoreDamaged, StoreError, StoreFailed, StoreTooNew
from peeklock.store.postgres import refusals
from peeklock.store.postgres.address import Address, AddressInvalid
from peeklock.store.postgres.connections import Connections
from tests.postgres_server import PostgresServer, free_port

PGBOUNCER = Path("/usr/sbin/pgbouncer")


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.new_database(f"refused{uuid.uuid4().hex}")


def refused(url: str, durability: refusals.Durability = "fsync") -> str:
    """Return the text of the refusal of a database."""
    connections = Connections(Address(url), "test", durability, 2)
    with closing(connections), pytest.raises(StoreError) as raised, connections.lent():
        pass
    return str(raised.value)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mysql://host/db", "does not begin with postgresql://"),
        ("postgresql://host", "names no database"),
        ("postgresql://host/db?no_such_option=1", "no_such_option"),
        ("postgresql://host:abc/db", "its port is not a number from 1 to 65535"),
        ("postgresql://host,other:65536/db", "its port is not a number from 1 to 65535"),
    ],
)
def test_a_wrong_url_is_refused_with_an_example(url: str, says: str) -> None:
    with pytest.raises(AddressInvalid, match=says) as raised:
        Address(url)
    assert "postgresql://USER:PASSWORD@HOST:5432/DATABASE" in str(raised.value)


def test_neither_password_nor_user_is_shown() -> None:
    address = Address("postgresql://me:secret@db-1:5433,db-2:5434/shop?sslmode=require")
    assert address.shown == "postgresql://db-1:5433,db-2:5434/shop"
    with pytest.raises(AddressInvalid) as raised:
        Address("postgresql://me:secret@db-1/shop?no_such_option=secret")
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:e@host/shop?no_such_option=1",
        "postgresql://me:se%zzcret@host/shop",
        "postgresql://me:secret@[::1/shop",
        "postgresql://host/shop?password=se%zzcret",
        "postgresql://host/shop?password=other&secret",
        "postgresql://host/shop?password=other&secret=1",
        "postgresql://host/shop?user=me&sslpassword=se%zzcret",
    ],
)
def test_a_refused_url_shows_no_part_of_a_password(url: str) -> None:
    with pytest.raises(AddressInvalid) as raised:
        Address(url)
    text = str(raised.value)
    assert "cret" not in text
    assert text.startswith(("invalid URI query parameter:", "invalid percent-", "missing ", "end of string "))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:pass@secret@host/shop",
        "postgresql://me:pass/secret@host/shop",
        "postgresql://me@server:secret@host/shop",
        "postgresql://me/secret:pass@host/shop?sslmode=require",
    ],
)
def test_a_user_or_password_that_reads_as_a_host_is_refused(url: str) -> None:
    """The first `@` or `/` ends them, and what follows would be shown as host, port or database."""
    with pytest.raises(AddressInvalid, match="write an @ in a user or password as %40, a / as %2F") as raised:
        Address(url)
    assert "secret" not in str(raised.value)


def test_a_password_with_encoded_characters_is_taken() -> None:
    address = Address("postgresql://me:pass%40w%2Ford@host/shop?host=@socket")
    assert address.parameters("test")["password"] == "pass@w/ord"
    assert address.shown == "postgresql://@socket/shop"


def test_a_server_that_is_not_there_is_named(postgres: PostgresServer) -> None:
    assert "could not connect to postgresql://127.0.0.1" in refused(
        f"postgresql://x@127.0.0.1:{free_port()}/db"
    )


def test_a_database_that_is_not_there_is_named(postgres: PostgresServer) -> None:
    text = refused(postgres.url("absent"))
    assert 'database "absent" does not exist' in text
    assert 'make the database with CREATE DATABASE "absent" OWNER "postgres", or check --store' in text
    assert "cannot be reached" not in text


def test_a_user_that_is_not_there_is_named(postgres: PostgresServer) -> None:
    text = refused(postgres.url(user="nobody-here"))
    assert 'role "nobody-here" does not exist' in text
    assert "make the user with CREATE ROLE \"nobody-here\" LOGIN PASSWORD 'choose one'" in text
    assert "cannot be reached" not in text


def test_a_server_before_14_is_refused() -> None:
    old: Any = SimpleNamespace(info=SimpleNamespace(server_version=130_012))
    with pytest.raises(StoreFailed, match="is PostgreSQL 13, and 14 is the oldest that works: upgrade"):
        refusals.check_version(old, "postgresql://host/db")


def test_a_user_without_rights_learns_what_to_run(url: str, postgres: PostgresServer) -> None:
    postgres.execute("CREATE ROLE guest LOGIN")
    text = refused(url.replace("postgres@", "guest@"))
    assert "the user guest may not make or use tables" in text
    assert 'CREATE SCHEMA peeklock AUTHORIZATION "guest"' in text


def test_a_user_without_rights_on_the_tables_of_another_one_learns_whose_they_are(
    url: str, postgres: PostgresServer
) -> None:
    """What it is told must not take them from the broker that uses them."""
    with closing(Connections(Address(url), "test", "fsync", 2)) as connections, connections.lent():
        pass
    role = f"weak{uuid.uuid4().hex[:8]}"
    postgres.execute(f"CREATE ROLE {role} LOGIN")
    text = refused(url.replace("postgres@", f"{role}@"))
    assert f"the user {role} may not use the schema peeklock in" in text
    assert "it belongs to the user postgres. Name that user in --store, or another database" in text
    assert "ALTER" not in text


def test_whoever_only_reads_makes_no_tables(url: str, postgres: PostgresServer) -> None:
    connections = Connections(Address(url), "test", "os", 2, reads_only=True)
    with pytest.raises(StoreFailed, match="has no stores of a broker: check the URL"), connections.lent():
        pass
    name = url.rpartition("/")[2]
    assert not postgres.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'peeklock'", name)


def test_a_newer_format_is_refused(url: str, postgres: PostgresServer) -> None:
    name = url.rpartition("/")[2]
    with closing(Connections(Address(url), "test", "fsync", 2)) as connections, connections.lent():
        pass
    postgres.execute("UPDATE peeklock.meta SET v = '99' WHERE k = 'format'", name)
    connections = Connections(Address(url), "test", "fsync", 2)
    with pytest.raises(StoreTooNew, match="has format 99, written by release"), connections.lent():
        pass
    postgres.execute("DELETE FROM peeklock.meta", name)
    with pytest.raises(StoreDamaged, match="a schema `peeklock` that is not ours"), connections.lent():
        pass


def test_asynchronous_replication_is_refused_where_a_standby_was_asked_for(url: str) -> None:
    text = refused(url, "replicated")
    assert "replicates asynchronously, or not at all" in text
    assert "set synchronous_standby_names on the primary" in text


def test_a_weak_commit_of_the_server_is_made_strong(url: str, postgres: PostgresServer) -> None:
    postgres.execute(f'ALTER DATABASE "{url.rpartition("/")[2]}" SET synchronous_commit = off')
    expected: tuple[tuple[refusals.Durability, str], ...] = (("fsync", "on"), ("os", "off"))
    for durability, found in expected:
        connections = Connections(Address(url), "test", durability, 2)
        with closing(connections), connections.lent() as link:
            assert link.db.execute("SHOW synchronous_commit").fetchone() == (found,)


@pytest.fixture(params=["transaction", "session"])
def pool(request: pytest.FixtureRequest, postgres: PostgresServer, url: str, tmp_path: Path) -> Iterator[str]:
    """The URL of a database behind PgBouncer."""
    if not PGBOUNCER.exists():
        # The reason: no package of Python brings a pool; CI installs Debian's.
        pytest.skip("PgBouncer is not installed: apt-get install pgbouncer")
    port, name = free_port(), url.rpartition("/")[2]
    postgres.write(
        "pgbouncer.ini",
        f"[databases]\n{name} = host=127.0.0.1 port={postgres.port} dbname={name} user=postgres\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = any\nunix_socket_dir =\n"
        f"pool_mode = {request.param}\nignore_startup_parameters = options\n",
    )
    process = postgres.popen(str(PGBOUNCER), str(postgres.folder / "pgbouncer.ini"))
    try:
        _wait_for(port)
        yield f"{request.param} postgresql://postgres@127.0.0.1:{port}/{name}"
    finally:
        process.terminate()
        process.wait()


def test_a_pool_of_transactions_is_refused_and_one_of_sessions_works(pool: str) -> None:
    mode, _, url = pool.partition(" ")
    if mode == "transaction":
        assert "shares the sessions of the server between transactions" in refused(url)
        return
    with closing(Connections(Address(url), "test", "fsync", 2)) as connections, connections.lent() as link:
        assert link.db.execute("SELECT 1").fetchone() == (1,)


def _wait_for(port: int) -> None:
    until_s = time.monotonic() + 20
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert time.monotonic() < until_s
            time.sleep(0.05)
