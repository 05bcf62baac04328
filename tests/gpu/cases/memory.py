# SPDX-License-Identifier: Apache-2.0
"""B: every family of memory at the quota's edge, every view of the quota, and the GPU's own nvidia-smi.

To the byte only where the library itself answers; where the driver decides, within N x 2 MiB, in which it
hands memory out.
"""

from __future__ import annotations

import re
import signal
import time

from tests.gpu.machine import tools
from tests.gpu.world import BLOCK, MIB, OUT_OF_MEMORY, CaseError, Found, World, case, gib, whole

SLACK = (
    64 * MIB
)  # what the driver keeps for itself when a family has filled a quota: bookkeeping, page tables, kernels


@case("B", 20, "total", "takes_all", "refuses_more", "frees_all")
def exact(world: World, found: Found) -> str:
    """The limit can be used to its last block, and not beyond."""
    got = world.run(world.limited(), "limits.py", "exact")
    found.check("total", got["total"] == world.limit, f"total {got['total']}, limit {world.limit}")
    found.check(
        "takes_all",
        got["all"] == 0 and whole(got, "free") > world.limit // 2,
        f"{got['free']} bytes: {got['all']}",
    )
    found.check(
        "refuses_more",
        got["over"] == OUT_OF_MEMORY and got["untouched"] is True,
        f"4 MiB more: {got['over']}",
    )
    lost = whole(got, "free") - whole(got, "back")
    found.check(
        "frees_all",
        lost <= 4 * BLOCK and got["again"] == 0,
        f"{lost} bytes less free than before, then {got['again']}",
    )
    return f"free {gib(whole(got, 'free'))} of {gib(world.limit)}; {world.limit - whole(got, 'free')} for the context"


@case("B", 20, "one_total", "one_free", "sums", "own_process")
def views(world: World, found: Found) -> str:
    """cuMemGetInfo, cuDeviceTotalMem and NVML tell one story."""
    got = world.run(world.limited(), "limits.py", "view")
    totals = [got["driver_total"], got["device_total"], got["nvml_total"], got["v2"][1]]
    found.check("one_total", set(totals) == {world.limit}, totals)
    differ = abs(whole(got, "driver_free") - whole(got, "nvml_free"))
    found.check(
        "one_free",
        differ <= 16 * BLOCK,
        f"{differ} bytes between {got['driver_free']} and {got['nvml_free']}",
    )
    found.check("sums", whole(got, "nvml_used") + whole(got, "nvml_free") == world.limit, got["nvml_used"])
    found.check(
        "own_process", len(got["processes"]) == 1 and min(got["processes"].values()) > 0, got["processes"]
    )
    return f"used {gib(whole(got, 'nvml_used'))}, free {gib(whole(got, 'nvml_free'))}"


@case("B", 40, "one_quota", "kill_gives_back")
def killed(world: World, found: Found) -> str:
    """Two processes share one quota, and kill -9 gives the memory back."""
    half = world.limit // 2
    with world.start(world.limited(), "limits.py", "hold", half) as holder:
        held = holder.wait_for("result", 30)
        if held.get("result") != 0:
            raise CaseError(f"the holder could not take {half} bytes: {held}, {holder.said()[-200:]}")
        during = whole(world.run(world.limited(), "limits.py", "exact", prefix="during "), "free")
        found.check("one_quota", 0 < during < half, f"{gib(during)} free beside a holder of {gib(half)}")
        holder.process.send_signal(signal.SIGKILL)
        holder.process.wait(60)
    begun = time.monotonic()
    after = whole(world.run(world.limited(), "limits.py", "exact", prefix="after "), "free")
    found.check("kill_gives_back", after >= during + half, f"{gib(after)} free after kill -9")
    return f"{gib(during)} beside it, {gib(after)} after ({time.monotonic() - begun:.1f} s with start-up)"


def shell(world: World, found: Found, name: str, command: list[str], env: dict[str, str]) -> str:
    """Output of a tool."""
    with world.start(env, command[0], *command[1:]) as running:
        done = world.finish(running, 60)
    found.note({name: done.out[-3000:], f"{name} code": done.code})
    if done.timed_out:
        raise CaseError(f"{command[0]} was not done after {done.seconds:.0f} s", "timeout")
    if done.code != 0:
        said = (done.out + done.err).strip()[-300:]
        raise CaseError(f"{' '.join(command)} ended with {done.code}: {said}")
    return done.out


