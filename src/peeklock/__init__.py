"""A durable, self-hosted message broker that speaks Azure Service Bus (AMQP 1.0) on the wire.

Processes    cli, server, capture, demo
Interfaces   gateway (AMQP), admin and rest (HTTP as in Azure), api (JSON)
Core         engine (order of durability), broker (rules of messages), store (durable facts)
Leaves       amqp, auth, rules
Spark        spark (source and sink), pipeline (jobs)
For tests    testing

ARCHITECTURE.md says who may import whom, and why.
"""

from __future__ import annotations

__version__ = "0.1.0"
