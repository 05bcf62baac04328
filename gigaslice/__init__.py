# SPDX-License-Identifier: Apache-2.0
"""What nodes and the cluster share, and the roles of the cluster.

`core` has values and decisions without I/O, `runtime` helpers that do I/O, `kubeapi` the API server's client, `roles`
the scheduler, controller, webhook and dataset service, `cluster_commands` what shows the whole cluster. Nothing here
imports `agent` or `vcuda`.
"""
