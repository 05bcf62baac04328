"""Paths as container runtimes write them."""

import pytest

from agent.accounting.cgroups import Place, parse

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
