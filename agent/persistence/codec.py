"""Allocations as JSON, in an envelope that betrays every changed byte.

    {"version":1,"sha256":"<of version and state>","state":{…}}

Device IDs are written as ranges ("GPU-…/0-7,9"), since a node may have a thousand. The envelope keeps its form in all
versions, so an older agent can tell "newer than I am" from "damaged". Bytes to values and back; files are elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from gigaslice.allocation.table import (
    Allocation,
    AllocationOptions,
    AllocationTable,
    ContainerRef,
    Hold,
    LiveLimit,
    Owner,
)
from gigaslice.errors import CheckpointError, CheckpointVersionError, DeviceIdError
from gigaslice.kube.json_text import read_json
from gigaslice.model import DEFAULT_PRIORITY, PRIORITIES, format_device_id, parse_device_id

__all__ = ["VERSION", "decode_allocation", "decode_table", "encode_allocation", "encode_table"]

VERSION = 4
"""1: the first. 2: owner, policy and undecided of an allocation; an allocation of version 1 has none of them.
3: parts of a policy, and live limits with their count; an allocation of version 2 has none of them.
4: the part of a hold that is the GPU's own memory; in older ones all of it is.
"""
_ENVELOPE = re.compile(rb'\{"version":(\d{1,9}),"sha256":"([0-9a-f]{64})","state":(.*)\}\n', re.DOTALL)
_ALLOCATION_ID = re.compile(r"[0-9a-f]{32}")
_LIBRARY = re.compile(r"[A-Za-z0-9][-A-Za-z0-9._+]{0,127}")
_MAX_DEVICE_IDS = 1 << 20
_KEPT = "_codec_json"  # beside the fields of an allocation or hold, like what it works out itself


def encode_table(table: AllocationTable) -> bytes:
    """The checkpoint file's content."""
    allocations = b",".join([_allocation_json(allocation) for allocation in table.allocations])
    return _sealed(b'{"next":%d,"grants":[%s]}' % (table.next_number, allocations))


def decode_table(raw: bytes) -> AllocationTable:
    """The allocation table in a checkpoint file. Raises CheckpointError or CheckpointVersionError."""
    state = _opened(raw)
    try:
        allocations = tuple(
            sorted((_allocation(item) for item in state["grants"]), key=lambda allocation: allocation.number)
        )
        if len({allocation.id for allocation in allocations}) != len(allocations):
            raise ValueError("an allocation is listed twice")
        following = max([int(state["next"]), *(allocation.number + 1 for allocation in allocations)])
        return AllocationTable(allocations, following)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(f"its content makes no sense ({error!r})") from error


def encode_allocation(allocation: Allocation) -> bytes:
    """The content of the file in the allocation's own directory."""
    return _sealed(_allocation_json(allocation))


def decode_allocation(raw: bytes) -> Allocation:
    """The allocation in such a file. Raises CheckpointError or CheckpointVersionError."""
    state = _opened(raw)
    try:
        return _allocation(state)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(f"its content makes no sense ({error!r})") from error


def _sealed(state: bytes, version: int = VERSION) -> bytes:
    digest = _digest(version, state).encode("ascii")
    return b'{"version":%d,"sha256":"%s","state":%s}\n' % (version, digest, state)


def _opened(raw: bytes) -> Any:
    match = _ENVELOPE.fullmatch(raw)
    if not match:
        raise CheckpointError("it is cut short or not a checkpoint")
    version = int(match[1])
    if _digest(version, match[3]) != match[2].decode("ascii"):
        raise CheckpointError("its checksum is wrong")
    if version > VERSION:
        raise CheckpointVersionError(f"it has version {version}, and this agent knows up to {VERSION}")
    try:
        return read_json(match[3])
    except ValueError as error:
        raise CheckpointError(f"it is no JSON ({error})") from error


def _digest(version: int, state: bytes) -> str:
    summed = hashlib.sha256(b"%d\n" % version)
    summed.update(state)
    return summed.hexdigest()


def _allocation_json(allocation: Allocation) -> bytes:
    """One allocation; kept with it, since a checkpoint is written whole and most of it is as it was."""
    known: bytes | None = allocation.__dict__.get(_KEPT)
    if known is None:
        known = allocation.__dict__[_KEPT] = _new_allocation_json(allocation)
    return known


def _new_allocation_json(allocation: Allocation) -> bytes:
    document: dict[str, object] = {
        "id": allocation.id,
        "number": allocation.number,
        "created": allocation.created,
        "library": allocation.library,
        "holds": [
            {
                "gpu": hold.gpu,
                "sliceBytes": hold.slice_bytes,
                "tokens": _ranges_of(hold),
                **({"physical": hold.physical_bytes} if hold.physical_bytes else {}),
                **({} if hold.cores is None else {"cores": hold.cores}),
                **({} if hold.counted is None else {"counted": hold.counted}),
            }
            for hold in allocation.holds
        ],
    }
    if allocation.lent:
        document["lent"] = list(_ranges(allocation.lent))
    if allocation.supersedes:
        document["supersedes"] = list(allocation.supersedes)
    if allocation.container:
        document["container"] = [
            allocation.container.namespace,
            allocation.container.pod,
            allocation.container.container,
        ]
    if allocation.suspects is not None:
        document["suspects"] = list(allocation.suspects)
    for flag in ("gone", "forgotten", "foreign", "assigned", "waiting"):
        if getattr(allocation, flag):
            document[flag] = True
    if allocation.owner:
        document["owner"] = {
            "uid": allocation.owner.uid,
            "name": [allocation.owner.namespace, allocation.owner.pod, allocation.owner.container],
            "init": allocation.owner.init,
        }
    if allocation.policy != AllocationOptions():
        document["policy"] = {
            "cores": allocation.policy.cores,
            "exclusive": allocation.policy.exclusive,
            "elastic": allocation.policy.elastic,
            "maxSlices": allocation.policy.max_slices,
            "oversubscribe": allocation.policy.oversubscribe,
            "turns": allocation.policy.time_slicing,
            "parts": list(allocation.policy.parts),
            "coresElastic": allocation.policy.cores_elastic,
            "priority": allocation.policy.priority,
        }
    if allocation.undecided:
        document["undecided"] = True
    if allocation.resizes:
        document["resizes"] = allocation.resizes
        document["limits"] = [
            {"gpu": one.gpu, "memory": one.memory_bytes, "cores": one.cores} for one in allocation.limits
        ]
    return json.dumps(document, separators=(",", ":")).encode("ascii")


