"""The configuration file, pure: the emulator's Config.json as descriptions, and back.

file       The configuration file: the emulator's Config.json, read strictly, and written.
form       The form of a configuration file: JSON, read strictly, each mistake told by its path.
hosts      Names of hosts, with and without a port, as options give them.
reconcile  What a configuration file asks of the broker: the commands that make the namespace agree with it.
rules      The rules of a subscription in a configuration file, read and written.
settings   The settings that a configuration file can give an entity, a table for each kind.
"""
