"""When the absence of a pod from the kubelet's list means something."""

from agent.kubelet.settling import Settling

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
