"""The files of `--trace-frames`: which connections get one, how many there are, and how they read."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from peeklock.amqp import composites
from peeklock.amqp.composites import composite
from peeklock.amqp.frames import AMQP_HEADER, frame
from peeklock.amqp.recent_frames import KeptFrame
from peeklock.amqp.types import UInt
from peeklock.cli import main
from peeklock.gateway.traced import FrameTrace
from peeklock.gateway.views import Client
from peeklock.server.net.frame_files import PAUSE_MS, FrameFiles
from peeklock.server.settings import StartFailed

AT_MS = 1_764_204_000_123
FRAMES: list[KeptFrame] = [
    (AT_MS, "in", AMQP_HEADER),
    (AT_MS + 1, "in", frame(1, composite(composites.TRANSFER, [UInt(0), UInt(1), b"t"]) + b"a message")),
    (AT_MS + 2, "out", frame(0, b"\x00\x53\x77\x45")),
]


def trace(number: int = 1) -> FrameTrace:
    tracking_id = f"00000000-0000-0000-0000-{number:012}_G{number}"
    client = Client("azure-servicebus", "7.14.3", "c-1")
    return FrameTrace(
        number, tracking_id, True, "amqp:not-allowed", "Not so.", client, "10.0.0.7:4711", FRAMES
    )


class Writing:
    """A folder, and a clock that a test moves."""

    def __init__(self, folder: Path, all_bytes_max: int = 10**6) -> None:
        self.folder = folder
        self.now_ms = AT_MS
        self.files = FrameFiles(folder, lambda: self.now_ms, all_bytes_max=all_bytes_max)

    def take(self, number: int) -> None:
        self.files.take(trace(number))

    async def written(self) -> list[str]:
        if self.files._writing is not None:
            await self.files._writing
        return sorted(file.name for file in self.folder.glob("*"))


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return what `server.log` puts on a record."""
    fields: dict[str, Any] = vars(record)["fields"]
    return fields


def shown(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["trace", *arguments])
    return result.exit_code, result.output


def test_a_file_is_named_by_time_and_tracking_id_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    async def scenario() -> list[str]:
        writing = Writing(tmp_path / "made" / "here")
        writing.take(1)
        return await writing.written()

    (name,) = asyncio.run(scenario())
    assert name == "frames-20251127T004000-00000000-0000-0000-0000-000000000001_G1.jsonl"
    file = tmp_path / "made" / "here" / name
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert b"a message" not in file.read_bytes()

    status, text = shown(str(file))
    assert status == 0
    assert text.splitlines() == [
        "connection 1 from 10.0.0.7:4711, client azure-servicebus 7.14.3",
        "ended by the client: amqp:not-allowed: Not so.",
        "at 2025-11-27T00:40:00.123+00:00, tracking id 00000000-0000-0000-0000-000000000001_G1, peeklock "
        + json.loads(file.read_text().splitlines()[0])["peeklock"],
        "",
        "00:40:00.123 ->      header          protocol=AMQP version=1.0.0",
        "00:40:00.124 ->    1 transfer        handle=0 delivery-id=1 delivery-tag=74 (9 bytes of payload)",
        "00:40:00.125 <-    0 unreadable      119 is not a performative; it begins with "
        "00 00 00 0c 02 00 00 00 00 53 77 45",
    ]
    status, text = shown(str(file), "--json")
    whole = json.loads(text)
    assert status == 0
    assert whole["endedBy"] == "client"
    assert [each["frame"] for each in whole["frames"]] == ["header", "transfer", "unreadable"]


def test_a_client_that_fails_in_a_loop_leaves_a_file_every_2_s(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "peeklock")

    async def scenario() -> list[str]:
        writing = Writing(tmp_path)
        for number in range(1, 5):
            writing.take(number)
        await writing.written()
        writing.now_ms += PAUSE_MS
        writing.take(5)
        return await writing.written()

    assert [name[-10:-6] for name in asyncio.run(scenario())] == ["1_G1", "5_G5"]
    lines = [fields_of(record) for record in caplog.records if record.message == "frames written"]
    assert [line.get("left_out") for line in lines] == [None, 3]


def test_the_oldest_files_go_when_all_are_too_large(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x" * 5000)

    async def scenario() -> list[str]:
        writing = Writing(tmp_path, all_bytes_max=3000)
        for number in range(1, 9):
            writing.take(number)
            await writing.written()
            writing.now_ms += PAUSE_MS
        return await writing.written()

    *traces, other = asyncio.run(scenario())
    assert other == "notes.txt"
    sizes = [(tmp_path / name).stat().st_size for name in traces]
    assert 2 <= len(traces) < 8
    assert sum(sizes) <= 3000 < sum(sizes) + max(sizes)
    assert traces[-1].endswith("8_G8.jsonl")


def test_a_folder_that_cannot_be_made_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "under"):
        with pytest.raises(StartFailed, match=r"--trace-frames .*/file.*: "):
            FrameFiles(folder, lambda: 0)


def test_a_file_that_cannot_be_written_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        writing = Writing(tmp_path / "traces")
        os.rmdir(tmp_path / "traces")
        writing.take(1)
        await writing.written()

    asyncio.run(scenario())
    (record,) = [record for record in caplog.records if record.message == "frames not written"]
    assert fields_of(record)["reason"] == "No such file or directory"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"Endpoint=sb://localhost", "line 1: this is not a file of"),
        (b'{"frames": []}\n', "line 1: this is not a file of"),
        (b'{"trackingId": "x"}\n[1]\n', "line 2: this is not a file of"),
        (b"\xff\xfe\x00", "line 1: this is not a file of"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "file").write_bytes(content)
    status, text = shown(str(tmp_path / "file"))
    assert status == 1
    assert said in text


def test_a_file_that_is_missing_is_a_usage_error(tmp_path: Path) -> None:
    assert shown(str(tmp_path / "none"))[0] == 2
