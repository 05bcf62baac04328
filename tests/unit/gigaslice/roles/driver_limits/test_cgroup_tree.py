# SPDX-License-Identifier: Apache-2.0
"""Walking cgroups: every layout of kubelets and runtimes, what hinders a limit, and trees that nobody thought of."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigaslice.core.kube.cgroups import container_of
from gigaslice.roles.driver_limits import cgroup_tree
from gigaslice.roles.driver_limits.cgroup_tree import MOST_BELOW, CgroupTree, filesystem
from tests.fakes.cgroup_trees import LAYOUTS, make_cgroup, make_root

UID, OTHER, STATIC = "2c48913c-b29f-11e7-9350-020968147796", "3c48913c-b29f-11e7-9350-020968147796", "0f" * 16
ID = "a1" * 32
every_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)


@pytest.fixture
def root(tmp_path, version_2_at):
    made = make_root(tmp_path / "cgroup")
    version_2_at.append(made)
    return made


@every_layout
def test_a_pods_cgroup_is_found_and_its_containers_below_it(root, layout):
    for noise in ("init.scope", "system.slice/containerd.service", "user.slice/user-0.slice"):
        make_cgroup(root, noise)
    container = make_cgroup(root, layout.container_path(UID, ID))
    other = make_cgroup(root, layout.container_path(OTHER, "b2" * 32))
    tree = CgroupTree(root)
    pod = str(root / layout.pod_path(UID))
    assert tree.pods().paths == {UID: (pod,), OTHER: (str(root / layout.pod_path(OTHER)),)}
    below = list(tree.below(pod))
    assert str(container) in below and str(other) not in below
    assert {container_of(path[len(pod) :]) for path in below} == {ID}


@every_layout
def test_a_static_pods_cgroup_is_found(root, layout):
    make_cgroup(root, layout.container_path(STATIC, ID))
    assert CgroupTree(root).pods().paths == {STATIC: (str(root / layout.pod_path(STATIC)),)}


@every_layout
def test_where_pods_come_to_be_is_among_the_parents(root, layout):
    make_cgroup(root, layout.pod_path(UID))
    parents = CgroupTree(root).pods().parents
    above = Path(root, layout.pod_path(UID)).parents
    assert {str(parent) for parent in above if parent == root or root in parent.parents} <= set(parents)


def test_where_no_pod_is_yet_is_among_the_parents(root):
    for path in (
        "kubepods/burstable",
        "kubepods/besteffort",
        "a.slice/a-kubepods.slice",
        "system.slice/x.service",
    ):
        make_cgroup(root, path)
    parents = {str(Path(parent).relative_to(root)) for parent in CgroupTree(root).pods().parents}
    assert parents == {
        ".", "kubepods", "kubepods/burstable", "kubepods/besteffort", "a.slice", "a.slice/a-kubepods.slice",
    }  # fmt: skip


def test_pods_within_a_pod_are_its_own_affair(root):
    make_cgroup(root, f"kubepods/pod{UID}/{ID}/kubelet/kubepods/pod{OTHER}/{'b2' * 32}")
    assert set(CgroupTree(root).pods().paths) == {UID}


def test_a_containers_cgroup_beside_the_pods_is_none(root):
    """containerd that was told of systemd and uses cgroupfs makes it in its own cgroup."""
    under = UID.replace("-", "_")
    make_cgroup(
        root, f"system.slice/containerd.service/kubepods-burstable-pod{under}.slice:cri-containerd:{ID}"
    )
    assert CgroupTree(root).pods().paths == {}


def test_two_cgroups_may_bear_a_uid(root):
    near = make_cgroup(root, f"kubepods/pod{UID}")
    far = make_cgroup(root, f"user.slice/user-1000.slice/mine/pod{UID}")
    assert CgroupTree(root).pods().paths == {UID: (str(near), str(far))}


def test_a_cgroup_of_the_same_name_is_another_one(root):
    pod = make_cgroup(root, f"kubepods/pod{UID}")
    tree = CgroupTree(root)
    before = tree.pods()
    pod.rename(root / "old")
    make_cgroup(root, f"kubepods/pod{UID}")
    after = tree.pods()
    assert before.paths == after.paths and before.identities != after.identities


def test_links_are_not_followed(root):
    pod = make_cgroup(root, f"kubepods/pod{UID}")
    (root / "kubepods" / f"pod{OTHER}").symlink_to(pod)
    assert set(CgroupTree(root).pods().paths) == {UID}


def test_what_a_pod_makes_below_its_own_is_looked_at_in_bounds(root):
    pod = make_cgroup(root, f"kubepods/pod{UID}")
    for number in range(MOST_BELOW + 20):
        (pod / f"n{number}").mkdir()
    assert len(list(CgroupTree(root).below(str(pod)))) == MOST_BELOW


def test_a_walk_ends(root, monkeypatch):
    monkeypatch.setattr(cgroup_tree, "_MOST_WALKED", 10)
    pod = make_cgroup(root, f"kubepods/pod{UID}")
    for number in range(30):
        make_cgroup(root, f"aaa/n{number}/deeper")
    assert CgroupTree(root).pods().paths == {UID: (str(pod),)}


@every_layout
def test_its_own_pod_is_the_one_with_its_pid(root, layout):
    make_cgroup(root, layout.container_path(OTHER, "b2" * 32), pids=(1, 0))
    tree = CgroupTree(root)
    assert tree.own_pod() == ""
    make_cgroup(root, layout.container_path(UID, ID), pids=(0, 0, os.getpid()))
    assert tree.own_pod() == str(root / layout.pod_path(UID))


@every_layout
@pytest.mark.parametrize("controller", ["misc", "dmem"])
def test_a_controller_that_reaches_the_pod_is_found(root, layout, controller):
    pod = make_cgroup(root, layout.pod_path(UID))
    assert CgroupTree(root).lacking(str(pod), controller) == ""


@every_layout
def test_the_first_cgroup_without_the_controller_is_named(root, layout):
    pod = make_cgroup(root, layout.pod_path(UID))
    chain = [pod, *(parent for parent in pod.parents if root in parent.parents)]
    for directory in chain:  # from the pod upwards: each time the highest of those that lack it is named
        (directory / "dmem.max").unlink()
        sentence = CgroupTree(root).lacking(str(pod), "dmem")
        assert sentence.startswith(f"{directory} has no dmem.max") and "RmMemacctMode=1" in sentence
        assert "\n" not in sentence
    assert CgroupTree(root).lacking(str(pod), "misc") == ""


def test_the_drivers_own_map_needs_no_mode_to_be_set(root):
    pod = make_cgroup(root, f"kubepods/pod{UID}", controllers=())
    sentence = CgroupTree(root).lacking(str(pod), "misc")
    assert sentence.startswith(f"{root}/kubepods has no misc.max") and "RmMemacctMode" not in sentence


def test_a_kernel_without_the_controller_is_said_to_have_none(root):
    make_root(root, ("memory",))
    pod = make_cgroup(root, f"kubepods/pod{UID}", controllers=("memory",))
    assert "offers no controller misc" in CgroupTree(root).lacking(str(pod), "misc")


def test_the_backend_is_the_kernels_where_it_counts_the_drivers_memory(root):
    assert CgroupTree(root).backend() == "misc"
    (root / "dmem.capacity").write_text("drm/0000:01:00.0/vram0 1\n")
    assert CgroupTree(root).backend() == "misc"
    make_root(root, nvidia=True)
    assert CgroupTree(root).backend() == "dmem"


def test_version_1_is_no_version_2(tmp_path, version_2_at):
    tree = CgroupTree(tmp_path)
    assert not tree.version_2 and not tree.hybrid


def test_version_2_beside_version_1_is_found(tmp_path, version_2_at):
    version_2_at.append(make_root(tmp_path / "unified"))
    pod = make_cgroup(tmp_path / "unified", f"kubepods/pod{UID}")
    make_cgroup(tmp_path, f"misc/kubepods/pod{OTHER}")
    tree = CgroupTree(tmp_path)
    assert tree.version_2 and tree.hybrid and tree.pods().paths == {UID: (str(pod),)}
    make_root(tmp_path / "unified", ("memory",))
    assert "in use by cgroup v1" in tree.lacking(str(pod), "misc")


def test_the_type_of_a_file_system_is_the_kernels_word(tmp_path):
    assert filesystem(Path("/proc")) == 0x9FA0
    assert filesystem(tmp_path / "none") == 0


def test_what_has_gone_has_nothing_in_it(tmp_path):
    tree = CgroupTree(tmp_path)
    assert list(tree.below(str(tmp_path / "gone"))) == [] and tree.pids(str(tmp_path / "gone")) == ()
    assert CgroupTree(tmp_path / "gone").pods().paths == {}


names = st.sampled_from(
    [
        "kubepods", "kubepods.slice", "kubepods-burstable.slice", "burstable", "besteffort", "system.slice", "a", "x-1",
        "docker", ID, f"cri-containerd-{ID}.scope", f"crio-{ID}.scope", f"crio-conmon-{ID}.scope", "container",
        f"kubepods-pod{UID.replace('-', '_')}.slice:cri-containerd:{ID}", f"pod{UID}x", "podman", "pods", f"pod-{UID}",
    ]
)  # fmt: skip
uids = st.uuids(version=4).map(str) | st.sampled_from([UID, OTHER, STATIC])
prefixes = st.sampled_from(
    ["", "kubepods-", "kubepods-besteffort-", "kubelet-kubepods-burstable-", "a-b_1-kubepods-"]
)


@st.composite
def pod_names(draw):
    uid, prefix = draw(uids), draw(prefixes)
    return (f"{prefix}pod{uid.replace('-', '_')}.slice" if prefix else f"pod{uid}"), uid


chains = st.lists(st.tuples(names, st.just("")) | pod_names(), min_size=1, max_size=6)


@settings(max_examples=150, deadline=None)
@given(st.lists(chains, max_size=12))
def test_exactly_the_outermost_pods_cgroups_are_found(paths):
    """Of any tree: a directory of a pod's name that is in no other one is a pod's, and nothing else is."""
    root = Path(tempfile.mkdtemp(prefix="gs-"))
    try:
        expected: dict[str, set[str]] = {}
        for chain in paths:
            Path(root, *(name for name, _ in chain)).mkdir(parents=True, exist_ok=True)
            for length, (_, uid) in enumerate(chain, 1):
                if uid:
                    expected.setdefault(uid, set()).add(
                        str(Path(root, *(name for name, _ in chain[:length])))
                    )
                    break
        pods = CgroupTree(root).pods()
        assert {uid: set(found) for uid, found in pods.paths.items()} == expected
        assert all(len(found) == len(set(found)) for found in pods.paths.values())
        assert {str(Path(path).parent) for found in expected.values() for path in found} <= set(pods.parents)
    finally:
        shutil.rmtree(root)
