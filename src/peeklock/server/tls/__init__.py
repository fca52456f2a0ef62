"""TLS: contexts, the local certificate authority, and how clients trust it.

contexts         The TLS contexts of connections, and the files behind them.
certificates     The local authority of a data folder, and the certificate that it signs.
kept_authority   Where the authority is kept: its certificate and its private key.
between_nodes    The contexts between the nodes of a cluster.
pfx              A certificate and its key from a PFX.
ca_instructions  The text of `peeklock ca`.
"""
