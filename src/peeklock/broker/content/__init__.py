"""What the broker reads and rewrites in the bytes of a message.

message_ids  The id of a message that was sent without one.
overlay      Changed properties of a stored message: its overlay.
routing      What of a message decides where it goes: message id, session id, partition key.
subject      What the rules of subscriptions see of a message.
"""
