"""TLS of the server: contexts, the local certificate authority, trust.

ca_instructions  How clients are told to trust the local authority, per language and per operating system.
certificates     The local authority of a data folder, and the server certificate that it signs.
contexts         The TLS contexts that connections are met with.
"""
