# SPDX-License-Identifier: Apache-2.0
"""What scenes on a node of claims have in common."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cluster.claims_node import ClaimNode, command_of

KUBELET_RACE = "no relationship found"
"""The kubelet's own error about a pod that was bound just now: its API server does not let it read the claim yet."""
REFUSALS = ("FailedPrepareDynamicResources", "Failed", "FailedCreatePodSandBox")


def timed(what: str, seconds: float) -> float:
    """Prints how long something took; returns it."""
    print(f"{what}: {seconds:.2f} s")
    return seconds


def undisturbed(node: ClaimNode, *names: str) -> Callable[[], None]:
    """Returns what asserts that pods have the same containers as now, and none was refused."""

    def state() -> list[object]:
        return [
            (one["containerID"], one["restartCount"])
            for name in names
            for one in node.get(name)["status"]["containerStatuses"]
        ] + [sorted(node.pages(name).items()) for name in names]

    def refusals(name: str) -> set[tuple[str, str]]:
        return {event for event in node.events(name) if event[0] in REFUSALS}

    before, refused = state(), {name: refusals(name) for name in names}

    def check() -> None:
        assert state() == before
        assert {name: refusals(name) for name in names} == refused

    return check


def restart_of(name: str) -> Callable[[], None]:
    """The shell command of an environment variable; skips the test where there is none."""
    command = command_of(name)
    if command is None:
        pytest.skip(f"{name} names no command")
    return command
