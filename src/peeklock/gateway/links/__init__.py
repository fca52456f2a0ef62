"""Links of clients to entities: attach, send, receive, settle, transact.

attach             what an attach asks for, decided from its termini alone
incoming_link      base of the links on which a client sends: credit, early transfers
sender_endpoint    a link on which a client sends to an entity, or via one to another
receiver_endpoint  a link on which a client receives: credit, outbox, unsettled deliveries
settlement         what a receiver's dispositions mean
coordinator        a link over which a client declares and discharges transactions
"""
