"""The simulated world: virtual time, the network, and the broker under test with its machine.

world         the event heap, the clock, the random sources, the running hash, the trace
wire          a network connection in virtual time: `testing.wire.MemoryWire` that calls its readers
topology      the entities of a seed: queues, topics, subscriptions, forwards
machine       the two clocks of the broker's machine, and the administrator who sets them
clocks        what the broker's clocks may have shown, for the checker
sizes         limits of the broker, reduced to the scale of a simulation

node          the broker: its machine, and the processes that serve its namespaces one after another
tenant        one namespace over all processes: its store, entities, checker, administration
accounts      by which hosts and keys clients find their namespace
pieces        the classes that a broker is made of; planted bugs replace them
process       one life of the broker: clock, turns, connections, the choice of a namespace
shard         one namespace in a process: recovery, commands in, effects out
driving       the adapter of `engine.driver`, in place of `server.driver_loop`
commits       when a commit lands, and whether the process dies in it
lease         the lease of a process on a store
alarms        timers that the death of the process cancels
served        one AMQP connection of a process, in place of `server.amqp`
http_service  the HTTP side of a namespace, in place of `server.http_dispatch` and `server.hub`
own_requests  commands that a process gives one of its namespaces, for the administration
"""
