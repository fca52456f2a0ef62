"""The administration over HTTP, sans-IO: entities and rules as ATOM entries.

api                  routes, and the namespace's properties
entity_requests      get, put, delete and list queues, topics and subscriptions
rule_requests        the same for rules
exchange             a request and its answer: authorization, refusals, pages
errors               the one table of HTTP statuses
elements             descriptions of entities in XML: one table each
authorization_rules  the element with an entity's shared access rules
rules                filters and actions in XML
values               typed values in XML
typed_texts          the texts of these values
forwards             the target of a forward: a name or an address
forward_rights       whether a client may forward there
reading              from bytes to elements and their values
atom                 ATOM and XML as text
"""
