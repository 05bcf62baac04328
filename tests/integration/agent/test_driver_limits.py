# SPDX-License-Identifier: Apache-2.0
"""The driver's own limits on a node: agent, role, simulated driver and kubelet stand-in, each a process of its own.

Programs here have no library: what stops them is the driver, by the cgroup that they run in.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
import urllib.request

import pytest

from tests.fakedriver.cgroups import enable_controller, make_root, region_of
from tests.fakedriver.env import driver_env, write_machine
from tests.fakes.kubelet import ContainerSpec, FakeKubelet, PodSpec, Runtime
from tests.integration.agent.conftest import (
    NODE,
    PATIENCE,
    QUICK,
    RESOURCE,
    ROOT,
    AgentProcess,
    allocation_dir,
    gpu_of,
    pod,
    published_inventory,
    wait_until,
)
from tests.native.running import GIB, LIBRARY, MIB, OUT_OF_MEMORY, SUCCESS, Client

MARGIN = 256 * MIB
OWN = "0" * 32
REGIONS = [region_of("00000000:3b:00.0"), region_of("00000000:af:00.0")]
LAYOUTS = {
    "cgroupfs": "kubepods/burstable/pod{uid}",
    "systemd": "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{escaped}.slice",
}


class LimitedNode:
    """A node whose driver keeps limits; cgroups are made as a kubelet makes them, by LAYOUT."""

    def __init__(self, directory, api, backend, layout, keys=(), **flags):
        self.directory, self.backend, self.layout = directory, backend, LAYOUTS[layout]
        self.tree = make_root(directory / "cgroup", backend, dict.fromkeys(REGIONS, 24 * GIB))
        self.procs = 0
        keys = {"memory_limits": backend, "driver_version": "615.10", **dict(keys)}
        machine = write_machine(directory, like="two-24g", **keys)
        self.env = driver_env(machine, directory / "machine", FAKEDRIVER_ADMIN="yes")
        self.socket = directory / "limits.sock"
        self.role = None
        self.clients = []
        self.start_role()
        self.kubelet = FakeKubelet(
            directory / "kubelet", 7, settings=QUICK, runtime=Runtime("plain"), api=api
        )
        self.agent = AgentProcess(directory, self.kubelet.plugin_directory, self.kubelet.pod_resources_socket)
        self.agent.driver = self.env
        self.agent.flags |= {
            "--kubeconfig": api.kubeconfig(directory),
            "--node-name": NODE,
            "--inventory": "nvml",
        }
        self.agent.flags |= {"--driver-limits-socket": self.socket, "--driver-limits": "required"}
        self.agent.flags |= {"--" + name.replace("_", "-"): value for name, value in flags.items()}
        self.kubelet.start()
        self.agent.start()
        self.agent.wait_event("watching")

    def listed(self):
        wait_until(lambda: self.kubelet.allocatable().get(RESOURCE), "slices")
        return self

    def start_role(self):
        command = [sys.executable, "-m", "tests.integration.agent.driver_limits_role", self.socket, self.tree]
        with (self.directory / "role.log").open("ab") as log:
            self.role = subprocess.Popen(
                list(map(str, command)), cwd=ROOT, env=self.env, stdout=log, stderr=log
            )
        own = self.cgroup(OWN)
        (own / "cgroup.procs").write_text(f"{self.role.pid}\n")

    def kill_role(self):
        self.role.kill()
        self.role.wait()

    def cgroup(self, uid):
        """The cgroup of the pod with that UID, made if need be."""
        path = self.tree / self.layout.format(uid=uid, escaped=uid.replace("-", "_"))
        for directory in [*reversed(path.relative_to(self.tree).parents), path.relative_to(self.tree)][1:]:
            if not (self.tree / directory).exists():
                (self.tree / directory).mkdir()
                enable_controller(self.tree / directory, self.backend)
                (self.tree / directory / "cgroup.procs").touch()
        return path

    def run(self, spec):
        """A pod that runs, in a cgroup of its own."""
        created = self.kubelet.create_pod(spec)
        self.cgroup(created.uid)
        created.wait_for(lambda created: created.phase != "Pending", PATIENCE)
        assert created.phase == "Running", (created.reason, created.message)
        return created

    def program(self, created, gpu, **extra):
        """A program in a pod's cgroup, without the library."""
        group = str(self.cgroup(created.uid))
        client = Client({**self.env, "CUDA_VISIBLE_DEVICES": gpu, "FAKEDRIVER_CGROUP": group, **extra})
        self.clients.append(client)
        return client

    def limit(self, created, gpu, below="."):
        """The hard limit of a pod, or of a cgroup BELOW its own, as the driver keeps it; None for none."""
        said = self.ask_driver("limits.get(gpu, path) and limits.get(gpu, path).hard", created, gpu, below)
        return None if said == "None" else int(said)

    def ask_driver(self, what, created, gpu, below="."):
        """What root on the node would be answered by the driver, of a pod's cgroup or of one BELOW it."""
        code = (
            "import sys\n"
            "from gigaslice.roles.driver_limits.nvml import NvmlLimits\n"
            f"limits = NvmlLimits(); limits.open(); gpu, path = sys.argv[1:]\nprint({what})"
        )
        path = self.cgroup(created.uid) / below
        answer = subprocess.run(
            [sys.executable, "-c", code, gpu, str(path)],
            env=self.env, cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return answer.stdout.strip()

    def command(self, *words):
        """What a command of gigaslice says."""
        answer = subprocess.run(
            [sys.executable, "-m", "gigaslice_cli", *words, "--state-dir", str(self.agent.state)],
            env=self.env, cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return answer.stdout

    def close(self):
        for client in self.clients:
            client.kill()
        if self.agent.process is not None:
            assert self.agent.terminate() == 0
        self.kubelet.close()
        if self.role.poll() is None:
            self.role.send_signal(signal.SIGTERM)
            # One that is started just now has no handler yet; the command ends with 0 even then.
            assert self.role.wait(PATIENCE) in (0, -signal.SIGTERM)
        assert "Traceback" not in self.agent.output.read_text()
        assert "Traceback" not in (self.directory / "role.log").read_text()


@pytest.fixture
def begin_limited(directory, api):
    """Starts nodes; they are closed at the end."""
    started = []

    def start(backend="dmem", layout="cgroupfs", keys=(), **flags):
        started.append(LimitedNode(directory, api, backend, layout, keys, **flags))
        return started[-1]

    yield start
    for node in started:
        node.close()


def other_gpu(node, gpu):
    (other,) = {event["gpu"] for event in node.agent.events("GPU found")} - {gpu}
    return other


@pytest.mark.parametrize("backend", ["dmem", "misc"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_program_without_the_library_gets_what_its_pod_was_promised_and_no_more(
    begin_limited, backend, layout
):
    node = begin_limited(backend, layout).listed()
    created = node.run(pod("a", 8))
    gpu = gpu_of(created.container("c0"))
    client = node.program(created, gpu).ready()
    assert client.do("alloc a", 8 * GIB).code == SUCCESS
    assert client.do("alloc b", MARGIN).code == OUT_OF_MEMORY
    beside = node.program(created, other_gpu(node, gpu))
    assert [beside.do("init").code, beside.do("retain z", 0).code] == [SUCCESS, OUT_OF_MEMORY], (
        "no context either"
    )


def test_a_container_starts_no_sooner_than_its_limit_stands(begin_limited):
    node = begin_limited().listed()
    created = node.kubelet.create_pod(pod("a", 8))
    node.agent.wait_event("start delayed")
    assert created.phase == "Pending"
    assert "cgroup of its pod" in node.agent.events("start delayed")[0]["detail"]
    node.cgroup(created.uid)
    created.wait_for(lambda created: created.phase == "Running", PATIENCE)
    assert node.limit(created, gpu_of(created.container("c0"))) == 8 * GIB + MARGIN


def test_two_containers_of_a_pod_share_its_wall_and_a_pod_without_slices_has_nothing(begin_limited):
    node = begin_limited().listed()
    created = node.run(pod("a", 4, 4))
    stranger = node.run(PodSpec("b", (ContainerSpec("c0"),)))
    gpu = gpu_of(created.container("c0"))
    same = gpu_of(created.container("c1")) == gpu
    assert node.limit(created, gpu) == (8 if same else 4) * GIB + MARGIN
    wait_until(lambda: node.limit(stranger, gpu) == 0, "nothing for a pod that asks for nothing")
    assert node.program(stranger, gpu).do("init").code == SUCCESS


def test_without_the_controller_devices_are_not_listed_and_running_pods_go_on(begin_limited):
    node = begin_limited().listed()
    created = node.run(pod("a", 8))
    gpu = gpu_of(created.container("c0"))
    client = node.program(created, gpu).ready()
    for name in ("dmem.max", "dmem.min", "dmem.current"):
        (node.cgroup(OWN) / name).unlink()
    node.agent.kill()
    node.agent.start()
    wait_until(lambda: not node.kubelet.allocatable().get(RESOURCE), "no slices")
    assert "dmem.max" in node.agent.wait_event("no devices are listed")["detail"]
    assert client.do("alloc a", GIB).code == SUCCESS and created.phase == "Running"


def test_a_start_is_told_and_goes_on_where_limits_are_not_required(begin_limited, api):
    node = begin_limited(driver_limits="auto").listed()
    created = node.kubelet.create_pod(pod("a", 8))  # and no cgroup
    created.wait_for(lambda created: created.phase == "Running", PATIENCE)
    wait_until(lambda: api.events("DriverLimitNotSet"), "the event")


@pytest.mark.parametrize("backend", ["dmem", "misc"])
def test_whoever_is_killed_no_pod_is_without_its_wall_and_no_new_one_has_a_dead_ones(begin_limited, backend):
    """Agent and role are killed at random while pods come and go; each look finds a wall no larger than promised."""
    node = begin_limited(backend, driver_limits="required").listed()
    rng, stop, failures = random.Random(backend), threading.Event(), []
    agents_turn = threading.Lock()

    def kill():
        while not stop.wait(rng.uniform(0.2, 1.2)):
            with agents_turn:
                if rng.random() < 0.5:
                    starts = len(node.agent.events("watching"))
                    node.agent.kill_worker()
                    node.agent.wait_event("watching", starts + 1)
                else:
                    node.kill_role()
                    time.sleep(rng.uniform(0, 0.2))
                    node.start_role()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        for number in range(6):
            size = rng.randint(1, 6)
            created = node.run(pod(f"p{number}", size))
            gpu = gpu_of(created.container("c0"))
            limit = node.limit(created, gpu)
            if limit != size * GIB + MARGIN:
                failures.append((number, size, limit))
            if rng.random() < 0.5:
                node.kubelet.delete_pod(created)
    finally:
        stop.set()
        killer.join()
    assert failures == []


def test_the_quota_and_the_wall_agree_on_what_is_shown_and_the_library_refuses_first(begin_limited):
    node = begin_limited().listed()
    created = node.run(pod("a", 8))
    client = under_the_library(node, created)
    assert client.do("info").second == 8 * GIB
    free = client.free()
    assert client.do("alloc a", free + MIB).code == OUT_OF_MEMORY
    assert client.do("alloc a", free).code == SUCCESS
    assert not node.agent.events("driver refused memory")


def under_the_library(node, created, **extra):
    """A program in a pod's cgroup, with the library of its first container."""
    container = created.container("c0")
    library = {"LD_PRELOAD": str(LIBRARY), "VCUDA_DIR": str(allocation_dir(container))}
    return node.program(created, gpu_of(container), **library, **extra).ready()


def test_a_pod_is_told_when_the_driver_refuses_what_its_quota_had_room_for(begin_limited, api):
    node = begin_limited(keys={"memory_limits_overcount": 20}, driver_limits_margin="1MiB").listed()
    created = node.run(pod("a", 8))
    client = under_the_library(node, created)
    assert client.do("alloc a", 7 * GIB + 512 * MIB).code == OUT_OF_MEMORY
    node.agent.wait_event("driver refused memory")
    (event,) = wait_until(lambda: api.events("DriverLimitReached"), "the event")
    assert event["involvedObject"]["name"] == "a" and "7.5 GiB" in event["message"]


def named(node):
    """Returns when the agent has the name of the only pod: a command that names it before is refused."""
    wait_until(lambda: [row["pod"] for row in node.agent.status()] == ["a"], "the name")


def test_a_resize_moves_wall_and_page_together(begin_limited):
    node = begin_limited().listed()
    created = node.run(pod("a", 8))
    gpu = gpu_of(created.container("c0"))
    client = under_the_library(node, created)
    named(node)
    for size in (12, 6):
        node.command("resize", "a", "--memory", f"{size}GiB")
        wait_until(lambda size=size: node.limit(created, gpu) == size * GIB + MARGIN, "the wall")
        wait_until(lambda size=size: client.do("info").second == size * GIB, "the page")
        free = client.free()
        assert client.do("alloc a", free).code == SUCCESS
        assert client.do("free a").code == SUCCESS


def test_a_shrink_below_use_follows_the_use_and_status_says_how_far(begin_limited):
    node = begin_limited().listed()
    created = node.run(pod("a", 8))
    gpu = gpu_of(created.container("c0"))
    client = under_the_library(node, created)
    assert client.do("alloc a", 6 * GIB).code == SUCCESS
    named(node)
    node.command("resize", "a", "--memory", "2GiB")
    wait_until(
        lambda: "default/a" in node.command("status").partition("driver limits:")[2], "the wall in status"
    )
    assert 6 * GIB <= node.limit(created, gpu) < 8 * GIB
    assert client.do("free a").code == SUCCESS
    wait_until(lambda: node.limit(created, gpu) == 2 * GIB + MARGIN, "the wall of the new size")
    wait_until(
        lambda: "default/a" not in node.command("status").partition("driver limits:")[2], "nothing to tell"
    )
    assert "driver limits: dmem, for 1 pods" in node.command("status")


def test_a_limit_below_the_pods_own_is_replaced_on_the_drivers_own_map(begin_limited, api):
    """As NVIDIA's hook sets one for a container's cgroup by names in the environment: there the nearest one counts."""
    node = begin_limited("misc").listed()
    created = node.run(pod("a", 8))
    gpu, container = gpu_of(created.container("c0")), "c" * 64
    leaf = node.cgroup(created.uid) / container
    leaf.mkdir()
    enable_controller(leaf, "misc")
    node.ask_driver(f"limits.set(gpu, path, {20 * GIB})", created, gpu, container)
    node.agent.wait_event("driver limit replaced")
    assert node.limit(created, gpu, container) == 8 * GIB + MARGIN
    client = node.program(created, gpu, FAKEDRIVER_CGROUP=str(leaf)).ready()
    assert client.do("alloc a", 9 * GIB).code == OUT_OF_MEMORY


def test_metrics_and_the_inventory_tell_what_keeps_the_limits(begin_limited, api):
    node = begin_limited().listed()
    created = node.run(pod("a", 8))
    gpu = gpu_of(created.container("c0"))
    wait_until(lambda: published_inventory(api), "published")
    wait_until(
        lambda: {entry.properties["driverLimits"] for entry in published_inventory(api).gpus} == {"dmem"},
        "dmem",
    )
    port = node.agent.wait_event("metrics served")["port"]

    def lines(name, label):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
            scraped = answer.read().decode().splitlines()
        return [line for line in scraped if line.startswith(f"gigaslice_{name}{{") and label in line]

    wait_until(lambda: lines("driver_limits", 'backend="dmem"'), "what keeps them")
    (limit,) = wait_until(lambda: lines("pod_driver_limit_bytes", gpu), "the limit")
    assert 'pod="a"' in limit and float(limit.split()[-1]) == 8 * GIB + MARGIN
    (used,) = wait_until(lambda: lines("pod_driver_used_bytes", gpu), "what is used")
    assert 'pod="a"' in used and float(used.split()[-1]) == 0
