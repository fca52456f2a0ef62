"""The ports of a broker: opened, reported when others can reach them, and given the current TLS files."""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Callable, Iterable, Iterator

from peeklock.config.hosts import host_of
from peeklock.server import log
from peeklock.server.follow import Outcome
from peeklock.server.keys.authority_manager import is_loopback
from peeklock.server.line_limits import Note
from peeklock.server.net.listener import Listener, ProtocolFactory
from peeklock.server.settings import Settings, StartFailed
from peeklock.server.tls.contexts import LOOK_S, TlsFiles
from peeklock.server.tls.kept_authority import KeptAuthority

USUAL_PORTS = (5671, 443)
"""AMQP over TLS; HTTPS and WebSocket: for clients whose port cannot be set."""

PLAIN_PORT = 80
"""For .NET's administration client with `UseDevelopmentEmulator=true`: always up to 7.19, later without a
port. Source: wire contract C38."""


class Ports:
    """The open ports of one broker."""

    def __init__(
        self,
        settings: Settings,
        amqp: ProtocolFactory,
        http: ProtocolFactory,
        wait_s: Callable[[str], float | None],
        note: Note,
        authority: KeptAuthority | None = None,
    ) -> None:
        """Check the TLS files; `authority` is that of `TlsFiles`, the others those of `Listener`.

        Raises: StartFailed.
        """
        self._settings = settings
        given = (settings.tls_cert, settings.tls_key)
        if settings.tls_pfx_base64 is not None:
            from peeklock.server.tls.pfx import PfxInvalid, unpacked

            try:
                given = unpacked(settings.tls_pfx_base64, settings.data)
            except PfxInvalid as failure:
                raise StartFailed(f"the PFX of PEEKLOCK_TLS_PFX_BASE64 {failure}") from failure
        self._is_given = given[0] is not None
        self._files = TlsFiles(
            settings.data,
            *given,
            (*_with_hosts(settings.tls_names), *_names_of(settings.host)),
            for_others=not is_loopback(settings.host),
            authority=authority,
        )
        self._refuse_open_keys()
        self._listener = Listener(
            amqp,
            http,
            self._files.load,
            allow_plaintext=settings.allow_plaintext,
            wait_s=wait_s,
            note=note,
        )
        if self._is_given:
            try:
                self._listener.use(self._files.load())  # a bad pair fails now, not with the first client
            except OSError as failure:  # ssl.SSLError is one
                raise StartFailed(f"TLS: {failure}; give a PEM certificate chain and its private key") from (
                    failure
                )
        self.amqp_port = self.http_port = 0
        self.opened: list[int] = []
        self.plaintext_everywhere = settings.allow_plaintext or is_loopback(settings.host)
        """Whether plain connections are accepted on every address."""
        self._load_now = False
        """The TLS files were missing or damaged before `open`."""
        self._looks = asyncio.Lock()

    async def open(self) -> None:
        """Make the TLS files, which clients read once the broker is ready; listen. Raises: StartFailed."""
        try:
            self._load_now = await asyncio.to_thread(self._files.make_files)
        except OSError:  # logged by `follow_tls`; plain connections are accepted
            self._load_now = True
        settings = self._settings
        self.amqp_port = self._bind(settings.amqp_port, "--amqp-port")
        if settings.http_port == settings.amqp_port != 0:
            self.http_port = self.amqp_port
        else:
            self.http_port = self._bind(settings.http_port, "--http-port")
        opened = {self.amqp_port, self.http_port}
        if settings.usual_ports:
            for port in USUAL_PORTS:
                if port not in opened:
                    self._bind(port, "--usual-ports")
                    opened.add(port)
        if (settings.usual_ports or settings.emulator) and PLAIN_PORT not in opened:
            opened.update(self._bind_plain())
        self.opened = sorted(opened)
        if not is_loopback(settings.host):
            plain = "allowed: keys and messages can be read on the way"
            without_tls = plain if settings.allow_plaintext else "refused"
            fields = {"host": settings.host, "ports": self.opened, "without_tls": without_tls}
            log.warning("other machines can connect", fields)

    def _refuse_open_keys(self) -> None:
        """Raise StartFailed for a private key of ours that others can read; warn of one that was given."""
        for file in self._files.open_keys():
            if self._is_given:
                do = f"`chmod 600 {file}`, and a new pair if others may have read it"
                log.warning("the key of --tls-key can be read by others", {"file": str(file), "do": do})
                continue
            raise StartFailed(
                f"{file} can be read by others than its owner: run `chmod 600 {file}`; if others may have "
                "read it, delete it as well: the start makes another"
            )

    def _bind_plain(self) -> set[int]:
        """Listen on the port for plain HTTP, or warn: a web server often has it, and few clients need it."""
        host = self._settings.host
        try:
            return {self._listener.bind(host, PLAIN_PORT)}
        except OSError as failure:
            log.warning(
                "a usual port is not listened on",
                {
                    "port": PLAIN_PORT,
                    "host": host,
                    "reason": failure.strerror or str(failure),
                    "affects": ".NET's administration client with UseDevelopmentEmulator=true",
                    "do": _what_to_do(failure, "--usual-ports", PLAIN_PORT),
                },
            )
            return set()

    def _bind(self, port: int, option: str) -> int:
        host = self._settings.host
        try:
            return self._listener.bind(host, port)
        except OSError as failure:
            self._listener.close()
            why, do = failure.strerror or failure, _what_to_do(failure, option, port)
            raise StartFailed(f"cannot listen on {host}:{port}: {why}; {do}") from failure

    async def follow_tls(self) -> None:
        """Follow the TLS files for as long as the broker runs, in a thread."""
        # Sound files are loaded with the first client: most brokers on loopback have none.
        if self._shows_ours_to_others() or self._load_now:
            await self._listener.prepare_tls()
            if self._shows_ours_to_others() and self._files.names:
                log.info(
                    "the certificate is good for these names alone",
                    {
                        "names": self._files.names,
                        "do": "add any other name or address that clients use with --tls-name",
                    },
                )
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look_at_tls()

    async def look_at_tls(self) -> Outcome:
        """Follow the TLS files now."""
        async with self._looks:
            if self._listener.tls_fails:
                await self._listener.prepare_tls()
            context: ssl.SSLContext | None = await asyncio.to_thread(self._files.follow)
            if context is not None:
                self._listener.use(context)
                return Outcome.FOLLOWED
            wrong = self._listener.tls_fails or self._files.refused
            return Outcome.REFUSED if wrong else Outcome.UNCHANGED

    def _shows_ours_to_others(self) -> bool:
        """Return whether other machines see our certificate: its names matter then, and TLS is certain."""
        return not self._is_given and not is_loopback(self._settings.host)

    def health(self) -> dict[str, int | str]:
        """Return what was refused since the start, and a fault of TLS, for `GET /health`."""
        # The log names the file; a client that reads this need not know our folders.
        wrong = "no TLS connection can be accepted; the log says why" if self._listener.tls_fails else ""
        return {**self._listener.figures(), **({"tls": wrong} if wrong else {})}

    def close(self) -> None:
        """Stop listening; open connections stay."""
        self._listener.close()


