# SPDX-License-Identifier: Apache-2.0
"""When an agent starts anew for a GPU whose type has no resource yet."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

from agent.roles.new_types import NewTypes
from gigaslice.core.model import ResourceTypes
from tests.fakes.eventually import until
from tests.fakes.nodes import inventory

TYPES = ResourceTypes("r", automatic=True)
FOUND = inventory(2, 8).gpus


def gpus(*models, unhealthy=()):
    return tuple(
        replace(FOUND[number], model=model, healthy=model not in unhealthy)
        for number, model in enumerate(models)
    )


class Node:
    def __init__(self, *offered, mistakes=()):
        self.now, self.asked = [0.0], []
        self.inventory = SimpleNamespace(now=SimpleNamespace(gpus=()))
        self.part = NewTypes(
            self.inventory, TYPES, offered, lambda models: list(mistakes), self.asked.append,
            clock=lambda: self.now[0], poll=0.01,
        )  # fmt: skip

    def sees(self, *models, seconds=0.0, unhealthy=()):
        self.inventory.now = SimpleNamespace(gpus=gpus(*models, unhealthy=unhealthy))
        self.now[0] += seconds
        return self.part.due()


def test_a_new_type_is_due_once_it_has_been_there_for_a_while():
    node = Node("r.l4")
    assert node.sees("L4") == ""
    assert node.sees("L4", "A100") == ""
    assert node.sees("L4", "A100", seconds=3) == ""
    assert node.sees("L4", seconds=10) == "", "it has gone again"
    assert node.sees("L4", "A100") == ""
    assert node.sees("L4", "A100", seconds=7) == "r.a100"


def test_no_start_that_would_lose_a_type_that_is_offered():
    node = Node("r.l4")
    assert node.sees("A100", seconds=100) == node.sees("A100", seconds=100) == ""
    both = {"unhealthy": ("L4",), "seconds": 100}
    assert node.sees("L4", "A100", **both) == node.sees("L4", "A100", **both) == ""
    sick = {"unhealthy": ("A100",), "seconds": 100}
    assert node.sees("L4", "A100", **sick) == node.sees("L4", "A100", **sick) == ""


def run(node, *, mistakes=False):
    async def main():
        task = asyncio.create_task(node.part.run())
        if mistakes:
            await asyncio.sleep(0.2)
        else:
            await until(lambda: node.asked)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    node.sees("L4", "A100")
    node.now[0] += 100
    asyncio.run(main())
    return node.asked[:1]


def test_it_asks_for_the_start_but_not_for_one_that_would_fail():
    assert run(Node("r.l4")) == ["r.a100"]
    assert run(Node("r.l4", mistakes=("types must not overlap",)), mistakes=True) == []
