"""Nodes over PostgreSQL with a synchronous standby, under load and under faults.

python -m tests.faults.demo

site      the database, its standby and the nodes, all as processes
book      what clients of any language report, and what must follow from it
official  senders and workers with the official clients
demo      the order of events of the demo, and its verdict
"""
