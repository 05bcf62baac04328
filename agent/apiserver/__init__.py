# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes API: this node's pods from a watch, events on them, their eviction.

Requests, lists and watches are those of `gigaslice.kubeapi`, with the agent's bounds. Nothing of the agent depends on
an answer: without access the pods are unknown, and everything goes on with defaults.
"""

from agent.apiserver.cluster import Cluster, Eviction, KubeCluster, NoCluster
from agent.apiserver.pod_lists import PodLists
from gigaslice.kubeapi.access import Access, find_access

__all__ = ["Access", "Cluster", "Eviction", "KubeCluster", "NoCluster", "PodLists", "find_access"]
