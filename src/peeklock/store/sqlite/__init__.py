"""The durable store: a SQLite database in a data folder.

ballast       Room that is kept for a full disk: a file that is given up when a write finds none.
checkpointer  Copies the WAL of a SQLite database into the database itself, while commits go on.
errors        What SQLite's errors mean for a broker, in plain words.
event_reader  Reads event rows beside a running broker, for the process that exports them.
folder        The data folder: one process at a time.
format        Whose file a database is, and in which format.
pace          Which commits the event loop does itself, and which are left to the thread that writes.
packed        A batch as BLOBs, and the one transaction that writes it.
read_only     A store that is only looked at: opened without touching it, also while a broker runs.
store         The durable store of one namespace: a SQLite database in a folder of its own.
tail          Whether the end of a store is there: all that was acknowledged before the process died.
wal           What stands in SQLite's write-ahead log, whether or not SQLite reads it.
witness       The number of the last acknowledged batch, beside the database.
worker        A thread that does one job after the other for the event loop.
"""
