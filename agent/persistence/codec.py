# SPDX-License-Identifier: Apache-2.0
"""Allocations as JSON, in an envelope that betrays every changed byte.

    {"version":4,"sha256":"<of version and state>","state":{…}}

What an allocation says of its origin is written and read by the records of that origin's API (`OriginRecords`). The
envelope keeps its form in all versions, so an older agent can tell "newer than I am" from "damaged". A state has the
least version in which all its allocations can be said, so that an older agent can take over as long as it can. Bytes to
values and back; files are elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from gigaslice.core.allocation.consumer import ContainerRef, Origin
from gigaslice.core.allocation.table import Allocation, AllocationOptions, AllocationTable, Hold, LiveLimit
from gigaslice.core.errors import CheckpointError, CheckpointVersionError
from gigaslice.core.kube.json_text import read_json
from gigaslice.core.model import DEFAULT_PRIORITY, PRIORITIES

__all__ = ["VERSION", "Codec", "OriginRecords"]

VERSION = 4
"""1: the first. 2: owner, policy and undecided of an allocation; an allocation of version 1 has none of them.
3: parts of a policy, and live limits with their count; an allocation of version 2 has none of them.
4: the part of a hold that is the GPU's own memory; in older ones all of it is.
The allocations of some origins need a later one: `OriginRecords.version`.
"""
_ENVELOPE = re.compile(rb'\{"version":(\d{1,9}),"sha256":"([0-9a-f]{64})","state":(.*)\}\n', re.DOTALL)
_ALLOCATION_ID = re.compile(r"[0-9a-f]{32}")
_LIBRARY = re.compile(r"[A-Za-z0-9][-A-Za-z0-9._+]{0,127}")
_KEPT = "_codec_json"  # beside the fields of an allocation, like what it works out itself


class OriginRecords(Protocol):
    """How the allocations of one API are recorded, and recovered from their records.

    Attributes:
        kind: The name of the API in a record; empty for the first one, whose records name none.
        version: The least version of a state that has such allocations.
    """

    @property
    def kind(self) -> str:
        """See above."""
        ...

    @property
    def version(self) -> int:
        """See above."""
        ...

    def covers(self, origin: Origin) -> bool:
        """Whether an origin is of this API."""
        ...

    def fields(self, allocation: Allocation) -> Mapping[str, object]:
        """Returns the fields of the record that the origin adds."""
        ...

    def hold_fields(self, allocation: Allocation) -> Sequence[Mapping[str, object]]:
        """Returns the fields that it adds to the record of each hold; they say how much memory the hold has."""
        ...

    def read(self, item: Mapping[str, Any], holds: Sequence[Mapping[str, Any]]) -> tuple[Origin, list[int]]:
        """Returns the origin in a record, and the memory of each hold in bytes.

        Raises:
            KeyError, TypeError, ValueError: It makes no sense.
        """
        ...

    def complete(self, allocation: Allocation) -> Allocation:
        """Returns an allocation that was read with what follows from its origin."""
        ...

    def with_owner(self, allocation: Allocation, owner: ContainerRef) -> Allocation:
        """Returns the allocation of a directory whose owner file names that container."""
        ...

    def recovered(self, table: AllocationTable, orphans: Sequence[Allocation]) -> AllocationTable:
        """Returns the table with allocations of this API that only directories know, in the order of their numbers."""
        ...


class Codec:
    """Writes and reads the allocations of several APIs."""

    def __init__(self, records: Sequence[OriginRecords]) -> None:
        self._records = tuple(records)
        self._by_kind = {of_api.kind: of_api for of_api in records}
        self.newest = max([VERSION, *(of_api.version for of_api in records)])

    def of(self, allocation: Allocation) -> OriginRecords:
        """Returns the records of an allocation's API."""
        return next(of_api for of_api in self._records if of_api.covers(allocation.origin))

    def encode_table(self, table: AllocationTable) -> bytes:
        """Returns the checkpoint file's content."""
        allocations = b",".join([self._allocation_json(allocation) for allocation in table.allocations])
        version = max((self.of(allocation).version for allocation in table.allocations), default=VERSION)
        return sealed(b'{"next":%d,"grants":[%s]}' % (table.next_number, allocations), version)

    def decode_table(self, raw: bytes) -> AllocationTable:
        """Returns the allocation table in a checkpoint file. Raises CheckpointError or CheckpointVersionError."""
        state = self._opened(raw)
        try:
            allocations = tuple(
                sorted(map(self._allocation, state["grants"]), key=lambda allocation: allocation.number)
            )
            if len({allocation.id for allocation in allocations}) != len(allocations):
                raise ValueError("an allocation is listed twice")
            following = max([int(state["next"]), *(allocation.number + 1 for allocation in allocations)])
            return AllocationTable(allocations, following)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise CheckpointError(f"its content makes no sense ({error!r})") from error

    def encode_allocation(self, allocation: Allocation) -> bytes:
        """Returns the content of the file in the allocation's own directory."""
        return sealed(self._allocation_json(allocation), self.of(allocation).version)

    def decode_allocation(self, raw: bytes) -> Allocation:
        """Returns the allocation in such a file. Raises CheckpointError or CheckpointVersionError."""
        state = self._opened(raw)
        try:
            return self._allocation(state)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise CheckpointError(f"its content makes no sense ({error!r})") from error

    def with_owner(self, allocation: Allocation, owner: ContainerRef) -> Allocation:
        """Returns the allocation of a directory whose owner file names that container."""
        return self.of(allocation).with_owner(allocation, owner)

    def recovered(self, table: AllocationTable, orphans: Iterable[Allocation]) -> AllocationTable:
        """Returns the table with the allocations that only directories know."""
        ordered = sorted(orphans, key=lambda allocation: allocation.number)
        for of_api in self._records:
            table = of_api.recovered(table, [orphan for orphan in ordered if of_api.covers(orphan.origin)])
        return table

    def _opened(self, raw: bytes) -> Any:
        match = _ENVELOPE.fullmatch(raw)
        if not match:
            raise CheckpointError("it is cut short or not a checkpoint")
        version = int(match[1])
        if _digest(version, match[3]) != match[2].decode("ascii"):
            raise CheckpointError("its checksum is wrong")
        if version > self.newest:
            raise CheckpointVersionError(
                f"it has version {version}, and this agent knows up to {self.newest}"
            )
        try:
            return read_json(match[3])
        except ValueError as error:
            raise CheckpointError(f"it is no JSON ({error})") from error

    def _allocation_json(self, allocation: Allocation) -> bytes:
        """One allocation; kept with it, since a checkpoint is written whole and most of it is as it was."""
        text: bytes | None = allocation.__dict__.get(_KEPT)
        if text is None:
            text = allocation.__dict__[_KEPT] = self._new_allocation_json(allocation)
        return text

    def _new_allocation_json(self, allocation: Allocation) -> bytes:
        of_api = self.of(allocation)
        document: dict[str, object] = {
            "id": allocation.id,
            "number": allocation.number,
            "created": allocation.created,
            "library": allocation.library,
            "holds": [
                {**_hold_fields(hold), **of_origin}
                for hold, of_origin in zip(allocation.holds, of_api.hold_fields(allocation), strict=True)
            ],
        }
        if of_api.kind:
            document["origin"] = of_api.kind
        document.update(of_api.fields(allocation))
        for flag, field in (("gone", "ended"), ("assigned", "assigned"), ("waiting", "waiting")):
            if getattr(allocation, field):
                document[flag] = True
        if allocation.policy != AllocationOptions():
            document["policy"] = _policy_fields(allocation.policy)
        if allocation.resizes:
            document["resizes"] = allocation.resizes
            document["limits"] = [
                {"gpu": limit.gpu, "memory": limit.memory_bytes, "cores": limit.cores}
                for limit in allocation.limits
            ]
        return json.dumps(document, separators=(",", ":")).encode("ascii")

    def _allocation(self, item: Mapping[str, Any]) -> Allocation:
        if not _ALLOCATION_ID.fullmatch(item["id"]) or not _LIBRARY.fullmatch(item["library"]):
            raise ValueError("an id or a library name is malformed")
        of_api = self._by_kind[string(item.get("origin", ""))]
        origin, sizes = of_api.read(item, item["holds"])
        holds = tuple(_hold(hold, size) for hold, size in zip(item["holds"], sizes, strict=True))
        if not holds or any(hold.memory_bytes < 1 for hold in holds):
            raise ValueError("an allocation without memory")
        limits = tuple(_limit(limit) for limit in item.get("limits", []))
        if not {limit.gpu for limit in limits} <= {hold.gpu for hold in holds}:
            raise ValueError("a limit for a GPU that the allocation does not have")
        allocation = Allocation(
            id=item["id"],
            number=positive(item["number"]),
            created=float(item["created"]),
            holds=holds,
            library=item["library"],
            origin=origin,
            policy=_policy(item.get("policy", {})),
            ended=item.get("gone", False) is True,
            assigned=item.get("assigned", False) is True,
            waiting=item.get("waiting", False) is True,
            limits=limits,
            resizes=positive(item["resizes"]) if item.get("resizes") else 0,
        )
        return of_api.complete(allocation)


