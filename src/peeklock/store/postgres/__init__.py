"""The durable store of namespaces in a PostgreSQL database, which several processes may share.

address      The address of a database, and how it is shown.
checking     Reads all of a store, for `peeklock check`.
connections  A bounded number of connections, lent to one job at a time.
database     What the stores of a process share: threads, connections, leases.
errors       PostgreSQL's errors as errors of a store.
event_reader Reads event rows while a broker runs, for the process that exports them.
filler       Makes a store of what a back-up has.
format       The number of the format, and the tables.
kept_text    A text beside the stores that changes only from what is known.
leases       Who may write to a store, and until when.
nodes        The nodes of a cluster, and which of them owns which store.
reach        Whether the database can be reached.
reader       Reads a store as it is stored, for a back-up.
refusals     Servers and connections that cannot keep what a broker promises.
store        `PostgresStore`: commits, reads.
vacuum       Wins space back after so many dropped rows.
watch        Reports a node, and says what the others do.
writing      The transaction that writes a batch.
"""
