# SPDX-License-Identifier: Apache-2.0
"""The driver's own memory limits of cgroups (branch 615 and later): `walls.py both|misc|dmem`.

Makes a cgroup of its own below the root of the tree, with groups in it, puts workers into them, and takes all of it
away again. A worker is this program as well; what it takes is at most 2 GiB. On the simulated driver the tree is
GPU_CGROUPS, ordinary directories, and a worker is in the group that FAKEDRIVER_CGROUP names.
"""

import contextlib
import ctypes
import json
import os
import subprocess
import sys
import time
from pathlib import Path

MIB, GIB = 1 << 20, 1 << 30
MAX = (1 << 64) - 1
INVALID, NO_PERMISSION, NOT_FOUND, ABSENT, OUT_OF_MEMORY = 2, 4, 6, 13, 2
MARGIN = 256 * MIB  # the agent's own
WALL = 2 * GIB
FILES = {"misc": ("misc.max", "misc.current"), "dmem": ("dmem.max", "dmem.min", "dmem.current")}


# --- the worker -------------------------------------------------------------------------------------------------------


def work(directory):
    """Joins the group, then does what is told line by line."""
    members = Path(directory) / "cgroup.procs"
    if members.exists():
        members.write_text("0")
    import driver

    def context():
        made = driver.pointer()
        result = driver.code("cuDevicePrimaryCtxRetain", driver.ref(made), 0)
        return result or driver.code("cuCtxSetCurrent", made)

    def managed(size):
        """Pages that the GPU itself has written."""
        address = driver.u64()
        result = driver.code("cuMemAllocManaged", driver.ref(address), driver.size_t(size), 1)
        if result == 0:
            result = driver.code("cuMemsetD8_v2", address, 1, driver.size_t(size))
            driver.synchronize()
        return result

    steps = {
        "init": lambda: driver.code("cuInit", 0),
        "context": context,
        "take": lambda size: driver.allocate(size)[0],
        "managed": managed,
        "info": driver.memory,
    }
    for line in sys.stdin:
        name, *words = line.split()
        print(json.dumps(steps[name](*map(int, words))), flush=True)


class Worker:
    """A process in a group. Ended at the end of the block."""

    def __init__(self, group, *steps):
        command, env = (
            [sys.executable, __file__, "worker", str(group)],
            {**os.environ, "FAKEDRIVER_CGROUP": str(group)},
        )
        self.process = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self.process.pid
        self.answers = [self.tell(*step.split()) for step in steps]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def tell(self, *words):
        """The answer to one step."""
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"the worker died at {words[0]}")
        return json.loads(line)


# --- driver and tree --------------------------------------------------------------------------------------------------


