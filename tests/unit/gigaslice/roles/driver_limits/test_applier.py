# SPDX-License-Identifier: Apache-2.0
"""Setting limits under the rules of both backends: what is set, what is left, and what a kill leaves behind."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gigaslice.core.errors import ControlError
from gigaslice.core.limits.driver_limit_messages import (
    MOST_LEAVES,
    MOST_PIDS,
    ApplyAnswer,
    ApplyRequest,
    ContainerLimits,
    GpuLimitState,
    Leaf,
    PodLimits,
)
from gigaslice.roles.driver_limits.applier import Applier
from gigaslice.roles.driver_limits.cgroup_tree import MOST_BELOW, CgroupTree
from tests.fakes.cgroup_trees import LAYOUTS, make_cgroup, make_root
from tests.fakes.memory_limits import GIB, FakeMemoryLimits, Killed

UID, OTHER = "2c48913c-b29f-11e7-9350-020968147796", "3c48913c-b29f-11e7-9350-020968147796"
ID, SIBLING = "a1" * 32, "b2" * 32
GPU, SECOND = (f"GPU-00000000-0000-4000-8000-00000000000{number}" for number in (1, 2))
POD = f"kubepods/burstable/pod{UID}"


class Node:
    """A node with a pod and a container in it."""

    def __init__(self, root, backend, **rules):
        self.backend = backend
        self.root = make_root(root, nvidia=backend == "dmem")
        self.pod = make_cgroup(self.root, POD)
        self.container = make_cgroup(self.root, f"{POD}/{ID}", pids=(7, 8))
        self.driver = FakeMemoryLimits(self.root, backend, {GPU: 80 * GIB, SECOND: 40 * GIB}, **rules)
        self.driver.open()
        self.tree = CgroupTree(self.root)

    def apply(self, *pods, containers=(), late=lambda: False):
        request = ApplyRequest(tuple(pods), tuple(containers))
        answer = Applier(self.driver, self.tree, late).apply(request)
        assert ApplyAnswer.decode(answer.encode()) == answer
        return answer.pods

    def wall(self, size, gpu=GPU):
        """Sets the pod's limit alone."""
        (pod,) = self.apply(PodLimits(UID, {gpu: size}))
        return pod

    def sets(self):
        return [path for name, path in self.driver.calls if name == "set"]


@pytest.fixture(params=["misc", "dmem"])
def node(request, tmp_path, version_2_at):
    version_2_at.append(tmp_path / "cgroup")
    return Node(tmp_path / "cgroup", request.param)


@pytest.fixture
def misc(tmp_path, version_2_at):
    version_2_at.append(tmp_path / "cgroup")
    return Node(tmp_path / "cgroup", "misc")


@pytest.fixture
def dmem(tmp_path, version_2_at):
    version_2_at.append(tmp_path / "cgroup")
    return Node(tmp_path / "cgroup", "dmem")


def test_a_wall_is_set_and_bounds_the_pod(node):
    (pod,) = node.apply(PodLimits(UID, {GPU: 8 * GIB, SECOND: 0}))
    assert pod.present and not pod.problem
    assert pod.gpus == {GPU: GpuLimitState(8 * GIB, 0), SECOND: GpuLimitState(0, 0)}
    assert node.driver.allocate(GPU, node.container, 8 * GIB)
    assert not node.driver.allocate(GPU, node.container, 1)
    assert not node.driver.allocate(SECOND, node.container, 1)
    assert pod.leaves == ()


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
@pytest.mark.parametrize("backend", ["misc", "dmem"])
def test_it_is_set_in_every_layout(layout, backend, tmp_path, version_2_at):
    version_2_at.append(tmp_path / "cgroup")
    node = Node(tmp_path / "cgroup", backend)
    container = make_cgroup(node.root, layout.container_path(OTHER, SIBLING))
    (pod,) = node.apply(PodLimits(OTHER, {GPU: GIB}))
    assert pod.gpus == {GPU: GpuLimitState(GIB, 0)}
    assert node.driver.entry(GPU, node.root / layout.pod_path(OTHER)) == GIB
    assert not node.driver.allocate(GPU, container, GIB + 1)
    assert node.driver.allocate(GPU, node.container, 2 * GIB), "another pod's"


def test_what_is_as_it_should_be_is_left(node):
    node.wall(8 * GIB)
    node.driver.calls.clear()
    assert node.wall(8 * GIB).gpus == {GPU: GpuLimitState(8 * GIB, 0)}
    assert node.sets() == []


