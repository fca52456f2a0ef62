"""A gateway that keeps the last frames of its connection, and hands them over if an error ends it.

A broker without `--trace-frames` has none of these, so that it costs nothing then.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from peeklock.amqp.connection import UNLIMITED_UNITS
from peeklock.amqp.recent_frames import KeptFrame, RecentFrames
from peeklock.broker.vocabulary.commands import Command
from peeklock.gateway.bounds import Buffers
from peeklock.gateway.choice import Namespaces
from peeklock.gateway.connection import Gateway, OnDefect, raise_defect
from peeklock.gateway.context import GatewayLimits
from peeklock.gateway.errors import Log
from peeklock.gateway.views import Client

_TRACKING_ID = re.compile(r"TrackingId:([0-9a-f-]{36}_G[0-9]+)")


@dataclass(frozen=True, slots=True)
class FrameTrace:
    """What is known of a connection that an error has ended."""

    connection_id: int
    tracking_id: str
    """As in the error's text and in the log, if this end made the error."""
    by_client: bool
    """Whether the client sent the error; else the broker did."""
    condition: str
    text: str
    client: Client
    peer: str
    """Address and port; empty = unknown."""
    frames: list[KeptFrame]


class TracedGateway(Gateway):
    """See the module."""

    def __init__(
        self,
        connection_id: int,
        *,
        clock: Callable[[], int],
        on_error: Callable[[FrameTrace], None],
        namespaces: Namespaces,
        tracking: Callable[[], str],
        log: Log,
        now_ms: int,
        limits: GatewayLimits | None = None,
        bears_refusal: Callable[[], bool] = lambda: True,
        peer: Callable[[], str] = str,
        on_defect: OnDefect = raise_defect,
        buffers: Buffers | None = None,
        first_uses: set[str] | None = None,
        ahead_ms: Callable[[], int] = int,
        on_chosen: Callable[[Any], None] = lambda hosted: None,
    ) -> None:
        """Make the server's end of a connection.

        Args:
            connection_id: as of `Gateway`, also the arguments that are not described here.
            clock: returns UTC ms.
            on_error: takes the frames of this connection when an error has ended it.
        """
        super().__init__(
            connection_id,
            namespaces=namespaces,
            tracking=tracking,
            log=log,
            now_ms=now_ms,
            limits=limits,
            bears_refusal=bears_refusal,
            peer=peer,
            on_defect=on_defect,
            buffers=buffers,
            first_uses=first_uses,
            ahead_ms=ahead_ms,
            on_chosen=on_chosen,
        )
        self._recent = RecentFrames()
        self._clock = clock
        self._on_error = on_error
        self._peer = peer
        self._peer_name = ""
        """It cannot be asked for when the connection is over."""

    def receive(
        self, data: bytes | bytearray | memoryview, now_ms: int, units: int = UNLIMITED_UNITS
    ) -> list[Command]:
        if data:
            try:
                self._recent.received.add(bytes(data), now_ms)
                self._peer_name = self._peer_name or self._peer()
            except Exception as defect:
                self._break(defect)
        return super().receive(data, now_ms, units)

    def data_to_send(self) -> bytes:
        data = super().data_to_send()
        if data:
            try:
                self._recent.sent.add(data, self._clock())
            except Exception as defect:
                self._break(defect)
        return data

    def forget(self) -> None:
        try:
            trace = self._trace()
            if trace is not None:
                self._on_error(trace)
        except Exception as defect:
            self._on_defect(defect, "")
        super().forget()

    def _trace(self) -> FrameTrace | None:
        """Return what is known of the connection, if an error has ended it."""
        end = self._connection.end_error
        if end is None or self._forced:
            return None
        found = None if end.by_peer else _TRACKING_ID.search(end.error.description)
        return FrameTrace(
            self._context.connection_id,
            found[1] if found else self._context.reporter.track(),
            end.by_peer,
            str(end.error.condition),
            end.error.description,
            self._client,
            self._peer_name,
            self._recent.frames(),
        )