def _names_of(host: str) -> tuple[str, ...]:
    """Return the name in `--host`, unless it means every address."""
    return () if host in ("0.0.0.0", "::", "") or not host.isascii() else (host,)


def _with_hosts(names: Iterable[str]) -> Iterator[str]:
    """Return the names, and before each `HOST:PORT` its host, which all clients but Go's check."""
    for name in names:
        yield host_of(name)
        yield name


def _what_to_do(failure: OSError, option: str, port: int) -> str:
    """Return how to listen on a port that could not be opened, or to do without it."""
    if failure.errno in (errno.EMFILE, errno.ENFILE):
        return "raise the limit of open files (ulimit -n), or serve fewer namespaces"
    if failure.errno not in (errno.EADDRINUSE, errno.EACCES):
        return "give an address of this machine with --host"
    if option == "--usual-ports":
        without = "leave --usual-ports out"
    else:
        without = "choose another with --amqp-port / --http-port (0 picks a free one)"
    if failure.errno == errno.EADDRINUSE:
        return f"{without}, or stop the program that listens there" if option == "--usual-ports" else without
    return (
        f"{without}, or permit it: `sysctl net.ipv4.ip_unprivileged_port_start={port}` for every program, or "
        "`AmbientCapabilities=CAP_NET_BIND_SERVICE` in the unit of a systemd service"
    )