def test_a_pod_without_a_cgroup_is_not_present(node):
    (pod,) = node.apply(PodLimits(OTHER, {GPU: GIB}))
    assert (pod.present, pod.problem, pod.gpus, pod.leaves) == (False, "", {}, ())
    assert node.driver.calls == []


def test_a_shrink_follows_use_downwards(node):
    node.wall(8 * GIB)
    assert node.driver.allocate(GPU, node.container, 6 * GIB)
    for used in (6, 5, 4):
        assert node.wall(4 * GIB).gpus == {GPU: GpuLimitState(used * GIB, used * GIB)}
        assert not node.driver.allocate(GPU, node.container, 1), "it grows back"
        node.driver.allocate(GPU, node.container, -GIB)
    assert node.wall(4 * GIB).gpus == {GPU: GpuLimitState(4 * GIB, 3 * GIB)}


def test_use_that_grows_between_question_and_limit_is_followed(node):
    node.wall(8 * GIB)
    grown = iter([4 * GIB])

    def grow(name, path):
        if name == "set" and (size := next(grown, 0)):
            node.driver.before = lambda name, path: None
            assert node.driver.allocate(GPU, node.container, size)

    node.driver.before = grow
    assert node.wall(2 * GIB).gpus == {GPU: GpuLimitState(4 * GIB, 4 * GIB)}


def test_use_that_grows_faster_than_it_can_be_followed_is_a_problem(node):
    node.wall(8 * GIB)
    node.driver.before = lambda name, path: (
        name == "set" and node.driver.allocate(GPU, node.container, 2 * GIB)
    )
    state = node.wall(GIB).gpus[GPU]
    assert state.hard == 8 * GIB and state.problem
    node.driver.before = lambda name, path: None
    assert node.wall(GIB).gpus == {GPU: GpuLimitState(6 * GIB, 6 * GIB)}


def test_more_than_a_gpu_has_is_all_of_it(node):
    assert node.wall((1 << 63) - 1).gpus == {GPU: GpuLimitState(80 * GIB, 0)}


def test_a_gpu_that_the_driver_does_not_show_is_a_problem_of_its_own(node):
    gone = GPU.replace("0001", "00ff")
    (pod,) = node.apply(PodLimits(UID, {gone: GIB, GPU: GIB}))
    assert pod.gpus[gone].hard is None and gone in pod.gpus[gone].problem
    assert pod.gpus[GPU] == GpuLimitState(GIB, 0)


def test_without_the_right_to_set_the_driver_says_so(node):
    node.driver.permission = False
    state = node.wall(GIB).gpus[GPU]
    assert state.hard is None and "Insufficient Permissions" in state.problem
    assert len(node.sets()) == 1, "in vain again and again"


@pytest.mark.parametrize("lacking", ["pod", "parent"])
def test_without_the_controller_nothing_is_set(node, lacking):
    directory = node.pod if lacking == "pod" else node.pod.parent
    (directory / f"{node.backend}.max").unlink()
    pod = node.wall(GIB)
    assert pod.present and pod.gpus == {} and pod.problem.startswith(f"{directory} has no {node.backend}.max")
    assert node.driver.calls == []


def test_neither_controllers_nor_files_of_cgroups_are_ever_written(node):
    def files():
        return {path: path.read_bytes() for path in node.root.rglob("*") if path.is_file()}

    before = files()
    node.wall(8 * GIB)
    node.apply(
        PodLimits(UID, {GPU: GIB}),
        PodLimits(OTHER, {GPU: 1}),
        containers=[ContainerLimits(UID, ID, {GPU: 1})],
    )
    assert files() == before


def test_a_driver_without_the_call_is_refused_as_a_whole(tmp_path, version_2_at):
    version_2_at.append(tmp_path / "cgroup")
    node = Node(tmp_path / "cgroup", "none")
    with pytest.raises(ControlError, match="nvmlDeviceSetMemoryLimits_v1"):
        node.wall(GIB)


def test_version_1_is_refused_as_a_whole(tmp_path, version_2_at):
    node = Node(tmp_path / "cgroup", "misc")
    with pytest.raises(ControlError, match="no cgroup v2"):
        node.wall(GIB)


def test_a_pod_that_goes_meanwhile_is_not_present(node):
    node.driver.before = lambda name, path: name == "set" and shutil.rmtree(node.pod)
    pod = node.wall(GIB)
    assert not pod.present and pod.gpus == {}


