# SPDX-License-Identifier: Apache-2.0
"""D: two tenants at once. Quotas that race, shares of the GPU's time, captures, memory beyond a physical
share, the agent.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from tests.gpu.cases.costs import compare
from tests.gpu.running import Program
from tests.gpu.world import BLOCK, MIB, CaseError, Found, World, case, gib, judge, number, whole

POINTS = 3.0  # per cent of the GPU


def together(
    world: World, programs: dict[str, tuple[dict[str, str], str, tuple[object, ...]]], ready: float = 60
) -> dict[str, Program]:
    """Starts all of them; returns when each has said that it is ready."""
    running = {name: world.start(env, program, *words) for name, (env, program, words) in programs.items()}
    try:
        for name, one in running.items():
            if "ready" not in one.wait_for("ready", min(ready, world.left())):
                done = world.finish(one, 0.1)
                raise CaseError(f"{name} was never ready: {done.last_words()}")
    except BaseException:
        for one in running.values():
            one.end()
        raise
    return running


def results(world: World, running: dict[str, Program]) -> dict[str, dict]:
    """What each printed; none outlives this."""
    answers = {}
    try:
        for name, one in running.items():
            done = world.finish(one)
            answers[name] = done.numbers()
            world.found.note(answers[name], f"{name} ")
            judge(name, done, answers[name])
    finally:
        for one in running.values():
            one.end()
    return answers


def free_now(world: World, quota: str) -> int:
    """Bytes that are free in a quota."""
    return whole(world.run(world.limited(quota), "limits.py", "view", prefix=f"{quota} view "), "driver_free")


@case("D", 90, "never_over", "refusals_are_2", "some_were_refused", "nothing_lost", "both_had_their_part")
def race(world: World, found: Found) -> str:
    """Two quotas, four processes in each, all of which take whatever they get."""
    seconds, rounds = world.seconds(2, 0.3), world.count(6, 3)
    before = {quota: free_now(world, quota) for quota in ("a", "b")}
    with tempfile.TemporaryDirectory(dir=world.options.scratch) as folder:
        words = {
            f"{quota}{n}": (world.limited(quota), "race.py", (seconds, n, folder, rounds))
            for quota in ("a", "b")
            for n in range(4)
        }
        running = together(world, words)
        groups = [",".join(str(running[f"{quota}{n}"].pid) for n in range(4)) for quota in ("a", "b")]
        readings = []
        for step in range(rounds):
            (Path(folder) / str(step)).touch()
            for one in running.values():
                one.wait_for(f"frozen {step}", min(30, world.left()))
            readings.append(
                world.run(world.plain(), "watch_gpu.py", *groups, prefix=f"reading {step} ")["held"]
            )
        (Path(folder) / "end").touch()
        answers = results(world, running)
    taken, refused = (sum(whole(one, key) for one in answers.values()) for key in ("taken", "refused"))
    most, least = max(map(max, readings)), min(map(min, readings))
    # What the driver rounds in four processes is not in the library's hands to the byte.
    found.check(
        "never_over", most <= world.limit + 4 * 8 * BLOCK, f"at most {gib(most)} of {gib(world.limit)}"
    )
    found.check(
        "both_had_their_part", least > world.limit // 2, f"at least {gib(least)} of {gib(world.limit)}"
    )
    wrong = {name: one["wrong"] for name, one in answers.items() if one["wrong"]}
    found.check("refusals_are_2", not wrong, wrong or f"{refused} refusals")
    found.check("some_were_refused", refused > 0 and taken > 0, f"{taken} taken, {refused} refused")
    after = {quota: free_now(world, quota) for quota in ("a", "b")}
    lost = max(abs(before[quota] - after[quota]) for quota in before)
    found.check("nothing_lost", lost <= 4 * BLOCK, {"before": before, "after": after})
    return f"{taken} taken, {refused} refused; in {rounds} readings {gib(least)} to {gib(most)} of {gib(world.limit)}"


@contextlib.contextmanager
def gone(path: Path):
    """A file that is not there, before and after."""
    path.unlink(missing_ok=True)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


Work = tuple[int, int, int]  # microseconds, blocks, launches between two waits


def measure(world: World, work: Work) -> tuple[int, float]:
    """Loops of a kernel of that length on this GPU, and the milliseconds that it takes: found out without
    the library.
    """
    name = f"kernel of {work[0]} us, {work[1]} blocks "
    got = world.run(world.plain(), "spin.py", *work[:2], prefix=name)
    return whole(got, "loops"), number(got, "takes")


def spin(
    world: World, quotas: dict[str, int], work: Work, measured: tuple[int, float], seconds: float
) -> dict[str, float]:
    """Tenants side by side: name -> per cent wished (0: none set); all begin at once. What each had, in per cent."""
    with gone(world.options.scratch / "spin-go") as go:
        envs = {
            name: world.limited(f"{name}-{cores}", **({"VCUDA_CORES": str(cores)} if cores else {}))
            for name, cores in quotas.items()
        }
        running = together(
            world, {n: (env, "spin.py", (*work, seconds, *measured, go)) for n, env in envs.items()}
        )
        go.touch()
        return {name: number(one, "permille") / 10 for name, one in results(world, running).items()}


def spun(world: World, found: Found, check: str, had: dict[str, float], wished: dict[str, int]) -> None:
    """No client had more than its share; a rehearsal judges only that each had something."""
    over = {name: percent for name, percent in had.items() if percent > wished[name] + POINTS}
    found.check(check, min(had.values()) > 0 and (world.options.short or not over), had)


@case("D", 120, "one_alone_has_its_share")
def share_alone(world: World, found: Found) -> str:
    """A share of the GPU's time holds for one tenant: small kernels, long ones, and kernels of one block."""
    seconds, told = world.seconds(5, 0.5), {}
    for name, work in (
        ("small", (200, 1000, 100)),
        ("long", (20_000, 1000, 2)),
        ("one-block", (5_000, 1, 5)),
    ):
        measured = measure(world, work)
        for cores in (30, 70):
            had = spin(world, {f"{name}": cores}, work, measured, seconds)
            told[f"{name} {cores}"] = had[name]
            spun(world, found, "one_alone_has_its_share", had, {name: cores})
            found.note({f"{name} {cores}": had[name]})
    return ", ".join(f"{name}: {percent:.1f}" for name, percent in told.items())


