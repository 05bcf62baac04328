# SPDX-License-Identifier: Apache-2.0
"""Paths as container runtimes write them."""

import pytest

from gigaslice.core.kube.cgroups import Place, container_of, parse, pod_of

UID = "2c48913c-b29f-11e7-9350-020968147796"
SLICE = UID.replace("-", "_")
ID = "a1" * 32


@pytest.mark.parametrize(
    "text",
    [
        # containerd, systemd driver, v2
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICE}.slice/cri-containerd-{ID}.scope",
        # guaranteed pods have no class in their name
        f"0::/kubepods.slice/kubepods-pod{SLICE}.slice/cri-containerd-{ID}.scope",
        # containerd, cgroupfs driver
        f"0::/kubepods/besteffort/pod{UID}/{ID}",
        f"0::/kubepods/pod{UID}/{ID}",
        # v1: many lines, those of other controllers say less
        f"12:cpuset:/\n11:memory:/kubepods/burstable/pod{UID}/{ID}\n1:name=systemd:/user.slice",
        # CRI-O, with and without the container below
        f"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{SLICE}.slice/crio-{ID}.scope",
        f"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{SLICE}.slice/crio-{ID}.scope/container",
        # Docker
        f"4:memory:/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICE}.slice/docker-{ID}.scope",
        f"4:memory:/kubepods/burstable/pod{UID}/{ID}",
        # containerd asked for cgroupfs where systemd is meant
        f"1:name=systemd:/system.slice/containerd.service/kubepods-burstable-pod{SLICE}.slice:cri-containerd:{ID}",
        # seen from within the agent's own cgroup namespace
        f"0::/../../kubepods-burstable-pod{SLICE}.slice/cri-containerd-{ID}.scope",
        f"0::/../../pod{UID}/{ID}",
        # the kubelet's --cgroup-root, with digits and what systemd makes of a dash
        f"0::/k8s_1.slice/k8s_1-kubepods.slice/k8s_1-kubepods-pod{SLICE}.slice/cri-containerd-{ID}.scope",
        # nested, kind
        f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{SLICE}.slice/cri-containerd-{ID}.scope",
    ],
)
def test_pod_and_container_are_found(text):
    assert parse(text) == Place(UID, ID)


def test_a_static_pods_uid_has_no_dashes():
    uid = "0f" * 16
    assert parse(f"0::/kubepods/burstable/pod{uid}/{ID}") == Place(uid, ID)


def test_a_pod_without_a_container_is_a_pod():
    assert parse(f"0::/kubepods/burstable/pod{UID}") == Place(UID)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0::/",
        "0::/user.slice/user-1000.slice/session-1.scope",
        f"0::/docker/{ID}",
        f"0::/system.slice/docker-{ID}.scope",
        "0::/kubepods.slice/kubepods-podx.slice",
        f"0::/home/mypod{UID}/{ID}",
        "garbage",
    ],
)
def test_what_is_in_no_pod_is_in_none(text):
    assert parse(text) is None


@pytest.mark.parametrize(
    "name",
    [
        f"pod{UID}",
        f"kubepods-pod{SLICE}.slice",
        f"kubepods-burstable-pod{SLICE}.slice",
        f"kubepods-besteffort-pod{SLICE}.slice",
        f"kubelet-kubepods-besteffort-pod{SLICE}.slice",
        f"k8s_1-kubepods-pod{SLICE}.slice",
    ],
)
def test_a_pods_own_cgroup_is_known_by_its_name(name):
    assert pod_of(name) == UID


def test_a_static_pods_own_cgroup_is_known_by_its_name():
    assert pod_of("pod" + "0f" * 16) == pod_of(f"kubepods-burstable-pod{'0f' * 16}.slice") == "0f" * 16


@pytest.mark.parametrize(
    "name",
    [
        "",
        "kubepods",
        "kubepods-burstable.slice",
        ID,
        f"cri-containerd-{ID}.scope",
        f"crio-conmon-{ID}.scope",
        f"kubepods-burstable-pod{SLICE}.slice:cri-containerd:{ID}",
        f"pod{UID}\n",
        f"pod{UID}x",
        f"pod{UID}.scope",
        f"podman-{ID}.scope",
        f"pod{'0f' * 15}",
        f"pod{'0f' * 17}",
        f"a/pod{UID}",
    ],
)
def test_no_other_cgroup_is_taken_for_a_pods(name):
    assert pod_of(name) == ""


@pytest.mark.parametrize(
    "path", [ID, f"cri-containerd-{ID}.scope", f"crio-{ID}.scope/container", f"{ID}/kubepods/pod{UID}"]
)
def test_the_container_of_a_path_below_its_pod(path):
    assert container_of(path) == ID


def test_a_path_may_be_of_no_container():
    assert container_of("nested/by-hand") == container_of("") == ""