def test_both_cgroups_of_one_uid_are_set_and_the_weaker_is_told(node):
    other = make_cgroup(node.root, f"user.slice/mine/pod{UID}")
    make_cgroup(node.root, f"user.slice/mine/pod{UID}/{SIBLING}")
    node.wall(8 * GIB)
    assert node.driver.allocate(GPU, other, 5 * GIB)
    pod = node.wall(4 * GIB)
    assert node.driver.entry(GPU, node.pod) == 4 * GIB
    assert pod.gpus[GPU].hard == node.driver.entry(GPU, other) == 5 * GIB
    assert str(node.pod) in pod.problem and str(other) in pod.problem


def test_a_driver_that_rounds_is_no_problem(node, monkeypatch):
    real = node.driver.set
    monkeypatch.setattr(node.driver, "set", lambda gpu, path, hard: real(gpu, path, hard - hard % (2 << 20)))
    state = node.wall(GIB + 12345).gpus[GPU]
    assert state == GpuLimitState(GIB, 0)


def test_a_driver_that_takes_a_limit_and_shows_another_is_a_problem(node, monkeypatch):
    real = node.driver.set
    monkeypatch.setattr(node.driver, "set", lambda gpu, path, hard: real(gpu, path, 2 * hard))
    state = node.wall(GIB).gpus[GPU]
    assert state.hard == 2 * GIB and state.problem


# --- what only one backend does -----------------------------------------------------------------------------------


def test_an_inherited_limit_is_not_taken_for_the_pods_own(misc):
    """On misc Get answers with the nearest entry. A limit that somebody set above is shared by all pods below."""
    misc.driver.put_by_hook(GPU, misc.pod.parent, 8 * GIB)
    assert misc.wall(8 * GIB).gpus == {GPU: GpuLimitState(8 * GIB, 0)}
    assert misc.driver.entry(GPU, misc.pod) == 8 * GIB


@pytest.mark.parametrize("dead", [GIB, 64 * GIB])
def test_a_dead_pods_limit_is_not_a_new_ones(tmp_path, version_2_at, dead):
    version_2_at.append(tmp_path / "cgroup")
    node = Node(tmp_path / "cgroup", "misc", reuse=True)
    node.wall(dead)
    shutil.rmtree(node.pod)
    fresh = make_cgroup(node.root, f"kubepods/burstable/pod{OTHER}")
    inherited = node.driver.get(GPU, str(fresh))
    assert inherited is not None and inherited.hard == dead, "the stand-in has the rule"
    (pod,) = node.apply(PodLimits(OTHER, {GPU: 8 * GIB}))
    assert pod.gpus == {GPU: GpuLimitState(8 * GIB, 0)}


def test_a_container_that_has_its_own_entry_is_told(misc):
    misc.driver.put_by_hook(GPU, misc.container, 64 * GIB)
    sibling = make_cgroup(misc.root, f"{POD}/{SIBLING}")
    pod = misc.wall(8 * GIB)
    assert pod.leaves == (Leaf(ID, GPU, 64 * GIB, (7, 8)),)
    assert not pod.problem and misc.driver.entry(GPU, misc.container) == 64 * GIB, "policy is the agent's"
    assert misc.driver.entry(GPU, sibling) is None


def test_an_entry_without_a_limit_hides_the_pods_and_is_told(misc):
    misc.driver.put_by_hook(GPU, misc.container, (1 << 64) - 1)
    pod = misc.wall(8 * GIB)
    assert pod.leaves == (Leaf(ID, GPU, None, (7, 8)),)


def test_an_entry_of_the_same_number_is_told_once_its_use_differs(misc):
    """A container's new cgroup can have a dead one's entry: with the pod's number, it doubles what the pod may have."""
    misc.wall(8 * GIB)
    misc.driver.put_by_hook(GPU, misc.container, 8 * GIB)
    sibling = make_cgroup(misc.root, f"{POD}/{SIBLING}")
    assert misc.driver.allocate(GPU, sibling, GIB)
    assert misc.wall(8 * GIB).leaves == (Leaf(ID, GPU, 8 * GIB, (7, 8)),)


def test_use_that_changes_during_the_comparison_is_no_entry(misc):
    misc.wall(8 * GIB)
    misc.driver.allocate(GPU, misc.container, 4 * GIB)
    signs = itertools.cycle([-1, 1])
    misc.driver.before = lambda name, path: misc.driver.allocate(GPU, misc.container, next(signs) * GIB)
    assert misc.wall(8 * GIB).leaves == ()


