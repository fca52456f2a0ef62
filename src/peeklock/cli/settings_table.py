"""The settings of `peeklock serve`, one table: options, environment variables, keys of the settings file.

A row has all that its option, its variable, its key and its line in docs/reference/settings.md need.
`sources` says where the values come from.
"""

from __future__ import annotations

import click

from peeklock.cli.options import (
    EXISTING_FILE,
    NEW_FILE,
    NEW_FOLDER,
    SOCKET,
    byte_count,
    collector_url,
    folder,
    grace_ms,
    host_and_port,
    host_name,
    hours_ms,
    node_name,
    tls_name,
)
from peeklock.cli.setting import Setting

_PORT = click.IntRange(0, 65535)


SETTINGS = (
    Setting(
        name="data",
        field="data",
        topic="Data",
        scope="namespace",
        type=NEW_FOLDER,
        parse=folder,
        help="Folder for all data, created if missing. Only one broker can use it at a time. Required "
        "unless --durability memory.",
    ),
    Setting(
        name="store",
        field="store",
        topic="Data",
        metavar="URL",
        help="Keep all messages, entities and keys in this PostgreSQL database, "
        "postgresql://USER@HOST:5432/DATABASE. The data folder has what is of this machine alone then. A "
        "second broker on the database takes over when the first one ends. Give a password by the variable, "
        "or by PGPASSWORD: other users see the command line.",
        more="See [Keep messages in PostgreSQL](../how-to/postgresql.md).",
    ),
    Setting(
        name="store-connections",
        field="store_connections",
        topic="Data",
        type=click.IntRange(8, 1000),
        default=50,
        metavar="N",
        help="Connections to the database of --store, at most. All namespaces share them.",
    ),
    Setting(
        name="node",
        field="node",
        topic="Cluster",
        parse=node_name,
        metavar="NAME",
        help="Be a node of a cluster, by a name that no other one has: the nodes on one --store share its "
        "namespaces, and each leads clients to the owner. Needs --store and --cluster-key.",
        more="See [Run a cluster](../how-to/cluster.md).",
    ),
    Setting(
        name="cluster-key",
        field="cluster_key",
        topic="Cluster",
        type=EXISTING_FILE,
        help="The secret of all nodes, by which they know each other and encrypt keys in the database: 32 "
        "characters or more, such as of `openssl rand -base64 32`.",
    ),
    Setting(
        name="node-address",
        field="node_address",
        topic="Cluster",
        parse=host_and_port,
        metavar="HOST:PORT",
        default_text="--host, or this machine's name, and any port",
        help="Where other nodes reach this one. It listens on this port of --host.",
    ),
    Setting(
        name="config",
        field="config",
        topic="Data",
        scope="namespace",
        type=EXISTING_FILE,
        reloads=True,
        help="Create or update the entities in this file at start; its format is that of the Service Bus "
        "emulator's Config.json. Nothing is ever deleted.",
        more="See [Config.json](config-json.md). The variable `CONFIG_JSON` may have its content instead.",
    ),
    Setting(
        name="emulator-defaults",
        field="emulator_defaults",
        topic="Data",
        scope="namespace",
        flag=True,
        help="Give entities of the configuration that leave them out the emulator's time-to-live of 1 "
        "hour and its MaxDeliveryCount of 3, instead of Azure's unlimited time-to-live and 10.",
    ),
    Setting(
        name="emulator",
        field="emulator",
        topic="Data",
        flag=True,
        help="Stand in for the container of the Service Bus emulator: read its Config.json where that "
        "container has it, obey EMULATOR_HTTP_PORT, print its ready line, listen on port 80 too if that "
        "is possible, and accept host names without a dot. The image sets it.",
        more="See [Run it in a container](../how-to/containers.md).",
    ),
    Setting(
        name="durability",
        field="durability",
        topic="Data",
        scope="namespace",
        type=click.Choice(["replicated", "fsync", "os", "memory"]),
        default="fsync",
        help="What an acknowledgement guarantees. fsync: the message is on stable storage. os: the "
        "operating system has it, so it survives a kill of the broker but not a power cut. memory: "
        "nothing is kept. replicated: with --store, the message is on a standby of the database too.",
    ),
    Setting(
        name="min-free",
        field="min_free_bytes",
        topic="Data",
        parse=byte_count,
        metavar="BYTES",
        default_text="1 GiB or 5 %, the smaller",
        help="Refuse sends while the volume has less free space.",
        more="Settling goes on: see [a full disk](../explanation/durability.md#a-full-disk).",
    ),
    Setting(
        name="accept-loss",
        field="accept_loss",
        topic="Data",
        scope="namespace",
        flag=True,
        help="If the store is damaged, start with what can be read, log what is lost, and set the damaged "
        "files aside in DATA. By default a broker with a damaged store does not start.",
        more="See [Recover a store](../how-to/recover-a-store.md).",
    ),
    Setting(
        name="history",
        field="history",
        topic="Data",
        scope="namespace",
        type=click.IntRange(0, 100_000),
        metavar="N",
        default_text="1000 in development mode, else 0",
        help="Remember the last N messages that left, and who took each, for `GET /$api/v1/history`; 0 = "
        "none.",
        more="Each takes up to 10 KB of memory. See [history](../how-to/api.md#history).",
    ),
    Setting(
        name="host",
        field="host",
        topic="Network",
        default="127.0.0.1",
        help="Address to listen on, or a name: then all its addresses. An address that other machines can "
        "reach requires --auth.",
    ),
    Setting(
        name="amqp-port",
        field="amqp_port",
        topic="Network",
        type=_PORT,
        default=5672,
        help="AMQP port; 0 picks a free one.",
        more="The ready line shows it.",
    ),
    Setting(
        name="http-port",
        field="http_port",
        topic="Network",
        type=_PORT,
        default=5300,
        help="Port for administration, messages over HTTP and GET /health, by HTTP or HTTPS; 0 picks a "
        "free one.",
        more="Every port accepts AMQP, HTTP, WebSocket and TLS, so both options may name the same port.",
    ),
    Setting(
        name="explorer",
        field="explorer",
        topic="Network",
        type=click.Choice(["on", "off"]),
        default="on",
        help="Serve the explorer, a page for browsers, at / of the HTTP port.",
        more="See [Explore a broker in the browser](../how-to/explorer.md).",
    ),
    Setting(
        name="usual-ports",
        field="usual_ports",
        topic="Network",
        flag=True,
        help="Listen on 5671, 443 and 80 too, for clients whose port cannot be set.",
        more="If port 80 is in use, the broker logs a warning and starts without it.",
    ),
    Setting(
        name="control",
        field="control",
        topic="Network",
        type=SOCKET,
        default_text="DATA/control.sock",
        metavar="PATH",
        help="Unix socket on which commands such as `peeklock health` reach this broker: for one without "
        "a data folder, or whose path is too long for a socket (107 bytes). Only its owner can use it.",
        more="See [A running broker](../how-to/ask-a-running-broker.md).",
    ),
    Setting(
        name="auth",
        field="auth",
        topic="Access",
        scope="namespace",
        type=click.Choice(["off", "sas", "jwt", "development"]),
        repeatable=True,
        default_text="development, on a loopback address only",
        help="How clients authenticate; repeatable, to accept both sas and jwt. sas: keys that "
        "`peeklock keys` shows, and those in authorization rules of entities. jwt: JSON web "
        "tokens, as --jwt defines. off: not at all. development: the emulator's well-known key has all "
        "rights, which is the default where only this machine can connect.",
        more="See [Secure a broker](../how-to/secure.md#choose-what-clients-must-present).",
    ),
    Setting(
        name="keys",
        field="keys",
        topic="Access",
        scope="namespace",
        type=EXISTING_FILE,
        reloads=True,
        help="File with the shared access keys, instead of those in the data folder; the broker only "
        "reads it. For keys that another system keeps, such as a secret of Kubernetes.",
        more="See [Keys from elsewhere](../how-to/secure.md#keys-from-elsewhere).",
    ),
    Setting(
        name="jwt",
        field="jwt",
        topic="Access",
        scope="namespace",
        type=EXISTING_FILE,
        reloads=True,
        help="TOML file that defines the accepted JSON web tokens: issuer, audience, keys, roles.",
        more="See [Accept JSON web tokens](../how-to/web-tokens.md).",
    ),
    Setting(
        name="allow-plaintext",
        field="allow_plaintext",
        topic="Access",
        flag=True,
        help="Accept connections without TLS from other machines; by default only from this one.",
    ),
    Setting(
        name="tls-cert",
        field="tls_cert",
        topic="Access",
        type=EXISTING_FILE,
        reloads=True,
        help="PEM certificate chain for TLS, reloaded when the file changes. By default a local authority "
        "in the data folder signs a certificate (see `peeklock ca`).",
        more="See [TLS](../how-to/secure.md#tls).",
    ),
    Setting(
        name="tls-key",
        field="tls_key",
        topic="Access",
        type=EXISTING_FILE,
        reloads=True,
        help="PEM private key of --tls-cert.",
    ),
    Setting(
        name="tls-pfx-base64",
        field="tls_pfx_base64",
        topic="Access",
        secret=True,
        help="Certificate and key as a PFX file without a password, in base64, instead of --tls-cert and "
        "--tls-key: as Azure Key Vault returns a certificate.",
    ),
    Setting(
        name="tls-name",
        field="tls_names",
        topic="Access",
        parse=tls_name,
        metavar="NAME",
        repeatable=True,
        help="Add a DNS name or IP address to the certificate of the local authority; repeatable. "
        "HOST:PORT adds both HOST and HOST:PORT, which the Go client checks.",
        more="`*.example.org` is a name, too. See [Go](clients.md#go).",
    ),
    Setting(
        name="host-name",
        field="host_names",
        topic="Access",
        parse=host_name,
        metavar="NAME",
        repeatable=True,
        help="Without authentication, HTTP and WebSocket requests are accepted for localhost and IP "
        "addresses only; this accepts a further DNS name. Repeatable.",
        more="See [Web pages in a browser](../explanation/security.md#web-pages-in-a-browser).",
    ),
    Setting(
        name="tier",
        field="tier",
        topic="Behaviour",
        scope="namespace",
        type=click.Choice(["basic", "standard", "premium"]),
        default="standard",
        help="Service tier whose limits apply: message size, time-to-live, features.",
        more="See [Tiers](entities.md#tiers).",
    ),
    Setting(
        name="resource-lock",
        field="delete_lock",
        topic="Behaviour",
        scope="namespace",
        type=click.Choice(["CanNotDelete"], case_sensitive=False),
        metavar="[CanNotDelete]",
        help="Lock the namespace. CanNotDelete: requests to delete a queue, topic or subscription are "
        "refused; AutoDeleteOnIdle still applies, and rules can be deleted.",
    ),
    Setting(
        name="lock-grace",
        field="lock_grace_ms",
        topic="Behaviour",
        scope="namespace",
        parse=grace_ms,
        default="5",
        metavar="SECONDS",
        help="How long the message locks of a broken connection are kept, so that its client can "
        "reconnect and settle. 0: not at all; lapse: until the locks expire.",
        more="See [When a connection "
        "breaks](../explanation/clocks-and-connections.md#when-a-connection-breaks).",
    ),
    Setting(
        name="clock-step-limit",
        field="clock_step_limit_ms",
        topic="Behaviour",
        parse=hours_ms,
        default="24",
        metavar="HOURS",
        help="Distrust the machine's clock when it jumps forwards by more: nothing expires and no "
        "schedule fires because of the jump, until SIGUSR1 or a restart.",
        more="See [When the clock is set](../explanation/clocks-and-connections.md#when-the-clock-is-set).",
    ),
    Setting(
        name="enforce-quotas",
        field="enforce_quotas",
        topic="Behaviour",
        scope="namespace",
        flag=True,
        help="Enforce MaxSizeInMegabytes of queues and topics (a topic counts its subscriptions), and the "
        "tier's numbers of queues, topics, subscriptions and filters.",
    ),
    Setting(
        name="ready-file",
        field="ready_file",
        topic="Behaviour",
        type=NEW_FILE,
        help="Write this file when clients can connect, and remove it at the end: a JSON object with "
        "connectionString, amqpPort, httpPort and pid. For programs that start a broker, with port 0.",
        more="See [Start a broker in tests](../how-to/start-in-tests.md).",
    ),
    Setting(
        name="exit-with-parent",
        field="exit_with_parent",
        topic="Behaviour",
        flag=True,
        help="Stop when the process that started the broker has ended, also if it was killed.",
    ),
    Setting(
        name="namespaces",
        field="namespaces",
        topic="Behaviour",
        type=click.Choice(["configured", "on-use"]),
        default="configured",
        help="on-use: in development mode, a SharedAccessKeyName that is not known makes an empty throw-away "
        "namespace of that name, so that each test is isolated by its connection string.",
        more="See [Isolate tests](../how-to/isolate-tests.md).",
    ),
    Setting(
        name="throw-away",
        field="throw_away",
        topic="Behaviour",
        type=click.IntRange(min=0),
        metavar="N",
        default_text="1000 in development mode, else 0",
        help="How many throw-away namespaces there may be at a time. A node of a cluster makes none.",
    ),
    Setting(
        name="throw-away-lease",
        field="throw_away_lease_s",
        topic="Behaviour",
        type=click.FloatRange(min=0, min_open=True),
        default=3600.0,
        metavar="SECONDS",
        help="How long a throw-away namespace stays after its last use.",
    ),
    Setting(
        name="otlp",
        field="otlp",
        topic="Behaviour",
        parse=collector_url,
        metavar="URL",
        help="Export metrics, and spans of traced messages, to the OpenTelemetry collector at this URL, such "
        "as http://localhost:4318, by OTLP over HTTP. Needs pip install 'peeklock[otel]'.",
        more="OpenTelemetry's own variables add headers, resource attributes and intervals: see "
        "[OpenTelemetry](../how-to/opentelemetry.md).",
    ),
    Setting(
        name="trace-frames",
        field="trace_frames",
        topic="Behaviour",
        type=NEW_FOLDER,
        parse=folder,
        help="Keep the last 500 AMQP frames of each connection in memory, without bodies and tokens, and "
        "write them to a file in this folder when an error of either side ends the connection: at most one "
        "in 2 s, 100 MB in all.",
        more="`peeklock trace` shows a file: see [Trace the frames before an "
        "error](../how-to/trace-frames.md).",
    ),
    Setting(
        name="capture",
        field="capture",
        topic="Event log",
        scope="namespace",
        type=NEW_FOLDER,
        parse=folder,
        help="Write an event log to this folder: the life of every message, as Parquet files. Needs pip "
        "install 'peeklock[capture]'.",
        more="The broker does not start if the folder cannot be written, overlaps `--data` or has the log "
        "of another data folder. See [Event log](event-log.md).",
    ),
    Setting(
        name="capture-bodies",
        field="capture_bodies",
        topic="Event log",
        scope="namespace",
        repeatable=True,
        metavar="ENTITY",
        help="Include bodies and properties of messages sent to this queue or topic; repeatable, * = all.",
    ),
    Setting(
        name="capture-backlog",
        field="capture_backlog_bytes",
        topic="Event log",
        scope="namespace",
        parse=byte_count,
        default=str(1024**3),
        metavar="BYTES",
        help="How much may wait to be written to the event log; at least 64 KiB.",
    ),
    Setting(
        name="capture-policy",
        field="capture_policy",
        topic="Event log",
        scope="namespace",
        type=click.Choice(["block", "drop-and-say"]),
        default="block",
        help="When the backlog is full. block: refuse sends until half of it is written; drop-and-say: "
        "drop the oldest events and log which.",
    ),
    Setting(
        name="capture-interval",
        field="capture_interval_s",
        topic="Event log",
        scope="namespace",
        type=click.FloatRange(min=0.1),
        default=10.0,
        metavar="SECONDS",
        help="Begin a new file of the event log after this time: files can be read when they are complete.",
        more="A shorter interval makes more and smaller files.",
    ),
    Setting(
        name="capture-keep-days",
        field="capture_keep_days",
        topic="Event log",
        scope="namespace",
        type=click.FloatRange(min=0, min_open=True),
        metavar="DAYS",
        default_text="all",
        help="Delete files of the event log that are older.",
        more="The newest file always stays.",
    ),
    Setting(
        name="capture-keep-bytes",
        field="capture_keep_bytes",
        topic="Event log",
        scope="namespace",
        parse=byte_count,
        metavar="BYTES",
        default_text="all",
        help="Delete the oldest files of the event log while all together are larger.",
    ),
)
