"""Several nodes on one store with leases: `python -m tests.simulation --nodes 3 --seed 7`.

plan      the faults of a seed
cluster   all nodes as the one broker that clients see; who owns the store in truth
member    one node: its lease, its processes, when it is frozen, cut off or dead
commits   the commits of a process, and its lease, as `store.postgres` has them
relay     connections of clients, which any node leads to the owner
database  the model of PostgreSQL with a synchronous standby
link      the way from a node to the database
"""