@case(
    "B",
    60,
    "total_is_the_limit",
    "used_is_the_containers",
    "processes_are_the_containers",
    "plain_shows_the_gpu",
)
def nvidia_smi(world: World, found: Found) -> str:
    """The real nvidia-smi shows the limit as the GPU, and the container's process with its PID."""
    tool = tools().get("nvidia-smi")
    if tool is None:
        raise CaseError("no nvidia-smi on this machine", "missing")
    half, env = world.limit // 2, world.limited()
    query = [tool, "--query-gpu=memory.total,memory.used", "--format=csv,noheader,nounits"]
    whole_gpu = shell(world, found, "plain", query, world.plain())
    found.check(
        "plain_shows_the_gpu", int(whole_gpu.splitlines()[0].split(",")[0]) > world.limit >> 20, whole_gpu
    )
    with world.start(env, "limits.py", "hold", half) as holder:
        if holder.wait_for("result", 30).get("result") != 0:
            raise CaseError(f"the holder could not take {half} bytes: {holder.said()[-200:]}")
        total, used = (
            int(part) for part in shell(world, found, "limited", query, env).splitlines()[0].split(",")
        )
        table = shell(world, found, "table", [tool], env)
        apps = shell(
            world,
            found,
            "apps",
            [tool, "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"],
            env,
        )
    found.check("total_is_the_limit", total == world.limit >> 20, f"{total} MiB of {world.limit >> 20}")
    found.check("used_is_the_containers", half >> 20 <= used <= world.limit >> 20, f"{used} MiB")
    pids = re.findall(r"^\s*(\d+)\s*,", apps, re.MULTILINE)
    listed = re.search(rf"\b{holder.pid}\b", table) is not None
    found.check(
        "processes_are_the_containers",
        pids == [str(holder.pid)] and listed,
        f"PID {holder.pid}; {pids}; table {listed}",
    )
    return f"total {total} MiB, used {used} MiB, PID {holder.pid} listed"


def family(world: World, found: Found, name: str) -> dict:
    """What a program of families.py found under a quota, which has to be in force."""
    got = world.run(world.limited(), "families.py", name, world.limit)
    found.check("in_force", got["total"] == world.limit, f"total {got['total']}, limit {world.limit}")
    return got


