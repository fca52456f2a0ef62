"""The process's own facts, in a store of the same kind as those of its namespaces.

store         The facts by key, read at the start and changed in whole commits.
shared        Those of a cluster, which each node may change.
sealing       Secrets among those of a cluster, encrypted.
default_name  The name of the default namespace.
namespaces    The namespaces that a command has made.
jobs          The jobs of each namespace.
keys          The shared access keys of each namespace.
authority     The local certificate authority.
migration     Takes over what earlier releases kept in files.
opening       Opens the store of a process that starts.
offline       Opens that of a folder on which no broker runs, for a command.
"""
