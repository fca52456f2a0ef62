"""What the broker tells the service manager that started it: systemd's notifications.

Owns the datagrams to the socket that `NOTIFY_SOCKET` names, and the time between two signs of life. Without
that variable nothing is sent. Must not know what makes a broker ready. Source: sd_notify(3),
sd_watchdog_enabled(3).
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Mapping

from peeklock.server import log


class Notifier:
    """Sends notifications to the service manager, if there is one."""

    def __init__(self, address: str = "", watchdog_us: int = 0) -> None:
        """Name the manager's socket.

        Args:
            address: a path, or `@` and a name in Linux's abstract namespace; empty = no manager.
            watchdog_us: the manager ends the process after so many microseconds without a sign of life; 0 =
                it expects none.
        """
        self._address = address
        self._interval_s = watchdog_us / 2 / 1_000_000
        self._status = ""
        self._failed = False

    @classmethod
    def of_environment(cls, environment: Mapping[str, str], pid: int) -> Notifier:
        """Return the notifier that the environment of the process `pid` asks for."""
        address = environment.get("NOTIFY_SOCKET", "")
        if address and address[0] not in "/@":
            log.warning(
                "the service manager is told nothing",
                {"reason": f"NOTIFY_SOCKET is {address!r}, and only a path or @name is supported"},
            )
            return cls()
        watched = environment.get("WATCHDOG_PID", str(pid)) == str(pid)
        given = environment.get("WATCHDOG_USEC", "") if watched else ""
        return cls(address, int(given) if given.isdecimal() and given.isascii() else 0)

    def ready(self, status: str = "") -> None:
        """Say that the broker serves; `status` is for people, and empty = as before."""
        self._status = status or self._status
        self._send("READY=1", f"STATUS={self._status}")

    def reloading(self) -> None:
        """Say that the broker follows its files; `ready` ends that."""
        # CLOCK_MONOTONIC: the manager orders it against its own request to reload.
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> None:
        """Say that the broker stops; nothing follows this."""
        self._send("STOPPING=1", "STATUS=stopping")
        self._address = ""

    async def run(self) -> None:
        """Send signs of life from the event loop: when it no longer turns, they end."""
        while self._address and self._interval_s:
            self._send("WATCHDOG=1")
            await asyncio.sleep(self._interval_s)

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address[0] == "@" else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)  # a manager that reads nothing must not hold up the loop
                sender.sendto("\n".join(lines).encode(), address)
        except (OSError, ValueError) as failure:  # ValueError: a NUL in the path
            if not self._failed:
                self._failed = True
                reason = getattr(failure, "strerror", None) or str(failure)
                fields = {"NOTIFY_SOCKET": self._address, "reason": reason}
                log.warning("the service manager is not reached", fields)
