"""What nodes and the cluster share, and the roles of the cluster.

A core of values and decisions without I/O, helpers that do I/O (`runtime`), the API server's client (`kubeapi`), and
the roles: scheduler, controller, webhook and dataset service. Nothing here imports `agent` or `vcuda`.
"""