@case("D", 90, "both_are_near_their_shares", "nobody_starves")
def shares(world: World, found: Found) -> str:
    """30 and 70 per cent side by side, and what both get without shares."""
    work, seconds = (1000, 1000, 10), world.seconds(10, 1)
    measured = measure(world, work)
    free = spin(world, {"a": 0, "b": 0}, work, measured, seconds)
    ours = spin(world, {"a": 30, "b": 70}, work, measured, seconds)
    found.note({"without": free, "30 and 70": ours})
    spun(world, found, "both_are_near_their_shares", ours, {"a": 30, "b": 70})
    found.check("nobody_starves", min(ours.values()) > (0 if world.options.short else 10), ours)
    return f"30 and 70: {ours}; without shares: {free}"


@case("D", 120, "eager_is_bound", "graphs_are_bound", "computes")
def share_of_pytorch(world: World, found: Found) -> str:
    """A share binds what PyTorch launches through CUDA's runtime, kernel by kernel and as graphs."""
    seconds = world.seconds(6, 0.3)
    plain = world.run(world.limited("free"), "torch_busy.py", seconds, prefix="free ")
    under = world.run(world.limited("share", VCUDA_CORES="30"), "torch_busy.py", seconds, prefix="share ")
    told = {}
    for kind in ("eager", "graphs"):
        told[kind] = round(100 * number(under, kind) / max(1e-9, number(plain, kind)), 1)
        # A share that does not bind leaves all of the speed: the runtime has found another way to launch.
        found.check(
            f"{kind}_{'is' if kind == 'eager' else 'are'}_bound",
            told[kind] > 0 and (world.options.short or told[kind] < 45),
            told,
        )
    found.check(
        "computes", under["finite"] is True and plain["finite"] is True, [under["finite"], plain["finite"]]
    )
    return f"with a share of 30 %: {told['eager']} % of the speed, as graphs {told['graphs']} %"


