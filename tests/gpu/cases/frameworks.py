# SPDX-License-Identifier: Apache-2.0
"""C: frameworks, profilers and sanitizers under the library, each also without it: what is computed, how
fast, how much.

A speed is judged in runs that are worth it (not in rehearsals), and only when it is far off: the figures are
for the page.
"""

from __future__ import annotations

from pathlib import Path

from tests.gpu.machine import tools
from tests.gpu.world import CaseError, Found, World, case, gib, number, whole

SLACK = 64 << 20
KEPT = 0.9  # of the speed without the library


def both(
    world: World,
    found: Found,
    program: str,
    *words: object,
    limited: dict[str, str] | None = None,
    **extra: str,
) -> tuple[dict, dict]:
    """The program without and with the library; LIMITED: what only the second one is given."""
    seconds = world.seconds(6, 0.3)
    plain = world.run(world.plain(**extra), program, seconds, 0, *words, prefix="plain ")
    under = world.run(
        world.limited(**(extra | (limited or {}))), program, seconds, world.limit, *words, prefix="limited "
    )
    ratio = number(under, "rate") / max(1e-9, number(plain, "rate"))
    found.note({"speed kept": round(ratio, 4)})
    judged = ratio >= KEPT or world.options.short
    found.check(
        "speed_is_kept",
        judged and number(under, "rate") > 0,
        f"{under['rate']:.4g} of {plain['rate']:.4g}: {ratio:.3f}",
    )
    return plain, under


def told(found: Found, plain: dict, under: dict) -> str:
    """Evidence."""
    peak = (
        f"peak {gib(number(under, 'peak'))} (plain {gib(number(plain, 'peak'))})"
        if "peak" in under and "peak" in plain
        else ""
    )
    return f"speed kept {found.numbers['speed kept']}; {peak}"


def pytorch_with(world: World, found: Found, allocator: str) -> str:
    """PyTorch with one of its allocators."""
    extra = {"PYTORCH_CUDA_ALLOC_CONF": allocator, "PYTORCH_ALLOC_CONF": allocator} if allocator else {}
    plain, under = both(world, found, "torch_client.py", **extra)
    found.check(
        "sees_the_limit",
        under["total"] == world.limit == under["properties"],
        [under["total"], under["properties"]],
    )
    held = whole(under, "held")
    found.check(
        "refused_and_recovers", under["refused"] is True and under["again"] is True, f"held {gib(held)}"
    )
    found.check(
        "nearly_all_usable", world.limit * 3 // 4 < held < world.limit, f"{gib(held)} of {gib(world.limit)}"
    )
    same = abs(number(under, "loss") - number(plain, "loss")) <= 1e-3 * abs(number(plain, "loss"))
    found.check("computes_the_same", same, [under["loss"], plain["loss"]])
    return f"held {gib(held)}; {told(found, plain, under)}"


TORCH = ("speed_is_kept", "sees_the_limit", "refused_and_recovers", "nearly_all_usable", "computes_the_same")


@case("C", 170, *TORCH)
def pytorch(world: World, found: Found) -> str:
    """PyTorch's own allocator."""
    return pytorch_with(world, found, "")


@case("C", 90, *TORCH)
def pytorch_expandable(world: World, found: Found) -> str:
    """Expandable segments, which are virtual memory management."""
    return pytorch_with(world, found, "expandable_segments:True")


@case("C", 90, *TORCH)
def pytorch_async(world: World, found: Found) -> str:
    """cudaMallocAsync, the driver's own pool."""
    return pytorch_with(world, found, "backend:cudaMallocAsync")


@case("C", 90, "speed_is_kept", "replays_right", "gives_back")
def pytorch_graph(world: World, found: Found) -> str:
    """A captured graph replays, and gives its memory back."""
    plain, under = both(world, found, "torch_graph.py")
    found.check(
        "replays_right", under["right"] is True and plain["right"] is True, [under["right"], plain["right"]]
    )
    found.check("gives_back", whole(under, "after") <= SLACK, under["after"])
    return f"held {under['held']} while captured, {under['after']} after; {told(found, plain, under)}"


@case("C", 90, "speed_is_kept", "events_are_seen")
def torch_profiler(world: World, found: Found) -> str:
    """PyTorch's profiler (CUPTI in the process) sees kernels."""
    plain, under = both(world, found, "torch_profiler.py")
    events = whole(under, "kernels"), whole(plain, "kernels")
    found.check(
        "events_are_seen",
        events[0] > 0 and events[0] >= events[1] // 2,
        f"{events[0]} kernels, plain {events[1]}",
    )
    return f"{events[0]} kernel events (plain {events[1]}); {told(found, plain, under)}"


