# SPDX-License-Identifier: Apache-2.0
"""A ResourceClaim as the API server writes it, cut down to what a node does for it. Pure.

What is read ends in directories, files and limits, so it is checked here, and what makes no sense is refused with a
sentence. Devices and parameters of other drivers are left out: a claim may have both, and theirs are not ours to judge.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gigaslice.core.claims.names import CORES, DRIVER, FOLLOWS_POD, MEMORY, is_subdomain
from gigaslice.core.kube.quantity import parse_quantity
from gigaslice.core.model import CORES_PER_GPU

__all__ = ["ClaimConfig", "ClaimResult", "PodReference", "ResourceClaim"]

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_UID = re.compile(r"[0-9A-Za-z][-._0-9A-Za-z]{0,127}")  # it names files
_LONGEST_POOL = 253
_SHOWN = 60
_FROM = {"FromClass": True, "FromClaim": False}


class PodReference(NamedTuple):
    """A pod that a claim is reserved for."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """One device that was allocated for a request.

    Attributes:
        request: The request, "a"; "a/b" for the alternative b of it.
        pool: The pool of the device.
        device: The device's name there.
        share_id: Which share of the device; empty where it is not shared.
        memory_bytes: How much of its memory; None where nothing says.
        cores: How much of its compute in per cent; None where nothing says.
        admin_access: Whether it is access beside everybody else's, which takes nothing of the device.
    """

    request: str
    pool: str
    device: str
    share_id: str = ""
    memory_bytes: int | None = None
    cores: int | None = None
    admin_access: bool = False

    @property
    def main(self) -> str:
        """The request as containers name it, whatever its alternative."""
        return self.request.partition("/")[0]


@dataclass(frozen=True, slots=True)
class ClaimConfig:
    """Parameters for our driver.

    Attributes:
        requests: The requests that they are for, "a" or "a/b"; empty: all.
        parameters: As they were written.
        from_class: Whether they are of a DeviceClass, which an administrator wrote; else of the claim.
    """

    requests: tuple[str, ...]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    from_class: bool = False

    def is_for(self, result: ClaimResult) -> bool:
        """Whether they are for what was allocated as this result."""
        return not self.requests or result.request in self.requests or result.main in self.requests


@dataclass(frozen=True, slots=True)
class ResourceClaim:
    """One claim.

    Attributes:
        namespace: Its namespace.
        name: Its name. Another claim of that name has another UID.
        uid: Its UID.
        ending: Whether its deletion was asked for.
        results: Devices of our driver that were allocated, in the order of the claim.
        other_drivers: Whether devices of other drivers were allocated too.
        configs: Parameters for our driver; what stands later wins.
        reserved_for: The pods that may use it.
        spec_requests: Names of its requests, whosever devices they are for.
        asking_capacity: Those of them, and of their alternatives ("a/b"), that ask for an amount of what our devices
            have.
        allocated: Whether devices were allocated at all.
        follows_pod: Whether its options are the annotations of its pod: it was made from a container's one line
            (annotation FOLLOWS_POD), and what an annotation says can change while the pod runs.
    """

    namespace: str
    name: str
    uid: str
    ending: bool = False
    results: tuple[ClaimResult, ...] = ()
    other_drivers: bool = False
    configs: tuple[ClaimConfig, ...] = ()
    reserved_for: tuple[PodReference, ...] = ()
    spec_requests: tuple[str, ...] = ()
    asking_capacity: frozenset[str] = frozenset()
    allocated: bool = False
    follows_pod: bool = False

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def requests(self) -> tuple[str, ...]:
        """The requests that have devices of our driver, as containers name them, in the order of the claim."""
        ours = {result.main for result in self.results}
        order = dict.fromkeys((*self.spec_requests, *(result.main for result in self.results)))
        return tuple(request for request in order if request in ours)

    @classmethod
    def parse(cls, document: object) -> ResourceClaim:
        """Reads a claim.

        Raises:
            ValueError: It is none, or what was allocated makes no sense; the text says which field.
        """
        claim = _object("the answer", document)
        metadata, spec = _object("metadata", claim.get("metadata")), _object("spec", claim.get("spec"))
        status = _object("status", claim.get("status"))
        allocation = _object("status.allocation", status.get("allocation"))
        devices = _object("status.allocation.devices", allocation.get("devices"))
        asked = _object("spec.devices", spec.get("devices"))
        results = _objects("status.allocation.devices.results", devices.get("results"))
        ours = tuple(_result(where, result) for where, result in results if _driver(where, result) == DRIVER)
        configs = _objects("status.allocation.devices.config", devices.get("config"))
        requests = _objects("spec.devices.requests", asked.get("requests"))
        return cls(
            namespace=_matched("metadata.namespace", metadata.get("namespace"), _LABEL),
            name=_name("metadata.name", metadata.get("name")),
            uid=_matched("metadata.uid", metadata.get("uid"), _UID),
            ending=metadata.get("deletionTimestamp") is not None,
            results=ours,
            other_drivers=len(ours) < len(results),
            configs=tuple(config for entry in configs if (config := _config(*entry)) is not None),
            reserved_for=tuple(
                pod
                for entry in _objects("status.reservedFor", status.get("reservedFor"))
                if (pod := _pod(*entry)) is not None
            ),
            spec_requests=tuple(
                _matched(f"{where}.name", request.get("name"), _LABEL) for where, request in requests
            ),
            asking_capacity=frozenset(
                name for where, request in requests for name in _asking_capacity(where, request)
            ),
            allocated=bool(allocation),
            follows_pod=_object("metadata.annotations", metadata.get("annotations")).get(FOLLOWS_POD)
            == "true",
        )


def _result(where: str, result: Mapping[str, Any]) -> ClaimResult:
    pool = _text(f"{where}.pool", result.get("pool"))
    if len(pool) > _LONGEST_POOL or not all(map(is_subdomain, pool.split("/"))):
        raise ValueError(f"{where}.pool: {_shown(pool)} is no name of a pool")
    share_id = result.get("shareID")
    consumed = _object(f"{where}.consumedCapacity", result.get("consumedCapacity"))
    memory = _consumed(f"{where}.consumedCapacity", consumed, MEMORY)
    cores = _consumed(f"{where}.consumedCapacity", consumed, CORES)
    if cores is not None and cores > CORES_PER_GPU:
        raise ValueError(f"{where}.consumedCapacity.{CORES}: {cores} is more than {CORES_PER_GPU} per cent")
    access = result.get("adminAccess")
    if access is not None and not isinstance(access, bool):
        raise ValueError(f"{where}.adminAccess: must be true or false")
    return ClaimResult(
        request=_request(f"{where}.request", result.get("request")),
        pool=pool,
        device=_matched(f"{where}.device", result.get("device"), _LABEL),
        share_id="" if share_id is None else _matched(f"{where}.shareID", share_id, _UID),
        memory_bytes=memory,
        cores=cores,
        admin_access=access is True,
    )


def _consumed(where: str, consumed: Mapping[str, Any], name: str) -> int | None:
    """How much of NAME was allocated. A name may be written with its driver or without."""
    keys = [key for key in (name, f"{DRIVER}/{name}") if consumed.get(key) is not None]
    amounts = {_amount(f"{where}.{key}", consumed[key]) for key in keys}
    if len(amounts) > 1:
        raise ValueError(f"{where}: {name} is said twice and differently")
    return next(iter(amounts), None)


def _amount(where: str, quantity: object) -> int:
    if isinstance(quantity, bool) or not isinstance(quantity, str | int | float):
        raise ValueError(f"{where}: must be an amount")
    try:
        amount = parse_quantity(quantity)
    except ValueError:
        amount = -1
    if amount < 0:
        raise ValueError(f"{where}: {_shown(quantity)} is no amount")
    return amount


def _asking_capacity(where: str, request: Mapping[str, Any]) -> Iterator[str]:
    """Yields the request, or its alternatives, as results name them, where some memory or cores are asked for."""
    name = _text(f"{where}.name", request.get("name"))
    exactly = _object(f"{where}.exactly", request.get("exactly"))
    asked = [(name, f"{where}.exactly", exactly)] + [
        (f"{name}/{_text(f'{place}.name', alternative.get('name'))}", place, alternative)
        for place, alternative in _objects(f"{where}.firstAvailable", request.get("firstAvailable"))
    ]
    for asked_name, place, document in asked:
        capacity = _object(f"{place}.capacity", document.get("capacity"))
        amounts = _object(f"{place}.capacity.requests", capacity.get("requests"))
        if any(key in amounts for own in (MEMORY, CORES) for key in (own, f"{DRIVER}/{own}")):
            yield asked_name


def _config(where: str, config: Mapping[str, Any]) -> ClaimConfig | None:
    """Parameters for our driver; None for those of another one, or of a kind that is not opaque."""
    opaque = _object(f"{where}.opaque", config.get("opaque"))
    if opaque.get("driver") != DRIVER:
        return None
    requests = config.get("requests")
    if requests is not None and not isinstance(requests, list):
        raise ValueError(f"{where}.requests: must be a list")
    source = config.get("source")
    if not isinstance(source, str) or source not in _FROM:
        raise ValueError(f"{where}.source: must be one of {', '.join(_FROM)}")
    return ClaimConfig(
        requests=tuple(_request(f"{where}.requests", request) for request in requests or ()),
        parameters=_object(f"{where}.opaque.parameters", opaque.get("parameters")),
        from_class=_FROM[source],
    )


def _pod(where: str, consumer: Mapping[str, Any]) -> PodReference | None:
    """A pod; None for another kind of object."""
    if consumer.get("apiGroup") or consumer.get("resource") != "pods":
        return None
    return PodReference(
        _name(f"{where}.name", consumer.get("name")), _matched(f"{where}.uid", consumer.get("uid"), _UID)
    )


def _driver(where: str, result: Mapping[str, Any]) -> str:
    return _text(f"{where}.driver", result.get("driver"))


def _request(where: str, name: object) -> str:
    text = _text(where, name)
    parts = text.split("/")
    if len(parts) > 2 or not all(map(_LABEL.fullmatch, parts)):
        raise ValueError(f"{where}: {_shown(text)} is no name of a request")
    return text


def _name(where: str, name: object) -> str:
    text = _text(where, name)
    if not is_subdomain(text):
        raise ValueError(f"{where}: {_shown(text)} is no name")
    return text


def _matched(where: str, value: object, pattern: re.Pattern[str]) -> str:
    text = _text(where, value)
    if not pattern.fullmatch(text):
        raise ValueError(f"{where}: {_shown(text)} is no name")
    return text


def _text(where: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{where}: must be a text")
    return value


def _object(where: str, value: object) -> Mapping[str, Any]:
    """What is left out is an empty object, as the API server writes it."""
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"{where}: must be an object")
    return value or {}


def _objects(where: str, value: object) -> list[tuple[str, Mapping[str, Any]]]:
    """The objects of a list, each with its place."""
    if value is not None and not isinstance(value, list):
        raise ValueError(f"{where}: must be a list")
    for position, entry in enumerate(value or ()):
        if not isinstance(entry, dict):
            raise ValueError(f"{where}[{position}]: must be an object")
    return [(f"{where}[{position}]", entry) for position, entry in enumerate(value or ())]


def _shown(value: object) -> str:
    return ascii(str(value)[:_SHOWN])
