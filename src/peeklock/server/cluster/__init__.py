"""This process as a node of a cluster.

directory  Which namespace of the cluster a host name or a user means.
member     Reports the node, opens the namespaces that it is to own, and gives others back.
stand_in   What a node has in the place of the default namespace while another node owns that.
"""
