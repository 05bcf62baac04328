# SPDX-License-Identifier: Apache-2.0
"""Many pods with claims at once on one node: each runs, or waits with a reason. GIGASLICE_BURST says how many."""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import replace

from tests.integration.agent.conftest import wait_until
from tests.integration.claims.node import CLAIM_QUICK
from tests.integration.claims.oracle import Books, compare, compare_containers, wait_nothing_left

GIB = 1 << 30
PODS = int(os.environ.get("GIGASLICE_BURST", "60"))
NEVER = 3600.0
PATIENT = replace(CLAIM_QUICK, claims=replace(CLAIM_QUICK.claims, call_s=45.0, resync_s=NEVER))


def test_every_pod_of_a_burst_runs_or_is_told_why_not(begin, api, capsys):
    api.answers.pod_policy = True
    fit = PODS * 4 // 5
    node = begin(gpus=4, gib=fit // 4, settings=PATIENT)
    books = Books(api)
    begun = time.monotonic()
    pods = [node.create(f"p{number}", memory="1Gi") for number in range(PODS)]

    def settled():
        return all(pod.phase == "Running" or pod.reason == "Unschedulable" for pod in pods) and (
            sum(pod.phase == "Running" for pod in pods) == fit
        )

    wait_until(settled, "every pod to run or to have a reason", 300)
    took = time.monotonic() - begun
    compare(books, node.agent.state, fit // 4 * GIB)
    compare_containers(books, pods, fit // 4 * GIB)
    calls = [call for call in node.kubelet.claims.calls if call.method == "NodePrepareResources"]
    assert len(calls) == fit, "one call for each claim"
    assert [call.error for call in calls if call.error] == []
    assert all("cannot allocate all claims" in pod.message for pod in pods if pod.phase != "Running")
    lasted = sorted(call.ended_at - call.at for call in calls)
    with capsys.disabled():
        print(
            f"\n{PODS} pods: {took:.1f} s, {Counter(pod.phase for pod in pods)}; calls: median "
            f"{lasted[len(lasted) // 2] * 1e3:.0f} ms, longest {lasted[-1] * 1e3:.0f} ms; "
            f"{api.asked('PUT', 'resourceslices')} updates of the slice"
        )
    for pod in [pod for pod in pods if pod.phase != "Running"]:
        node.kubelet.delete_pod(pod)
    for deleting in [node.begin_deleting(pod) for pod in pods if pod.phase == "Running"]:
        deleting.join(120)
    wait_nothing_left(node.kubelet, node.agent.state)
