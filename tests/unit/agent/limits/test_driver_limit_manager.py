# SPDX-License-Identifier: Apache-2.0
"""The driver's limits as the agent has them set: before a start, after every change, whatever has answered before."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace

import pytest

from agent.apiserver.consumer_pods import ConsumerPods
from agent.limits.driver_limit_client import DriverLimitClient
from agent.limits.driver_limit_manager import DriverLimitManager, DriverLimitTimes
from agent.limits.driver_limit_report import read_report
from agent.limits.no_driver_limits import NoDriverLimits
from agent.limits.pod_users import PodUsers
from gigaslice.core.allocation.consumer import ContainerRef
from gigaslice.core.allocation.table import AllocationOptions, AllocationTable
from gigaslice.core.deviceplugin.origin import Owner
from gigaslice.core.limits import live_limits
from gigaslice.core.limits.driver_limit_messages import Leaf, SupportAnswer
from gigaslice.core.model import Pod
from gigaslice.runtime.time_limit import within
from tests.fakes.cluster import MemoryCluster
from tests.fakes.driver_limiter import MemoryLimiter
from tests.fakes.nodes import GIB, allocation, inventory, uuid

MARGIN = 256 << 20
GPUS = inventory(2, 24)
A, B = (f"{letter * 8}-0000-4000-8000-000000000000" for letter in "ab")
TOTALS = {gpu.uuid: 25 * GIB for gpu in GPUS.gpus}
SOON = DriverLimitTimes(support=0.0, absence=0.0, connect=0.05, retry=0.01)


class Node:
    """A node with the pods a and b, of 8 and 4 GiB of the first GPU."""

    def __init__(self, store, mode="auto", **options):
        self.store, self.cluster = store, MemoryCluster()
        self.limiter = MemoryLimiter(TOTALS)
        self.listed = []
        self.put()
        for name, uid in (("a", A), ("b", B)):
            self.cluster.put(Pod("default", name, uid))
        users = PodUsers(store, self.cluster, exempt=["kube-system"], **options)
        self.manager = DriverLimitManager(
            store,
            SimpleNamespace(now=GPUS),
            users,
            self.limiter,
            ConsumerPods(self.cluster),
            mode=mode,
            margin=MARGIN,
            interval=0.01,
            usable=self.listed.append,
            times=SOON,
        )
        self.users = users

    def put(self, **more):
        entries = [
            allocation(
                1, (0, range(8)), library=self.store.library, owner=Owner(A, "default", "a", "main"), **more
            ),
            allocation(
                2, (0, range(8, 12)), library=self.store.library, owner=Owner(B, "default", "b", "main")
            ),
        ]
        table = AllocationTable()
        for entry in entries:
            table = table.with_allocation(entry)
        self.store.commit(table, entries)

    @property
    def first(self):
        return self.store.table.allocations[0]

    def round(self):
        asyncio.run(self.manager.round())

    def start(self):
        """Whether the first container may start: None, or why not."""

        async def asked():
            await self.manager.round()
            return await self.manager.blocker(self.first)

        return asyncio.run(asked())


@pytest.fixture
def node(store):
    return Node(store)


def test_a_pod_is_limited_before_its_container_starts(node):
    assert node.start() is None
    assert node.limiter.limits(A) == {uuid(0): 8 * GIB + MARGIN, uuid(1): 0}
    assert node.limiter.requests[-1].pods[0].uid == A and len(node.limiter.requests[-1].pods) == 1


def test_a_round_limits_every_pod_and_sets_again_what_the_driver_has_lost(node):
    node.round()
    assert node.limiter.limits(B) == {uuid(0): 4 * GIB + MARGIN, uuid(1): 0}
    node.limiter.hard.clear()
    node.round()
    assert node.limiter.limits(A)[uuid(0)] == 8 * GIB + MARGIN


def test_a_resize_changes_the_limit_and_a_shrink_follows_what_is_in_use(node):
    node.round()
    node.limiter.used[A, uuid(0)] = 7 * GIB
    node.store.resize(live_limits.with_limits(node.first, {uuid(0): 5 * GIB}, {}))
    node.round()
    assert node.limiter.limits(A)[uuid(0)] == 7 * GIB
    (wall,) = node.manager.report.walls
    assert (wall.pod, wall.wanted, wall.hard, wall.used) == ("default/a", 5 * GIB + MARGIN, 7 * GIB, 7 * GIB)
    assert read_report(node.store.state_dir) == node.manager.report
    node.limiter.used[A, uuid(0)] = GIB
    node.round()
    assert node.limiter.limits(A)[uuid(0)] == 5 * GIB + MARGIN and not node.manager.report.walls


def test_pods_without_an_allocation_get_nothing_unless_they_are_exempt(node):
    stranger, monitor = A.replace("a", "c"), A.replace("a", "d")
    node.cluster.put(Pod("default", "stranger", stranger))
    node.cluster.put(Pod("kube-system", "monitor", monitor))
    node.users.present = frozenset([A, B, stranger, monitor])
    node.round()
    assert node.limiter.limits(stranger) == dict.fromkeys(TOTALS, 0)
    assert node.limiter.limits(monitor) == TOTALS


def test_a_pod_stays_closed_while_the_pod_of_an_allocation_is_unknown(node):
    stranger, late = A.replace("a", "c"), A.replace("a", "d")
    node.cluster.put(Pod("default", "stranger", stranger))
    node.users.present = frozenset([stranger])
    node.round()
    unknown = allocation(3, (1, range(2)), library=node.store.library)
    node.store.commit(node.store.table.with_allocation(unknown), [unknown])
    node.cluster.put(Pod("default", "late", late))
    node.users.present = frozenset([stranger, late])
    node.round()
    assert node.limiter.limits(stranger) == dict.fromkeys(TOTALS, 0)
    assert node.limiter.limits(late) == TOTALS, "it may be the pod of the allocation"
    node.store.pods_seen = {unknown.id: frozenset([late])}
    node.round()
    assert node.limiter.limits(late) == {uuid(0): 0, uuid(1): 2 * GIB + MARGIN}


def test_a_static_pod_is_limited_by_the_hash_of_its_file(node):
    digest = "0123456789abcdef" * 2
    marks = {"kubernetes.io/config.mirror": digest, "kubernetes.io/config.hash": digest}
    node.cluster.put(Pod("default", "a", A, annotations=marks))
    assert node.start() is None
    assert node.limiter.limits(digest)[uuid(0)] == 8 * GIB + MARGIN and not node.limiter.limits(A)


@pytest.mark.parametrize("digest", ["../..", "", "0" * 31, "G" * 32])
def test_a_hash_that_is_none_is_not_believed(node, digest):
    marks = {"kubernetes.io/config.mirror": "x", "kubernetes.io/config.hash": digest}
    node.cluster.put(Pod("default", "a", A, annotations=marks))
    assert node.start() is None and node.limiter.limits(A)


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda limiter: limiter.absent.add(A), "cgroup"),
        (lambda limiter: limiter.problems.update({A: "no dmem here"}), "no dmem here"),
        (lambda limiter: setattr(limiter, "away", "nobody there"), "nobody there"),
        (lambda limiter: setattr(limiter, "answer", SupportAnswer("none", "too old")), "too old"),
    ],
)
@pytest.mark.parametrize("mode", ["auto", "required"])
def test_without_a_limit_a_container_starts_where_it_is_not_required_and_nowhere_else(
    store, spoil, text, mode
):
    node = Node(store, mode)
    spoil(node.limiter)
    blocker = node.start()
    assert blocker is None if mode == "auto" else text in (blocker or "")


def test_a_pod_is_told_once_that_the_driver_does_not_bound_it(node):
    node.limiter.problems[A] = "no dmem.max"
    assert [node.start(), node.start()] == [None, None]
    (text,) = node.cluster.said("DriverLimitNotSet")
    assert "no dmem.max" in text and "library" in text


@pytest.mark.parametrize(("mode", "waits"), [("auto", False), ("required", True)])
def test_a_container_whose_pod_is_unknown_starts_where_it_is_not_required(store, mode, waits):
    node = Node(store, mode)
    unknown = allocation(3, (1, range(2)), library=store.library)
    store.commit(store.table.with_allocation(unknown), [unknown])

    async def asked():
        await node.manager.round()
        return await node.manager.blocker(unknown)

    assert bool(asyncio.run(asked())) is waits


def test_where_limits_are_required_devices_are_listed_only_while_there_are_some(store):
    node = Node(store, "required")
    node.limiter.answer = SupportAnswer("none", "branch 580 has none")
    node.round()
    assert node.listed == [False] and node.limiter.requests == []
    node.limiter.answer = MemoryLimiter(TOTALS).answer
    node.round()
    assert node.listed == [False, True]
    node.limiter.away = "restarting"
    node.round()
    assert node.listed == [False, True, False]


def test_who_sets_limits_may_restart(store):
    node = Node(store, "required")
    node.manager._times = DriverLimitTimes(support=0.0, absence=60.0, connect=0.05)
    node.round()
    node.limiter.away = "restarting"
    node.round()
    assert node.listed == [True]
    assert "restarting" in node.start(), "and nothing starts meanwhile"


def test_what_stands_below_a_pods_limit_is_replaced_by_the_containers_own_number(node, tmp_path):
    container = "c" * 64
    process = tmp_path / "4242"
    process.mkdir()
    (process / "comm").write_text("python\n")
    (process / "cgroup").write_text(f"0::/kubepods/pod{A}/{container}\n")
    (process / "mountinfo").write_text(
        f"1 2 0:1 /var/allocations/{node.first.id}/limits /etc/vcuda/limits ro - ext4 x ro\n"
    )
    node.manager._setter._proc = tmp_path
    node.limiter.leaves[A] = (Leaf(container, uuid(0), 20 * GIB, (4242,)),)
    node.round()
    last = node.limiter.requests[-1]
    (sent,) = last.containers
    assert (sent.uid, sent.container, dict(sent.gpus)) == (A, container, {uuid(0): 8 * GIB + MARGIN})
    assert [pod.uid for pod in last.pods] == [A]
    (text,) = node.cluster.said("DriverLimitReplaced")
    assert "20 GiB" in text and "NVIDIA_GPU_MEMORY_LIMIT" in text


def test_a_page_grows_when_the_drivers_limit_has(node):
    node.round()
    grown = live_limits.with_limits(node.first, {uuid(0): 12 * GIB}, {})
    node.store.resize(grown)
    calls = []
    node.manager.watchers.append(lambda: calls.append(node.manager.most_for(node.first, uuid(0))))
    assert node.manager.most_for(node.first, uuid(0)) == 8 * GIB
    node.round()
    assert calls == [12 * GIB]


def test_a_page_may_allow_all_of_a_gpu_where_the_driver_does(node):
    options = AllocationOptions(elastic=True)
    owner = Owner(A, "default", "a", "other")
    elastic = allocation(3, (1, range(8)), library=node.store.library, owner=owner, policy=options)
    node.store.commit(node.store.table.with_allocation(elastic), [elastic])
    node.round()
    assert node.manager.most_for(elastic, uuid(1)) == GPUS.gpus[1].memory_bytes


def test_nothing_bounds_a_page_while_nobody_sets_limits(node):
    node.limiter.connected = False
    node.round()
    assert node.manager.most_for(node.first, uuid(0)) is None
    assert "nobody answers" in node.manager.report.reason


def test_new_cgroups_are_limited_at_once(node):
    stranger = A.replace("a", "c")
    node.cluster.put(Pod("default", "stranger", stranger))
    node.manager._interval = 60.0

    async def scene():
        running = asyncio.ensure_future(node.manager.run())
        await node.manager.settled(5)
        await asyncio.sleep(0.05)
        node.limiter.show(A, B, stranger)
        for _ in range(200):
            if node.limiter.limits(stranger):
                break
            await asyncio.sleep(0.01)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    asyncio.run(scene())
    assert node.limiter.limits(stranger) == dict.fromkeys(TOTALS, 0)


def test_pods_are_named_for_metrics_and_the_excess_is_told(node):
    node.round()
    assert {(namespace, pod) for namespace, pod, _ in node.manager.pod_states()} == {
        ("default", "a"),
        ("default", "b"),
    }
    assert node.manager.report.pods == 2 and node.manager.report.excess == {}
    rest = allocation(
        3, (0, range(12, 24)), library=node.store.library, container=ContainerRef("default", "c", "main")
    )
    node.cluster.put(Pod("default", "c", A.replace("a", "c")))
    node.store.commit(node.store.table.with_allocation(rest), [rest])
    node.round()
    assert node.manager.report.excess == {uuid(0): 3 * MARGIN}


def test_what_the_driver_counts_is_one_allocations_where_its_pod_has_no_other_there(node):
    node.limiter.used[A, uuid(0)] = 3 * GIB
    node.round()
    assert node.manager.used_by(node.first, uuid(0)) == 3 * GIB
    assert node.manager.room(uuid(0)) == 21 * GIB
    beside = allocation(3, (1, range(2)), library=node.store.library, owner=Owner(A, "default", "a", "other"))
    node.store.commit(node.store.table.with_allocation(beside), [beside])
    assert node.manager.used_by(node.first, uuid(0)) == 3 * GIB
    same = allocation(
        4, (0, range(12, 14)), library=node.store.library, owner=Owner(A, "default", "a", "more")
    )
    node.store.commit(node.store.table.with_allocation(same), [same])
    assert node.manager.used_by(node.first, uuid(0)) is None


def test_an_allocation_that_is_released_while_its_start_is_decided_harms_nothing(node):
    async def scene():
        await node.manager.round()
        starting = node.first
        node.store.release(node.store.table.without([starting.id]), [starting])
        return await node.manager.blocker(starting)

    assert asyncio.run(scene()) is None


@pytest.mark.parametrize("uid", ["", "../x", "A" * 36, "u"])
def test_a_pod_with_an_odd_uid_keeps_no_other_pod_from_its_limit(node, uid):
    node.cluster.put(Pod("default", "odd", uid))
    odd = allocation(3, (1, range(2)), library=node.store.library, owner=Owner(uid, "default", "odd", "main"))
    node.store.commit(node.store.table.with_allocation(odd), [odd])
    node.users.present = frozenset([A, B])
    node.round()
    assert node.limiter.limits(A)[uuid(0)] == 8 * GIB + MARGIN and not node.manager.report.reason


def test_a_pod_that_cannot_be_limited_does_not_have_the_driver_opened_in_each_round(node):
    node.manager._times = DriverLimitTimes(support=60.0)
    node.limiter.problems[A] = "no dmem.max"
    for _ in range(3):
        node.round()
    assert node.limiter.asked == 1


def test_whether_limits_can_be_had_is_asked_again_only_while_something_is_wrong(node):
    node.round()
    node.round()
    assert node.limiter.asked == 1
    node.limiter.problems[A] = "no dmem.max"
    node.round()
    node.round()
    assert node.limiter.asked == 2
    node.limiter.problems.clear()
    node.limiter.answer = SupportAnswer("none", "the driver was reloaded with RmMemacctMode=0")
    node.round()
    node.round()
    assert node.limiter.asked == 4 and node.manager.report.backend == "none"


def test_a_start_sets_the_limit_after_a_round_that_began_before_it(node):
    """Else that round's older numbers would be the last ones."""

    async def scene():
        await node.manager.round()
        node.limiter.pauses = [0.1]
        running = asyncio.ensure_future(node.manager.round())
        await asyncio.sleep(0.01)
        node.store.resize(live_limits.with_limits(node.first, {uuid(0): 12 * GIB}, {}))
        await node.manager.blocker(node.first)
        await running

    asyncio.run(scene())
    assert node.limiter.limits(A)[uuid(0)] == 12 * GIB + MARGIN


