# SPDX-License-Identifier: Apache-2.0
"""What happens in the cluster, in order; what is checked of it is a claim of the report."""

from __future__ import annotations

import asyncio
import random
import re
import time

from tests.demo.clients import DemoError
from tests.demo.cluster.control_plane import Refused
from tests.demo.cluster.nodes import DATASET_BUCKET
from tests.demo.cluster.pods import DemoPod
from tests.demo.cluster.processes import command
from tests.demo.cluster.stage import SPACES, Stage
from tests.demo.cluster.waiting import PATIENCE, holds
from tests.demo.report import Report
from tests.steps import step

_DATASET = f"s3://{DATASET_BUCKET}/"
_FEW = 3
_PLAN = re.compile(r"GPU(\d) of (\S+) \(\S+\): cordon it, restart ([^ ]+) \(")


class Story:
    """The telling. PAUSE: seconds between two steps, for whoever reads along."""

    def __init__(self, stage: Stage, report: Report, pause: float) -> None:
        self.stage = stage
        self.report = report
        self.pause = pause
        self._chance = random.Random(7)

    async def tell(self) -> None:
        """The part with a beginning and an end."""
        await self.placement()
        await self.mistakes()
        await self.data()
        await self.used()
        await self.make_room(await self.nearly_full())

    async def go_on(self, until: float) -> None:
        """Pods come and go until the clock shows UNTIL, some in any case."""
        pods, number = self.stage.pods, 0
        while number < _FEW or time.monotonic() < until:
            number += 1
            gone = [
                one for one in pods.there.values() if one.name.startswith("job-") and one.running.is_set()
            ]
            if len(gone) > 5:
                one = self._chance.choice(gone)
                self.report.told(f"{one} ends")
                await pods.delete(one)
            size = self._chance.choice((4, 8, 12, 20, 30))
            name = f"{self._chance.choice(SPACES)}/job-{number}"
            job = await self._create(
                name, use=self._chance.uniform(0.2, 0.95), gigaslice_io__vgpu_memory=size
            )
            await self._placed(job, f"asks for {size} GiB", patience=5.0)
            await asyncio.sleep(min(max(self.pause, 0.2), max(0.0, until - time.monotonic())))

    # --- the steps ----------------------------------------------------------------------------------------------

    async def placement(self) -> None:
        """Pods of different kinds get their GPUs."""
        self.report.title("Pods ask for GiB, for a model, or for whole GPUs")
        await self._run("research/notebook-1", "asks for 8 GiB", gigaslice_io__vgpu_memory=8)
        one = await self._run("research/notebook-2", "asks for 8 GiB too", gigaslice_io__vgpu_memory=8)
        same = self.stage.pods.where(one).split(" (")[0]
        first = self.stage.pods.where(self.stage.pods.there["research", "notebook-1"]).split(" (")[0]
        self.report.claim("two small pods share one GPU, and leave the others whole", same == first, same)
        llm = await self._run(
            "serving/llm",
            "asks for 30 GiB of an L40S",
            gigaslice_io__vgpu_memory=30,
            gpuclass_gigaslice_io__nvidia_l40s=1,
        )
        self.report.claim("a class is served by its model", "node-l40s" in self.stage.pods.where(llm))
        trainer = await self._run(
            "team-a/trainer", "asks for two whole H200", use=0.8, gpuclass_gigaslice_io__nvidia_h200=2
        )
        where = self.stage.pods.where(trainer)
        self.report.claim("whole GPUs come together", where.count("GPU") == 2 and "node-h200" in where, where)

    async def mistakes(self) -> None:
        """Admission answers mistakes: the first by policies where there are any, the second by the webhook alone."""
        self.report.title("A mistake is answered when the pod is created")
        typo = await self._refusal("team-a/typo", gpuclass_gigaslice_io__nvidia_l4o=1)
        self.report.claim("a class that does not exist is refused", "nvidia.l4o" in typo, typo)
        huge = await self._refusal("team-a/huge", gigaslice_io__vgpu_memory=4096)
        self.report.claim("so is more than any node has", "more than any node has" in huge, huge)

    async def data(self) -> None:
        """A pod follows another to its data."""
        self.report.title("Pods go where their data are")
        one = await self._run(
            "team-a/photos-1", f"reads {_DATASET}", dataset=_DATASET, gigaslice_io__vgpu_memory=12
        )
        node = self.stage.pods.where(one).split()[0]
        listed = await holds(lambda: self._has_data(node))
        self.report.claim("its node has the data now, and says so to the cluster", listed, node)
        two = await self._run(
            "team-a/photos-2", "reads the same", dataset=_DATASET, gigaslice_io__vgpu_memory=12
        )
        self.report.claim(
            "the next one starts beside them", self.stage.pods.where(two).split()[0] == node, node
        )

    async def used(self) -> None:
        """The page shows what the agents measure."""
        self.report.title("What pods use stands beside what they hold")
        page = await self.page()
        found = await holds(lambda: self._shows("in use of what is held"))
        self.report.claim("the page shows it", found, self.stage.processes.page)
        self.report.claim("and begins with what is still free", "whole GPUs are free" in page)

    async def nearly_full(self) -> str:
        """A pod waits for a whole GPU while two hold a part each; returns what `gigaslice explain` says."""
        self.report.title("A node that is nearly full, and how to make room")
        pods = self.stage.pods
        for name in ("notebook-1", "notebook-2"):
            await pods.delete(pods.there["research", name])
        await self._settled()
        small = [
            await self._run(
                f"research/small-{number}",
                f"asks for {size} GiB of an L4",
                gigaslice_io__vgpu_memory=size,
                gpuclass_gigaslice_io__nvidia_l4=1,
            )
            for number, size in enumerate((13, 13, 4, 4))
        ]
        for one in (small[0], small[2]):
            await pods.delete(one)
        await self._settled()
        whole = await self._create("team-a/whole", gpuclass_gigaslice_io__nvidia_l4=1)
        words = (
            "explain",
            "pod",
            "whole",
            "--namespace",
            "team-a",
            "--kubeconfig",
            self.stage.plane.kubeconfig,
        )
        text = await command(words)
        self.report.claim("team-a/whole, which asks for a whole L4, waits", not pods.where(whole))
        self.report.block("$ gigaslice explain pod whole --namespace team-a", text)
        return text

    async def make_room(self, explanation: str) -> None:
        """Does what the explanation says would free a GPU."""
        pods, objects = self.stage.pods, self.stage.objects
        plan = _PLAN.search(explanation)
        self.report.claim("it is told why, and which move would free a GPU", plan is not None)
        if plan is None:
            return
        gpu, on, mover = plan.groups()
        state = ("--state-dir", self.stage.nodes[on].agent.state)
        self.report.step(f"following the plan: GPU{gpu} of {on} is cordoned, {mover} is made anew")
        await command(("cordon", gpu, *state, "--reason", "makes room"))
        await holds(lambda: "makes room" in objects.inventory_text(on))
        again = await pods.restart(pods.there[tuple(mover.split("/"))])
        await self._placed(again, "was restarted")
        await command(("uncordon", gpu, *state))
        whole = pods.there["team-a", "whole"]
        await self._placed(whole, "has waited for this")
        where = pods.where(whole)
        self.report.claim("team-a/whole has its GPU", f"{on} GPU{gpu} " in where, where)

    # --- what steps are made of ---------------------------------------------------------------------------------

    async def _create(self, name: str, use: float = 0.7, dataset: str = "", **limits: int) -> DemoPod:
        return await self.stage.pods.create(name, use, dataset, **limits)

    async def _refusal(self, name: str, **limits: int) -> str:
        """Admission's sentence on a pod that is created; empty where it refuses nothing."""
        try:
            await self._create(name, 0.0, "", **limits)
        except Refused as refused:
            return str(refused)
        return ""

    async def _run(
        self, name: str, words: str, use: float = 0.7, dataset: str = "", **limits: int
    ) -> DemoPod:
        """Creates a pod and waits until it runs. Raises DemoError."""
        one = await self._create(name, use, dataset, **limits)
        if not await self._placed(one, words):
            raise DemoError(f"{one} does not run after {PATIENCE:.0f} s")
        if self.stage.pods.failures:
            raise DemoError(self.stage.pods.failures[0])
        await asyncio.sleep(self.pause)
        return one

    async def _placed(self, one: DemoPod, words: str, patience: float = PATIENCE) -> bool:
        """Says where a pod is once its program runs."""
        try:
            with step(f"{one} {words}"):
                await asyncio.wait_for(one.running.wait(), patience)
        except asyncio.TimeoutError:
            self.report.told(f"{one} {words}: waits")
            return False
        seconds = time.monotonic() - one.created
        self.report.told(f"{one} {words}: {self.stage.pods.where(one)}, runs after {seconds:.1f} s")
        return True

    async def _settled(self) -> None:
        """Waits until the agents' inventories name no holder that has ended."""

        def ended() -> bool:
            return not any(inventory.held for inventory in self.stage.objects.inventories().values())

        await holds(ended)

    def _has_data(self, node: str) -> bool:
        return DATASET_BUCKET in str(self.stage.objects.dataset_node(node))

    async def page(self) -> str:
        """The web page now."""
        async with self.stage.session.get(self.stage.processes.page) as answer:
            return await answer.text()

    async def _shows(self, words: str) -> bool:
        return words in await self.page()