@case("D", 60, "launches_go_on")
def launch_latency(world: World, found: Found) -> str:
    """What a launch waits beside a neighbour that fills the GPU, p50 and p99: plain, limited, with a share."""
    with gone(world.options.scratch / "latency-go") as go:
        work = (1000, 1000, 10)
        words = (*work, max(5, world.left() - 5), *measure(world, work), go)
        beside = (world.limited("n-50", VCUDA_CORES="50"), "spin.py", words)
        running = together(world, {"neighbour": beside})
        go.touch()
        try:
            sides = {
                "plain": world.plain(),
                "limited": world.limited("a"),
                "share": world.limited("b", VCUDA_CORES="50"),
            }
            table = compare(world, found, sides, world.count(3, 2))
        finally:
            running["neighbour"].end()
    found.check(
        "launches_go_on",
        all(side[1] < 2e9 for call in table.values() for side in call.values()),
        {name: [round(value / 1000) for value in side[:2]] for name, side in table["launch"].items()},
    )
    return ", ".join(
        f"{name}: p50 {side[0] / 1000:.1f}, p99 {side[1] / 1000:.1f} us"
        for name, side in table["launch"].items()
    )


@case("D", 60, "no_capture_is_spoilt", "captures_were_made")
def capture_loop(world: World, found: Found) -> str:
    """Captures in every mode beside launches and allocations of another thread, under a share."""
    sides = {
        "plain": world.plain(),
        "limited": world.limited("a"),
        "share": world.limited("b", VCUDA_CORES="50"),
    }
    answers = {
        name: world.run(env, "capture_loop.py", world.seconds(6, 1), prefix=f"{name} ")
        for name, env in sides.items()
    }
    wrong = {name: one["wrong"] for name, one in answers.items() if one["wrong"]}
    # What fails without the library too is the program's.
    ours = {
        name: value
        for name, value in wrong.items()
        if name != "plain" and value.keys() - wrong.get("plain", {}).keys()
    }
    found.check("no_capture_is_spoilt", not ours, wrong or "no error")
    found.check(
        "captures_were_made",
        all(whole(one, "captures") > 3 for one in answers.values()),
        {name: one["captures"] for name, one in answers.items()},
    )
    return ", ".join(f"{name}: {one['captures']} captures" for name, one in answers.items())


@case("D", 120, "all_was_granted", "all_was_right", "refused_beyond", "nothing_lost")
def oversubscription(world: World, found: Found) -> str:
    """Two tenants, each with memory beyond its physical share; all of it together is far less than the GPU
    has free.
    """
    size = min(world.limit, 4 << 30) if not world.options.short else 1 << 30
    part = size // 2
    limits = {"VCUDA_MEMORY_LIMIT": str(size + (1 << 30)), "VCUDA_PHYSICAL_LIMIT": str(part + (1 << 30))}
    free = {quota: world.limited(quota, **limits) for quota in ("a", "b")}
    before = whole(world.run(free["a"], "limits.py", "view", prefix="before "), "driver_free")
    total = (before - (64 << 20)) // (256 * MIB) * 256 * MIB
    words = {name: (env, "crowd.py", (total, world.count(20, 1))) for name, env in free.items()}
    answers = results(world, together(world, words))
    found.check(
        "all_was_granted",
        all(one["code"] == 0 and one["blocks"] == one["wanted"] > 0 for one in answers.values()),
        {name: [one["blocks"], one["wanted"]] for name, one in answers.items()},
    )
    found.check(
        "all_was_right",
        all(one["wrong"] == 0 for one in answers.values()),
        {n: one["wrong"] for n, one in answers.items()},
    )
    more = world.run(free["a"], "crowd.py", size + (2 << 30), 0, prefix="more ")
    found.check(
        "refused_beyond", more["code"] == 2 and whole(more, "blocks") > 0, [more["code"], more["blocks"]]
    )
    after = whole(world.run(free["a"], "limits.py", "view", prefix="after "), "driver_free")
    found.check("nothing_lost", abs(before - after) <= 4 * BLOCK, [before, after])
    return f"{gib(total)} each, {gib(part)} of it physical; seconds {[one['seconds'] for one in answers.values()]}"


@case("D", 180, "every_claim_holds")
def agent(world: World, found: Found) -> str:
    """The node agent on this GPU: kubelet stand-in, pods, real programs, kills and restarts (the demo's story)."""
    got = world.run(world.plain(), "node.py", world.options.pack)
    failed = [f"{text} ({seen})" for holds, text, seen in got["claims"] if not holds]
    found.check(
        "every_claim_holds",
        got["code"] == 0 and not failed and whole(got, "all") > 20,
        failed or f"all {got['all']}",
    )
    return f"{got['held']} of {got['all']} claims"
