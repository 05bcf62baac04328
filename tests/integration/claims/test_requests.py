# SPDX-License-Identifier: Apache-2.0
"""What the life of a claim costs the API server: docs/sizing.md has these numbers."""

from __future__ import annotations

import pytest

from tests.integration.agent.conftest import wait_until

CLAIM, PODS, EVENT = ("GET", "resourceclaims"), ("GET", "pods"), ("POST", "events")


def asked(api, since):
    """The requests since then for claims, pods and events. Node and slice are written as they change, whoever came."""
    requests = [(method, target.partition("?")[0].split("/")) for method, target in api.requests[since:]]
    named = [
        (method, "resourceclaims" if "resourceclaims" in path else path[-1]) for method, path in requests
    ]
    return [request for request in named if request in (CLAIM, PODS, EVENT)]


@pytest.mark.parametrize("by_itself", [False, True])
def test_a_pod_costs_a_read_of_its_claim_and_an_event_and_one_that_ends_by_itself_a_list(
    begin, api, by_itself
):
    """The kubelet gives up the claim of a pod that ended by itself before it says so. A deletion is known before."""
    node = begin(gpus=1)
    begun = len(api.requests)
    pod = node.run("train", memory="2Gi", restart_policy="Never")
    wait_until(lambda: EVENT in asked(api, begun), "the event")
    # The pods are listed where the watch does not show the pod in time.
    assert [request for request in asked(api, begun) if request != PODS] == [CLAIM, EVENT]
    runs = len(api.requests)
    if by_itself:
        pod.container().process.finish(0)
        pod.wait("Succeeded")
    else:
        node.kubelet.delete_pod(pod)
    wait_until(lambda: not node.agent.status(), "the release")
    # A watch that is behind makes the other one cost as much, and never more.
    most = [CLAIM, PODS, CLAIM]
    assert asked(api, runs) in ([most] if by_itself else [[], [CLAIM], [CLAIM, CLAIM], most])