@case("C", 90, "speed_is_kept", "computes", "refused_beyond")
def triton(world: World, found: Found) -> str:
    """A kernel compiled by Triton."""
    plain, under = both(
        world, found, "triton_client.py", TRITON_CACHE_DIR=str(world.options.scratch / "triton")
    )
    found.check("computes", under["right"] is True, under["right"])
    found.check("refused_beyond", under["refused"] is True, under["refused"])
    return told(found, plain, under)


@case("C", 150, "speed_is_kept", "pool_fits_the_limit", "computes")
def jax(world: World, found: Found) -> str:
    """JAX's pool is sized by the limit."""
    # Without the library JAX would take three quarters of the GPU; a part of it computes as fast.
    plain, under = both(
        world,
        found,
        "jax_client.py",
        limited={"XLA_PYTHON_CLIENT_MEM_FRACTION": ".75"},
        XLA_PYTHON_CLIENT_MEM_FRACTION=".1",
    )
    found.check("pool_fits_the_limit", 0 < whole(under, "bytes_limit") <= world.limit, under["bytes_limit"])
    found.check("computes", under["sum"] == plain["sum"], [under["sum"], plain["sum"]])
    return f"pool {gib(whole(under, 'bytes_limit'))}; {told(found, plain, under)}"


@case("C", 90, "speed_is_kept", "sees_the_limit", "refused_beyond")
def cupy(world: World, found: Found) -> str:
    """CuPy."""
    plain, under = both(world, found, "cupy_client.py")
    found.check("sees_the_limit", under["total"] == world.limit, under["total"])
    found.check("refused_beyond", under["refused"] is True, under["refused"])
    return told(found, plain, under)


def tool(name: str) -> str:
    """The path of a tool; the case says so when there is none."""
    path = tools().get(name)
    if path is None:
        raise CaseError(f"no {name} on this machine", "missing")
    return path


def under_tool(
    world: World, found: Found, command: list[str], program: str, *words: object
) -> dict[str, str]:
    """Everything that the tool printed around a program, plain and limited; the program must come to its end
    in both.
    """
    import sys

    from tests.gpu.world import PROGRAMS

    printed = {}
    inner = [sys.executable, str(PROGRAMS / program), *(str(word) for word in words)]
    for side, env in (("plain", world.plain()), ("limited", world.limited())):
        with world.start(env, command[0], *command[1:], *inner) as running:
            done = world.finish(running, 80)
        found.note(
            {f"{side} code": done.code, f"{side} says": done.out[-1500:]}
            | {f"{side} total": done.numbers().get("total")}
        )
        if done.timed_out or done.numbers().get("done") is not True:
            raise CaseError(
                f"{Path(command[0]).name}, {side}: no end of the program: {done.last_words()} {done.out[-300:]}",
                "timeout" if done.timed_out else "fail",
            )
        printed[side] = done.out + done.err
    found.check(
        "quota_holds_inside", found.numbers["limited total"] == world.limit, found.numbers["limited total"]
    )
    return printed


@case("C", 170, "quota_holds_inside", "kernels_are_seen")
def ncu(world: World, found: Found) -> str:
    """Nsight Compute measures a kernel of a limited program. The GPU's clocks are left alone."""
    command = [
        tool("ncu"),
        "--clock-control",
        "none",
        "--launch-count",
        "2",
        "--metrics",
        "sm__cycles_elapsed.max",
    ]
    printed = under_tool(world, found, command, "work.py", "run")
    seen = {side: "work_1us" in text and "sm__cycles_elapsed" in text for side, text in printed.items()}
    found.check("kernels_are_seen", seen["limited"], seen)
    return f"counters read: {seen}"


@case("C", 170, "quota_holds_inside", "kernels_are_seen")
def nsys(world: World, found: Found) -> str:
    """Nsight Systems traces a limited program."""
    report = str(world.options.scratch / "nsys")
    command = [
        tool("nsys"),
        "profile",
        "--trace",
        "cuda",
        "--stats",
        "true",
        "--force-overwrite",
        "true",
        "-o",
        report,
    ]
    printed = under_tool(world, found, command, "work.py", "run")
    seen = {side: "work_1us" in text for side, text in printed.items()}
    found.check("kernels_are_seen", seen["limited"] or not seen["plain"], seen)
    return f"kernels in the trace: {seen}"


@case("C", 170, "quota_holds_inside", "finds_the_write")
def compute_sanitizer(world: World, found: Found) -> str:
    """compute-sanitizer finds a write beyond an allocation in a limited program as it does in a plain one."""
    printed = under_tool(
        world, found, [tool("compute-sanitizer"), "--error-exitcode", "0"], "work.py", "beyond"
    )
    seen = {side: "Invalid __global__ write" in text for side, text in printed.items()}
    found.check("finds_the_write", seen["limited"] and seen["plain"], seen)
    return f"the write was found: {seen}"
