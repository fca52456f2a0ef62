"""Settings of a broker process, and the error for settings that cannot be followed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from peeklock.broker.queue.graces import LOCK_GRACE_MS
from peeklock.broker.queue.wall_clock import CLOCK_STEP_LIMIT_MS

AuthMode = Literal["off", "sas", "jwt", "development"]
Durability = Literal["replicated", "fsync", "os", "memory"]
Policy = Literal["block", "drop-and-say"]

CONFIG_VARIABLE = "CONFIG_JSON"
"""The environment variable that may have the content of the configuration file."""

HISTORY = 1_000
"""Messages remembered in development mode. Our choice: 10 MB at most, with bodies of 4 KiB."""


CONTROL_SOCKET = "control.sock"
"""In the data folder."""


class StartFailed(Exception):
    """The broker cannot start; the message says what happened, to what, and what to do."""


@dataclass(frozen=True, slots=True)
class CaptureSettings:
    """Settings of the event log."""

    folder: Path
    bodies: tuple[str, ...] = ()
    """Entities whose messages are captured with their bodies; `*` = all."""
    backlog_bytes: int = 1024**3
    policy: Policy = "block"
    interval_s: float = 10.0
    """The longest time until an event can be read from the log."""
    keep_days: float | None = None
    keep_bytes: int | None = None

    def captures_body(self) -> Callable[[str], bool]:
        """Return a predicate: are messages of the entity of this name captured with their bodies?"""
        if "*" in self.bodies:
            return lambda name: True
        wanted = frozenset(name.lower() for name in self.bodies)
        return lambda name: bool(wanted) and name.lower() in wanted


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a broker process, named as the options of `peeklock serve`."""

    data: Path | None
    config: Path | None
    host: str
    amqp_port: int
    http_port: int
    durability: Durability
    tls_cert: Path | None
    tls_key: Path | None
    tier: str
    min_free_bytes: int | None
    enforce_quotas: bool = False
    delete_lock: bool = False
    lock_grace_ms: int | None = LOCK_GRACE_MS
    """How long a broken connection keeps its locks; None = until they expire."""
    clock_step_limit_ms: int = CLOCK_STEP_LIMIT_MS
    """The largest forward step of the wall clock that is trusted."""
    capture: CaptureSettings | None = None
    """None = no event log."""
    auth: frozenset[AuthMode] = frozenset()
    """Empty = `development`, on a loopback address only: the emulator's well-known key has all rights."""
    store: str | None = None
    """URL of the PostgreSQL database that has the stores; None = they are in the data folder."""
    store_connections: int = 50
    """Connections to it, at most."""
    node: str | None = None
    """The name of this process in a cluster; None = it is in none, and has all stores."""
    cluster_key: Path | None = None
    """File with the secret that all nodes share."""
    node_address: str | None = None
    """`HOST:PORT` at which other nodes reach it; None = `host`, or this machine's name, and any port."""
    keys: Path | None = None
    """File with the shared access keys, which is only read; None = those in the data folder."""
    jwt: Path | None = None
    """File with the accepted JSON web tokens; None = none are accepted."""
    allow_plaintext: bool = False
    """Accept connections without TLS from other machines."""
    tls_names: tuple[str, ...] = ()
    """Further names in the certificate that the local authority signs."""
    host_names: tuple[str, ...] = ()
    """Further DNS names under which HTTP clients reach a broker without authentication."""
    history: int | None = None
    """Messages remembered after they left; None = `HISTORY` in development mode, else none."""
    usual_ports: bool = False
    """Listen on 5671, 443 and 80 too."""
    control: Path | None = None
    """Where the control socket is; None = in the data folder."""
    accept_loss: bool = False
    """Start with what can be read of a damaged store."""
    config_json: str | None = None
    """The content of a configuration file, instead of `config`."""
    tls_pfx_base64: str | None = None
    """Certificate and key, instead of `tls_cert` and `tls_key`."""
    emulator: bool = False
    """Stand in for the container of the Service Bus emulator."""
    settings_file: Path | None = None
    """The file that some of these come from."""
    emulator_defaults: bool = False
    """New entities of the configuration get the emulator's defaults."""
    ready_file: Path | None = None
    """File that is there while the broker is ready; None = none is written."""
    exit_with_parent: bool = False
    """Stop when the process that started this one has ended."""
    namespaces: Literal["configured", "on-use"] = "configured"
    """`on-use`: an unknown key name makes a throw-away namespace, in development mode."""
    throw_away: int | None = None
    """Throw-away namespaces at a time; None = 1,000 in development mode, else 0."""
    throw_away_lease_s: float = 3600.0
    """How long one stays without use."""
    otlp: str | None = None
    """URL of an OpenTelemetry collector; None = nothing is exported."""
    explorer: Literal["on", "off"] = "on"
    """Whether the HTTP port serves the explorer at `/`."""
    trace_frames: Path | None = None
    """Folder for the last frames of connections that an error has ended; None = none are kept."""

    @property
    def is_development(self) -> bool:
        """Whether the emulator's well-known key has all rights."""
        return not self.auth or "development" in self.auth

    @property
    def control_path(self) -> Path | None:
        """Where the control socket is; None = a broker without a folder has none unless it is named."""
        if self.control is not None:
            return self.control
        return None if self.data is None else Path(self.data) / CONTROL_SOCKET

    @property
    def own_names(self) -> tuple[str, ...]:
        """Names of this broker beside `localhost`."""
        return (*self.host_names, *self.tls_names, self.host)

    @property
    def history_size(self) -> int:
        """Messages remembered after they left; 0 = none."""
        return self.history if self.history is not None else HISTORY if self.is_development else 0