def test_what_was_reported_of_pods_that_are_gone_is_forgotten(node):
    node.limiter.problems[A] = "no dmem.max"
    node.start()
    assert any(node.first.id in key for key in node.manager._reported._texts if isinstance(key, tuple))
    node.store.release(node.store.table.without([node.first.id]), [node.first])
    node.round()
    assert not [key for key in node.manager._reported._texts if isinstance(key, tuple)]


def test_a_report_of_another_version_is_read_as_far_as_it_is_known(store):
    path = store.state_dir / "driver-limits.json"
    path.write_text('{"version": 1, "mode": "auto", "backend": "dmem", "news": 3, "walls": [{"pod": "a", "gpu": "g", '
                    '"wanted": 1, "more": 2}]}')  # fmt: skip
    report = read_report(store.state_dir)
    assert (report.backend, report.walls[0].wanted) == ("dmem", 1)


def test_off_sets_nothing_and_says_so(store):
    limits = NoDriverLimits(store)

    async def scene():
        running = asyncio.ensure_future(limits.run())
        await asyncio.sleep(0)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        return await limits.blocker(allocation(1, (0, range(8))))

    assert asyncio.run(scene()) is None
    assert read_report(store.state_dir).mode == "off"


def test_a_start_waits_for_nobody_where_nobody_listens(node):
    node.manager._times = DriverLimitTimes(connect=60.0)
    node.limiter.connected = node.limiter.expected = False

    async def scene():
        running = asyncio.ensure_future(node.manager.run())
        try:
            return await within(node.manager.blocker(node.first), 10)
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running

    assert asyncio.run(scene()) is None


def test_the_socket_of_nobody_is_not_expected_to_answer(tmp_path):
    assert not DriverLimitClient(tmp_path / "limits.sock").expected
