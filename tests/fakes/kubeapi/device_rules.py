# SPDX-License-Identifier: Apache-2.0
"""What a server refuses or silently loses of objects of resource.k8s.io/v1: the part that a driver meets.

The rules are those of Kubernetes 1.36 for slices, claims and templates; slices themselves are in slice_rules.py. Texts
begin and end as a server's do, with the field in the middle. CEL is not looked at.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from typing import Any

from tests.fakes.kubeapi.refused import Refused
from tests.fakes.kubeapi.slice_rules import check_slice

Document = dict[str, Any]
_KINDS = {
    "resourceslices": "ResourceSlice",
    "resourceclaims": "ResourceClaim",
    "resourceclaimtemplates": "ResourceClaimTemplate",
    "deviceclasses": "DeviceClass",
}
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_MOST_REQUESTS = _MOST_RESULTS = 32
_MOST_ALTERNATIVES = 8
_MOST_CONSUMERS = 256
_MOST_PARAMETERS_BYTES = 10 * 1024
_IMMUTABLE = "field is immutable"


class DeviceRules:
    """The rules; the switches are feature gates that a server may not have."""

    def __init__(self) -> None:
        self.drops_sharing = False
        """As 1.34 and 1.35: sharing, its policies and what claims say of capacity vanish without a word."""
        self.drops_taints = False
        """As 1.34 and 1.35: taints of devices vanish without a word."""

    def admitted(self, resource: str, document: Document, old: Document | None) -> Document:
        """The object as it is kept: DOCUMENT itself for other kinds.

        Raises:
            Refused: It is invalid, or changes what cannot be changed.
        """
        if resource not in _KINDS:
            return document
        after = copy.deepcopy(document)
        if resource == "resourceslices":
            self._drop_of_slice(after)
            self._count_generation(after, old)
            problems = check_slice(after, old)
        elif resource == "resourceclaims":
            self._drop_of_claim(after.get("spec") or {}, after.get("status") or {})
            problems = _check_claim(after, old)
        elif resource == "resourceclaimtemplates":
            spec = after.get("spec") or {}
            self._drop_of_claim(spec.get("spec") or {}, {})
            problems = _check_template(spec, None if old is None else old.get("spec") or {})
        else:
            problems = _check_configs((after.get("spec") or {}).get("config"), "spec.config")
        if texts := list(problems):
            name = document["metadata"]["name"]
            title = f'{_KINDS[resource]}.resource.k8s.io "{name}" is invalid'
            text = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
            raise Refused(422, "Invalid", f"{title}: {text}")
        return after

    def _drop_of_slice(self, document: Document) -> None:
        for device in document.get("spec", {}).get("devices") or []:
            if self.drops_taints:
                device.pop("taints", None)
            if self.drops_sharing:
                device.pop("allowMultipleAllocations", None)
                for capacity in (device.get("capacity") or {}).values():
                    capacity.pop("requestPolicy", None)

    def _drop_of_claim(self, spec: Document, status: Document) -> None:
        if not self.drops_sharing:
            return
        devices = spec.get("devices") or {}
        for request in devices.get("requests") or []:
            for one in (request.get("exactly") or {}, *(request.get("firstAvailable") or [])):
                one.pop("capacity", None)
        for constraint in devices.get("constraints") or []:
            constraint.pop("distinctAttribute", None)
        for result in _results(status):
            result.pop("shareID", None)
            result.pop("consumedCapacity", None)

    @staticmethod
    def _count_generation(after: Document, old: Document | None) -> None:
        metadata = after["metadata"]
        if old is None:
            metadata["generation"] = 1
        elif after.get("spec") != old.get("spec"):
            metadata["generation"] = old["metadata"].get("generation", 0) + 1


def _results(status: Document) -> list[Document]:
    allocation = status.get("allocation") or {}
    found: list[Document] = (allocation.get("devices") or {}).get("results") or []
    return found


def _check_claim(document: Document, old: Document | None) -> Iterator[str]:
    spec, status = document.get("spec") or {}, document.get("status") or {}
    if old is not None and spec != (old.get("spec") or {}):
        yield f"spec: Invalid value: {_shown(spec)}: {_IMMUTABLE}"
    yield from _check_claim_spec(spec, "spec.devices")
    results = _results(status)
    if len(results) > _MOST_RESULTS:
        yield f"status.allocation.devices.results: Too many: {len(results)}: must have at most {_MOST_RESULTS} items"
    names = set(_request_names(spec))
    for number, result in enumerate(results):
        if result.get("request") not in names:
            text = "must be the name of a request in the claim"
            where = f"status.allocation.devices.results[{number}].request"
            yield f'{where}: Invalid value: "{result.get("request")}": {text}'
    before = {} if old is None else old.get("status") or {}
    allocation, allocated = status.get("allocation"), before.get("allocation")
    if allocation and allocated and allocation != allocated:
        yield f"status.allocation: Invalid value: {_shown(allocation)}: {_IMMUTABLE}"
    consumers = status.get("reservedFor") or []
    if consumers and not allocation:
        yield "status.reservedFor: Forbidden: may not be specified when `allocated` is not set"
    if len(consumers) > _MOST_CONSUMERS:
        yield f"status.reservedFor: Too many: {len(consumers)}: must have at most {_MOST_CONSUMERS} items"
    uids = [one.get("uid") for one in consumers]
    if len(set(uids)) != len(uids):
        yield "status.reservedFor: Duplicate value"
    present = {one.get("uid") for one in before.get("reservedFor") or []}
    if document["metadata"].get("deletionTimestamp") and set(uids) - present:
        yield "status.reservedFor: Forbidden: new entries may not be added while `deletionTimestamp` is set"


def _check_template(spec: Document, old: Document | None) -> Iterator[str]:
    if old is not None and spec != old:
        yield f"spec: Invalid value: {_shown(spec)}: {_IMMUTABLE}"
    yield from _check_claim_spec(spec.get("spec") or {}, "spec.spec.devices")


def _request_names(spec: Document) -> Iterator[str]:
    """As results name them: a request, or a request and its alternative."""
    for request in (spec.get("devices") or {}).get("requests") or []:
        if request.get("firstAvailable"):
            yield from (f"{request['name']}/{one['name']}" for one in request["firstAvailable"])
        else:
            yield request.get("name", "")


def _check_claim_spec(spec: Document, where: str) -> Iterator[str]:
    devices = spec.get("devices") or {}
    requests = devices.get("requests") or []
    if len(requests) > _MOST_REQUESTS:
        yield f"{where}.requests: Too many: {len(requests)}: must have at most {_MOST_REQUESTS} items"
    names = [request.get("name") for request in requests]
    for number, request in enumerate(requests):
        here = f"{where}.requests[{number}]"
        if names.count(request.get("name")) > 1:
            yield f'{here}.name: Duplicate value: "{request.get("name")}"'
        yield from _check_request(request, here)
    full = {*names, *_request_names(spec)}
    for field in ("constraints", "config"):
        for number, one in enumerate(devices.get(field) or []):
            for request in one.get("requests") or []:
                if request not in full:
                    text = "must be the name of a request in the claim"
                    yield f'{where}.{field}[{number}].requests: Invalid value: "{request}": {text}'
    for number, one in enumerate(devices.get("constraints") or []):
        if bool(one.get("matchAttribute")) == bool(one.get("distinctAttribute")):
            text = "exactly one of `matchAttribute` or `distinctAttribute` is required"
            yield f"{where}.constraints[{number}]: Invalid value: {text}"
    yield from _check_configs(devices.get("config"), f"{where}.config")


def _check_request(request: Document, where: str) -> Iterator[str]:
    name, alternatives = request.get("name") or "", request.get("firstAvailable") or []
    if not _LABEL.fullmatch(name):
        yield f'{where}.name: Invalid value: "{name}": a lowercase RFC 1123 label must consist of lower case…'
    if bool(request.get("exactly")) == bool(alternatives):
        yield f"{where}: Invalid value: exactly one of `exactly` or `firstAvailable` is required"
    if len(alternatives) > _MOST_ALTERNATIVES:
        count = len(alternatives)
        yield f"{where}.firstAvailable: Too many: {count}: must have at most {_MOST_ALTERNATIVES} items"
    for one in (request.get("exactly"), *alternatives):
        if one is not None and not one.get("deviceClassName"):
            yield f"{where}.exactly.deviceClassName: Required value"


def _check_configs(configs: Any, where: str) -> Iterator[str]:
    for number, config in enumerate(configs or []):
        here = f"{where}[{number}].opaque"
        opaque = config.get("opaque")
        if not opaque:
            yield f"{here}: Required value"
            continue
        if not opaque.get("driver"):
            yield f"{here}.driver: Required value"
        parameters = opaque.get("parameters")
        if not isinstance(parameters, dict):
            yield f'{here}.parameters: Invalid value: "<value omitted>": must be a valid JSON object'
        elif len(json.dumps(parameters, separators=(",", ":"))) > _MOST_PARAMETERS_BYTES:
            yield f"{here}.parameters: Too long: may not be more than {_MOST_PARAMETERS_BYTES} bytes"


def _shown(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