def edge(world: World, found: Found, name: str) -> str:
    """A family up to the limit: refused there, nothing lost after it, and the GPU holds what the table says."""
    got = family(world, found, name)
    blocks, block, used, real = (whole(got, key) for key in ("blocks", "block", "used", "real"))
    found.check(
        "refused_at_the_limit",
        got["code"] == OUT_OF_MEMORY and blocks > 0,
        f"{blocks} blocks, then {got['code']}",
    )
    found.check("never_over", blocks * block <= world.limit, f"{blocks} of {block} bytes")
    found.check("nearly_all_usable", blocks * block >= world.limit // 2, f"{blocks} of {block} bytes")
    found.check("charged", used >= blocks * block, f"{used} for {blocks * block}")
    # Nothing measured must not look like nothing taken.
    found.check(
        "the_gpu_agrees",
        blocks * block * 9 // 10 <= real <= used + SLACK + blocks * BLOCK,
        f"really {real}, charged {used}",
    )
    found.check("all_again", abs(whole(got, "again") - blocks) <= 1, f"{blocks} blocks, then {got['again']}")
    found.check("nothing_lost", whole(got, "lost") <= SLACK, f"{got['lost']} bytes after all was freed")
    return f"{blocks} x {block >> 20} MiB, charged {gib(used)}, really {gib(real)}, kept {got['lost']}"


EDGE = (
    "in_force",
    "refused_at_the_limit",
    "never_over",
    "nearly_all_usable",
    "charged",
    "the_gpu_agrees",
    "all_again",
    "nothing_lost",
)


@case("B", 30, *EDGE)
def linear(world: World, found: Found) -> str:
    """cuMemAlloc."""
    return edge(world, found, "linear")


@case("B", 30, *EDGE)
def pitched(world: World, found: Found) -> str:
    """cuMemAllocPitch."""
    return edge(world, found, "pitched")


@case("B", 30, *EDGE)
def pool(world: World, found: Found) -> str:
    """cuMemAllocAsync."""
    return edge(world, found, "pool")


@case("B", 30, *EDGE)
def own_pool(world: World, found: Found) -> str:
    """cuMemAllocFromPoolAsync, from a pool that was made."""
    return edge(world, found, "own_pool")


@case("B", 30, *EDGE)
def vmm(world: World, found: Found) -> str:
    """cuMemCreate."""
    return edge(world, found, "vmm")


@case("B", 30, *EDGE)
def array(world: World, found: Found) -> str:
    """cuArrayCreate."""
    return edge(world, found, "array")


@case("B", 30, *EDGE)
def mipmap(world: World, found: Found) -> str:
    """cuMipmappedArrayCreate."""
    return edge(world, found, "mipmap")


@case("B", 20, "in_force", "held_while_mapped", "back_after_the_unmap")
def mapped(world: World, found: Found) -> str:
    """Physical memory that is released under a mapping stays charged."""
    got = family(world, found, "mapped")
    found.check("held_while_mapped", whole(got, "while_mapped") >= whole(got, "block"), got["while_mapped"])
    found.check("back_after_the_unmap", abs(whole(got, "after")) <= 4 * BLOCK, got["after"])
    return f"{got['while_mapped']} bytes while mapped, {got['after']} after"


@case("B", 20, "in_force", "charged_at_launch", "refused_beyond", "back_after_trim")
def graph(world: World, found: Found) -> str:
    """Memory nodes of graphs: charged at launch, refused beyond the limit, back after a trim."""
    got = family(world, found, "graph")
    found.check(
        "charged_at_launch",
        got["code"] == 0 and whole(got, "held") >= whole(got, "block"),
        f"{got['code']}, {got['held']}",
    )
    found.check(
        "refused_beyond", got["over"] == OUT_OF_MEMORY, f"a node as large as the quota: {got['over']}"
    )
    found.check("back_after_trim", whole(got, "after") <= SLACK, got["after"])
    return f"held {whole(got, 'held') >> 20} MiB for a node of {whole(got, 'block') >> 20}"


@case("B", 20, "in_force", "charged", "refused_beyond", "back")
def managed(world: World, found: Found) -> str:
    """cuMemAllocManaged counts, little of it and never more than the GPU has free."""
    got = family(world, found, "managed")
    found.check(
        "charged",
        got["code"] == 0 and whole(got, "held") >= whole(got, "block"),
        f"{got['code']}, {got['held']}",
    )
    found.check("refused_beyond", got["over"] == OUT_OF_MEMORY, got["over"])
    found.check("back", abs(whole(got, "after")) <= 4 * BLOCK, got["after"])
    return f"{got['held']} charged for {got['block']}"


@case("B", 30, "in_force", "exporter_pays", "importer_free")
def ipc(world: World, found: Found) -> str:
    """Memory shared by an IPC handle within a container is charged once."""
    got = family(world, found, "ipc")
    found.check("exporter_pays", whole(got, "exported") >= whole(got, "block"), got["exported"])
    found.check(
        "importer_free",
        got["opened"] == 0 and whole(got, "opening_took") <= SLACK,
        [got["opened"], got["opening_took"]],
    )
    return f"{got['exported']} for the exporter, {got['opening_took']} more when another process opens it"


@case("B", 20, "in_force", "charged", "refused_beyond", "back")
def module(world: World, found: Found) -> str:
    """A module with static arrays counts, one that does not fit is refused, and unloading gives back."""
    got = family(world, found, "module")
    found.check("charged", whole(got, "held") >= whole(got, "block"), f"{got['held']} for {got['block']}")
    found.check(
        "refused_beyond", got["over"] == OUT_OF_MEMORY, f"with {got['left']} bytes left: {got['over']}"
    )
    found.check("back", whole(got, "after") <= SLACK, got["after"])
    return f"{got['held']} charged for a static array of {got['block']}"


@case("B", 20, "in_force", "charged", "refused_beyond")
def heap(world: World, found: Found) -> str:
    """The heap of the device's malloc counts from when it is asked for."""
    got = family(world, found, "heap")
    found.check(
        "charged",
        got["code"] == 0 and whole(got, "held") >= whole(got, "block"),
        f"{got['code']}, {got['held']}",
    )
    found.check("refused_beyond", got["over"] == OUT_OF_MEMORY, got["over"])
    return f"{got['held']} charged for {got['block']}"


@case("B", 30, "beyond_is_managed", "computes", "looks_like_the_gpus", "back")
def beyond(world: World, found: Found) -> str:
    """Memory beyond a physical share is managed, little of it, and looks and computes like the GPU's own."""
    size = 64 * MIB
    physical = str(world.limit - 2 * size)
    got = world.run(world.limited(VCUDA_PHYSICAL_LIMIT=physical), "beyond.py", size)
    if not got["access"]:
        raise CaseError("the GPU has no concurrentManagedAccess", "missing")
    found.check(
        "beyond_is_managed",
        [got["own"], got["more"], got["over"]] == [0, 0, OUT_OF_MEMORY],
        [got["own"], got["more"], got["over"]],
    )
    found.check("computes", got["right"] is True, got["right"])
    hidden = got["managed"] == 0 and got["type"] == 2 and got["shared"] != 0
    found.check(
        "looks_like_the_gpus", hidden, f"managed {got['managed']}, type {got['type']}, IPC {got['shared']}"
    )
    found.check("back", abs(whole(got, "kept")) <= 4 * BLOCK, got["kept"])
    return f"{size >> 20} MiB beyond a physical share of {gib(int(physical))}, written, copied, freed"