def sealed(state: bytes, version: int = VERSION) -> bytes:
    """Returns a state in its envelope."""
    digest = _digest(version, state).encode("ascii")
    return b'{"version":%d,"sha256":"%s","state":%s}\n' % (version, digest, state)


def _digest(version: int, state: bytes) -> str:
    summed = hashlib.sha256(b"%d\n" % version)
    summed.update(state)
    return summed.hexdigest()


def _hold_fields(hold: Hold) -> dict[str, object]:
    return {
        "gpu": hold.gpu,
        "sliceBytes": hold.slice_bytes,
        **({"physical": hold.physical_bytes} if hold.physical_bytes else {}),
        **({} if hold.cores is None else {"cores": hold.cores}),
        **({} if hold.counted_bytes is None else {"counted": hold.counted_bytes}),
    }


def _hold(item: Mapping[str, Any], memory_bytes: int) -> Hold:
    return Hold(
        string(item["gpu"]),
        memory_bytes,
        positive(item["sliceBytes"]),
        positive(item["physical"]) if item.get("physical") else 0,
        None if item.get("cores") is None else item["cores"] and positive(item["cores"]),
        counted_bytes=None if item.get("counted") is None else item["counted"] and positive(item["counted"]),
    )


def _limit(item: Mapping[str, Any]) -> LiveLimit:
    gpu = string(item["gpu"])
    memory, cores = item.get("memory"), item.get("cores")
    return LiveLimit(
        gpu,
        None if memory is None else positive(memory),
        None if cores is None else cores and positive(cores),
    )


