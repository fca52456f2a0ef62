"""A durable, self-hosted message broker that speaks Azure Service Bus (AMQP 1.0) on the wire.

The rooms, outermost first: `cli` -> `server` -> `gateway`, `admin` -> `engine` -> `broker`, `store`; the
leaves are `amqp` and `auth`. ARCHITECTURE.md says who may import whom, and why.
"""

from __future__ import annotations

__version__ = "0.2.0"
