# SPDX-License-Identifier: Apache-2.0
"""Every word that is heard on whether a pod lives, and which one counts."""

from dataclasses import replace

import pytest

from gigaslice.core.allocation.consumer import ContainerRef
from gigaslice.core.deviceplugin.lifetime import Evidence, Listed, Liveness, PodListing, liveness
from gigaslice.core.deviceplugin.origin import Owner, plugin
from tests.fakes.nodes import allocation, device_ids, table
from tests.fakes.pods import gpu_pod

ALIVE, DOUBTFUL, OVER = Liveness.ALIVE, Liveness.DOUBTFUL, Liveness.EXPIRED
REF = ContainerRef("default", "web-0", "c0")
OWNER = Owner("uid-1", "default", "web-0", "c0")
DEVICE_IDS = device_ids(0, 0, 1, 2, 3)
ONE = allocation(1, (0, range(4)), container=REF, owner=OWNER)
HERE, GONE_FROM_LIST = frozenset({"default/web-0"}), frozenset({"default/other"})


def pod(uid="uid-1", phase="Running", mirror=False, **more):
    annotations = {"kubernetes.io/config.mirror": "x"} if mirror else {}
    return replace(gpu_pod("web-0", 4, uid=uid, phase=phase, **annotations), **more)


def api(*pods):
    return {(one.namespace, one.name): one for one in pods}


def stands(evidence, *allocations, of=0):
    made = table(*(allocations or (ONE,)))
    return liveness(made, evidence, made.next_number)[made.allocations[of].id]


EMPTY = PodListing((), GONE_FROM_LIST)
UNSETTLED = PodListing((), frozenset(), settled=False)
BARE = PodListing((), HERE)
LISTED = PodListing((Listed(REF, DEVICE_IDS),), HERE)


@pytest.mark.parametrize(
    ("listing", "pods", "expected"),
    [
        # the API server shows it: whatever the kubelet's list lacks
        (LISTED, api(pod()), ALIVE),
        (BARE, api(pod()), ALIVE),
        (EMPTY, api(pod()), ALIVE),
        (UNSETTLED, api(pod()), ALIVE),
        (None, api(pod()), ALIVE),
        # it is being deleted: over when the kubelet has done with it
        (BARE, api(pod(ending=True)), ALIVE),
        (UNSETTLED, api(pod(ending=True)), ALIVE),
        (EMPTY, api(pod(ending=True)), OVER),
        # it has ended, or another pod has its name
        (EMPTY, api(pod(phase="Succeeded")), OVER),
        (BARE, api(pod(phase="Failed")), OVER),
        (BARE, api(pod("uid-2")), OVER),
        # ... as far as that can be relied on: an API server's first answer may be an old one
        (UNSETTLED, api(pod("uid-2")), DOUBTFUL),
        (None, api(pod("uid-2")), DOUBTFUL),
        # ... but never while the kubelet lists it with its devices
        (LISTED, api(pod(phase="Failed")), ALIVE),
        (LISTED, api(pod("uid-2")), ALIVE),
        (LISTED, api(), ALIVE),
        # a static pod's picture in the API server was deleted and made anew
        (BARE, api(pod("uid-2", mirror=True)), ALIVE),
        (EMPTY, api(pod("uid-2", mirror=True)), ALIVE),
        # a static pod that the API server does not show at all
        (BARE, api(), ALIVE),
        # deleted and unlisted
        (EMPTY, api(), OVER),
        (UNSETTLED, api(), DOUBTFUL),
        (None, api(), DOUBTFUL),
        # no API server: the kubelet's list alone
        (LISTED, None, ALIVE),
        (BARE, None, ALIVE),
        (EMPTY, None, DOUBTFUL),
        (UNSETTLED, None, DOUBTFUL),
        (None, None, DOUBTFUL),
    ],
)
def test_what_counts(listing, pods, expected):
    assert stands(Evidence(listing, pods)) is expected
    assert stands(Evidence(listing, pods, running=frozenset({ONE.id}))) is ALIVE, "a living process always"


def test_a_completed_pod_that_an_old_kubelet_goes_on_listing_is_in_doubt_where_processes_can_be_seen():
    assert stands(Evidence(BARE, None, watched=True)) is DOUBTFUL
    assert stands(Evidence(BARE, None, frozenset({ONE.id}), watched=True)) is ALIVE
    assert stands(Evidence(BARE, None, watched=False)) is ALIVE


def test_an_allocation_younger_than_the_evidence_is_no_ones_business():
    assert liveness(table(ONE), Evidence(EMPTY, api()), 1)[ONE.id] is ALIVE


def test_a_later_pod_of_the_name_ends_the_earlier_one_without_an_api_server():
    """A StatefulSet's next pod, listed under the name with devices of its own."""
    later = allocation(2, (1, range(4)), container=REF, owner=replace(OWNER, uid="uid-2"))
    shown = PodListing((Listed(REF, plugin(later).device_ids),), HERE)
    assert stands(Evidence(shown), ONE, later, of=0) is OVER
    assert stands(Evidence(shown), ONE, later, of=1) is ALIVE


def test_a_container_that_was_allocated_anew_gives_its_old_devices_up():
    """What a kubelet does that has lost its checkpoint and must start the container: the pod is the same."""
    later = allocation(2, (1, range(4)), owner=OWNER)
    assert stands(Evidence(BARE, api(pod())), ONE, later, of=0) is OVER
    assert stands(Evidence(BARE, api(pod())), ONE, later, of=1) is ALIVE


def test_the_same_devices_in_two_living_pods_are_told_apart_by_name():
    """The kubelet has handed them out twice: each listed container means its own."""
    other = ContainerRef("default", "q", "c0")
    twin = allocation(2, (0, range(4)), container=other)
    shown = PodListing(
        (Listed(REF, DEVICE_IDS), Listed(other, DEVICE_IDS)), frozenset({"default/web-0", "default/q"})
    )
    assert {stands(Evidence(shown), ONE, twin, of=number) for number in (0, 1)} == {ALIVE}
