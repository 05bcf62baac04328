"""What must hold on a real card, one function a case. A case returns its evidence in one line, or raises.

Every program runs in a process of its own under a fresh quota directory. No case asks for more than the card has free,
managed memory included: a card whose memory is overcommitted can hang with some drivers.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"
OUT_OF_MEMORY = 2
SHARE_POINTS = 2.0


class CaseFailedError(Exception):
    """The card or the library did not do what it must."""


class CaseSkippedError(Exception):
    """The machine lacks what the case needs."""


@dataclass(frozen=True)
class World:
    """Where a case runs: the library, a scratch directory and the quota in bytes."""

    library: Path
    scratch: Path
    limit: int

    def env(self, name: str, **extra: str) -> dict[str, str]:
        """Environment of a program under a quota directory called NAME."""
        directory = self.scratch / name
        preload = " ".join(filter(None, (str(self.library), os.environ.get("LD_PRELOAD", ""))))
        return os.environ | {
            "LD_PRELOAD": preload,
            "VCUDA_DIR": str(directory),
            "VCUDA_MEMORY_LIMIT": str(self.limit),
            **extra,
        }

    def run(self, name: str, program: str, *args: str, **extra: str) -> dict[str, object]:
        """Run one of programs/ and return the JSON it prints."""
        command = [sys.executable, str(PROGRAMS / program), *args]
        done = subprocess.run(
            command, env=self.env(name, **extra), capture_output=True, text=True, timeout=300, check=False
        )
        if "ModuleNotFoundError" in done.stderr:
            raise CaseSkippedError(done.stderr.strip().splitlines()[-1])
        if done.returncode != 0:
            tail = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
            raise CaseFailedError(f"{program} ended with {done.returncode}: {tail}")
        result: dict[str, object] = json.loads(done.stdout.strip().splitlines()[-1])
        return result


def number(result: dict[str, object], key: str) -> int:
    """An integer of a program's answer."""
    value = result[key]
    if not isinstance(value, int):
        raise CaseFailedError(f"{key} is {value!r}")
    return value


def must(condition: bool, sentence: str) -> None:
    """Fail with the sentence unless the condition holds."""
    if not condition:
        raise CaseFailedError(sentence)


def gib(value: int) -> str:
    """Bytes for people."""
    return f"{value / 2**30:.2f} GiB"


def exact(world: World) -> str:
    """The limit can be used to the last block and not one block further."""
    got = world.run("exact", "driver.py", "exact")
    must(got["total"] == world.limit, f"cuMemGetInfo total is {got['total']}, the limit {world.limit}")
    must(got["all"] == 0, f"allocating the free {got['free']} bytes returned {got['all']}")
    must(got["over"] == OUT_OF_MEMORY and got["untouched"] is True, f"one block over returned {got['over']}")
    must(got["back"] == got["free"] and got["again"] == 0, "freeing did not give the quota back")
    context = world.limit - number(got, "free")
    return f"free {gib(number(got, 'free'))} of {gib(world.limit)}; context cost {context} bytes"


def views_agree(world: World) -> str:
    """cuMemGetInfo, cuDeviceTotalMem and NVML tell one story."""
    got = world.run("views", "driver.py", "view")
    must(
        got["driver_total"] == got["device_total"] == got["nvml_total"] == world.limit,
        f"totals differ: {got}",
    )
    must(got["driver_free"] == got["nvml_free"], f"free differs: {got}")
    must(
        number(got, "nvml_used") + number(got, "nvml_free") == world.limit, f"used + free is not total: {got}"
    )
    return f"used {gib(number(got, 'nvml_used'))}, free {gib(number(got, 'nvml_free'))}"


