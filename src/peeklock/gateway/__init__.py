"""Service Bus over AMQP, sans-IO: AMQP events become broker commands, effects become frames.

connection    `Gateway`: one AMQP connection; the border that no exception passes
traced        a gateway that keeps the frames before an error
admission     who the peer is: SASL, its host name, how long it may go without a claim
link_table    the links by handle and by number: which one gets an event or an effect
links         links of clients to entities: attach, send, receive, settle, transact
nodes         the `$management` and `$cbs` nodes: requests and responses
answers       the broker's answers to requests, and those that wait for bodies
transactions  open transactions, and the via entity of each session
context       what the parts of a connection share: limits, backlog, output
inspection    an arriving message: its record, and the checks that need no state
annotations   a message as a receiver gets it
rewriting     changes to its sections: overlay, absolute-expiry-time
showing       makes what an operator sees of a connection
views         what an operator sees of it, as values
claims        the grants of a connection, until they expire
choice        which namespace the connection uses
bounds        what a peer may make the broker hold
address       addresses in all spellings
errors        the one table of conditions and statuses; tracking ids and log lines
"""
