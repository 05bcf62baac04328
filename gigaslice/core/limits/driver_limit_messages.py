# SPDX-License-Identifier: Apache-2.0
"""What the node agent asks of `gigaslice driver-limits`, and what that answers, as values. Pure.

One object a line, as `gigaslice.runtime.local_protocol` has it. A request is decoded from what stands at "support",
"apply" or "watch". Who answers may touch what nobody else may, so a request names only pods' UIDs, GPUs' UUIDs,
container IDs and numbers of bytes, and no path. Both sides decode strictly: what is wrong is refused in one sentence
as a `MessageError`, a mistake of who has sent it. Fields that are not known are ignored.

    {"support": {}}                                   SupportAnswer
    {"apply": {"pods": […], "containers": […]}}       ApplyAnswer
    {"watch": {"sequence": 0, "seconds": 30}}         WatchAnswer

An answer may be longer than a line of the protocol may be otherwise: up to MOST_ANSWER_BYTES.
Tests: tests/unit/gigaslice/core/limits/test_driver_limit_messages.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from gigaslice.core.errors import InputError
from gigaslice.core.text import plain

__all__ = [
    "MOST_ANSWER_BYTES",
    "MOST_LEAVES",
    "MOST_PIDS",
    "MOST_WATCH_SECONDS",
    "ApplyAnswer",
    "ApplyRequest",
    "Backend",
    "ContainerLimits",
    "GpuLimitState",
    "GpuSupport",
    "Leaf",
    "MessageError",
    "PodLimitState",
    "PodLimits",
    "SupportAnswer",
    "WatchAnswer",
    "WatchRequest",
    "is_pod_uid",
]

MOST_ANSWER_BYTES = 8 << 20
MOST_PIDS = 8
"""Of a leaf."""
MOST_LEAVES = 1024
"""Of one answer."""
MOST_WATCH_SECONDS = 60.0

Backend = Literal["dmem", "misc", "none"]
"""What keeps the limits: the kernel's controller of device memory, the driver's own map, or nothing."""

_BACKENDS: Mapping[str, Backend] = {"dmem": "dmem", "misc": "misc", "none": "none"}
_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}")
_GPU = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_CONTAINER = re.compile(r"[0-9a-f]{64}")
_MOST_BYTES = (1 << 63) - 1
_MOST_PID = 1 << 31
_SHOWN = 80  # characters of what is refused
T = TypeVar("T")


def is_pod_uid(text: str) -> bool:
    """Whether TEXT is a pod's UID, or that of a static pod. A request with another one is refused as a whole."""
    return _UID.fullmatch(text) is not None


class MessageError(InputError):
    """A message that is not what it should be; the text says what is wrong."""


@dataclass(frozen=True, slots=True)
class GpuSupport:
    """A GPU that can be limited. total: its bytes, the most that a limit may be. persistence: None where not told."""

    total: int
    persistence: bool | None = None

    def encode(self) -> dict[str, Any]:
        """The document of it."""
        return {"total": self.total, "persistence": self.persistence}


@dataclass(frozen=True, slots=True)
class SupportAnswer:
    """Whether limits can be set. reason: why not, for people; empty otherwise. driver: its version, empty without one.

    gpus: by UUID. With backend "none" those that the driver shows, if any.
    """

    backend: Backend
    reason: str = ""
    driver: str = ""
    gpus: Mapping[str, GpuSupport] = field(default_factory=dict)

    def encode(self) -> dict[str, Any]:
        """The document of it."""
        gpus = {uuid: gpu.encode() for uuid, gpu in self.gpus.items()}
        return {"backend": self.backend, "reason": self.reason, "driver": self.driver, "gpus": gpus}

    @classmethod
    def decode(cls, document: Mapping[str, Any]) -> SupportAnswer:
        """The answer that DOCUMENT is. Raises MessageError."""
        backend = _BACKENDS.get(_text(document, "backend"))
        if backend is None:
            raise MessageError(f"backend must be one of {', '.join(_BACKENDS)}")
        reason = plain(_text(document, "reason"))
        if (backend == "none") != bool(reason):
            raise MessageError("reason must be there where there is no backend, and nowhere else")
        gpus = _by_gpu(document, "gpus", _gpu_support)
        return cls(backend, reason, plain(_text(document, "driver")), gpus)


@dataclass(frozen=True, slots=True)
class PodLimits:
    """The hard limits that a pod's cgroup is to have: bytes by GPU. uid: of a static pod 32 hex digits."""

    uid: str
    gpus: Mapping[str, int]

    def encode(self) -> dict[str, Any]:
        """The document of it."""
        return {"uid": self.uid, "gpus": dict(self.gpus)}


