"""The durable store: a SQLite database in a data folder.

checkpointer  Copies the WAL into the database while commits go on.
errors        SQLite's errors as errors of a store.
event_reader  Reads event rows while a broker runs.
filler        Makes a store of what a back-up has.
folder        The lock of a data folder, and the names of its files.
format        The number of the format, the marks of our files, the tables.
opening       Opens the database for writing: settings, a new store, an older format.
pace          Decides which commits the event loop does itself.
read_only     Opens a store for reading only.
reader        Reads a store as it is stored, for a back-up.
space         Returns free pages to the disk, and keeps a reserve for a full disk.
store         `SqliteStore`: connections, commits, reads.
tail          Checks that the end of a store is complete.
threads       The threads that the stores of a process share.
wal           Reads SQLite's write-ahead log, also the part that SQLite ignores.
witness       The file with the number of the last acknowledged batch.
writing       The transaction that writes a batch, and whether it is quick.
"""
