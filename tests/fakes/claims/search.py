# SPDX-License-Identifier: Apache-2.0
"""The search for devices: the first full solution, with requests in order and devices in published order.

Nothing is weighed. Within a request the search goes on behind the device it took last, so that one request never has a
device twice; another request may have it. What does not work out later is taken back and tried with the next device.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.fakes.claims.pools import Device, Usage, quantity

Document = Mapping[str, Any]
Selector = Callable[[Document], bool]
"""Whether a device fits, from a mapping of its driver, its document's fields and "allowMultipleAllocations"."""


class Unknown(Exception):  # noqa: N818
    """A class or an expression of which the stand-in has not been told what it means."""


@dataclass(frozen=True)
class Selectors:
    """What classes and CEL expressions stand for.

    classes: by name. expressions: by their text. present: the classes that exist; those without a selector take any
    device.
    """

    classes: Mapping[str, Selector]
    expressions: Mapping[str, Selector]
    present: frozenset[str]

    def of(self, asked: Document) -> list[Selector]:
        """Those of a request. Raises Unknown."""
        name = asked["deviceClassName"]
        if name not in self.present:
            raise Unknown(f"device class {name} does not exist")
        found = [self.classes[name]] if name in self.classes else []
        for one in asked.get("selectors") or []:
            text = " ".join(one["cel"]["expression"].split())
            if text not in self.expressions:
                raise Unknown(f"no test has said what this means: {text}")
            found.append(self.expressions[text])
        return found


@dataclass
class _Chosen:
    request: str
    device: Device
    parts: Mapping[str, int] | None
    asked: Document


class Search:
    """One claim on one node. usage: what others have; it is as before when the search ends without a solution."""

    def __init__(
        self, claim: Document, devices: Sequence[Device], usage: Usage, selectors: Selectors
    ) -> None:
        spec = claim["spec"]["devices"]
        self._requests: Sequence[Document] = spec.get("requests") or []
        self._constraints: Sequence[Document] = spec.get("constraints") or []
        self._devices = devices
        self._usage = usage
        self._selectors = selectors
        self._chosen: list[_Chosen] = []

    def run(self) -> list[dict[str, Any]] | None:
        """The results of an allocation; None where there is no solution. Raises Unknown."""
        if not self._request(0):
            return None
        return [_result(one) for one in self._chosen]

    def _request(self, number: int) -> bool:
        if number == len(self._requests):
            return True
        request = self._requests[number]
        return any(
            self._alternative(number, name, asked, self._candidates(asked))
            for name, asked in _alternatives(request)
        )

    def _alternative(self, number: int, name: str, asked: Document, candidates: list[Device]) -> bool:
        if asked.get("allocationMode", "ExactCount") == "All":
            count = len(candidates)
            return bool(count) and self._take(number, name, asked, candidates, count)
        return self._take(number, name, asked, candidates, asked.get("count", 1))

    def _candidates(self, asked: Document) -> list[Device]:
        selectors = self._selectors.of(asked)
        return [
            device
            for device in self._devices
            if all(selector({"driver": device.driver, **device.document}) for selector in selectors)
        ]

    def _take(self, number: int, name: str, asked: Document, candidates: list[Device], missing: int) -> bool:
        """Takes MISSING of the candidates, and then what the requests behind ask for."""
        if not missing:
            return self._request(number + 1)
        for position, device in enumerate(candidates):
            parts = self._parts(device, asked)
            if parts is None or not self._allowed(name, device):
                continue
            taken = parts if device.shared else None
            admin = bool(asked.get("adminAccess"))
            if not admin:
                self._usage.add(device.name, taken)
            self._chosen.append(_Chosen(name, device, taken, asked))
            if self._take(number, name, asked, candidates[position + 1 :], missing - 1):
                return True
            self._chosen.pop()
            if not admin:
                self._usage.remove(device.name, taken)
        return False

    def _parts(self, device: Device, asked: Document) -> Mapping[str, int] | None:
        parts = device.consumption((asked.get("capacity") or {}).get("requests") or {})
        if parts is None or not _tolerated(device, asked.get("tolerations") or []):
            return None
        return parts if asked.get("adminAccess") or self._usage.fits(device, parts) else None

    def _allowed(self, name: str, device: Device) -> bool:
        for constraint in self._constraints:
            names = set(constraint.get("requests") or [])
            if names and not names & {name, name.partition("/")[0]}:
                continue
            same = constraint.get("matchAttribute")
            value = device.attribute(same or constraint["distinctAttribute"])
            if value is None:
                return False
            others = [
                one.device.attribute(same or constraint["distinctAttribute"])
                for one in self._chosen
                if not names or names & {one.request, one.request.partition("/")[0]}
            ]
            if any((other == value) != bool(same) for other in others):
                return False
        return True


def _alternatives(request: Document) -> Iterator[tuple[str, Document]]:
    if request.get("firstAvailable"):
        yield from ((f"{request['name']}/{one['name']}", one) for one in request["firstAvailable"])
    else:
        yield request["name"], request["exactly"]


def _tolerated(device: Device, tolerations: Sequence[Document]) -> bool:
    def tolerates(one: Document, taint: Document) -> bool:
        value = one.get("operator", "Equal") == "Exists" or one.get("value", "") == taint.get("value", "")
        return (
            one.get("key", "") in ("", taint["key"])
            and one.get("effect", "") in ("", taint["effect"])
            and value
        )

    taints = [one for one in device.document.get("taints") or [] if one["effect"] != "None"]
    return all(any(tolerates(one, taint) for one in tolerations) for taint in taints)


def _result(chosen: _Chosen) -> dict[str, Any]:
    driver, pool, name = chosen.device.name
    result: dict[str, Any] = {"request": chosen.request, "driver": driver, "pool": pool, "device": name}
    if chosen.asked.get("adminAccess"):
        result["adminAccess"] = True
    if chosen.asked.get("tolerations"):
        result["tolerations"] = list(chosen.asked["tolerations"])
    if chosen.parts is not None:
        result["shareID"] = str(uuid.uuid4())
        result["consumedCapacity"] = {key: quantity(count) for key, count in chosen.parts.items()}
    return result
