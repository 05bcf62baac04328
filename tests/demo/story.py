# SPDX-License-Identifier: Apache-2.0
"""What happens in the demo, in order; every statement it makes is a checked claim."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from gigaslice.core.units import format_bytes
from tests.demo.clients import OUT_OF_MEMORY, Client, DemoError
from tests.demo.datasets import FILES, run_act
from tests.demo.machine import Sizes, nvml_gpus, plan
from tests.demo.report import GIB, Report
from tests.demo.stage import RESOURCE, Stage
from tests.fakes.kubelet import Pod

PATIENCE_S = 15.0  # for things that other processes do in their own time

ASK_PYNVML = """
import json, pynvml
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByUUID({uuid!r})
memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
print(json.dumps([memory.total, memory.used, sorted([p.pid, p.usedGpuMemory] for p in processes)]))
"""


def eventually(condition: Callable[[], bool]) -> bool:
    """Whether CONDITION came true in time."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


class Story:
    """One telling."""

    def __init__(self, stage: Stage, report: Report) -> None:
        self.stage = stage
        self.report = report
        self.sizes: Sizes = plan(stage.machine)
        # A real driver hands out memory by the 2 MiB and grows its contexts when it likes.
        self.slack = 64 << 20 if stage.machine.real else 0
        self.pods: dict[str, Pod] = {}
        self.programs: dict[str, Client] = {}

    def tell(self) -> None:
        """All acts; raises DemoError where the next act would make no sense."""
        self.node()
        self.admission()
        self.limits()
        self.views()
        self.sharing()
        self.node_view()
        self.waiting()
        self.datasets()
        self.end()

    def datasets(self) -> None:
        """A dataset is fetched once and mounted into two pods."""
        self.report.title("A dataset on the node")
        self.report.step(f"{FILES} files: copied one by one, fetched, mounted into two pods, deleted")
        try:
            found = run_act(self.stage.directory / "dataset")
        except subprocess.SubprocessError as error:
            said = getattr(error, "stderr", "") or str(error)
            self.report.claim("a dataset is fetched", False, said.strip().splitlines()[-1] if said else "")
            return
        plain, fetched = float(str(found["plain"])), float(str(found["fetched"]))
        self.report.note(
            f"{FILES} files from a storage system that takes 1 ms for each: copied one by one in {plain:.2f} s, "
            f"fetched by gigaslice in {fetched:.2f} s, {plain / fetched:.1f} times as fast"
        )
        self.report.claim("every file was read from the source once", bool(found["once"]))
        if not found["mounted"]:
            self.report.note(
                "this machine does not let us mount: the files were unpacked into a directory instead"
            )
            self.report.claim("the directory has the files of the source", bool(found["same"]))
            return
        later = 1000 * float(str(found["published"]))
        self.report.note(f"the second pod's volume was there {later:.1f} ms after it asked")
        self.report.claim("both pods see the files of the source", bool(found["same"]))
        self.report.claim("what pods use is not deleted", bool(found["kept"]))
        self.report.claim("what no pod uses is deleted when asked for", bool(found["evicted"]))

    def uuid(self, name: str) -> str:
        launch = self.pods[name].container().launch
        return launch.env.get("NVIDIA_VISIBLE_DEVICES", "") if launch is not None else ""

    def settle(self) -> None:
        """Gives a real GPU's measured memory (contexts, code) the time to reach the limits page."""
        if self.stage.machine.real:
            time.sleep(1.0)

    def near(self, seen: int, expected: int) -> bool:
        return abs(seen - expected) <= self.slack

    def fill(self, program: Client, free: int) -> tuple[int, int]:
        """(code, bytes) of one allocation of FREE or, on a real GPU, as little less as the driver agrees to."""
        for less in range(0, self.slack + 1, 2 << 20):
            code = program.alloc(free - less)
            if code == 0:
                return 0, free - less
        return code, 0

    # --- the acts --------------------------------------------------------------------------------------------

    def node(self) -> None:
        """The node advertises its memory by the gigabyte."""
        report, machine = self.report, self.stage.machine
        report.title("The node")
        rows = [
            (index, c.name, c.uuid, format_bytes(c.total), format_bytes(c.free))
            for index, c in enumerate(machine.gpus)
        ]
        report.table("GPUs", ("", "name", "UUID", ">memory", ">free"), rows)
        offered = self.stage.kubelet.allocatable()[RESOURCE]
        slices = machine.slices
        report.claim(f"the node offers {slices} slices of 1 GiB", offered == slices, f"{RESOURCE}: {offered}")

    def admission(self) -> None:
        """Two pods side by side on one GPU, the third where there is room."""
        report, sizes = self.report, self.sizes
        report.title("Two pods")
        asked = [("a", sizes.first), ("b", sizes.second)]
        # Without namespaces the environment is all there is, and a second word in it would be an error.
        raised = {"VCUDA_MEMORY_LIMIT": "1000GiB"} if self.stage.runtime.mode != "plain" else {}
        if sizes.elsewhere:
            asked.append(("c", sizes.elsewhere))
        for name, slices in asked:
            report.step(f"pod {name} asks for {RESOURCE}: {slices}")
            self.pods[name] = self.stage.pod(name, slices, raised if name == "b" else {})
            self.programs[name] = self.stage.main_program(self.pods[name])
            report.claim(f"pod {name} runs", self.pods[name].phase == "Running", self.uuid(name))
        beside = self.uuid("a") == self.uuid("b") != ""
        fits = sizes.first + sizes.second <= min(c.total for c in self.stage.machine.gpus) // GIB
        report.claim("pods a and b share one GPU", beside or not fits, self.uuid("b"))
        if sizes.elsewhere:
            text = f"pod c, with {sizes.elsewhere} GiB too large for what is left there, is on another GPU"
            report.claim(text, self.uuid("c") not in (self.uuid("a"), ""), self.uuid("c"))
        launch = self.pods["a"].container().launch
        targets = sorted(bind.target for bind in launch.mounts) if launch is not None else []
        expected = ["/etc/ld.so.preload", "/etc/vcuda/ledger", "/etc/vcuda/limits", "/usr/local/lib/vcuda"]
        report.claim("a container gets four mounts", targets == expected, ", ".join(targets))

    def limits(self) -> None:
        """Each program gets its memory to the last byte and not one more."""
        report = self.report
        report.title("Inside the pods: memory")
        rows = []
        for name, slices in (("a", self.sizes.first), ("b", self.sizes.second)):
            limit, program = slices * GIB, self.programs[name]
            _, total = program.info()
            agree = program.total() == total == limit
            report.claim(
                f"pod {name}: CUDA shows a GPU of {slices} GiB", agree, f"cuMemGetInfo {format_bytes(total)}"
            )
            over = program.alloc(limit + 1)
            report.claim(
                f"pod {name}: one byte more than the limit is refused", over == OUT_OF_MEMORY, f"error {over}"
            )
            self.settle()
            code, got = self.fill(program, program.info()[0])
            report.claim(f"pod {name}: all that is free is given", code == 0, format_bytes(got))
            left, _ = program.info()
            report.claim(f"pod {name}: nothing is left", self.near(left, 0), f"free {format_bytes(left)}")
            more = program.alloc(left + 1)
            report.claim(f"pod {name}: then one byte more is refused", more == OUT_OF_MEMORY, f"error {more}")
            rows.append(
                (
                    name,
                    f"{slices} GiB",
                    format_bytes(total),
                    format_bytes(got),
                    "refused" if more else "given",
                )
            )
        columns = ("pod", ">asked for", ">GPU seen", ">allocated at once", "one byte more")
        launch = self.pods["b"].container().launch
        if launch is not None and "VCUDA_MEMORY_LIMIT" in launch.env:
            text = "pod b's own VCUDA_MEMORY_LIMIT=1000GiB changes nothing of that"
            total = self.programs["b"].total()
            report.claim(text, total == self.sizes.second * GIB, format_bytes(total))
        report.table("What the programs got", columns, rows)
        used = {c.uuid: c.total - c.free for c in nvml_gpus(self.stage.tool_env())}
        before = {c.uuid: c.total - c.free for c in self.stage.machine.gpus}
        gpu = self.uuid("a")
        both = (
            (self.sizes.first + self.sizes.second) * GIB if gpu == self.uuid("b") else self.sizes.first * GIB
        )
        seen = used[gpu] - before[gpu]
        text = f"the GPU itself holds no more for them than both limits, {format_bytes(both)}"
        report.claim(text, seen <= both + self.slack, f"{format_bytes(seen)} in use on the GPU")

    def views(self) -> None:
        """NVML, by three programs, shows the pod's GPU and no other process."""
        report = self.report
        report.title("Inside the pods: NVML")
        rows = []
        for name, slices in (("a", self.sizes.first), ("b", self.sizes.second)):
            limit, program, pod = slices * GIB, self.programs[name], self.pods[name]
            view = program.view()
            text = f"pod {name}: NVML shows {slices} GiB, all of it in use"
            full = view.total == limit and self.near(view.used, limit)
            report.claim(text, full, f"{format_bytes(view.used)} of {format_bytes(view.total)}")
            own = (program.pid_inside,)
            report.claim(f"pod {name}: the only process is its own", view.pids == own, f"PIDs {view.pids}")
            script = ASK_PYNVML.format(uuid=self.uuid(name))
            total, used, processes = json.loads(self.stage.run_in(pod, sys.executable, "-c", script))
            same = (total, [pid for pid, _ in processes]) == (view.total, list(view.pids))
            agree = same and self.near(used, view.used)
            report.claim(
                f"pod {name}: nvidia-ml-py sees the same",
                agree,
                f"{format_bytes(used)} of {format_bytes(total)}",
            )
            seen = json.loads(self.stage.run_in(pod, sys.executable, "-m", "gpustat", "--json"))["gpus"]
            gpu = next(g for g in seen if g["uuid"] == self.uuid(name))
            megabytes = (gpu["memory.used"], gpu["memory.total"])
            text = f"pod {name}: gpustat shows {slices * 1024} MiB"
            agree = megabytes[1] == slices * 1024 and self.near(megabytes[0] << 20, limit)
            report.claim(text, agree, "{} / {} MiB".format(*megabytes))
            rows.append(
                (name, format_bytes(view.total), format_bytes(view.used), ", ".join(map(str, view.pids)))
            )
        report.table("What NVML shows in the pods", ("pod", ">total", ">used", "PIDs"), rows)

    def sharing(self) -> None:
        """Two programs of a pod share its quota, and a killed one gives back at once."""
        report = self.report
        report.title("Two programs in pod a, one of them killed")
        first, limit = self.programs["a"], self.sizes.first * GIB
        first.free_all()
        second = self.stage.another_program(self.pods["a"])
        self.settle()
        part = limit // 4
        before, _ = first.info()
        report.claim(
            "the second program gets a quarter of the quota", second.alloc(part) == 0, format_bytes(part)
        )
        after, _ = first.info()
        text = "the first program has exactly that much less"
        report.claim(
            text, self.near(before - after, part), f"{format_bytes(before)} → {format_bytes(after)} free"
        )
        code, rest = self.fill(first, after)
        report.claim("the first program gets the rest", code == 0, format_bytes(rest))
        left, _ = first.info()
        for program, name in ((first, "first"), (second, "second")):
            code = program.alloc(left + 1)
            report.claim(f"the {name} program gets no byte more", code == OUT_OF_MEMORY, f"error {code}")
        pids = first.view().pids
        both = tuple(sorted((first.pid_inside, second.pid_inside)))
        report.claim("NVML in the pod shows both", pids == both, f"PIDs {pids}")
        os.kill(second.process.pid, signal.SIGKILL)
        code = second.process.wait(10)
        again = first.alloc(part)
        text = "after kill -9 of the second program its memory is there again at once"
        report.claim(text, (code, again) == (137, 0), f"exit code {code}, {format_bytes(part)} allocated")
        left, _ = first.info()  # what the killed program's context had taken
        code = first.alloc(left + 1)
        report.claim("and not a byte more than the limit", code == OUT_OF_MEMORY, f"error {code}")

    def node_view(self) -> None:
        """The node knows who uses what, by its own PIDs."""
        report = self.report
        report.title("The node's view")
        quotas = {
            tuple(p["pid"] for p in quota["processes"] if p["pid"]): quota for quota in self.stage.usage()
        }
        for name in self.programs:
            pid = self.programs[name].process.pid
            quota = quotas.get((pid,))
            used = sum(gpu["used_bytes"] for gpu in quota["gpus"]) if quota else 0
            limit = sum(gpu["limit_bytes"] for gpu in quota["gpus"]) if quota else 0
            free, total = self.programs[name].info()
            text = f"`vcuda ps` on the node names pod {name}'s process and what it uses"
            found = quota is not None and limit == total and self.near(used, total - free)
            report.claim(text, found, f"PID {pid}: {format_bytes(used)} of {format_bytes(limit)}")
        known = eventually(lambda: set(self.pods) <= set(self.named()))
        report.claim("and knows the pods by name", known, ", ".join(self.named().values()))
        occupants = str(self.stage.state_dir / "allocations")
        report.block("$ vcuda ps", self.stage.tool("vcuda", "ps", "--dir", occupants))
        report.block(
            "$ gigaslice status",
            self.stage.tool("gigaslice_cli", "status", "--state-dir", str(self.stage.state_dir)),
        )

    def named(self) -> dict[str, str]:
        """Pod names that the node's agent knows, with the full name of the container."""
        names = [quota["name"] for quota in self.stage.usage() if quota["name"].count("/") == 2]
        return {name.split("/")[1]: name for name in sorted(names)}

    def waiting(self) -> None:
        """A pod that does not fit waits, and starts when another one has gone."""
        report, slices = self.report, self.sizes.waiting
        report.title("One pod too many")
        report.step(f"pod d asks for {RESOURCE}: {slices}, one more than is left")
        pod = self.pods["d"] = self.stage.pod("d", slices)
        waits = (pod.phase, pod.reason) == ("Pending", "Unschedulable")
        report.claim("pod d waits", waits, pod.message)
        report.step("deleting pod b")
        self.stage.kubelet.delete_pod(self.pods.pop("b"))
        del self.programs["b"]
        if slices > max(c.total for c in self.stage.machine.gpus) // GIB:
            report.note("pod d is larger than any GPU and is deleted")
            self.stage.kubelet.delete_pod(self.pods.pop("d"))
            return
        started = eventually(lambda: pod.phase != "Pending")
        report.claim("then pod d starts", started and pod.phase == "Running", f"{pod.phase} {pod.message}")
        if pod.phase != "Running":
            raise DemoError(f"pod d did not start: {pod.message} {[e.message for e in pod.events]}")
        program = self.programs["d"] = self.stage.main_program(pod)
        total = program.total()
        report.claim(f"and sees a GPU of {slices} GiB", total == slices * GIB, format_bytes(total))
        known = eventually(lambda: "d" in self.named())
        report.claim("and the node knows it by name", known, self.named().get("d", ""))
        free, total = self.programs["a"].info()
        same = total == self.sizes.first * GIB and free < GIB
        report.claim(
            "pod a noticed nothing of it",
            same,
            f"{format_bytes(total - free)} of {format_bytes(total)} in use",
        )

    def end(self) -> None:
        """Everything ends and nothing is left."""
        report = self.report
        report.title("The end")
        report.step("deleting all pods")
        for pod in self.pods.values():
            self.stage.kubelet.delete_pod(pod)
        before = {c.uuid: c.free for c in self.stage.machine.gpus}

        def memory_is_back() -> bool:
            return all(c.free >= before[c.uuid] for c in nvml_gpus(self.stage.tool_env()))

        if not self.stage.machine.real:  # on a real GPU others may have started something meanwhile
            report.claim("all memory of the GPUs is free again", eventually(memory_is_back))
        gone = eventually(lambda: not self.stage.usage())
        report.claim("the node holds no allocation any more", gone, f"{len(self.stage.usage())} left")
        code = self.stage.stop_agent()
        report.claim("`gigaslice node` ends cleanly on SIGTERM", code == 0, f"exit code {code}")
        touched = [
            p for p in ("/etc/vcuda", "/usr/local/lib/vcuda", "/etc/ld.so.preload") if Path(p).exists()
        ]
        text = "the host's /etc and /usr/local are as they were"
        report.claim(text, touched == self.stage.already_there, ", ".join(touched) or "nothing there")
