"""Queues, topics and subscriptions as entities.

entities    All entities by name and id, and the rules of subscriptions.
entity      One entity: its settings, its queues, and what it allows.
fan_out     Copies of a topic's message in its subscriptions.
forwarding  Messages passed on from one entity to another.
idle        Deletion of idle entities (AutoDeleteOnIdle).
validation  Checks of settings and names.
"""