def test_a_container_that_is_named_gets_its_own_number(misc):
    nested = make_cgroup(misc.root, f"{POD}/{ID}/nested")
    misc.driver.put_by_hook(GPU, misc.container, 64 * GIB)
    misc.driver.put_by_hook(GPU, nested, 32 * GIB)
    named = [ContainerLimits(UID, ID, {GPU: 2 * GIB})]
    for _ in range(2):
        (pod,) = misc.apply(PodLimits(UID, {GPU: 8 * GIB}), containers=named)
        assert pod.leaves == () and not pod.problem
        assert misc.driver.entry(GPU, misc.container) == misc.driver.entry(GPU, nested) == 2 * GIB
    misc.driver.calls.clear()
    misc.apply(PodLimits(UID, {GPU: 8 * GIB}), containers=named)
    assert misc.sets() == []


def test_what_inherits_a_named_containers_limit_is_no_entry_of_its_own(misc):
    nested = make_cgroup(misc.root, f"{POD}/{ID}/nested")
    named = [ContainerLimits(UID, ID, {GPU: 2 * GIB})]
    (pod,) = misc.apply(PodLimits(UID, {GPU: 8 * GIB}), containers=named)
    assert pod.leaves == () and misc.driver.entry(GPU, misc.container) == 2 * GIB
    assert misc.driver.entry(GPU, nested) is None
    misc.driver.allocate(GPU, nested, 2 * GIB)
    named = [ContainerLimits(UID, ID, {GPU: GIB})]
    for _ in range(2):  # held up by use: so are those below, and no entries of theirs
        (pod,) = misc.apply(PodLimits(UID, {GPU: 8 * GIB}), containers=named)
        assert pod.leaves == () and misc.driver.entry(GPU, misc.container) == 2 * GIB
        assert misc.driver.entry(GPU, nested) is None


def test_a_named_container_that_cannot_be_set_is_told(misc):
    misc.wall(8 * GIB)
    misc.driver.put_by_hook(GPU, misc.container, 64 * GIB)
    misc.driver.permission = False
    (pod,) = misc.apply(PodLimits(UID, {GPU: 8 * GIB}), containers=[ContainerLimits(UID, ID, {GPU: GIB})])
    assert pod.leaves == (Leaf(ID, GPU, 64 * GIB, (7, 8)),)


def test_a_pod_that_uses_more_before_it_has_a_limit_is_bounded_by_its_use(dmem):
    """A limit below use has no effect, and where there is none the driver does not tell the use."""
    assert dmem.driver.allocate(GPU, dmem.container, 6 * GIB)
    assert dmem.wall(4 * GIB).gpus == {GPU: GpuLimitState(6 * GIB, 6 * GIB)}
    dmem.driver.allocate(GPU, dmem.container, -3 * GIB)
    assert dmem.wall(4 * GIB).gpus == {GPU: GpuLimitState(4 * GIB, 3 * GIB)}


def test_containers_are_not_set_where_limits_add_up(dmem):
    """On dmem a container cannot pass its pod's limit, whatever its own says."""
    dmem.apply(PodLimits(UID, {GPU: 8 * GIB}), containers=[ContainerLimits(UID, ID, {GPU: GIB})])
    assert dmem.driver.entry(GPU, dmem.container) is None
    dmem.driver.put_by_hook(GPU, dmem.container, 64 * GIB)
    assert dmem.wall(8 * GIB).leaves == ()
    assert not dmem.driver.allocate(GPU, dmem.container, 9 * GIB)


