"""Planted bugs: each subclasses or wraps a real class, and the checker must find it.

registry   all bugs by name: the seeds that find them, what the violation says; bugs of engine and store
driver     in the loop of the broker
namespace  in sessions, transactions, forwards, claims
owners     in the ownership of cursors
topics     in topics and rules
circles    in circles of forwards
clocks     in steps of the wall clock
graces     in the locks of broken connections
peers      in the defence against hostile peers
http       in HTTP
nodes      in leases, takeovers and relays
"""
