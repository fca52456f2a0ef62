"""From event rows to segments: completeness, gaps, hours, retention, refusals."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Properties
from peeklock.broker.vocabulary.events import Event, EventType
from peeklock.capture.exporter import Exporter, ExportOptions
from peeklock.capture.folder import MARK_NAME, STORE_MARK_NAME, LogFolder, LogRefused
from peeklock.capture.source import FolderSource
from peeklock.store.base import StoreFailed
from tests.capture.stores import (
    AT_MS,
    BLANK,
    EPOCH,
    PROPERTIES,
    Told,
    enqueued,
    export,
    rows,
    segments,
    write_store,
)

CREATED = EventType.ENTITY_CREATED
HOUR_MS = 3_600_000
AT = datetime.fromtimestamp(AT_MS / 1000, UTC)
OF_ALL = {"namespace": "here", "shard": 0, "event_version": 2, "broker_epoch": 1}
OF_MESSAGE = OF_ALL | {
    "entity": "work",
    "sequence_number": 7,
    "enqueued_sequence_number": 7,
    "size_bytes": 100,
    "enqueued_time": AT,
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def batches(log: Path) -> list[int]:
    return [row["batch_no"] for row in rows(log)]


def told_gaps(log: Path) -> list[tuple[int, int, str]]:
    return [
        (row["sequence_number"], row["related_sequence_number"], row["reason"])
        for row in rows(log)
        if row["event_type"] == "gap"
    ]


def test_each_event_is_a_row_with_its_fields(data: Path, log: Path) -> None:
    """Req: X-03"""
    token = bytes(range(16))
    delivered = enqueued(7, type=EventType.DELIVERED, lock_token=token, locked_until_ms=AT_MS + 1)
    dead_lettered = enqueued(
        7,
        at_ms=AT_MS + 5,
        type=EventType.DEAD_LETTERED,
        lock_token=token,
        delivery_count=2,
        state=1,
        reason="why",
        related_entity="work/$DeadLetterQueue",
        related_number=9,
        transaction_id=b"\x01\x02",
        expires_at_ms=1 << 49,
        scheduled_at_ms=AT_MS,
    )
    arrived = enqueued(7, head=PROPERTIES, connection_id=3, link_name="sender", session_id="")
    write_store(data, [EPOCH], [arrived, delivered], [], [dead_lettered])
    told = export(data, log)
    assert told.numbers == [0, 4]
    assert not told.notes
    assert segments(log) == [
        "event_date=2026-09-21/event_hour=14/events-00000000000000000001-00000000000000000004.parquet"
    ]
    found = rows(log)
    digest = found[2]["lock_token"]
    assert len(digest) == 16
    assert digest not in token.hex()
    assert found == [
        OF_ALL
        | {
            "batch_no": 1,
            "index": 0,
            "event_time": AT,
            "event_type": "epoch_started",
            "delivery_count": 0,
            "size_bytes": 0,
        },
        OF_MESSAGE
        | {
            "batch_no": 2,
            "index": 0,
            "event_time": AT,
            "event_type": "enqueued",
            "delivery_count": 0,
            "message_id": "abc",
            "session_id": "",
            "session_key": "",
            "connection_id": 3,
            "link_name": "sender",
        },
        OF_MESSAGE
        | {
            "batch_no": 2,
            "index": 1,
            "event_time": AT,
            "event_type": "delivered",
            "delivery_count": 0,
            "state_before": "active",
            "lock_token": digest,
            "locked_until": AT + timedelta(milliseconds=1),
        },
        OF_MESSAGE
        | {
            "batch_no": 4,
            "index": 0,
            "event_time": AT + timedelta(milliseconds=5),
            "event_type": "dead_lettered",
            "delivery_count": 2,
            "state_before": "deferred",
            "reason": "why",
            "related_entity": "work/$DeadLetterQueue",
            "related_sequence_number": 9,
            "transaction_id": "0102",
            "lock_token": digest,
            "scheduled_time": AT,
            "expires_at": datetime(9999, 12, 31, 23, 59, 59, 999000, UTC),
        },
    ]


def test_a_captured_body_has_its_columns(data: Path, log: Path) -> None:
    """Req: X-03"""
    whole = encode_message(
        properties=Properties(message_id="abc", subject="s"), application_properties={"a": 1}, data=b"body"
    )
    write_store(data, [EPOCH, enqueued(1, head=whole), enqueued(2, head=PROPERTIES), enqueued(3)])
    export(data, log)
    assert [
        {
            name: row[name]
            for name in ("message_id", "body", "subject", "application_properties")
            if name in row
        }
        for row in rows(log)
    ] == [
        {},
        {"message_id": "abc", "body": b"body", "subject": "s", "application_properties": [("a", "1")]},
        {"message_id": "abc"},
        {},
    ]


def test_partitions_are_shown_of_entities_that_have_some(data: Path, log: Path) -> None:
    def told(name: str, kind: EventType, *, has: bool) -> Event:
        reason = json.dumps({"enable_partitioning": has})
        return BLANK._replace(type=kind, at_ms=AT_MS, queue_name=name, reason=reason)

    number = (5 << 48) + 1
    names = ["Many", "many/Subscriptions/all/$DeadLetterQueue", "one"]
    arrivals = [enqueued(number, queue_name=name) for name in names]
    write_store(
        data,
        [EPOCH, told("many", EventType.ENTITY_PRESENT, has=True), told("one", CREATED, has=False)],
        arrivals,
        [told("many", CREATED, has=False), *arrivals],
    )
    export(data, log)
    assert [row.get("partition_id") for row in rows(log)] == [None] * 3 + [5, 5, None] + [None] * 4


def test_a_lock_that_ended_with_its_connection_says_so(data: Path, log: Path) -> None:
    """Req: X-03"""
    lapsed = enqueued(1, type=EventType.LOCK_LAPSED)
    write_store(data, [EPOCH, enqueued(1), lapsed], [lapsed._replace(connection_lost=1), lapsed])
    export(data, log)
    assert [row.get("connection_lost") for row in rows(log)] == [None, None, None, True, None]


def test_times_that_no_calendar_has_do_not_stop_the_log(data: Path, log: Path) -> None:
    """Req: X-03"""
    write_store(data, [EPOCH], [enqueued(1, scheduled_at_ms=-(1 << 63)), enqueued(2, expires_at_ms=1 << 62)])
    export(data, log)
    _, first, second = rows(log)
    assert first["scheduled_time"] == datetime(1, 1, 1, tzinfo=UTC)
    assert second["expires_at"] == datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)


def test_texts_of_many_batches_do_not_mix(data: Path, log: Path) -> None:
    write_store(
        data,
        *([enqueued(n, session_id=f"s{n % 3}", reason=f"\udc80{n}" if n % 2 else None)] for n in range(1, 9)),
    )
    export(data, log)
    assert [(row["session_id"], row["session_key"], row.get("reason")) for row in rows(log)] == [
        (f"s{n % 3}", f"S{n % 3}", f"?{n}" if n % 2 else None) for n in range(1, 9)
    ]


def test_all_spellings_of_a_session_have_one_key(data: Path, log: Path) -> None:
    """Req: X-03, C27. By which the log is grouped; an event without a session has none."""
    spellings = ["Straße 7", "STRAßE 7", "σίσυφος", "ΣΊΣΥΦΟΣ", None]
    write_store(data, [enqueued(n, session_id=spelling) for n, spelling in enumerate(spellings, 1)])
    export(data, log)
    found = [(row.get("session_id"), row.get("session_key")) for row in rows(log)]
    assert found == list(zip(spellings, ["STRAßE 7", "STRAßE 7", "ΣΊΣΥΦΟΣ", "ΣΊΣΥΦΟΣ", None], strict=True))


def test_it_goes_on_behind_what_is_there(data: Path, log: Path) -> None:
    """Req: X-03"""
    write_store(data, [EPOCH], [enqueued(1)])
    export(data, log)
    write_store(data, [enqueued(2)], [])
    told = export(data, log)
    assert told.numbers == [2, 4]
    assert batches(log) == [1, 2, 3]
    assert {row["broker_epoch"] for row in rows(log)} == {1}
    assert export(data, log).numbers == [4]


def test_rows_that_were_forgotten_after_their_export_are_no_gap(data: Path, log: Path) -> None:
    write_store(data, [EPOCH], [enqueued(1)])
    export(data, log)
    write_store(data, [enqueued(2)], exported_to=2)
    export(data, log)
    assert batches(log) == [1, 2, 3]
    assert told_gaps(log) == []


def test_batches_without_events_wait_for_some(data: Path, log: Path) -> None:
    write_store(data, [EPOCH], [], [])
    assert export(data, log).numbers == [0, 3]
    write_store(data, [], [])
    assert export(data, log).numbers == [3]
    assert len(segments(log)) == 1
    write_store(data, [enqueued(1)])
    assert export(data, log).numbers == [3, 6]


def test_what_a_killed_exporter_left_is_removed(data: Path, log: Path) -> None:
    write_store(data, [EPOCH])
    export(data, log)
    leftover = log / f".events-{2:020}.tmp"
    leftover.write_bytes(b"PAR1")
    write_store(data, [enqueued(1)])
    export(data, log)
    assert not leftover.exists()
    assert batches(log) == [1, 2]


def test_a_segment_ends_with_its_hour(data: Path, log: Path) -> None:
    last = HOUR_MS - AT_MS % HOUR_MS
    write_store(
        data,
        [enqueued(1, at_ms=AT_MS + last - 1), enqueued(2, at_ms=AT_MS + last)],
        [],
        [enqueued(3, at_ms=AT_MS + last)],
        [enqueued(4, at_ms=AT_MS + last + 10 * HOUR_MS)],
    )
    assert export(data, log).numbers == [0, 2, 3, 4]
    assert [path.rpartition("/")[0] for path in segments(log)] == [
        "event_date=2026-09-21/event_hour=14",
        "event_date=2026-09-21/event_hour=15",
        "event_date=2026-09-22/event_hour=01",
    ]
    assert batches(log) == [1, 1, 3, 4]


@pytest.mark.parametrize("limit", [{"segment_events": 4}, {"segment_bytes": 1}])
def test_a_segment_ends_when_it_is_large(data: Path, log: Path, limit: dict[str, int]) -> None:
    write_store(data, *([enqueued(n), enqueued(n)] for n in range(1, 6)))
    told = export(data, log, **limit)
    assert told.numbers == ([0, 2, 4, 5] if "segment_events" in limit else [0, 5])
    assert batches(log) == [n // 2 for n in range(2, 12)]


class TestGaps:
    def test_time_without_capture_is_a_gap(self, data: Path, log: Path) -> None:
        """Req: X-03"""
        write_store(data, [EPOCH], None, None, [EPOCH], [enqueued(1)])
        told = export(data, log)
        assert told_gaps(log) == [(2, 3, "capture was off")]
        assert batches(log) == [1, 2, 4, 5]
        assert [row.get("broker_epoch") for row in rows(log)] == [1, None, 4, 4]
        [(level, _, fields)] = told.notes
        assert (level, fields["first"], fields["last"]) == ("warning", 2, 3)

    def test_what_came_before_the_log_is_a_gap(self, data: Path, log: Path) -> None:
        write_store(data, None, None, [EPOCH])
        export(data, log)
        assert told_gaps(log) == [(1, 2, "capture was off")]
        assert segments(log)[0].endswith(f"events-{1:020}-{3:020}.parquet")

    def test_rows_that_were_given_up_are_a_gap(self, data: Path, log: Path) -> None:
        write_store(data, [EPOCH], [enqueued(1)], [enqueued(2)], exported_to=2)
        export(data, log)
        [(first, last, reason)] = told_gaps(log)
        assert (first, last) == (1, 2)
        assert "--capture-backlog" in reason

    def test_a_new_folder_for_a_store_that_was_exported_says_so(self, data: Path, log: Path) -> None:
        """The folder before is lost, or was given up."""
        write_store(data, [EPOCH], [enqueued(1)], exported_to=2)
        export(data, log.with_name("lost"))
        write_store(data, [enqueued(2)])
        export(data, log)
        [(first, last, reason)] = told_gaps(log)
        assert (first, last) == (1, 2)
        assert reason.endswith("or exported before, to another folder than this one")

    def test_a_gap_before_a_batch_without_events_is_told_all_the_same(self, data: Path, log: Path) -> None:
        write_store(data, [EPOCH], None, [])
        assert export(data, log).numbers == [0, 1, 3]  # the gap is of this hour
        assert [gap[:2] for gap in told_gaps(log)] == [(2, 2)]

    def test_a_gap_is_told_once_when_a_segment_ends_with_it(self, data: Path, log: Path) -> None:
        write_store(data, [EPOCH], None, None, None, [enqueued(1)])
        assert export(data, log, segment_events=2).numbers == [0, 4, 5]
        assert [gap[:2] for gap in told_gaps(log)] == [(2, 4)]

    @pytest.mark.parametrize("damage", ["cut", "bits", "another"])
    def test_a_damaged_row_is_a_gap_and_what_follows_is_there(
        self, data: Path, log: Path, damage: str
    ) -> None:
        write_store(data, [EPOCH], [enqueued(1)], [enqueued(2)])
        with sqlite3.connect(data / "peeklock.db") as db:
            (row,) = db.execute("SELECT data FROM event WHERE no = 2").fetchone()
            worse = {
                "cut": row[:9],
                "bits": row[:-1] + bytes([row[-1] ^ 1]),
                "another": db.execute("SELECT data FROM event WHERE no = 3").fetchone()[0],
            }
            db.execute("UPDATE event SET data = ? WHERE no = 2", (worse[damage],))
        db.close()
        told = export(data, log)
        [(first, last, reason)] = told_gaps(log)
        assert (first, last) == (2, 2)
        assert reason.startswith("damaged: event row 2 ")
        assert [row["sequence_number"] for row in rows(log) if row["event_type"] == "enqueued"] == [2]
        assert [note[0] for note in told.notes] == ["error"]

    def test_events_of_a_later_release_are_a_gap(self, data: Path, log: Path) -> None:
        write_store(data, [EPOCH], [enqueued(1, type=99)], [enqueued(1, state=77)], [enqueued(1, type=0)])
        export(data, log)
        assert [gap[:2] for gap in told_gaps(log)] == [(2, 2), (3, 3), (4, 4)]


class TestRetention:
    def test_old_segments_go_but_never_the_newest(self, data: Path, log: Path) -> None:
        """Req: X-03"""
        old = AT_MS - 100_000 * HOUR_MS
        write_store(data, *([enqueued(n, at_ms=old + n * HOUR_MS)] for n in range(1, 4)))
        told = export(data, log, keep_days=1)
        assert batches(log) == [3]
        assert [note[1] for note in told.notes] == ["old segments of the event log were removed"] * 2
        assert len(list(log.glob("event_date=*/*"))) == 1
        assert export(data, log, keep_days=1).numbers == [3]

    def test_recent_segments_stay(self, data: Path, log: Path) -> None:
        now = round(datetime.now(UTC).timestamp() * 1000)
        write_store(data, *([enqueued(n, at_ms=now - n * HOUR_MS)] for n in (30, 23, 1)))
        export(data, log, keep_days=1)
        assert batches(log) == [2, 3]

    def test_the_oldest_go_when_all_are_too_large(self, data: Path, log: Path) -> None:
        write_store(data, *([enqueued(n, at_ms=AT_MS + n * HOUR_MS)] for n in range(1, 6)))
        export(data, log)
        sizes = [(log / path).stat().st_size for path in segments(log)]
        write_store(data, [enqueued(6, at_ms=AT_MS + 6 * HOUR_MS)])
        export(data, log, keep_bytes=sum(sizes[-3:]) + 100)
        assert batches(log) == [4, 5, 6]
        assert batches(log) == [4, 5, 6]
        export(data, log, keep_bytes=1)
        assert batches(log) == [6]  # also while nothing happens
        write_store(data, [enqueued(7, at_ms=AT_MS + 7 * HOUR_MS)])
        export(data, log, keep_bytes=1)
        assert batches(log) == [7]


class TestRefusals:
    def test_the_folder_of_another_store(self, tmp_path: Path, data: Path, log: Path) -> None:
        """Req: X-03"""
        write_store(data, [EPOCH])
        export(data, log)
        other = tmp_path / "other"
        write_store(other, [EPOCH], [enqueued(1)])
        with pytest.raises(LogRefused, match=r"another store.*--capture"):
            export(other, log)
        assert batches(log) == [1]

    def test_the_folder_of_another_store_that_is_in_use(self, tmp_path: Path, data: Path, log: Path) -> None:
        """There is nothing to wait for."""
        write_store(data, [EPOCH])
        export(data, log)
        other = tmp_path / "other"
        write_store(other, [EPOCH])
        holder = LogFolder(log)
        assert holder.take(FolderSource(data))
        with pytest.raises(LogRefused, match=r"another store.*--capture"):
            export(other, log)
        holder.release()

    def test_a_second_log_of_the_same_store_is_none_of_another(self, tmp_path: Path, data: Path) -> None:
        write_store(data, [EPOCH])
        for name in ("one", "two"):
            export(data, tmp_path / name)
            assert batches(tmp_path / name) == [1]

    def test_a_store_that_was_set_back(self, data: Path, log: Path) -> None:
        write_store(data, [EPOCH], [enqueued(1)], [enqueued(2)])
        export(data, log)
        with sqlite3.connect(data / "peeklock.db") as db:
            for table in ("event", "journal"):
                db.execute(f"DELETE FROM {table} WHERE no > 1")
        db.close()
        with pytest.raises(LogRefused, match=r"up to 3, .* only up to 1.*--capture"):
            export(data, log)

    def test_a_store_that_was_set_back_and_has_gone_on_since(self, data: Path, log: Path) -> None:
        """Req: X-03"""
        write_store(data, [EPOCH], [enqueued(1)], [enqueued(2)])
        export(data, log)
        with sqlite3.connect(data / "peeklock.db") as db:
            for table in ("event", "journal"):
                db.execute(f"DELETE FROM {table} WHERE no > 1")
        db.close()
        (data / "peeklock.witness").unlink()  # set back on purpose
        write_store(data, [EPOCH], [enqueued(3)], [enqueued(4)], [enqueued(5)])
        with pytest.raises(
            LogRefused, match=r"start of a broker is batch 1, but batch 2 .*older copy.*--capture"
        ):
            export(data, log)
        assert batches(log) == [1, 2, 3]

    def test_rows_that_the_broker_has_not_forgotten_yet_are_those_of_the_log(
        self, data: Path, log: Path
    ) -> None:
        write_store(data, [EPOCH], [enqueued(1)], [EPOCH], [enqueued(2)])
        export(data, log)
        write_store(data, [EPOCH], [enqueued(3)])
        export(data, log)
        assert batches(log) == [1, 2, 3, 4, 5, 6]

    def test_segments_without_the_mark(self, data: Path, log: Path) -> None:
        write_store(data, [EPOCH])
        export(data, log)
        (log / MARK_NAME).unlink()
        with pytest.raises(LogRefused, match=MARK_NAME):
            export(data, log)

    def test_a_mark_that_cannot_be_read(self, data: Path, log: Path) -> None:
        write_store(data, [EPOCH])
        export(data, log)
        (data / STORE_MARK_NAME).write_text("{")
        with pytest.raises(LogRefused, match=STORE_MARK_NAME):
            export(data, log)

    def test_no_store(self, tmp_path: Path, log: Path) -> None:
        (tmp_path / "empty").mkdir()
        with pytest.raises(StoreFailed, match="there is no store"):
            export(tmp_path / "empty", log)

    def test_a_store_from_before_there_were_events(self, data: Path, log: Path) -> None:
        write_store(data, [EPOCH])
        with sqlite3.connect(data / "peeklock.db") as db:
            db.execute("PRAGMA user_version = 3")
        db.close()
        with pytest.raises(StoreFailed, match=r"format 3 .*--capture"):
            export(data, log)


def test_a_damaged_newest_segment_is_told_and_does_not_stop_the_log(data: Path, log: Path) -> None:
    write_store(data, [EPOCH])
    export(data, log)
    (log / segments(log)[0]).write_bytes(b"nothing")
    write_store(data, [enqueued(1)])
    told = export(data, log)
    assert [note[0] for note in told.notes] == ["warning"]
    assert told.numbers == [1, 2]


def test_looks_leave_the_locks_of_an_open_store(tmp_path: Path) -> None:
    """A broker that starts cuts the index of the WAL, unless another process has the lock of its users."""
    write_store(tmp_path / "data", [EPOCH, enqueued(1)])
    exporter = Exporter(ExportOptions(FolderSource(tmp_path / "data"), tmp_path / "log", "here"), Told())
    for now_s in range(0, 60, 6):
        exporter.step(float(now_s))
    assert exporter.is_open
    # Byte 128. Source: sqlite.org/walformat.html, "WAL Locks"; UNIX_SHM_DMS in SQLite's os_unix.c.
    program = (
        "import fcntl, sys\n"
        "with open(sys.argv[1], 'r+b') as file: fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 128)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "data/peeklock.db-shm")]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "BlockingIOError" in tried.stderr
    exporter.close()
