"""The broker process: everything with a socket, a thread, a clock or a file.

process        Event loop, signals, and the line that says the broker is ready.
app            The order in which a broker's parts are made, started and stopped.
node           The parts of this process as a node of a cluster.
cluster        What a node owns, and how it follows the others.
configuration  The configuration file, applied at start and when it changes.
followed_files  Which files a broker follows, and what each one changes.
reload         Looks at these files: each second, and on SIGHUP.
follow         Notices that a file has changed.
storage        The store, opened or rescued at start.
backup         `peeklock backup`.
backup_asked   `peeklock backup` of a broker in memory.
backup_database  `peeklock backup` of a PostgreSQL database.
restore        `peeklock restore`.
copying        `peeklock copy`.
export         `peeklock export`.
repair         `peeklock check`.
check_database  `peeklock check` of a PostgreSQL database.
namespaces     The namespaces of the process.
workers        Child processes that do long work for clients of the HTTP API.
net            Listening sockets, AMQP, HTTP and WebSocket connections.
capture        The event log of one namespace: backlog, limit, figures.
exporter_process  The process that writes the event logs.
otel           Metrics and spans by OTLP.
shard          One namespace on the event loop.
system         The process's own facts, in a store: namespaces, keys, the authority.
keys           Files of keys, and the authority that checks tokens.
tls            TLS contexts and the local certificate authority.
supervised     What a program that starts a broker may ask of it.
notify         What systemd is told: ready, reloading, stopping, signs of life.
origins        Which HTTP requests of web pages are accepted.
loop           The event loop's time: turns, timers, the clock.
common_log     The folder of the event logs of a cluster.
database       The stores in a PostgreSQL database, and what the process is called there.
descriptors    The limit of open files.
disk           What the durable stores share, and where each of them is.
files          Locks on folders, and replacement of files as a whole.
line_limits    Limits on log lines that a peer can cause.
log            Log lines as JSON.
memory         How much memory the process may use.
settings       Settings of a broker, as values.
"""
