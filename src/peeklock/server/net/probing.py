"""Whether a node's own listener answers, and which other nodes it can reach: what it reports of them.

A fault is reported once it was met twice: a busy machine is late sometimes.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import Counter
from dataclasses import replace

from peeklock.cluster.hello import PING, TAKEN, Hello
from peeklock.config.hosts import host_and_port_of
from peeklock.server import log
from peeklock.server.cluster.member import Member

PROBE_S = 3.0
"""Between two probes. Our choice: with the wait below a fault is reported within two leases."""

ANSWER_S_MAX = 3.0
"""For an answer."""

FAULTS = 2
"""In a row, until it is reported."""

_EVERY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


class Prober:
    """The probes of one node."""

    def __init__(self, member: Member, context: ssl.SSLContext, host: str, port: int) -> None:
        """`context`: for connections to nodes; `host`, `port`: where clients reach this node."""
        self._member = member
        self._context = context
        self._own = (_EVERY_ADDRESS.get(host, host), port)
        self._any = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._any.check_hostname = False  # it asks whether something answers, not who
        self._any.verify_mode = ssl.CERT_NONE
        self._faults: Counter[str] = Counter()
        self._said: frozenset[str] = frozenset()

    async def run(self) -> None:
        """Probe for as long as the node runs."""
        while True:
            await asyncio.sleep(PROBE_S)
            await self.probe()

    async def probe(self) -> None:
        """Probe all once, and report what has changed."""
        member = self._member
        me = member.nodes.name
        others = [node for node in member.view.nodes.values() if node.is_live and node.name != me]
        found = await asyncio.gather(
            self._answers(*self._own, self._any, b""),
            *(self._reaches(node.address) for node in others),
        )
        names = (me, *(node.name for node in others))
        for name, is_there in zip(names, found, strict=True):
            self._faults[name] = 0 if is_there else self._faults[name] + 1
        faulty = frozenset(name for name in names if self._faults[name] >= FAULTS)
        if faulty == self._said:
            return
        self._said = faulty
        member.say(lambda report: replace(report, is_sound=me not in faulty, unreached=faulty - {me}))
        if faulty:
            log.warning("a node cannot be reached", {"from": me, "nodes": sorted(faulty)})

    async def _reaches(self, address: str) -> bool:
        return await self._answers(*host_and_port_of(address), self._context, Hello(PING).line())

    async def _answers(self, host: str, port: int, context: ssl.SSLContext, line: bytes) -> bool:
        """Return whether a TLS handshake succeeds, and a line is answered."""
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            async with asyncio.timeout(ANSWER_S_MAX):
                reader, writer = await asyncio.open_connection(host, port, ssl=context)
                try:
                    if line:
                        writer.write(line)
                        return await reader.readexactly(1) == TAKEN
                    return True
                finally:
                    writer.close()
        return False