def _allocation(item: Mapping[str, Any]) -> Allocation:
    if not _ALLOCATION_ID.fullmatch(item["id"]) or not _LIBRARY.fullmatch(item["library"]):
        raise ValueError("an id or a library name is malformed")
    holds = tuple(
        Hold(
            _string(hold["gpu"]),
            _positive(hold["sliceBytes"]),
            tuple(_device_ids(hold["tokens"])),
            _positive(hold["physical"]) if hold.get("physical") else 0,
            None if hold.get("cores") is None else hold["cores"] and _positive(hold["cores"]),
            None if hold.get("counted") is None else hold["counted"] and _positive(hold["counted"]),
        )
        for hold in item["holds"]
    )
    if not holds or any(not hold.device_ids for hold in holds):
        raise ValueError("an allocation without devices")
    limits = tuple(_limit(one) for one in item.get("limits", []))
    if not {one.gpu for one in limits} <= {hold.gpu for hold in holds}:
        raise ValueError("a limit for a GPU that the allocation does not have")
    container, suspects = item.get("container"), item.get("suspects")
    return Allocation(
        id=item["id"],
        number=_positive(item["number"]),
        created=float(item["created"]),
        holds=holds,
        library=item["library"],
        lent=frozenset(_device_ids(item.get("lent", []))),
        supersedes=tuple(_string(one) for one in item.get("supersedes", [])),
        container=ContainerRef(*(_string(part) for part in container)) if container else None,
        suspects=None if suspects is None else tuple(_string(pod) for pod in suspects),
        gone=item.get("gone", False) is True,
        forgotten=item.get("forgotten", False) is True,
        foreign=item.get("foreign", False) is True,
        assigned=item.get("assigned", False) is True,
        waiting=item.get("waiting", False) is True,
        owner=_owner(item["owner"]) if item.get("owner") else None,
        policy=_policy(item.get("policy", {})),
        undecided=item.get("undecided", False) is True,
        limits=limits,
        resizes=_positive(item["resizes"]) if item.get("resizes") else 0,
    )


def _limit(item: Mapping[str, Any]) -> LiveLimit:
    gpu = _string(item["gpu"])
    memory, cores = item.get("memory"), item.get("cores")
    return LiveLimit(
        gpu,
        None if memory is None else _positive(memory),
        None if cores is None else cores and _positive(cores),
    )


def _owner(item: Mapping[str, Any]) -> Owner:
    namespace, pod, container = (_string(part) for part in item["name"])
    return Owner(_string(item["uid"]), namespace, pod, container, item.get("init", False) is True)


def _policy(item: Mapping[str, Any]) -> AllocationOptions:
    cores, most = item.get("cores", 0), item.get("maxSlices")
    return AllocationOptions(
        cores=_positive(cores) if cores else 0,
        exclusive=item.get("exclusive", False) is True,
        elastic=item.get("elastic", False) is True,
        max_slices=None if most is None else _positive(most),
        oversubscribe=item.get("oversubscribe", False) is True,
        time_slicing=item.get("turns", True) is not False,
        parts=tuple(_positive(part) for part in item.get("parts", [])),
        cores_elastic=item.get("coresElastic", False) is True,
        priority=_priority(item.get("priority", DEFAULT_PRIORITY)),
    )


def _priority(value: object) -> str:
    """A class of a later agent is taken for the one in the middle."""
    return value if isinstance(value, str) and value in PRIORITIES else DEFAULT_PRIORITY


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def _positive(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{value!r} is not a positive number")
    return value


def _ranges_of(hold: Hold) -> list[str]:
    """Kept with the hold: it stays what it is while its allocation changes."""
    known: list[str] | None = hold.__dict__.get(_KEPT)
    if known is None:
        known = hold.__dict__[_KEPT] = list(_ranges(hold.device_ids))
    return known


def _ranges(device_ids: Iterable[str]) -> Iterator[str]:
    """Device IDs of each GPU as "uuid/0-7,9"; a device ID of another form stands alone after "=" ."""
    numbers: dict[str, list[int]] = {}
    for device_id in sorted(device_ids):
        try:
            parsed = parse_device_id(device_id)
        except DeviceIdError:
            yield f"={device_id}"
            continue
        numbers.setdefault(parsed.uuid, []).append(parsed.number)
    for uuid, found in numbers.items():
        yield f"{uuid}/{','.join(_runs(sorted(found)))}"


def _runs(numbers: list[int]) -> Iterator[str]:
    for _, group in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        yield str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}"


def _device_ids(texts: Iterable[Any]) -> Iterator[str]:
    for text in texts:
        if _string(text).startswith("="):
            yield text[1:]
            continue
        uuid, _, runs = text.rpartition("/")
        for run in runs.split(","):
            first, _, last = run.partition("-")
            low, high = int(first), int(last or first)
            if not 0 <= low <= high < _MAX_DEVICE_IDS:
                raise ValueError(f"{text!r} is no range of devices")
            for number in range(low, high + 1):
                yield format_device_id(uuid, number)