@dataclass(frozen=True, slots=True)
class ContainerLimits:
    """Hard limits for one container's own cgroup, where the backend has it hide its pod's: bytes by GPU.

    container: the runtime's ID, 64 hex digits.
    """

    uid: str
    container: str
    gpus: Mapping[str, int]

    def encode(self) -> dict[str, Any]:
        """The document of it."""
        return {"uid": self.uid, "container": self.container, "gpus": dict(self.gpus)}


@dataclass(frozen=True, slots=True)
class ApplyRequest:
    """Limits as they are to be. A pod and a container stand in it once, and a container only with its pod.

    What it does not name stays as it is. Bytes beyond a GPU's total mean all of it.
    """

    pods: tuple[PodLimits, ...]
    containers: tuple[ContainerLimits, ...] = ()

    def encode(self) -> dict[str, Any]:
        """The request as it is sent."""
        pods = [pod.encode() for pod in self.pods]
        containers = [container.encode() for container in self.containers]
        return {"apply": {"pods": pods, "containers": containers}}

    @classmethod
    def decode(cls, document: Mapping[str, Any]) -> ApplyRequest:
        """The request that DOCUMENT, which stands at "apply", is. Raises MessageError."""
        pods = tuple(PodLimits(_uid(row), _by_gpu(row, "gpus", _bytes)) for row in _objects(document, "pods"))
        containers = tuple(
            ContainerLimits(_uid(row), _container(row), _by_gpu(row, "gpus", _bytes))
            for row in (_objects(document, "containers") if "containers" in document else ())
        )
        uids = _once([pod.uid for pod in pods], "pod")
        _once([container.container for container in containers], "container")
        for container in containers:
            if container.uid not in uids:
                raise MessageError(f"container {container.container[:12]} is named without its pod")
        return cls(pods, containers)


@dataclass(frozen=True, slots=True)
class GpuLimitState:
    """What the driver says of a cgroup and a GPU after all was set.

    hard: its limit, None where it has none or the driver does not say. used: bytes that count against it, None where
    the driver does not say. problem: why the limit is not what was asked for, for people; empty where it is, and where
    only present use keeps it higher.
    """

    hard: int | None
    used: int | None
    problem: str = ""

    def encode(self) -> dict[str, Any]:
        """The document of it."""
        return {"hard": self.hard, "used": self.used, "problem": self.problem}


@dataclass(frozen=True, slots=True)
class Leaf:
    """A cgroup below a pod's whose limit is not the one that it should inherit.

    container: the ID of the container that it is or is a part of, empty where its path has none. hard: None for no
    limit. pids: of some of its processes, as who answers sees them.
    """

    container: str
    gpu: str
    hard: int | None
    pids: tuple[int, ...] = ()

    def encode(self) -> dict[str, Any]:
        """The document of it."""
        return {"container": self.container, "gpu": self.gpu, "hard": self.hard, "pids": list(self.pids)}


@dataclass(frozen=True, slots=True)
class PodLimitState:
    """A pod of the request afterwards. present: it has a cgroup. problem: of the whole pod, for people."""

    uid: str
    present: bool
    problem: str = ""
    gpus: Mapping[str, GpuLimitState] = field(default_factory=dict)
    leaves: tuple[Leaf, ...] = ()

    def encode(self) -> dict[str, Any]:
        """The document of it."""
        gpus = {uuid: state.encode() for uuid, state in self.gpus.items()}
        leaves = [leaf.encode() for leaf in self.leaves]
        return {
            "uid": self.uid,
            "present": self.present,
            "problem": self.problem,
            "gpus": gpus,
            "leaves": leaves,
        }


@dataclass(frozen=True, slots=True)
class ApplyAnswer:
    """The pods of the request, in its order."""

    pods: tuple[PodLimitState, ...]

    def encode(self) -> dict[str, Any]:
        """The document of it."""
        return {"pods": [pod.encode() for pod in self.pods]}

    @classmethod
    def decode(cls, document: Mapping[str, Any]) -> ApplyAnswer:
        """The answer that DOCUMENT is. Raises MessageError."""
        pods = tuple(_pod_state(row) for row in _objects(document, "pods"))
        _once([pod.uid for pod in pods], "pod")
        return cls(pods)


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """Asks for the next change of the set of pods' cgroups. sequence: of the last answer, 0 before the first one."""

    sequence: int
    seconds: float = 30.0

    def encode(self) -> dict[str, Any]:
        """The request as it is sent."""
        return {"watch": {"sequence": self.sequence, "seconds": self.seconds}}

    @classmethod
    def decode(cls, document: Mapping[str, Any]) -> WatchRequest:
        """The request that DOCUMENT, which stands at "watch", is. Raises MessageError."""
        seconds = document.get("seconds")
        if type(seconds) not in (int, float) or not 0 <= seconds <= MOST_WATCH_SECONDS:  # type: ignore[operator]
            raise MessageError(f"seconds must be a number from 0 to {MOST_WATCH_SECONDS:g}")
        return cls(_number("sequence", document.get("sequence")), float(seconds))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class WatchAnswer:
    """The pods that have a cgroup. sequence: another one after every change, and after a restart of who answers."""

    sequence: int
    uids: tuple[str, ...]

    def encode(self) -> dict[str, Any]:
        """The document of it."""
        return {"sequence": self.sequence, "uids": list(self.uids)}

    @classmethod
    def decode(cls, document: Mapping[str, Any]) -> WatchAnswer:
        """The answer that DOCUMENT is. Raises MessageError."""
        uids = tuple(_matching(_UID, "a pod's UID", uid) for uid in _list(document, "uids"))
        _once(uids, "pod")
        return cls(_number("sequence", document.get("sequence")), uids)