def _policy_fields(policy: AllocationOptions) -> dict[str, object]:
    return {
        "cores": policy.cores,
        "exclusive": policy.exclusive,
        "elastic": policy.elastic,
        "maxSlices": policy.max_slices,
        "oversubscribe": policy.oversubscribe,
        "turns": policy.time_slicing,
        "parts": list(policy.parts),
        "coresElastic": policy.cores_elastic,
        "priority": policy.priority,
    }


def _policy(item: Mapping[str, Any]) -> AllocationOptions:
    cores, most = item.get("cores", 0), item.get("maxSlices")
    return AllocationOptions(
        cores=positive(cores) if cores else 0,
        exclusive=item.get("exclusive", False) is True,
        elastic=item.get("elastic", False) is True,
        max_slices=None if most is None else positive(most),
        oversubscribe=item.get("oversubscribe", False) is True,
        time_slicing=item.get("turns", True) is not False,
        parts=tuple(positive(part) for part in item.get("parts", [])),
        cores_elastic=item.get("coresElastic", False) is True,
        priority=_priority(item.get("priority", DEFAULT_PRIORITY)),
    )


def _priority(value: object) -> str:
    """A class of a later agent is taken for the one in the middle."""
    return value if isinstance(value, str) and value in PRIORITIES else DEFAULT_PRIORITY


def string(value: object) -> str:
    """Returns a text of a record. Raises TypeError for anything else."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def positive(value: object) -> int:
    """Returns a positive number of a record. Raises ValueError for anything else."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{value!r} is not a positive number")
    return value
