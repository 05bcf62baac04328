# SPDX-License-Identifier: Apache-2.0
"""The rules of the API server for slices, as far as this project's slices can break them: every problem as a sentence.

Written from the published rules and not from the code that makes slices. The API server stand-in has its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from gigaslice.core.kube.quantity import parse_quantity

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SEMVER = re.compile(r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)")
_CANONICAL = re.compile(r"0|[1-9][0-9]*([KMGTPE]i)?")
_SPEC = {"driver", "nodeName", "pool", "devices"}
_DEVICE = {"name", "attributes", "capacity", "taints", "allowMultipleAllocations"}


def problems(name: str, spec: Mapping[str, Any]) -> Iterator[str]:
    """What a server would refuse of a slice, and what it would give back otherwise than it was written."""
    if len(name) > 253 or not _SUBDOMAIN.fullmatch(name):
        yield f"metadata.name {name!r}"
    if set(spec) != _SPEC:
        yield f"fields {sorted(spec)}"
    pool = spec["pool"]
    if len(spec["driver"]) > 63 or not _SUBDOMAIN.fullmatch(spec["driver"]):
        yield "driver"
    if len(pool["name"]) > 253 or not all(map(_SUBDOMAIN.fullmatch, pool["name"].split("/"))):
        yield "pool.name"
    if pool["generation"] < 0 or pool["resourceSliceCount"] < 1 or len(pool) != 3:
        yield "pool"
    devices = spec["devices"]
    if len(devices) > (64 if any(device.get("taints") for device in devices) else 128):
        yield f"{len(devices)} devices"
    if len({device["name"] for device in devices}) != len(devices):
        yield "a name twice"
    for device in devices:
        yield from _device(device)


def _device(device: Mapping[str, Any]) -> Iterator[str]:
    if set(device) - _DEVICE or len(device["name"]) > 63 or not _LABEL.fullmatch(device["name"]):
        yield f"device {device['name']!r}"
    attributes, capacity = device.get("attributes", {}), device.get("capacity", {})
    if len(attributes) + len(capacity) > 32:
        yield f"{len(attributes)} attributes and {len(capacity)} capacities"
    names = [*attributes, *capacity]
    for name in names:
        domain, slash, rest = name.rpartition("/")
        if len(rest) > 32 or not _IDENTIFIER.fullmatch(rest):
            yield f"name {name!r}"
        if slash and (len(domain) > 63 or not _SUBDOMAIN.fullmatch(domain)):
            yield f"domain of {name!r}"
    qualified = [name if "/" in name else f"gigaslice.io/{name}" for name in attributes]
    if len(set(qualified)) != len(qualified):
        yield "an attribute twice"
    for name, value in attributes.items():
        yield from _attribute(name, value)
    for name, value in capacity.items():
        yield from _capacity(name, value, shared=device.get("allowMultipleAllocations") is True)
    taints = device.get("taints", [])
    if len(taints) > 16:
        yield "taints"
    for taint in taints:
        value = taint.get("value", "")
        if set(taint) != {"key", "value", "effect"} or taint["effect"] not in ("NoSchedule", "NoExecute"):
            yield f"taint {taint}"
        if len(value) > 63 or not re.fullmatch(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?", value):
            yield f"taint {value!r}"


def _attribute(name: str, value: Mapping[str, Any]) -> Iterator[str]:
    if len(value) != 1:
        yield f"{name}: {value}"
    ((kind, content),) = value.items()
    types = {"string": str, "version": str, "int": int, "bool": bool}
    if type(content) is not types.get(kind):
        yield f"{name}: {content!r} is no {kind}"
    elif isinstance(content, str) and len(content.encode()) > 64:
        yield f"{name}: too long"
    elif isinstance(content, int) and not -(1 << 63) <= content < 1 << 63:
        yield f"{name}: too large"
    elif kind == "version" and not _SEMVER.fullmatch(content):
        yield f"{name}: {content} is no version"


def _capacity(name: str, capacity: Mapping[str, Any], *, shared: bool) -> Iterator[str]:
    policy = capacity.get("requestPolicy", {})
    texts = [capacity["value"], *policy.get("validValues", []), *policy.get("validRange", {}).values()]
    texts += [policy["default"]] if "default" in policy else []
    for text in texts:
        number = parse_quantity(text)
        shorter = [power for power in range(10, 70, 10) if number and not number % (1 << power)]
        plainly = text if text[-1:] != "i" else text[:-2]
        if not _CANONICAL.fullmatch(text) or (shorter and int(plainly) != number >> max(shorter)):
            yield f"{name}: {text} comes back otherwise"
    value = parse_quantity(capacity["value"])
    if policy and not shared:
        yield f"{name}: a policy of what is not shared"
    if "validValues" in policy and "validRange" in policy:
        yield f"{name}: two policies"
    default = parse_quantity(policy.get("default", "0"))
    if default > value:
        yield f"{name}: default"
    if "validValues" in policy:
        values = [parse_quantity(text) for text in policy["validValues"]]
        if (
            not 1 <= len(values) <= 10
            or values != sorted(set(values))
            or values[-1] > value
            or default not in values
        ):
            yield f"{name}: values {values}"
    if "validRange" in policy:
        least, most, step = (parse_quantity(policy["validRange"][key]) for key in ("min", "max", "step"))
        if not least <= default <= most <= value or step <= 0 or least + step > value:
            yield f"{name}: range"
        elif (default - least) % step or (most - least) % step:
            yield f"{name}: steps"
