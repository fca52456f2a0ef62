"""Benchmarks: `./run bench [--quick] [SCENARIO...]`.

They measure the broker as a process from outside: rates, latencies, CPU, memory, disk. They know the broker's
command line and the wire; `stages`, `calls` and `micro_*` call its packages.

    run            one run: its systems, turns, sizes
    systems        the measured brokers as processes: peeklock, RabbitMQ; artemis: Apache Artemis; kafka
    machine        the machine, the interpreter, the calibration loop
    results        rows of samples; report: writes them to bench/results/
    process_memory the peak memory of a process and its children
    regressions    CPU figures that have grown since the last committed run
    against        compares this work tree with a commit

    scenarios      a plain queue, and the list of all scenarios
    queue_kinds    sessions, duplicates, partitions, forwarding, purges, transactions
    topics         topics and subscriptions
    awaited        programs that await each answer
    over_http      HTTP compared with AMQP
    transports     TLS and WebSocket
    entities       many entities
    many_namespaces  many namespaces of one process
    capture        the event log
    spark          the Spark source beside Spark's Kafka source (spark_sources, in an environment of its own)
    crowd, floods  many connections, hostile peers

    loadgen        runs the load generator (loadgen.c, amqp.h, wire.h)
    client         a client for what it cannot do; administration, http_pool: HTTP clients
    flood          hostile peers (flood.c)
    delay          a TCP path with a delay
    disk, stalls   the disk's own speed; stalls of the broker's loop

By hand, with `python -m bench.NAME`
    backup         a back-up beside clients, and a restore
    beside         what other clients wait while commands read and move messages; search: searches by peeks
    workers        searches and jobs of the HTTP API, and what other clients wait beside them
    explorer       how quick the page is, and what open pages cost
    cluster        nodes of a cluster: the relay, takeovers, moves, space
    postgres       the store in PostgreSQL against SQLite
    stages         CPU time of a message, stage by stage
    calls          Python calls of a message
    micro_amqp     the AMQP engine; micro_broker: the core; micro_store: engine and store
    micro_rules    rules; micro_topics: sends to topics; rule_mix: their filters
    spark_browse   a batch read; spark_stream: a stream; spark_jobs: audit, metrics, sink
    many_logs      what the exporter takes for many event logs
    three_loops    three ways to send over a slow path
"""

from __future__ import annotations
