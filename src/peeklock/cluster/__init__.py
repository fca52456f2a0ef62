"""Which node of a cluster owns which namespace: decisions from what the database says. Pure.

key      The secret that all nodes share.
view     Nodes and stores, as read at one instant.
placing  Which node is to own which store; what a node takes, and what it gives back.
"""
