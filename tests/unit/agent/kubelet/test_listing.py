# SPDX-License-Identifier: Apache-2.0
"""The kubelet's list as values, and when the absence of a pod from it means something."""

from agent.kubelet import listing
from agent.kubelet.listing import Settling
from agent.kubelet.pb import podresources_v1_pb2 as podresources
from gigaslice.core.allocation.consumer import ContainerRef

STATIC, POD = "kube-system/nginx-proxy-node-a", "default/p"


def test_a_kubelet_that_was_just_started_is_not_believed():
    one = Settling("node-a")
    assert not one.observe("k1", [], 0)
    assert not one.observe("k1", [POD], 2)
    assert one.observe("k1", [POD], 5)
    assert one.observe("k1", [], 6), "its last pod has gone"
    assert not one.observe("k2", [], 7), "another kubelet"
    assert not one.observe("k2", [], 60)


def test_static_pods_alone_show_that_it_has_not_heard_from_the_api_server():
    one = Settling("node-a")
    assert not one.observe("k1", [STATIC], 0)
    assert not one.observe("k1", [STATIC], 100)
    assert not one.informed
    assert one.observe("k1", [STATIC, POD], 101)
    assert one.informed


def test_a_node_without_pods_is_believed_in_the_end():
    one = Settling("node-a")
    assert not one.observe("k1", [], 0)
    assert not one.observe("k1", [], 299)
    assert one.observe("k1", [], 300)


def test_without_the_nodes_name_every_pod_is_a_sign():
    one = Settling()
    one.observe("k1", [STATIC], 0)
    assert one.observe("k1", [], 5)


def test_containers_are_listed_once_with_all_their_devices_of_our_resource():
    def devices(resource, *ids):
        return podresources.ContainerDevices(resource_name=resource, device_ids=ids)

    answer = podresources.ListPodResourcesResponse(
        pod_resources=[
            podresources.PodResources(
                name="p",
                namespace="default",
                containers=[
                    podresources.ContainerResources(
                        name="a", devices=[devices("r", "1"), devices("r", "2"), devices("x", "3")]
                    ),
                    podresources.ContainerResources(name="b", devices=[devices("x", "4")]),
                    podresources.ContainerResources(name="c"),
                ],
            ),
            podresources.PodResources(name="q", namespace="other"),
        ]
    )
    pods = answer.pod_resources
    found = listing.gathered(pods, [one for pod in pods for one in listing.containers_of(pod, ["r"])])
    (listed,) = found.containers
    assert found.pods == {"default/p", "other/q"}
    assert (listed.container, listed.device_ids) == (ContainerRef("default", "p", "a"), frozenset({"1", "2"}))
