# SPDX-License-Identifier: Apache-2.0
"""A, the last part: what the library adds to a call, in pairs. Two programs run side by side, one plain, one
limited, and alternate, so that both meet the same GPU and the same machine; the figure is the median of the
rounds' ratios.
"""

from __future__ import annotations

import statistics

from tests.gpu.cases.assumptions import ask
from tests.gpu.running import Program
from tests.gpu.world import CaseError, Found, World, case

# What, how often in a round.
CALLS = (
    ("alloc_4k", 2000),
    ("alloc_2m", 500),
    ("alloc_256m", 50),
    ("async_1m", 1000),
    ("launch", 5000),
    ("launch_wait", 300),
    ("event_record", 5000),
    ("event_query", 5000),
    ("stream_query", 5000),
    ("mem_info", 500),
)


class Side:
    """One of the two."""

    def __init__(self, world: World, name: str, env: dict[str, str]) -> None:
        self.world, self.name = world, name
        self.program = Program([str(world.brought("cost"))], env, world.options.scratch, talks=True)
        if self.program.ask("", min(20, world.left())) != "ready":
            self.fail("did not start")

    def fail(self, what: str) -> None:
        """Ends it, and the case."""
        done = self.program.finish(0.1)
        self.world.log(f"{self.world.case}: {self.name}", done.err)
        raise CaseError(f"cost, {self.name}, {what}: {done.last_words()}")

    def time(self, call: str, count: int) -> tuple[float, float]:
        """p50 and p99 in nanoseconds."""
        answer = self.program.ask(f"{call} {count}", min(20, self.world.left())).split()
        if len(answer) != 2:
            self.fail(f"did not answer to {call}")
        return float(answer[0]), float(answer[1])


def compare(
    world: World, found: Found, sides: dict[str, dict[str, str]], rounds: int
) -> dict[str, dict[str, list[float]]]:
    """call -> side -> [p50, p99, ratio to the first side]."""
    running = {name: Side(world, name, env) for name, env in sides.items()}
    first, table = next(iter(sides)), {}
    try:
        for call, count in CALLS:
            times: dict[str, list[tuple[float, float]]] = {name: [] for name in running}
            for number in range(rounds):
                for name in list(running) if number % 2 else list(reversed(running)):
                    times[name].append(running[name].time(call, max(20, world.count(count, count // 50))))
            table[call] = {
                name: [
                    statistics.median(p50 for p50, _ in taken),
                    statistics.median(p99 for _, p99 in taken),
                    round(
                        statistics.median(
                            p[0] / max(1.0, q[0]) for p, q in zip(taken, times[first], strict=True)
                        ),
                        3,
                    ),
                ]
                for name, taken in times.items()
            }
            found.note({call: table[call]})
    finally:
        for name, side in running.items():
            side.program.end()
            world.log(f"{world.case}: {name}", side.program.said())
    return table


@case("A", 25, "allocations_cost_little_more", "launches_cost_nothing")
def call_costs(world: World, found: Found) -> str:
    """Allocation, launch and event query, plain and under the library."""
    sides = {
        "plain": world.plain(),
        "limited": world.limited("a"),
        "share": world.limited("b", VCUDA_CORES="99"),
    }
    table = compare(world, found, sides, world.count(9, 3))
    # Twice a call is no claim about speed: it is where something is wrong, such as a reading of NVML at each call.
    ratios = {call: table[call]["limited"][2] for call in ("alloc_4k", "alloc_2m", "alloc_256m", "async_1m")}
    micro = {call: table[call]["limited"][0] - table[call]["plain"][0] for call in ratios}
    found.check(
        "allocations_cost_little_more", all(r < 2 or micro[c] < 2000 for c, r in ratios.items()), ratios
    )
    launches = {call: table[call]["limited"][2] for call in ("launch", "event_query")}
    extra = {call: table[call]["limited"][0] - table[call]["plain"][0] for call in launches}
    found.check(
        "launches_cost_nothing", all(r < 1.3 or extra[c] < 500 for c, r in launches.items()), launches
    )
    return ", ".join(
        f"{call} x{sides['limited'][2]} (share x{sides['share'][2]})" for call, sides in table.items()
    )


@case(
    "A",
    45,
    "all_processes_are_listed",
    "processes_cost_the_same",
    "own_pid_is_listed",
    "bytes_are_told",
    "a_reading_is_cheap",
)
def nvml_cost(world: World, found: Found) -> str:
    """What NVML's calls cost beside 1, 16 and 64 processes."""
    counts = (1, 4) if world.options.short else (1, 16, 64)
    got = ask(world, found, "nvml_cost.py", *counts)
    rows = {
        name: value for name, value in got.items() if name.startswith("beside") and isinstance(value, dict)
    }
    if not rows:
        raise CaseError("no call was timed")
    return "; ".join(
        f"{name}: processes {one['processes'][:2]} ns, memory {one['memory'][:2]} ns"
        for name, one in rows.items()
    )
