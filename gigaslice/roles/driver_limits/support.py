# SPDX-License-Identifier: Apache-2.0
"""Whether the driver's limits can be had on this node: by evidence, which ends with a limit that is set and read back.

The cgroup that is tried is that of this process's own pod, whose limit becomes all of every GPU: it bounds nothing.
Tests: tests/unit/gigaslice/roles/driver_limits/test_support.py.
"""

from __future__ import annotations

from gigaslice.core.limits.driver_limit_messages import Backend, SupportAnswer
from gigaslice.roles.driver_limits.cgroup_tree import CgroupTree
from gigaslice.roles.driver_limits.memory_limits import LimitCallError, MemoryLimits

__all__ = ["find_support"]


def find_support(limits: MemoryLimits, tree: CgroupTree) -> SupportAnswer:
    """Opens the driver anew and tries it. Raises MissingError where another process has to."""
    try:
        limits.renew()
    except LimitCallError as error:
        return SupportAnswer("none", str(error))
    backend: Backend = "dmem" if tree.backend() == "dmem" else "misc"
    reason = limits.refusal() or _unusable(tree, backend) or _failure(limits, tree.own_pod())
    return SupportAnswer("none" if reason else backend, reason, limits.version(), limits.gpus())


def _unusable(tree: CgroupTree, backend: Backend) -> str:
    """Why the driver's limits of this pod's cgroup could not bind."""
    if not tree.version_2:
        return (
            f"{tree.root} is no cgroup v2 but version 1, or no file system of cgroups: driver limits are limits of "
            "cgroup v2; start the node with it, and mount the host's /sys/fs/cgroup here at the same path"
        )
    beside = "this node has cgroup v1 with v2 beside it (hybrid): " if tree.hybrid else ""
    own = tree.own_pod()
    if not own:
        return (
            f"{beside}no pod's cgroup below {tree.root} has this process in it: it must run in a pod of this node "
            "and see the host's cgroups at the same path"
        )
    lacking = tree.lacking(own, backend)
    return beside + lacking if lacking else ""


def _failure(limits: MemoryLimits, own: str) -> str:
    """What goes wrong when each GPU's limit is set and read back."""
    gpus = limits.gpus()
    if not gpus:
        return "the driver shows no GPU that can be limited"
    for gpu, support in gpus.items():
        try:
            limits.set(gpu, own, support.total)
            limit = limits.get(gpu, own)
        except LimitCallError as error:
            return f"{gpu}: {error}"
        if limit is None or limit.hard != support.total:
            shown = "none" if limit is None or limit.hard is None else f"{limit.hard} bytes"
            return f"{gpu}: the driver took a limit of {support.total} bytes for {own} and shows {shown}"
    return ""
