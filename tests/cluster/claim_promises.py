# SPDX-License-Identifier: Apache-2.0
"""What a node has promised of its GPUs to claims, looked at all the time and without asking its agent."""

from __future__ import annotations

import contextlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import vcuda
from tests.cluster.claims_node import CDI, ClaimNode, quantity, results_of
from tests.cluster.node_kills import GIB, granted_bytes
from tests.fakes.eventually import looking


@dataclass(slots=True)
class Promises:
    """What was promised, looked at four times a second by `promises_kept`.

    Of each GPU, living processes never have more mounted than it has. And the API server counts at least what a node
    has promised for claims that it still shows. A claim that was deleted by force is not shown, and its containers are
    still being stopped; so of those only the first is to hold.
    """

    node: ClaimNode
    checks: int = 0
    compared: int = 0
    problems: list[str] = field(default_factory=list)

    def look(self) -> None:
        """Looks once."""
        self.checks += 1
        for gpu, count in granted_bytes(self.node.state).items():
            if count > GIB << 30:
                self.problems.append(f"{gpu}: {count >> 30} GiB are mounted")
        consumed = self._consumed()
        promised = self._promised()
        shown = consumed.keys() & self._consumed().keys()
        for device, count in self._sums(promised, shown).items():
            self.compared += 1
            if count > self._sums(consumed, shown)[device]:
                self.problems.append(f"{device}: {count >> 30} GiB are promised, more than is consumed")

    @staticmethod
    def _sums(claims: Mapping[str, Mapping[str, int]], shown: set[str]) -> Counter[str]:
        sums: Counter[str] = Counter()
        for uid, devices in claims.items():
            if uid in shown:
                sums.update(devices)
        return sums

    def _consumed(self) -> dict[str, dict[str, int]]:
        """Bytes by device, by the claim's UID."""
        consumed: dict[str, dict[str, int]] = {}
        for claim in self.node.claims():
            devices: Counter[str] = Counter()
            for one in results_of(claim):
                devices[one["device"]] += quantity(one["consumedCapacity"]["memory"])
            consumed[claim["metadata"]["uid"]] = dict(devices)
        return consumed

    def _promised(self) -> dict[str, dict[str, int]]:
        """The same by the files for the runtime and the limits pages that these name."""
        promised: dict[str, dict[str, int]] = defaultdict(dict)
        for path in CDI.glob("gigaslice.io-vgpu-*.json"):
            with contextlib.suppress(OSError, vcuda.VcudaError):
                devices: Counter[str] = Counter()
                for limits in set(re.findall(r'"hostPath": "([^"]*/limits)"', path.read_text())):
                    for gpu in vcuda.read_limits(Path(limits)).gpus:
                        devices[f"gpu-{gpu.uuid.removeprefix('GPU-').lower()}"] += gpu.memory_bytes
                promised[path.stem.removeprefix("gigaslice.io-vgpu-")] = dict(devices)
        return promised


@contextlib.contextmanager
def promises_kept(node: ClaimNode) -> Iterator[Promises]:
    """Looks while the block runs, and fails where a promise was too much."""
    promises = Promises(node)
    with looking(promises.look, 0.25):
        yield promises
    assert not promises.problems, promises.problems
