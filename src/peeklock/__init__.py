"""A durable, self-hosted message broker that speaks Azure Service Bus (AMQP 1.0) on the wire.

cli       The command line.
demo      `peeklock demo`.
testing   A broker for tests: in process, or in a thread behind a port.
server    The broker process: sockets, threads, clock, files.
pipeline  Spark jobs over the event log and over queues.
worker    Long work over messages: jobs over blocking connections.
spark     The Spark data source.
capture   The process that writes the event log.
api       The JSON API.
rest      Messages over HTTP, as Azure's REST API.
admin     The administration API (ATOM XML).
config    The configuration file.
gateway   AMQP links and nodes of Service Bus.
client    The blocking AMQP client.
engine    Joins the broker and the store: commits, effects, bodies, reclaiming.
broker    The state machine: queues, topics, sessions, transactions.
store     What is durable: SQLite, or memory.
auth      Tokens, keys and rights.
rules     SQL filters and actions.
amqp      AMQP 1.0: codec and protocol machines.
form      Whether the core runs compiled.

The import contracts in pyproject.toml say which may import which; ARCHITECTURE.md says why.
"""

from __future__ import annotations

from peeklock.form import choose

__version__ = "0.3.0.dev0"

FORM = choose(__version__)
"""Which form of the core runs in this process: "pure" or "compiled". Chosen before all other imports."""
