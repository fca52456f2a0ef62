"""The one transaction that writes a batch: a pipeline of one round trip.

Without `BEGIN`, all statements up to the end of a pipeline are one transaction, and what follows one that
fails is skipped. Source: postgresql.org/docs/current/libpq-pipeline-mode.html.
"""

from __future__ import annotations

from peeklock.store.encoding.packed import PackedBatch
from peeklock.store.postgres.leases import FENCE, Lease
from peeklock.store.postgres.refusals import Db

_FRAME = "INSERT INTO peeklock.journal VALUES (%s, %s, %b)"
_BODY = "INSERT INTO peeklock.body VALUES (%s, %s, %b)"
_EVENT = "INSERT INTO peeklock.event VALUES (%s, %s, %b)"
_ENTRY = (
    "INSERT INTO peeklock.kv VALUES (%s, %b, %b, %s) "
    "ON CONFLICT (shard, k) DO UPDATE SET v = excluded.v, checksum = excluded.checksum"
)
_DROP_BODIES = "DELETE FROM peeklock.body WHERE shard = %s AND no BETWEEN %s AND %s"
_DROP_FRAMES = "DELETE FROM peeklock.journal WHERE shard = %s AND no < %s"
_DROP_ENTRIES = "DELETE FROM peeklock.kv WHERE shard = %s AND k BETWEEN %b AND %b"
_DROP_EVENTS = "DELETE FROM peeklock.event WHERE shard = %s AND no <= %s"


def write(db: Db, lease: Lease, packed: PackedBatch, event_row: bytes | None, ttl_s: float) -> None:
    """Write a batch, the fence first. Raises: psycopg.Error."""
    shard, no = lease.shard, packed.no
    with db.pipeline(), db.cursor() as cursor:
        execute = cursor.execute
        execute(FENCE, (no, ttl_s, shard, lease.epoch))
        for row, data in packed.bodies:
            execute(_BODY, (shard, row, data))
        execute(_FRAME, (shard, no, packed.meta))
        for first, last in packed.dropped:
            execute(_DROP_BODIES, (shard, first, last))
        if packed.truncate_before:
            execute(_DROP_FRAMES, (shard, packed.truncate_before))
        if packed.entries is not None:
            for key, text, checksum in packed.entries.written:
                execute(_ENTRY, (shard, key.encode(), text.encode(), checksum))
            for first_key, last_key in packed.entries.deleted:
                execute(_DROP_ENTRIES, (shard, first_key.encode(), last_key.encode()))
        if event_row is not None:
            execute(_EVENT, (shard, no, event_row))
        if packed.exported_to:
            execute(_DROP_EVENTS, (shard, packed.exported_to))
