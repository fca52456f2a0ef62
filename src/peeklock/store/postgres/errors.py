"""PostgreSQL's errors as errors of a store, and whether the work may be tried again.

Source: postgresql.org/docs/current/errcodes-appendix.html.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from peeklock.store.base import StoreDamaged, StoreDeposed, StoreError, StoreFailed, StoreFull


class Kind(enum.Enum):
    """What an error says of the statement or transaction that met it."""

    LOST = "the connection is gone: a commit under way may be durable or not"
    AGAIN = "it was rolled back, and may succeed when it is tried again"
    FULL = "it was rolled back: the disk is full"
    DEPOSED = "it was rolled back: the lease is another's"
    REFUSED = "it was rolled back, or never begun, and would fail again"


READ_ONLY = "25006"
"""The server was the primary and is none any more."""

_AGAIN = {
    READ_ONLY: "the server is read-only: name the primary, or all servers, in --store",
    "40001": "the transaction was in conflict with another one",
    "40P01": "the transaction was in a deadlock",
    "53200": "the server has no memory",
    "53300": "the server has no connection left: raise max_connections, or lower --store-connections",
    "55P03": "a lock was not free in time",
    "57014": "the statement took too long, or somebody cancelled it",
}

_WORDS = {
    "23505": "a batch of this number is there already: another process writes to the store",
    "28000": "the server refuses the user: check the URL in --store and pg_hba.conf",
    "28P01": "the server refuses the password: check the URL in --store",
    "3D000": "the database does not exist: create it with `CREATE DATABASE`, or check the URL in --store",
    "42501": "the user lacks a right",
    "42P01": "a table is missing",
    "42703": "a column is missing",
    "53100": "the disk of the database is full: free some space there",
    "58030": "the server reported an error of its disk: check it",
    "XX001": "the server found damaged data: check its disk",
    "XX002": "the server found a damaged index: check its disk, and REINDEX it",
}

_DAMAGE = {"42P01", "42703", "XX001", "XX002"}


def kind_of(error: psycopg.Error) -> Kind:
    """Return what an error says."""
    state = error.sqlstate
    if state is None or state.startswith(("08", "57P")):
        return Kind.LOST
    if state == "53100":
        return Kind.FULL
    if state == "22012":  # see `leases.FENCE`
        return Kind.DEPOSED
    return Kind.AGAIN if state in _AGAIN else Kind.REFUSED


def store_error(doing: str, error: psycopg.Error) -> StoreError:
    """Return the error of a store; `doing` ends a sentence that begins with `could not`."""
    kind, state = kind_of(error), error.sqlstate or ""
    said = " ".join(str(error).split())
    if kind is Kind.DEPOSED:
        return StoreDeposed(f"could not {doing}: another process owns the store now")
    if kind is Kind.LOST:
        return StoreFailed(f"could not {doing}: the database cannot be reached ({said})")
    words = _AGAIN.get(state) or _WORDS.get(state) or "the database refused it"
    make = StoreDamaged if state in _DAMAGE else StoreFull if kind is Kind.FULL else StoreFailed
    return make(f"could not {doing}: {words} ({said})")


def connect_error(shown: str, user: str | None, error: psycopg.Error) -> str:
    """Return what to say of a database to which no connection could be made.

    libpq passes on no code of what a server says before a session begins, so its text decides. `user`: of
    the URL, None = it names none.
    """
    said = " ".join(str(error).split())
    do = "check that the server runs there, and the host, port, user and password of --store"
    if found := re.search('role (".*") does not exist', said):
        do = f"make the user with CREATE ROLE {found[1]} LOGIN PASSWORD 'choose one', or check --store"
    elif found := re.search('database (".*") does not exist', said):
        owner = "" if user is None else f' OWNER "{user}"'
        do = f"make the database with CREATE DATABASE {found[1]}{owner}, or check --store"
    return f"could not connect to {shown} ({said}): {do}"


@contextmanager
def store_errors(doing: str) -> Iterator[None]:
    """Raise errors of PostgreSQL as errors of a store: `with store_errors("write batch 7"): ...`."""
    try:
        yield
    except psycopg.Error as error:
        raise store_error(doing, error) from error
