"""Links of clients to entities: attach, send, receive, settle, transact.

attach         What a client's attach asks for, decided from its termini alone, and the source that answers
               it.
coordinator    A link over which a client declares and discharges transactions.
incoming_link  A link on which the client sends, whatever it sends.
receiver_link  A link on which a client receives from an entity.
sender_link    A link on which a client sends to an entity, or via one to another.
settlement     What a receiver's dispositions mean: outcomes in -> settlements out.
"""
