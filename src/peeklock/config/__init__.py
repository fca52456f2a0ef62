"""The configuration file, pure: the emulator's Config.json as descriptions, and back.

file       The entities of the file, read and written.
form       Strict reading of JSON; mistakes are reported by their path.
namespace_limits  The settings of a namespace.
settings   The settings of an entity, a table for each kind.
rules      The rules of a subscription.
exporting  The file of some entities, and what it lacks.
reconcile  The commands that make the namespace agree with the file.
hosts      Names of hosts, and which of them are the broker's.
"""
