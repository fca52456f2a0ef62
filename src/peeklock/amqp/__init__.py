"""AMQP 1.0 engine without IO, in either role; it knows no queue.

leaves     types     wrappers for AMQP's types           codec, encoding   values <-> bytes
           messaging sections of a message, batches
machines   frames    frame layout, limits                performatives     their fields, states, termini
           sasl      negotiation                         serial            arithmetic of wrapping ids
           output    what is queued for the peer         events            what is reported to the owner
           link      credit, reassembly                  session           links and windows of a session
           incoming  hot path in                         outgoing          hot path out
           connection  bytes <-> events, the only class an owner talks to
"""
