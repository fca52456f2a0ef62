"""What the broker reads and rewrites in the bytes of a message.

overlay  Changed properties of a stored message.
routing  Message id, session id and partition key: read and checked; a missing message id is written.
subject  A message as the rules of subscriptions see it.
"""
