"""Nodes over PostgreSQL with a synchronous standby, under load and under faults.

    python -m tests.faults --rounds 10 --fault kill-owner
    python -m tests.faults.demo

The matrix causes each fault again and again, with the clients of the kill loops; the demo tells a story, with
official clients.

    site      the database, its standby and the nodes, all as processes
    wire      what can be slow or silent between nodes and database
    faults    what each fault does
    load      the clients of the kill loops, and what they notice
    taking    clients that receive and delete, and what may be lost on the way to them
    rounds    rounds of one fault, then the judgement
    demo      the order of events of the demo, and its verdict
    official  its clients, in two languages
    book      what they report, and what must follow from it
"""
