"""AMQP 1.0 engine without IO, in either role; it knows no queue.

Leaves
    types, codec, encoding   AMQP's types, and values to bytes and back
    messaging                sections of a message, batches
Machines
    frames, composites       frame layout and limits; tables of fields and their checks
    performatives, errors    performatives, termini, states; conditions and scopes
    coordination             what is said to a coordinator of transactions
    handshake, sasl, idle    from the first header to the last close; negotiation; time-outs
    serial                   arithmetic of ids that wrap
    output, events           what is queued for the peer; what is reported to the owner
    states                   the lives of a link and of a session, as tables
    link, session, sessions  credit and reassembly; links and windows; channels
    incoming, outgoing       the hot paths in and out
    connection               bytes to events and back: the only class an owner talks to
"""
