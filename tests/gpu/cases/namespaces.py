# SPDX-License-Identifier: Apache-2.0
"""A: what process lists show in a PID namespace of a container's own, by branch, without and with the library."""

from __future__ import annotations

import sys

from tests.gpu.machine import tools
from tests.gpu.world import BLOCK, PROGRAMS, CaseError, Found, World, case

NAMESPACE = ("--pid", "--fork", "--kill-child", "--mount-proc")
FILTERED = (565, 57)  # the first version whose kernel module gives lists and bytes in the caller's namespace


def version(text: object) -> tuple[int, ...]:
    """(580, 65, 6) of 580.65.06."""
    return tuple(int(part) for part in str(text).split(".") if part.isdigit())


def listed(got: dict, name: str) -> dict[int, int]:
    """PID -> bytes of a list as the program prints it."""
    return {int(pid): int(held) for pid, held in got[name]}


def rows(got: dict) -> tuple[int, bool]:
    """(number of rows of all private lists, whether the stranger is in them); a refused list has none."""
    answered = [row for row in got["private"] if row[0] == 0]
    return sum(row[1] for row in answered), any(row[2] for row in answered)


def by_tool(got: dict) -> list[int]:
    """PIDs that nvidia-smi lists."""
    return list(got["nvidia_smi"][1]) if got["nvidia_smi"] else []


def in_namespace(world: World, env: dict[str, str], prefix: str, stranger: int) -> dict:
    """What lists.py sees as the first process of a PID namespace."""
    words = [sys.executable, str(PROGRAMS / "lists.py"), stranger, tools().get("nvidia-smi", "")]
    return world.run(env, "unshare", *NAMESPACE, *words, prefix=prefix)


def can_unshare(world: World) -> None:
    """Ends the case where no namespace can be made."""
    try:
        with world.start(world.plain(), "unshare", *NAMESPACE, "true") as trial:
            code = world.finish(trial, 5).code
    except OSError:
        code = -1
    if code != 0:
        raise CaseError("no PID namespace can be made here", "missing")


@case(
    "A",
    20,
    "symbols_are_read",
    "strangers_are_left_out",
    "own_bytes_are_told",
    "private_lists_are_the_public_ones",
    "the_library_lists_own_alone",
)
def namespace_lists(world: World, found: Found) -> str:
    """In a PID namespace of its own a container's lists have its process alone, from the kernel and by the library."""
    can_unshare(world)
    with world.start(world.plain(), "limits.py", "hold", BLOCK) as stranger:
        if stranger.wait_for("result", 10).get("result") != 0:
            raise CaseError(f"the stranger took nothing: {stranger.said()[-200:]}")
        plain = in_namespace(world, world.plain(), "plain ", stranger.pid)
        under = in_namespace(world, world.limited(), "limited ", stranger.pid)
    found.check("symbols_are_read", plain["symbols"] != 0, plain["ioctl"] or "no symbol names ioctl")
    # Before that version the kernel promises nothing, and the library believes no list of it.
    expected = version(plain["driver"]) >= FILTERED
    own, public = plain["own"], listed(plain, "public")
    number, disclosed = rows(plain)
    told = f"driver {plain['driver']}: own {own}, stranger {stranger.pid}, listed {public}"
    alone = set(public) == {own} and not disclosed and stranger.pid not in by_tool(plain)
    found.check("strangers_are_left_out", alone or not expected, f"{told}, nvidia-smi {by_tool(plain)}")
    found.check("own_bytes_are_told", public.get(own, 0) > 0 or not expected, told)
    found.check("private_lists_are_the_public_ones", number == len(public), plain["private"])
    number, disclosed = rows(under)
    shown = set(listed(under, "public")) == {under["own"]} and number == 1
    tool = set(by_tool(under)) == {under["own"]} or under["nvidia_smi"] is None
    found.check(
        "the_library_lists_own_alone",
        shown and tool and not disclosed,
        f"{under['public']}, {under['private']}, nvidia-smi {under['nvidia_smi']}",
    )
    return f"driver {plain['driver']}, ioctl: {plain['ioctl']}; without the library {public}, with it {under['public']}"
