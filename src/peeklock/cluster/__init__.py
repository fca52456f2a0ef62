"""Which node of a cluster owns which namespace: decisions from what the database says. Pure.

hello    What a node says to another one before the bytes of a client.
key      The secret that all nodes share.
view     Nodes and stores, as read at one instant.
placing  Which node is to own which store; what a node takes, and what it gives back.
"""
