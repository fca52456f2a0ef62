"""Queues, topics and subscriptions as entities: settings, rules, fan-out and forwarding.

entities    The entities of a namespace: which there are, by name and by id, and the rules of subscriptions.
entity      One entity: its settings, its queues and what it is for.
fan_out     How a topic's message comes to its subscriptions.
forwarding  Passing messages on from one entity to another.
idle        Deleting entities that nobody uses (AutoDeleteOnIdle).
validation  Which settings an entity may have.
"""
