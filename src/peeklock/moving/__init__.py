"""A namespace moved: its definitions read and made over the administration API, its messages copied.

administration  Requests to the administration of any broker that speaks Azure Service Bus.
definitions     What a namespace has, as a configuration.
planning        The steps that make a namespace agree with a configuration; pure.
copying         Messages copied by browsing.

The codec is the one of the broker's own administration (`peeklock.admin`), in the other direction.
"""
