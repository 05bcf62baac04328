# SPDX-License-Identifier: Apache-2.0
"""This node's pods, kept as the API server changes them, in memory that does not depend on what it sends.

The informer is that of the cluster's roles. Here a page is read as its bytes come, one object may have 256 KiB, and all
pods together have a bound. A pod that cannot be read, or for which there is no room, stays as it was last: it has its
GPUs until it is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gigaslice.core.kube.decode import parse_pod, pod_change_reader, pod_list_reader, unread_pod
from gigaslice.core.kube.weight import bytes_of
from gigaslice.core.model import Pod
from gigaslice.kubeapi.client import KubeClient
from gigaslice.kubeapi.cluster_objects import PODS_PATH
from gigaslice.kubeapi.documents import AnswerDecoder
from gigaslice.kubeapi.informer import Bound, Informer

__all__ = ["is_refused", "is_synced", "node_pods"]

_PAGE = 250
_LIST_SECONDS = 30.0  # for one page
_FIRST_PAUSE = 1.0  # thousands of agents lose their watches together
_BOUND: Bound[Pod] = Bound(bytes_of, kept=6 << 20, unread=8 << 20)
"""110 pods take one MiB, with many annotations."""
_REFUSALS = 3
"""In a row until a server that let us in before is believed: one that starts refuses every client for some seconds, and
what is allocated while we are refused is allocated without annotations."""
_FAILURES = 3
"""Likewise until the pods are no longer taken for those of now: servers restart."""


def node_pods(
    client: KubeClient,
    node: str,
    changed: Callable[[], None],
    *,
    bound: Bound[Pod] = _BOUND,
    pause: float = _FIRST_PAUSE,
    **bounds: Any,
) -> Informer[Pod]:
    """Returns the informer of the pods of NODE. CHANGED is called at every change. BOUNDS are the informer's."""
    return Informer(
        client,
        PODS_PATH,
        parse_pod,
        lambda pod: changed(),
        lambda pod: changed(),
        on_list=changed,
        query={"fieldSelector": f"spec.nodeName={node}"},
        unread=_unread,
        decoder=AnswerDecoder(pod_list_reader, pod_change_reader, beside=True),
        bound=bound,
        page=_PAGE,
        list_seconds=_LIST_SECONDS,
        cached=True,
        pause=pause,
        **bounds,
    )


def is_synced(pods: Informer[Pod]) -> bool:
    """Whether the pods are those of now, as far as a watch can tell."""
    return pods.synced.is_set() and pods.failures < _FAILURES and not is_refused(pods)


def is_refused(pods: Informer[Pod]) -> bool:
    """Whether the API server does not let us read them."""
    return pods.refusals >= (_REFUSALS if pods.lists else 1)


def _unread(document: Mapping[str, Any], last: Pod | None) -> Pod | None:
    """Returns what stands for a pod that cannot be read. One that has ended has no GPUs, whatever else it says."""
    pod = unread_pod(document)
    return pod if last is None or (pod is not None and pod.terminal) else last
