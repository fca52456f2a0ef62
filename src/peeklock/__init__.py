"""A durable, self-hosted message broker that speaks Azure Service Bus (AMQP 1.0) on the wire.

Programs     cli, server, demo, capture (writes the event log)
Interfaces   gateway (AMQP), admin and rest (HTTP as in Azure), api (JSON)
Core         engine (order of durability), broker (rules of messages), store (durable facts)
Leaves       amqp, auth, rules
Clients      client (blocking AMQP), spark (source and sink), pipeline (Spark jobs)
Others       config (Config.json), testing (a broker inside a test)

ARCHITECTURE.md says who may import whom, and why.
"""

from __future__ import annotations

__version__ = "0.2.0"
