"""All metrics, one table: `/metrics`, `/metrics/entities` and docs/reference/metrics.md are made from it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. Each series has the label `namespace`, that of an entity also `entity`."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    """Further labels."""
    per_entity: bool = False
    """Whether `/metrics/entities` has it, too."""
    azure: str = ""
    """The name in Azure Monitor; empty = there is none."""

    @property
    def otel_name(self) -> str:
        """The name in OpenTelemetry: without the unit, which stands beside it there; empty = there is none.

        Source: OpenTelemetry's semantic conventions for names, process.*; the unit that its translation to
        Prometheus appends gives `name` again.
        """
        if self.name.startswith("process_"):
            return _OTEL_PROCESS.get(self.name, "")
        name = self.name.removeprefix("peeklock_").removesuffix("_total").removesuffix("_seconds")
        if not name.startswith("messages_"):
            name = name.removesuffix("_bytes")
        return "peeklock." + re.sub("^messages_", "messages.", name)

    @property
    def otel_unit(self) -> str:
        """The unit in OpenTelemetry (UCUM)."""
        name = self.name.removesuffix("_total")
        return "s" if name.endswith("_seconds") else "By" if name.endswith("_bytes") else "1"


_OTEL_PROCESS = {
    "process_cpu_seconds_total": "process.cpu.time",
    "process_resident_memory_bytes": "process.memory.usage",
    "process_open_fds": "process.open_file_descriptor.count",
}


COUNTERS = {
    "received": Metric(
        "peeklock_messages_received_total",
        "counter",
        "Messages accepted from clients; of an entity, also by a forward or as a copy.",
        per_entity=True,
        azure="IncomingMessages",
    ),
    "received_bytes": Metric(
        "peeklock_messages_received_bytes_total",
        "counter",
        "Size of the messages received.",
        per_entity=True,
        azure="IncomingBytes",
    ),
    "delivered": Metric(
        "peeklock_messages_delivered_total",
        "counter",
        "Deliveries to receivers and cursors.",
        per_entity=True,
        azure="OutgoingMessages",
    ),
    "delivered_bytes": Metric(
        "peeklock_messages_delivered_bytes_total",
        "counter",
        "Size of the messages delivered.",
        per_entity=True,
        azure="OutgoingBytes",
    ),
    "completed": Metric(
        "peeklock_messages_completed_total",
        "counter",
        "Messages completed, received and deleted, or committed by a cursor.",
        per_entity=True,
        azure="CompleteMessage",
    ),
    "abandoned": Metric(
        "peeklock_messages_abandoned_total",
        "counter",
        "Deliveries that receivers abandoned.",
        per_entity=True,
        azure="AbandonMessage",
    ),
    "deferred": Metric(
        "peeklock_messages_deferred_total", "counter", "Messages that receivers deferred.", per_entity=True
    ),
    "expired": Metric(
        "peeklock_messages_expired_total",
        "counter",
        "Messages whose time-to-live ended: dropped or dead-lettered.",
        per_entity=True,
    ),
    "duplicates": Metric(
        "peeklock_messages_duplicates_total",
        "counter",
        "Messages dropped by duplicate detection.",
        per_entity=True,
    ),
    "scheduled": Metric(
        "peeklock_messages_scheduled_total", "counter", "Messages stored for later.", per_entity=True
    ),
    "forwarded": Metric(
        "peeklock_messages_forwarded_total",
        "counter",
        "Messages passed on, counted in the entity that forwards.",
        per_entity=True,
    ),
    "lock_lapses": Metric(
        "peeklock_messages_lock_lapses_total",
        "counter",
        "Locks of messages that ended before a settlement.",
        per_entity=True,
    ),
}
"""By attribute of `Counters`."""

DEAD_LETTERED = Metric(
    "peeklock_messages_dead_lettered_total",
    "counter",
    "Messages moved to a dead-letter queue; a reason of an application counts as `application`.",
    ("reason",),
    per_entity=True,
)

MESSAGES = Metric(
    "peeklock_messages",
    "gauge",
    "Messages by state: active, deferred, scheduled, dead_lettered.",
    ("state",),
    per_entity=True,
    azure="ActiveMessages, DeadletteredMessages, ScheduledMessages, Messages",
)
SIZE = Metric("peeklock_size_bytes", "gauge", "Size of the stored messages.", per_entity=True, azure="Size")
OLDEST = Metric(
    "peeklock_oldest_message_age_seconds",
    "gauge",
    "Age of the oldest active message; 0 if there is none.",
    per_entity=True,
)

REQUESTS = Metric(
    "peeklock_requests_total",
    "counter",
    "Requests by operation and status: succeeded, throttled (server busy), refused.",
    ("operation", "status"),
    azure="IncomingRequests, SuccessfulRequests, ThrottledRequests, UserErrors",
)
DEFECTS = Metric(
    "peeklock_defects_total",
    "counter",
    "Defects of the broker that ended a connection; each is in the log.",
    azure="ServerErrors",
)
DROPPED = Metric(
    "peeklock_dropped_sends_total", "counter", "Pre-settled sends that were refused; no sender learns it."
)
LOST = Metric("peeklock_lost_bodies_total", "counter", "Messages dead-lettered for a damaged body.")

CONNECTIONS = Metric("peeklock_connections", "gauge", "Open AMQP connections.", azure="ActiveConnections")
OPENED = Metric(
    "peeklock_connections_opened_total", "counter", "AMQP connections opened.", azure="ConnectionsOpened"
)
CLOSED = Metric(
    "peeklock_connections_closed_total", "counter", "AMQP connections closed.", azure="ConnectionsClosed"
)
LINKS = Metric("peeklock_links", "gauge", "Open links of senders and receivers.")
LOCKS = Metric("peeklock_locks", "gauge", "Locked messages.")
SESSIONS = Metric("peeklock_sessions", "gauge", "Sessions with messages, a state or a lock.")
ENTITIES = Metric("peeklock_entities", "gauge", "Queues, topics and subscriptions.")

CURSOR_BACKLOG = Metric(
    "peeklock_cursor_backlog",
    "gauge",
    "Messages that a cursor claimed and has not committed, and those that no other cursor holds.",
    ("entity", "cursor"),
)
CURSOR_OLDEST = Metric(
    "peeklock_cursor_oldest_age_seconds",
    "gauge",
    "Age of the oldest message of a cursor's backlog; 0 if there is none.",
    ("entity", "cursor"),
)
CURSOR_CLAIMS = Metric(
    "peeklock_cursor_claims",
    "gauge",
    "Claims of a cursor that are not committed.",
    ("entity", "cursor"),
)

LOOP_LAG = Metric(
    "peeklock_loop_lag_seconds",
    "gauge",
    "How late the event loop was when it was measured last.",
    azure="NamespaceCpuUsage",
)
UNCOMMITTED = Metric("peeklock_uncommitted_bytes", "gauge", "Bytes that wait to be durable.")
BUFFERED = Metric("peeklock_buffered_bytes", "gauge", "Bytes in the buffers of connections.")
FREE = Metric("peeklock_store_free_bytes", "gauge", "Free space of the volume; absent without a folder.")
CAPTURE_BACKLOG = Metric(
    "peeklock_capture_backlog_bytes", "gauge", "Bytes that wait for the event log; absent without one."
)
OWNED = Metric(
    "peeklock_cluster_namespaces", "gauge", "Namespaces that this node owns; absent outside a cluster."
)
RELAYED = Metric(
    "peeklock_cluster_relayed_connections",
    "gauge",
    "Connections that this node carries to other nodes; absent outside a cluster.",
)
READY = Metric(
    "peeklock_ready",
    "gauge",
    "1 if nothing is limited, 0 while sends are refused: whether the status of /health is ok.",
)
BUILD = Metric(
    "peeklock_build_info", "gauge", "Always 1; the labels say what runs.", ("version", "durability", "tier")
)

SEND_SECONDS = Metric(
    "peeklock_send_seconds",
    "histogram",
    "Time from the first command of a commit to its end, for each message sent in it.",
    azure="ServerSendLatency",
)
COMMIT_SECONDS = Metric("peeklock_commit_seconds", "histogram", "Time of a commit in the store.")
BATCH_BYTES = Metric("peeklock_batch_bytes", "histogram", "Size of a commit.")

PROCESS_CPU = Metric("process_cpu_seconds_total", "counter", "CPU time of the broker's process.")
PROCESS_MEMORY = Metric(
    "process_resident_memory_bytes",
    "gauge",
    "Resident memory of the broker's process.",
    azure="NamespaceMemoryUsage",
)
PROCESS_FILES = Metric("process_open_fds", "gauge", "Open file descriptors of the broker's process.")
PROCESS_FILES_MAX = Metric("process_max_fds", "gauge", "The limit of open file descriptors.")
PROCESS_START = Metric("process_start_time_seconds", "gauge", "Start of the process, Unix time.")

METRICS = (
    *COUNTERS.values(),
    DEAD_LETTERED,
    MESSAGES,
    SIZE,
    OLDEST,
    REQUESTS,
    DEFECTS,
    DROPPED,
    LOST,
    CONNECTIONS,
    OPENED,
    CLOSED,
    LINKS,
    LOCKS,
    SESSIONS,
    ENTITIES,
    CURSOR_BACKLOG,
    CURSOR_OLDEST,
    CURSOR_CLAIMS,
    SEND_SECONDS,
    COMMIT_SECONDS,
    BATCH_BYTES,
    LOOP_LAG,
    UNCOMMITTED,
    BUFFERED,
    FREE,
    CAPTURE_BACKLOG,
    OWNED,
    RELAYED,
    READY,
    BUILD,
    PROCESS_CPU,
    PROCESS_MEMORY,
    PROCESS_FILES,
    PROCESS_FILES_MAX,
    PROCESS_START,
)
"""In the order of the page."""
