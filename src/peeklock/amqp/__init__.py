"""AMQP 1.0 protocol engine without IO, in both roles. It knows no queues, clocks or sockets.

Values
    types                types without a Python counterpart, such as symbols and unsigned integers
    codec, encoding      bytes to values; values to bytes
    decimals             IEEE 754 decimals and Python's `Decimal`
    messaging            sections of an encoded message, batches
    message_writing      messages to bytes
    annotations          what a broker says of a message, read straight from its bytes

Frames
    frames               frame header, protocol headers, limits on a peer
    composites           codes and fields of the composite types, checked decoding
    performatives        performatives, termini, delivery states
    coordination         `declare` and `discharge`, the requests to a transaction coordinator
    errors               conditions of the specification, errors with the scope that they end
    serial               arithmetic of ids that wrap at 2^32

Connection
    connection           bytes to events and calls to bytes: the only class that an owner uses
    events               events that a connection reports
    handshake, sasl      state of the connection from protocol headers to `close`; SASL negotiation
    idle                 idle time-outs
    sessions, session    channels; begin, end, flow and transfers of one session
    attaching            links of a session: handles, attach, detach
    link                 credit, delivery-count and reassembly of one link
    states               state tables of links and sessions
    incoming, outgoing   hot paths: transfers and dispositions in; deliveries and dispositions out
    recent_frames        the last frames of a connection, kept as bytes
    frame_text           kept frames as JSON, with the names of the specification
"""