def test_leaves_are_bounded(misc):
    for number in range(MOST_BELOW + 10):
        leaf = make_cgroup(misc.root, f"{POD}/n{number:04}", pids=tuple(range(1, 40)))
        for gpu in (GPU, SECOND):
            misc.driver.put_by_hook(gpu, leaf, GIB)
    (pod,) = misc.apply(PodLimits(UID, {GPU: 8 * GIB, SECOND: GIB // 2}))
    assert len(pod.leaves) == 2 * (MOST_BELOW - 1) <= MOST_LEAVES
    assert {len(leaf.pids) for leaf in pod.leaves} == {MOST_PIDS}
    assert f"has {MOST_BELOW} cgroups" in pod.problem
    assert {leaf.container for leaf in pod.leaves} == {""}


# --- time ---------------------------------------------------------------------------------------------------------


def test_what_is_not_reached_in_time_is_said_and_the_rest_is_set(node):
    make_cgroup(node.root, f"kubepods/pod{OTHER}")
    count = itertools.count()
    first, second = node.apply(
        PodLimits(UID, {GPU: GIB}), PodLimits(OTHER, {GPU: GIB}), late=lambda: next(count) >= 1
    )
    assert first.gpus == {GPU: GpuLimitState(GIB, 0)}
    assert second.present and second.gpus == {} and "not reached" in second.problem


# --- kills --------------------------------------------------------------------------------------------------------


def _kill_at(step):
    count = itertools.count()

    def before(name, path):
        if next(count) == step:
            raise Killed

    return before


@pytest.mark.parametrize("step", range(24))
def test_a_kill_at_any_call_is_mended_by_the_next_pass(node, step):
    """The first pass is killed before its call number STEP; the next one ends as though there had been no other."""
    make_cgroup(node.root, f"kubepods/pod{OTHER}")
    node.wall(16 * GIB)
    node.driver.allocate(GPU, node.container, 6 * GIB)
    if node.backend == "misc":
        node.driver.put_by_hook(SECOND, node.container, 40 * GIB)
    request = [PodLimits(UID, {GPU: 4 * GIB, SECOND: GIB}), PodLimits(OTHER, {GPU: 2 * GIB, SECOND: 0})]
    containers = [ContainerLimits(UID, ID, {SECOND: GIB // 2})]
    node.driver.before = _kill_at(step)
    try:
        node.apply(*request, containers=containers)
    except Killed:
        pass
    else:
        assert step > 8, "this step has to be reached"
    node.driver.before = lambda name, path: None
    first, second = node.apply(*request, containers=containers)
    assert first.gpus == {GPU: GpuLimitState(6 * GIB, 6 * GIB), SECOND: GpuLimitState(GIB, 0)}
    assert second.gpus == {GPU: GpuLimitState(2 * GIB, 0), SECOND: GpuLimitState(0, 0)}
    assert first.leaves == second.leaves == () and not first.problem and not second.problem
    expected = GIB // 2 if node.backend == "misc" else None
    assert node.driver.entry(SECOND, node.container) == expected


sizes = st.integers(0, 8).map(lambda number: number * GIB)
steps = st.lists(
    st.tuples(st.just("wall"), sizes, st.integers(0, 8))
    | st.tuples(st.just("allocate"), sizes, st.just(0))
    | st.tuples(st.just("free"), sizes, st.just(0))
    | st.tuples(st.just("new pod"), sizes, st.just(0))
    | st.tuples(st.just("reload"), sizes, st.just(0)),
    max_size=12,
)


@pytest.mark.parametrize("backend", ["misc", "dmem"])
@pytest.mark.parametrize("reuse", [False, True])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=steps)
def test_after_any_story_with_kills_the_wall_is_what_was_asked_or_present_use(
    steps, backend, reuse, tmp_path_factory, version_2_at
):
    root = Path(tmp_path_factory.mktemp("story")) / "cgroup"
    version_2_at.append(root)
    node = Node(root, backend, reuse=reuse)
    uid, container = UID, node.container
    for action, size, step in steps:
        pod = PodLimits(uid, {GPU: size})
        if action == "wall":
            node.driver.before = _kill_at(step)
            with contextlib.suppress(Killed):
                node.apply(pod)
            node.driver.before = lambda name, path: None
        elif action == "allocate":
            node.driver.allocate(GPU, container, size)
        elif action == "free":
            limit = node.driver.get(GPU, str(container.parent))
            node.driver.allocate(GPU, container, -min(size, limit.used if limit else 0))
        elif action == "reload":
            node.driver.reload()
            node.driver.renew()
        else:
            shutil.rmtree(container.parent)
            uid = OTHER if uid == UID else UID
            container = make_cgroup(root, f"kubepods/burstable/pod{uid}/{ID}")
        (state,) = node.apply(pod := replace(pod, uid=uid))
        held = state.gpus[GPU]
        assert held.problem == "" and held.hard == max(size, held.used or 0), (action, state)
        assert node.driver.entry(GPU, container.parent) == held.hard
        beyond = node.driver.allocate(GPU, container, held.hard - held.used + 1)
        assert not beyond or state.leaves, (
            "a container's cgroup may have the entry of a dead one, which is told"
        )
        if beyond:
            node.driver.allocate(GPU, container, -(held.hard - held.used + 1))
