"""Structured log lines on standard error: one JSON object a line, with `time`, `level`, `event` and its
fields.

Nothing here filters secrets; callers never pass one (keys and tokens have no readable form in this code).

Standard `logging` rather than structlog, which imports rich at start-up: 180 ms and 10 MB of a broker that
must be ready in 600 ms and idle in 70 MB.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

_logger = logging.getLogger("peeklock")


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def configure(level: int = logging.INFO) -> None:
    """Send every log line of the process to standard error as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    _logger.setLevel(level)


def info(event: str, fields: Mapping[str, Any] | None = None) -> None:
    """Log an expected event."""
    _logger.info(event, extra={"fields": fields or {}})


def warning(event: str, fields: Mapping[str, Any] | None = None) -> None:
    """Log an event that may need an operator."""
    _logger.warning(event, extra={"fields": fields or {}})


def error(
    event: str, fields: Mapping[str, Any] | None = None, *, exc_info: BaseException | None = None
) -> None:
    """Log a failure, with the traceback of `exc_info`."""
    _logger.error(event, extra={"fields": fields or {}}, exc_info=exc_info)
