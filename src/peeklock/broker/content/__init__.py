"""What the broker reads and rewrites in the bytes of a message.

overlay  Changed properties of a stored message.
routing  Message id, session id and partition key: read, checked, and the id written if it is missing.
subject  A message as the rules of subscriptions see it.
"""
