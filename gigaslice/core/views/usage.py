# SPDX-License-Identifier: Apache-2.0
"""What pods use of the GPUs of one node, read from the text of its agent's metrics. Pure.

Three metrics are read: the two that count against a container's limit, and what NVML shows for its processes, which is
all that there is of a container with whole GPUs, since those are in no ledger. Only numbers get further: names in the
text are compared with those that the cluster lists and never shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["USAGE_METRICS", "NodeUsage", "read_usage"]

USAGE_METRICS = (
    "gigaslice_container_memory_used_bytes",
    "gigaslice_container_memory_undeclared_bytes",
    "gigaslice_container_memory_measured_bytes",
)
"""What the processes have declared, what was found beyond that, and what NVML shows for them."""

_MEASURED = USAGE_METRICS[2]
_LINE = re.compile(rf"({'|'.join(USAGE_METRICS)})\{{(.*)\}} ([0-9][0-9.e+]*)")
_STANDBY = "gigaslice_standby"
_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)",?')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n"}
_KEY = ("gpu_uuid", "namespace", "pod", "container")
_MOST = 20_000  # series of one node
_MOST_BYTES = 1 << 50  # of one series: more is no amount of GPU memory


@dataclass(frozen=True, slots=True)
class NodeUsage:
    """Bytes in use by the GPU's UUID, namespace and pod. Of a pod that is not there nothing is known."""

    used: Mapping[tuple[str, str, str], int]


def read_usage(text: str) -> NodeUsage | None:
    """The usage in the metrics of one agent, in the text form of Prometheus. What cannot be read is left out.

    None is the answer of an agent that does not serve its node: another one does, and has the numbers.
    """
    counted, measured = dict[tuple[str, ...], int](), dict[tuple[str, ...], int]()
    series = 0
    for line in text.split("\n"):
        if line.startswith(_STANDBY):
            return None
        if not line.startswith(USAGE_METRICS) or (match := _LINE.fullmatch(line)) is None:
            continue
        series += 1
        if series > _MOST:
            break
        labels = {name: _ESCAPE.sub(_unescaped, value) for name, value in _LABEL.findall(match[2])}
        key = tuple(labels.get(name, "") for name in _KEY)
        if all(key) and (size := _size(match[3])) is not None:
            sums = measured if match[1] == _MEASURED else counted
            sums[key] = sums.get(key, 0) + size
    used: dict[tuple[str, str, str], int] = {}
    for key in counted.keys() | measured.keys():
        gpu, namespace, pod, _ = key
        size = max(counted.get(key, 0), measured.get(key, 0))
        used[gpu, namespace, pod] = used.get((gpu, namespace, pod), 0) + size
    return NodeUsage(used)


def _unescaped(match: re.Match[str]) -> str:
    return _ESCAPED.get(match[1], match[1])


def _size(text: str) -> int | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return int(number) if number <= _MOST_BYTES else None
