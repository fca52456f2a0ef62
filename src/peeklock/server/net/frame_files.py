"""`--trace-frames`: a file with the last frames of each connection that an error has ended.

It owns names, number and size of the files. It must not know what a frame means: `amqp.frame_text` does.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from peeklock import __version__
from peeklock.server import log
from peeklock.server.loop.tasks import tell_failure
from peeklock.server.settings import StartFailed

if TYPE_CHECKING:
    from peeklock.gateway.traced import FrameTrace

PAUSE_MS = 2000
"""Between two files: a client that fails and connects again in a loop must not fill the disk."""

ALL_BYTES_MAX = 100 * 1000 * 1000
"""Of all files in the folder; the oldest ones go first."""

_PREFIX, _SUFFIX = "frames-", ".jsonl"


class FrameFiles:
    """The files of one folder."""

    def __init__(
        self, folder: Path, now_ms: Callable[[], int], *, all_bytes_max: int = ALL_BYTES_MAX
    ) -> None:
        """Make the folder if it is missing. Raises: StartFailed."""
        self._folder = folder
        self._now_ms = now_ms
        self._all_bytes_max = all_bytes_max
        self._next_ms = 0
        self._left_out = 0
        """Connections without a file, since the last one with one."""
        self._writing: asyncio.Task[None] | None = None
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as failure:
            raise StartFailed(f"--trace-frames {folder}: {failure.strerror}") from failure
        if not os.access(folder, os.W_OK | os.X_OK):
            raise StartFailed(f"--trace-frames {folder}: this process may not write there")

    def take(self, trace: FrameTrace) -> None:
        """Write the frames of a connection that an error has ended, unless the last file is too young."""
        now_ms = self._now_ms()
        if now_ms < self._next_ms or self._writing is not None:
            self._left_out += 1
            return
        self._next_ms = now_ms + PAUSE_MS
        left_out, self._left_out = self._left_out, 0
        self._writing = asyncio.get_running_loop().create_task(self._write(trace, now_ms, left_out))
        self._writing.add_done_callback(tell_failure)

    async def _write(self, trace: FrameTrace, now_ms: int, left_out: int) -> None:
        """Write a file in a thread: to decode 500 frames takes longer than a turn may."""
        at = datetime.fromtimestamp(now_ms / 1000, UTC)
        file = self._folder / f"{_PREFIX}{at:%Y%m%dT%H%M%S}-{trace.tracking_id}{_SUFFIX}"
        fields = {"tracking_id": trace.tracking_id, "connection": trace.connection_id, "file": str(file)}
        if left_out:
            fields["left_out"] = left_out
        try:
            await asyncio.to_thread(self._write_now, file, trace, at)
        except OSError as failure:
            log.warning("frames not written", {**fields, "reason": failure.strerror or str(failure)})
        else:
            log.info("frames written", fields)
        finally:
            self._writing = None

    def _write_now(self, file: Path, trace: FrameTrace, at: datetime) -> None:
        from peeklock.amqp.frame_text import described

        head = {
            "peeklock": __version__,
            "time": at.isoformat(timespec="milliseconds"),
            "trackingId": trace.tracking_id,
            "connection": trace.connection_id,
            "peer": trace.peer,
            "client": {
                "product": trace.client.product,
                "version": trace.client.version,
                "containerId": trace.client.container_id,
            },
            "endedBy": "client" if trace.by_client else "broker",
            "condition": trace.condition,
            "text": trace.text,
        }
        lines = [json.dumps(line) for line in (head, *map(described, trace.frames))]
        data = ("\n".join(lines) + "\n").encode()
        self._make_room(len(data))
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(data)

    def _make_room(self, size: int) -> None:
        """Remove the oldest files, as their names say, until another one of `size` bytes fits."""
        files = sorted(self._folder.glob(f"{_PREFIX}*{_SUFFIX}"))
        sizes = [file.stat().st_size for file in files]
        total = sum(sizes) + size
        for file, bytes_ in zip(files, sizes, strict=True):
            if total <= self._all_bytes_max:
                return
            file.unlink(missing_ok=True)
            total -= bytes_