def start_holder(world: World, name: str, size: int) -> subprocess.Popen[str]:
    """A process that holds SIZE bytes."""
    holder = subprocess.Popen(
        [sys.executable, str(PROGRAMS / "driver.py"), "hold", str(size)],
        env=world.env(name),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    answer = json.loads(holder.stdout.readline() or '{"result": -1}')
    if answer["result"] != 0:
        holder.kill()
        holder.wait()
        raise CaseFailedError(f"the holder could not allocate {size} bytes: {answer['result']}")
    return holder


def shared_and_killed(world: World) -> str:
    """Two processes share one quota; kill -9 gives the memory back."""
    holder = start_holder(world, "shared", world.limit // 2)
    try:
        during = number(world.run("shared", "driver.py", "exact"), "free")
        must(during < world.limit // 2, f"{during} bytes free beside a holder of half the quota")
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        began = time.monotonic()
        after = number(world.run("shared", "driver.py", "exact"), "free")
        must(after >= during + world.limit // 2, f"only {after} bytes free after kill -9")
        took = time.monotonic() - began
        return f"free {gib(during)} beside it, {gib(after)} after kill -9 ({took:.1f} s with start-up)"
    finally:
        holder.kill()
        holder.wait()
        if holder.stdout is not None:
            holder.stdout.close()


def nvidia_smi(world: World) -> str:
    """The real nvidia-smi shows the limit as the card's size and the container's process with its PID."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        raise CaseSkippedError("no nvidia-smi on PATH")
    holder = start_holder(world, "smi", world.limit // 2)
    try:
        query = [tool, "--query-gpu=memory.total,memory.used", "--format=csv,noheader,nounits"]
        line = subprocess.run(
            query, env=world.env("smi"), capture_output=True, text=True, timeout=60, check=True
        ).stdout
        total, used = (int(part) for part in line.splitlines()[0].split(","))
        must(total == world.limit >> 20, f"memory.total is {total} MiB, the limit {world.limit >> 20} MiB")
        must(used >= world.limit >> 21, f"memory.used is {used} MiB")
        table = subprocess.run(
            [tool], env=world.env("smi"), capture_output=True, text=True, timeout=60, check=True
        ).stdout
        must(
            re.search(rf"\b{holder.pid}\b", table) is not None,
            f"PID {holder.pid} is not in the process list:\n{table}",
        )
        return f"total {total} MiB, used {used} MiB, PID {holder.pid} listed"
    finally:
        holder.kill()
        holder.wait()
        if holder.stdout is not None:
            holder.stdout.close()


SLACK = (
    64 << 20
)  # what the card may take beyond the books for a family that fills a quota: bookkeeping of the driver


def _edge(world: World, family: str) -> str:
    """A family up to the limit: refused there, nothing lost after it, and the card holds what the books say."""
    got = world.run(family, "families.py", family, str(world.limit))
    blocks, block, used = number(got, "blocks"), number(got, "block"), number(got, "used")
    must(got["code"] == OUT_OF_MEMORY and blocks > 0, f"{blocks} blocks, then code {got['code']}")
    must(blocks * block <= world.limit, f"{blocks} blocks of {block} bytes are over the limit")
    must(used >= blocks * block, f"{blocks} blocks of {block} bytes are charged {used}")
    must(number(got, "real") <= used + SLACK, f"the card gave {got['real']} bytes, charged are {used}")
    must(got["again"] == blocks, f"{blocks} blocks the first time, {got['again']} the second")
    must(number(got, "lost") <= SLACK, f"{got['lost']} bytes stayed charged after all was freed")
    return (
        f"{blocks} blocks of {block >> 20} MiB, charged {gib(used)}, really {gib(number(got, 'real'))}, "
        f"kept after freeing {number(got, 'lost')} bytes"
    )


def pool(world: World) -> str:
    """Stream-ordered memory."""
    return _edge(world, "pool")


def vmm(world: World) -> str:
    """Physical memory of the virtual memory API; released under a mapping it stays charged."""
    evidence = _edge(world, "vmm")
    got = world.run("mapped", "families.py", "mapped", str(world.limit))
    must(number(got, "while_mapped") >= number(got, "block"), f"mapped memory was refunded: {got}")
    must(number(got, "after") <= 0, f"{got['after']} bytes stayed charged after the unmap")
    return evidence


def array(world: World) -> str:
    """Arrays."""
    return _edge(world, "array")


def graph(world: World) -> str:
    """Memory nodes of graphs: charged at launch, refused beyond the limit, back after a trim."""
    got = world.run("graph", "families.py", "graph", str(world.limit))
    must(got["code"] == 0 and number(got, "held") >= number(got, "block"), f"{got}")
    must(got["over"] == OUT_OF_MEMORY, f"a node as large as the quota returned {got['over']}")
    must(number(got, "after") <= SLACK, f"{got['after']} bytes stayed charged after the trim")
    return f"held {number(got, 'held') >> 20} MiB for a node of {number(got, 'block') >> 20}, refused beyond"


def beyond(world: World) -> str:
    """Memory beyond a physical share is managed, little of it, and looks and computes like the card's own."""
    size = 64 << 20
    physical = str(world.limit - 2 * size)
    got = world.run("beyond", "beyond.py", str(size), VCUDA_PHYSICAL_LIMIT=physical)
    if not got["access"]:
        raise CaseSkippedError("the card has no concurrentManagedAccess")
    must(got["own"] == 0 and got["more"] == 0, f"within the quota: {got['own']}, {got['more']}")
    must(got["over"] == OUT_OF_MEMORY, f"beyond the quota: {got['over']}")
    must(got["right"] is True, "managed memory gave other bytes back than were written")
    must(got["managed"] == 0 and got["type"] == 2, f"it shows: managed {got['managed']}, type {got['type']}")
    must(got["shared"] != 0, "a handle for other processes was given out, which managed memory cannot have")
    must(got["back"] is True, "freeing did not give the quota back")
    return f"{size >> 20} MiB beyond a physical share of {gib(int(physical))}, written, copied, freed"


def pytorch(world: World) -> str:
    """PyTorch sees the limit, is refused beyond it and recovers."""
    return _pytorch(world, "torch", "")


def pytorch_expandable(world: World) -> str:
    """The same with expandable segments, which are virtual memory management."""
    return _pytorch(world, "torch-expandable", "expandable_segments:True")


def pytorch_async(world: World) -> str:
    """The same on the driver's own pool."""
    return _pytorch(world, "torch-async", "backend:cudaMallocAsync")


def pytorch_graph(world: World) -> str:
    """A captured graph replays and gives its memory back."""
    got = world.run("torch-graph", "torch_graph_client.py")
    must(got["right"] is True, "the replayed graph computed something else")
    must(number(got, "after") <= SLACK, f"{got['after']} bytes stayed charged after the graph")
    return f"held {number(got, 'held') >> 20} MiB while captured, {number(got, 'after') >> 20} MiB after"


def triton(world: World) -> str:
    """A kernel compiled by Triton computes, and the limit holds."""
    got = world.run("triton", "triton_client.py", str(world.limit))
    must(got["right"] is True and got["refused"] is True, f"{got}")
    return "computed, OutOfMemoryError beyond the limit"


def _pytorch(world: World, name: str, allocator: str) -> str:
    extra = {"PYTORCH_CUDA_ALLOC_CONF": allocator} if allocator else {}
    got = world.run(name, "torch_client.py", str(world.limit), **extra)
    must(got["total"] == world.limit, f"mem_get_info total is {got['total']}")
    must(got["refused"] is True and number(got, "held") < world.limit, f"held {got['held']} of {world.limit}")
    must(number(got, "held") > world.limit * 3 // 4, f"only {got['held']} bytes usable of {world.limit}")
    return f"held {gib(number(got, 'held'))} of {gib(world.limit)}, then OutOfMemoryError, then recovered"


def jax(world: World) -> str:
    """JAX's pool is sized by the limit."""
    got = world.run("jax", "jax_client.py")
    must(0 < number(got, "bytes_limit") <= world.limit, f"bytes_limit is {got['bytes_limit']}")
    return f"pool limit {gib(number(got, 'bytes_limit'))}"


def cupy(world: World) -> str:
    """CuPy sees the limit and is refused beyond it."""
    got = world.run("cupy", "cupy_client.py", str(world.limit))
    must(got["total"] == world.limit and got["refused"] is True, f"{got}")
    return f"total {gib(number(got, 'total'))}, OutOfMemoryError beyond"


def _needs_real_time() -> None:
    if "FAKEDRIVER_MACHINE" in os.environ:
        raise CaseSkippedError("kernels take no time on a simulated card; make bench measures its shares")


def compute_share(world: World) -> str:
    """A share of the card's time holds for small kernels, long ones and kernels of one block."""
    _needs_real_time()
    found = []
    for name, microseconds, blocks, batch in (
        ("small", 200, 1000, 100),
        ("long", 40_000, 1000, 1),
        ("one block", 5_000, 1, 5),
    ):
        work = (str(microseconds), str(blocks), str(batch))
        free = number(world.run(f"free-{microseconds}", "spin.py", *work, "3"), "permille") / 10
        for cores in (10, 30, 70):
            got = world.run(f"share-{microseconds}-{cores}", "spin.py", *work, "10", VCUDA_CORES=str(cores))
            percent = number(got, "permille") / 10
            must(
                abs(percent - min(cores, free)) <= SHARE_POINTS,
                f"{name} kernels had {percent:.1f} % of the card with a share of {cores}, {free:.1f} % without one",
            )
            found.append(f"{percent:.1f}")
    return f"shares of 10, 30 and 70 % over 10 s: {', '.join(found)} (small, long, one block)"


def compute_share_unset(world: World) -> str:
    """A process whose container has no share launches through the driver's own function."""
    _needs_real_time()
    free = number(world.run("free-launch", "spin.py", "1", "1", "1000", "3"), "kernels")
    limited = number(world.run("whole", "spin.py", "1", "1", "1000", "3", VCUDA_CORES="100"), "kernels")
    must(free > 0 and limited > free // 2, f"{free} launches without a share, {limited} under one of 100 %")
    return f"{free} launches of 1 us kernels in 3 s without a share, {limited} under one of 100 %"


CASES: tuple[Callable[[World], str], ...] = (
    exact,
    views_agree,
    shared_and_killed,
    nvidia_smi,
    pool,
    vmm,
    array,
    graph,
    compute_share,
    compute_share_unset,
    beyond,
    pytorch,
    pytorch_expandable,
    pytorch_async,
    pytorch_graph,
    triton,
    jax,
    cupy,
)