class Limits(ctypes.Structure):
    """nvmlGetMemoryLimits_v1_t, which begins as nvmlSetMemoryLimits_v1_t does."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("soft", ctypes.c_ulonglong),
        ("hard", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class Walls:
    """The driver's limits, and a tree to set them in."""

    def __init__(self, driver):
        self.driver, self.nvml = driver, driver.Nvml()
        self.lib = self.nvml.lib
        if not hasattr(self.lib, "nvmlDeviceSetMemoryLimits_v1") or self.get(Path("/"))[0] == ABSENT:
            driver.missing("this driver has no nvmlDeviceSetMemoryLimits_v1; it comes with branch 615")
        self.root = Path(os.environ.get("GPU_CGROUPS", "/sys/fs/cgroup"))
        if not (self.root / "cgroup.controllers").exists():
            driver.missing(f"{self.root} is no cgroup v2")
        regions = self.root / "dmem.capacity"
        self.backend = "dmem" if regions.exists() and "nvidia/" in regions.read_text() else "misc"
        self.made = []
        try:
            self.top = self.group(self.root / f"gigaslice-test-{os.getpid()}")
        except OSError as error:
            driver.missing(f"no cgroup can be made below {self.root}: {error.strerror}")
        self.real = (self.top / "cgroup.procs").exists()
        if not (self.top / f"{self.backend}.max").exists():
            self.end()
            driver.missing(
                f"{self.root}/cgroup.subtree_control does not name {self.backend}; write +{self.backend} there"
            )
        self.pass_on(self.top)
        if self.set(self.group(self.top / "trial"), 0) == NO_PERMISSION:
            self.end()
            driver.missing("setting a limit needs CAP_SYS_ADMIN in the first user namespace")

    def group(self, path, controller=True):
        """A new group. Without CONTROLLER the one above must not pass it on."""
        path.mkdir()
        self.made.append(path)
        if controller and not (path / "cgroup.procs").exists():
            for name in FILES[self.backend]:
                (path / name).touch()
        return path

    def fresh(self, path, controller=True):
        """A new group without a limit of its own: others may have inherited that of a group that is gone, and stay."""
        for number in range(100):
            group = self.group(path.with_name(f"{path.name}-{number}"), controller)
            if self.get(group)[:2] == self.get(path.parent)[:2]:
                return group
        sys.exit("every new group has a limit already")

    def remove(self, path):
        """Takes one group away."""
        for file in () if (path / "cgroup.procs").exists() else list(path.iterdir()):
            file.unlink()
        path.rmdir()
        self.made.remove(path)

    def pass_on(self, path):
        """Gives groups below PATH the controller."""
        if self.real:
            (path / "cgroup.subtree_control").write_text(f"+{self.backend}")

    def set(self, path, hard):
        """NVML's answer."""
        limits = Limits(os.fsencode(path), 0, hard)
        return self.lib.nvmlDeviceSetMemoryLimits_v1(self.nvml.device, self.driver.ref(limits))

    def get(self, path):
        """(NVML's answer, hard, used)."""
        limits = Limits(os.fsencode(path))
        code = self.lib.nvmlDeviceGetMemoryLimits_v1(self.nvml.device, self.driver.ref(limits))
        return code, limits.hard, limits.used

    def end(self):
        """Takes the tree away, from the leaves up."""
        for path in reversed(self.made.copy()):
            for _ in range(20):
                with contextlib.suppress(OSError):
                    self.remove(path)
                    break
                time.sleep(0.05)  # the kernel is still ending a worker


# --- the questions ----------------------------------------------------------------------------------------------------


def both(walls, check):
    """What holds whichever backend it is."""
    group = walls.group(walls.top / "a")
    codes = walls.set(group, WALL), *walls.get(group)
    check("set_is_read_back", codes[:3] == (0, 0, WALL), codes)
    named = "nvidia/" in (group / "dmem.max").read_text() if (group / "dmem.max").exists() else False
    check(
        "backend_is_as_the_root_says",
        named == (walls.backend == "dmem"),
        f"{walls.backend}; dmem.max names it: {named}",
    )
    before = walls.nvml.used()
    with Worker(group, "init", "context", f"take {256 * MIB}") as worker:
        used = walls.get(group)[2]
        shown = walls.nvml.processes().get(worker.pid) or walls.nvml.used() - before
        walls.driver.say(
            worker=worker.answers, used=used, nvml=shown, per_cent_more=round(100 * (used / shown - 1), 2)
        )
        check(
            "contexts_count",
            worker.answers == [0, 0, 0] and used > 256 * MIB,
            f"{used} bytes with 256 MiB taken",
        )
        check("little_more_than_nvml_counts", abs(used - shown) <= MARGIN, f"wall {used}, NVML {shown}")
        check("cu_mem_get_info_shows_the_limit", worker.tell("info")[1] == WALL, worker.tell("info"))
        beyond = worker.tell("take", WALL)
        check("beyond_is_out_of_memory", beyond == OUT_OF_MEMORY, f"code {beyond}")
        code, after = worker.tell("managed", 64 * MIB), walls.get(group)[2]
        check(
            "managed_memory_does_not_count",
            code == 0 and after - used < 32 * MIB,
            f"code {code}: {used} to {after}",
        )
    closed = walls.group(walls.top / "b")
    walls.set(closed, 0)
    with Worker(closed, "init") as worker:
        check("cu_init_survives_0", worker.answers == [0], f"code {worker.answers[0]}")
        if worker.answers == [0]:
            code = worker.tell("context")
            check("no_context_at_0", code != 0, f"code {code}")
        else:
            check("no_context_at_0", True, "no cuInit either")
    mode = ctypes.c_uint()
    walls.lib.nvmlDeviceGetPersistenceMode(walls.nvml.device, walls.driver.ref(mode))
    walls.lib.nvmlShutdown()
    time.sleep(1)
    walls.nvml = walls.driver.Nvml()
    kept = walls.get(group)[:2] == (0, WALL)
    walls.driver.say(persistence=mode.value, kept_without_clients=kept)
    check("persistence_keeps_limits", kept or not mode.value, f"persistence {mode.value}, kept: {kept}")


