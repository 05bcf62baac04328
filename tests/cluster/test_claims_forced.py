# SPDX-License-Identifier: Apache-2.0
"""A shared claim whose first pod is deleted by force while a second comes: what the kubelet starts, and what stays.

The node is that of test_claims_node.py. The API server gives the claim out anew as soon as the first pod is gone, under
the same UID. The kubelet still stops that pod's container for two seconds, and starts a second pod with its answer of
before, without a call. A kubelet that is restarted asks again when the next pod attaches, adds that answer to the one
on its disk, and gives containers the devices of both.
"""

from __future__ import annotations

import time
from typing import Any

import psutil
import pytest

from tests.cluster.claim_promises import Promises, promises_kept
from tests.cluster.claim_scenes import restart_of, timed, undisturbed
from tests.cluster.claims_node import CDI, ClaimNode, Page, results_of
from tests.cluster.control_plane import until
from tests.cluster.node_kills import GIB, GPUS

Document = dict[str, Any]
FORGOTTEN = 75.0
"""Seconds until a restarted kubelet forgets a pod that was deleted by force before: it looks once a minute."""


def device_of(node: ClaimNode) -> Document:
    """The device that the claim has now; empty where it has none."""
    claims = [one for one in node.claims() if one["metadata"]["name"] == "shared"]
    return results_of(claims[0])[0] if claims else {}


def is_kept(node: ClaimNode, page: Page) -> bool:
    """Whether an allocation has its directory, and the runtime a file that names it."""
    files = [path for path in CDI.glob("gigaslice.io-*") if page.allocation in path.read_text()]
    return (node.state / "allocations" / page.allocation).is_dir() and len(files) == 1


def make_first(node: ClaimNode) -> tuple[Page, Document]:
    """Makes the claim and the pod that is to be deleted; returns the pod's page and the claim's device."""
    node.claim("shared", gpu="4Gi")
    node.sharing("first")
    node.running("first")
    return node.page("first"), device_of(node)


def delete_first(node: ClaimNode) -> None:
    """Deletes that pod by force, and waits until the API server has taken the claim's device back."""
    node.delete("first", force=True)
    until(lambda: not device_of(node), 10)


def test_the_claim_was_given_the_same_gpu_again(node: ClaimNode) -> None:
    restart = restart_of("K8S_NODE_KUBELET_RESTART")
    page, before = make_first(node)
    calls = (node.calls(), node.calls("unprepare"))
    delete_first(node)
    node.sharing("second")
    timed("the second pod runs", node.running("second"))
    anew = device_of(node)
    assert anew["shareID"] != before["shareID"] and anew["device"] == before["device"]
    assert (node.calls(), node.calls("unprepare")) == calls, "the kubelet has not asked"
    assert node.page("second") == page and is_kept(node, page)
    check = undisturbed(node, "second")
    restart()
    node.sharing("third")
    timed("the third pod runs", node.running("third", within=30))
    assert node.calls() > calls[0]
    check()
    assert node.page("third") == page and is_kept(node, page)
    begun = time.monotonic()
    node.clear()
    node.nothing_left(FORGOTTEN)
    timed("nothing is left", time.monotonic() - begun)


def test_the_kubelet_was_away(node: ClaimNode) -> None:
    """The kubelet that comes asks for the next pod, and still has its answer for the one that is gone."""
    restart = restart_of("K8S_NODE_KUBELET_RESTART")
    _, before = make_first(node)
    for process in psutil.process_iter(["name"]):
        if process.info["name"] == "kubelet":
            process.suspend()
    try:
        delete_first(node)
        node.sharing("second")
        until(lambda: device_of(node), 10)
    finally:
        restart()
    assert device_of(node)["shareID"] != before["shareID"]
    timed("the second pod runs", node.running("second", within=60))
    assert is_kept(node, node.page("second"))
    node.clear()
    node.nothing_left(FORGOTTEN)


def test_the_claim_was_given_another_gpu(claims_served: ClaimNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the second pod has goes to nobody else, and the third is told whose end it waits for.

    The API server counts the second pod on the other GPU: only what processes have is compared.
    """
    restart, node = restart_of("K8S_NODE_KUBELET_RESTART"), claims_served
    monkeypatch.setattr(Promises, "_promised", lambda _: {})
    names = [f"fill-{gpu}" for gpu in range(GPUS - 1)]
    with promises_kept(node):
        for name in names:
            node.small(name, GIB)
        node.running(*names)
        page, before = make_first(node)
        delete_first(node)
        node.small("whole", GIB)
        until(lambda: len(node.claims()) == GPUS, 10)
        node.delete(names[0], force=True)
        node.sharing("second")
        timed("the second pod runs", node.running("second"))
        assert device_of(node)["device"] != before["device"]
        assert node.page("second") == page and is_kept(node, page)
        check = undisturbed(node, "second")
        restart()
        node.sharing("third")
        until(lambda: any("runs with those of before" in text for _, text in node.events("third")), 60)
        check()
        assert is_kept(node, page) and node.get("whole")["status"]["phase"] == "Pending"
        node.delete("second")
        timed("the third pod and that of the whole GPU run", node.running("third", "whole", within=90))
        third, whole = node.page("third"), node.page("whole")
        assert whole.gpus.keys() == page.gpus.keys() and not whole.gpus.keys() & third.gpus.keys()
        node.clear()
        node.nothing_left(FORGOTTEN)
