# SPDX-License-Identifier: Apache-2.0
"""The devices of a node in the order in which the allocator looks at them, and what of each is taken.

Pools come by driver and name, the slices of a pool by name, devices as they were published. A pool counts with the
slices of its highest generation, and only if these are all.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gigaslice.core.kube.quantity import parse_quantity

Document = Mapping[str, Any]
Name = tuple[str, str, str]
"""Driver, pool and name of a device."""
_UNITS = ((1 << 40, "Ti"), (1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki"))


def quantity(count: int) -> str:
    """COUNT as a server writes it, of bytes at least."""
    for size, unit in _UNITS:
        if count and count % size == 0:
            return f"{count // size}{unit}"
    return str(count)


@dataclass(frozen=True)
class Device:
    """A published device."""

    driver: str
    pool: str
    document: Document

    @property
    def name(self) -> Name:
        return self.driver, self.pool, self.document["name"]

    @property
    def shared(self) -> bool:
        """Whether several claims may have parts of it."""
        return bool(self.document.get("allowMultipleAllocations"))

    def attribute(self, name: str) -> Any:
        """The value of an attribute by its full name; None where it has none."""
        domain, _, rest = name.rpartition("/")
        attributes = self.document.get("attributes") or {}
        value = attributes.get(name) or (attributes.get(rest) if domain == self.driver else None)
        return None if value is None else next(iter(value.items()))

    def consumption(self, requests: Mapping[str, str]) -> dict[str, int] | None:
        """What a request takes of each capacity: rounded up to a step, the default where it says nothing.

        Returns:
            None where the device does not fit by its size or policies.
        """
        capacities = self.document.get("capacity") or {}
        short = {key.removeprefix(f"{self.driver}/"): text for key, text in requests.items()}
        names = {key.removeprefix(f"{self.driver}/"): key for key in capacities}
        if set(short) - set(names):
            return None
        taken = {}
        for name, key in names.items():
            asked = parse_quantity(short[name]) if name in short else None
            rounded = _rounded(capacities[key], asked)
            if rounded is None or rounded > parse_quantity(capacities[key]["value"]):
                return None
            taken[key] = rounded
        return taken

    def total(self, capacity: str) -> int:
        """The whole of a capacity."""
        return parse_quantity(self.document["capacity"][capacity]["value"])


def _rounded(capacity: Document, asked: int | None) -> int | None:
    value, policy = parse_quantity(capacity["value"]), capacity.get("requestPolicy")
    if policy is None or policy.get("default") is None:
        return value if asked is None else asked
    if asked is None:
        return parse_quantity(policy["default"])
    if values := policy.get("validValues"):
        return min((one for one in map(parse_quantity, values) if one >= asked), default=None)
    limits = policy.get("validRange")
    if limits is None:
        return asked
    least = parse_quantity(limits["min"])
    rounded = max(asked, least)
    if limits.get("step") is not None:
        step = parse_quantity(limits["step"])
        rounded = least + -(-(rounded - least) // step) * step
    most = value if limits.get("max") is None else parse_quantity(limits["max"])
    return rounded if rounded <= most else None


def devices_of(node: str, slices: Iterable[Document]) -> list[Device]:
    """The devices that a pod on NODE can have."""
    pools: dict[tuple[str, str], list[Document]] = defaultdict(list)
    for one in slices:
        spec = one["spec"]
        if spec.get("nodeName") == node or spec.get("allNodes"):
            pools[spec["driver"], spec["pool"]["name"]].append(one)
    return list(itertools.chain.from_iterable(_pool(*name, pools[name]) for name in sorted(pools)))


def _pool(driver: str, name: str, slices: list[Document]) -> Iterator[Device]:
    newest = max(one["spec"]["pool"].get("generation", 0) for one in slices)
    current = [one for one in slices if one["spec"]["pool"].get("generation", 0) == newest]
    if any(one["spec"]["pool"]["resourceSliceCount"] != len(current) for one in current):
        return  # incomplete: its driver is about to write the others
    for one in sorted(current, key=lambda one: str(one["metadata"]["name"])):
        for device in one["spec"].get("devices") or []:
            yield Device(driver, name, device)


class Usage:
    """What allocated claims have: whole devices, and parts of shared ones."""

    def __init__(self) -> None:
        self.whole: set[Name] = set()
        self.parts: dict[Name, dict[str, int]] = defaultdict(lambda: defaultdict(int))

    @classmethod
    def of(cls, claims: Iterable[Document]) -> Usage:
        """Of all CLAIMS together, whoever allocated them."""
        usage = cls()
        for claim in claims:
            allocation = (claim.get("status") or {}).get("allocation") or {}
            for result in (allocation.get("devices") or {}).get("results") or []:
                if not result.get("adminAccess"):
                    name = result["driver"], result["pool"], result["device"]
                    parts = {
                        key: parse_quantity(text)
                        for key, text in (result.get("consumedCapacity") or {}).items()
                    }
                    usage.add(name, parts if result.get("shareID") or parts else None)
        return usage

    def add(self, name: Name, parts: Mapping[str, int] | None) -> None:
        """A device is taken: PARTS of it, or all where there are None."""
        if parts is None:
            self.whole.add(name)
        else:
            for key, count in parts.items():
                self.parts[name][key] += count

    def remove(self, name: Name, parts: Mapping[str, int] | None) -> None:
        """What was added is not taken after all."""
        if parts is None:
            self.whole.remove(name)
        else:
            for key, count in parts.items():
                self.parts[name][key] -= count

    def fits(self, device: Device, parts: Mapping[str, int]) -> bool:
        """Whether these PARTS are left, or for a device that is not shared, all of it."""
        if device.name in self.whole:
            return False
        if not device.shared:
            return device.name not in self.parts
        return all(self.parts[device.name][key] + count <= device.total(key) for key, count in parts.items())