def _gpu_support(gpu: str, value: Any) -> GpuSupport:
    document = _object(f"what is said of {gpu}", value)
    persistence = document.get("persistence")
    if persistence is not None and type(persistence) is not bool:
        raise MessageError(f"persistence of {gpu} must be true, false or null")
    return GpuSupport(_number(f"total of {gpu}", document.get("total")), persistence)


def _pod_state(document: Mapping[str, Any]) -> PodLimitState:
    uid, present = _uid(document), document.get("present")
    if type(present) is not bool:
        raise MessageError("present must be true or false")
    leaves = tuple(_leaf(row) for row in _objects(document, "leaves"))
    if len(leaves) > MOST_LEAVES:
        raise MessageError(f"leaves are more than {MOST_LEAVES}")
    problem = plain(_text(document, "problem"))
    return PodLimitState(uid, present, problem, _by_gpu(document, "gpus", _gpu_state), leaves)


def _gpu_state(gpu: str, value: Any) -> GpuLimitState:
    document = _object(f"what is said of {gpu}", value)
    hard, used = _optional(f"hard of {gpu}", document, "hard"), _optional(f"used of {gpu}", document, "used")
    return GpuLimitState(hard, used, plain(_text(document, "problem")))


def _leaf(document: Mapping[str, Any]) -> Leaf:
    container = _text(document, "container")
    if container:
        container = _container(document)
    gpu = _matching(_GPU, "a GPU's UUID", document.get("gpu"))
    pids = _list(document, "pids")
    if len(pids) > MOST_PIDS or any(type(pid) is not int or not 0 < pid < _MOST_PID for pid in pids):
        raise MessageError(f"pids must be a list of at most {MOST_PIDS} PIDs")
    return Leaf(container, gpu, _optional("hard of a leaf", document, "hard"), tuple(pids))


def _by_gpu(document: Mapping[str, Any], name: str, value_of: Callable[[str, Any], T]) -> dict[str, T]:
    by_gpu = _object(name, document.get(name))
    return {
        _matching(_GPU, "a GPU's UUID", gpu): value_of(_shown(gpu), value) for gpu, value in by_gpu.items()
    }


def _bytes(gpu: str, value: Any) -> int:
    return _number(f"bytes of {gpu}", value)


def _uid(document: Mapping[str, Any]) -> str:
    return _matching(_UID, "a pod's UID", document.get("uid"))


def _container(document: Mapping[str, Any]) -> str:
    return _matching(_CONTAINER, "a container's ID", document.get("container"))


def _matching(pattern: re.Pattern[str], what: str, value: Any) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise MessageError(f'this is not {what}: "{_shown(value)}"')
    return value


def _number(what: str, value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _MOST_BYTES:
        raise MessageError(f"{what} must be a whole number from 0 to {_MOST_BYTES}")
    return value


def _optional(what: str, document: Mapping[str, Any], key: str) -> int | None:
    value = document.get(key)
    return None if value is None else _number(what, value)


def _text(document: Mapping[str, Any], key: str) -> str:
    value = document.get(key)
    if not isinstance(value, str):
        raise MessageError(f"{key} must be a text")
    return value


def _object(what: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise MessageError(f"{what} must be an object")
    return value


def _list(document: Mapping[str, Any], key: str) -> list[Any]:
    value = document.get(key)
    if not isinstance(value, list):
        raise MessageError(f"{key} must be a list")
    return value


def _objects(document: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    return [_object(f"each of {key}", element) for element in _list(document, key)]


def _once(names: Collection[str], what: str) -> frozenset[str]:
    unique = frozenset(names)
    if len(unique) != len(names):
        raise MessageError(f"a {what} is named twice")
    return unique


def _shown(value: Any) -> str:
    return plain(str(value)[:_SHOWN])