def misc(walls, check):
    """The driver's own map."""
    outer = walls.group(walls.top / "outer")
    walls.pass_on(outer)
    walls.set(outer, GIB + GIB // 2)
    inner = walls.fresh(outer / "inner")
    with Worker(inner, "init", "context") as worker:
        code = worker.tell("take", 7 * GIB // 4)
        check("an_ancestor_binds", code == OUT_OF_MEMORY, f"code {code}")
        walls.set(inner, 3 * GIB)
    with Worker(inner, "init", "context") as worker:
        code = worker.tell("take", 7 * GIB // 4)
        check("the_nearest_alone_binds", code == 0, f"code {code}")
        below = walls.set(inner, GIB)
        hard = walls.get(inner)[1]
        check("below_use_is_refused", below == INVALID and hard == 3 * GIB, f"code {below}, limit {hard}")
    walls.set(inner, MAX)
    with Worker(inner, "init", "context") as worker:
        code = worker.tell("take", 7 * GIB // 4)
        check("max_hides_the_ancestor", code == 0, f"code {code}")
    late = walls.fresh(walls.top / "late")
    with Worker(late, "init", "context", f"take {GIB}"):
        code, used = walls.set(late, GIB // 2), walls.get(late)[2]
        check("earlier_memory_never_counts", code == 0 and used < 64 * MIB, f"code {code}, used {used}")
    blind = walls.fresh(walls.fresh(walls.top / "bare") / "blind", controller=False)
    with_files = (blind / "misc.max").exists()
    code, answer = walls.set(blind, GIB), walls.get(blind)
    with Worker(blind, "init", "context") as worker:
        taken = worker.tell("take", GIB)
    seen = f"files {with_files}, set {code}, get {answer}, a GiB more {taken}"
    check("the_controller_is_needed", code == 0 and answer[:2] != (0, GIB) and taken == 0, seen)
    inherited, path = 0, walls.top / "again"
    for _ in range(20):
        walls.set(walls.group(path), GIB)
        walls.remove(path)
        inherited += walls.get(walls.group(path))[:2] == (0, GIB)
        walls.remove(path)
    walls.driver.say(new_groups_with_a_dead_ones_limit=[inherited, 20])


def dmem(walls, check):
    """The kernel's controller."""
    outer = walls.group(walls.top / "outer")
    walls.pass_on(outer)
    inner = walls.group(outer / "inner")
    walls.set(outer, GIB + GIB // 2)
    walls.set(inner, 3 * GIB)
    with Worker(inner, "init", "context", f"take {512 * MIB}") as worker:
        code = worker.tell("take", 5 * GIB // 4)
        check(
            "limits_nest",
            worker.answers == [0, 0, 0] and code == OUT_OF_MEMORY,
            f"{worker.answers}, then {code}",
        )
        below = walls.set(inner, 128 * MIB)
        answer = walls.get(inner)
        check("below_use_is_taken", below == 0 and answer[2] > 512 * MIB, f"code {below}, then {answer}")
    late = walls.group(walls.top / "late")
    with Worker(late, "init", "context", f"take {512 * MIB}"):
        code, used = walls.set(late, WALL), walls.get(late)[2]
        check("earlier_memory_counts", code == 0 and used > 512 * MIB, f"code {code}, used {used}")
    bare = walls.group(walls.top / "bare")
    code = walls.set(walls.group(bare / "blind", controller=False), GIB)
    check("the_files_are_needed", code == NOT_FOUND, f"code {code}")


def main(which):
    """Asks, and takes the tree away whatever happens."""
    import driver

    def check(name, holds, saw):
        driver.say(**{f"check_{name}": [bool(holds), str(saw)]})

    walls = Walls(driver)
    try:
        driver.say(backend=walls.backend)
        if which not in ("both", walls.backend):
            driver.missing(f"the backend is {walls.backend}")
        {"both": both, "misc": misc, "dmem": dmem}[which](walls, check)
    finally:
        walls.end()
    driver.done()


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        work(sys.argv[2])
    else:
        main(sys.argv[1])
