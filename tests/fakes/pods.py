# SPDX-License-Identifier: Apache-2.0
"""Pods with GPU memory as the agent reads them from an API server, in few words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gigaslice.core.cluster.assignment import Assignment
from gigaslice.core.cluster.names import ASSIGNMENT, MEMORY_RESOURCE
from gigaslice.core.kube.decode import parse_pod
from gigaslice.core.model import Pod, Share
from tests.fakes.kubeapi import pod_document


def gpu_pod(
    name: str,
    *counts: int,
    resource: str = MEMORY_RESOURCE,
    init: Iterable[int] = (),
    sidecars: Iterable[int] = (),
    also: Mapping[str, int] | None = None,
    assigned: Mapping[str, Sequence[Share]] | str | None = None,
    uid: str = "",
    controlled: bool = False,
    phase: str = "Pending",
    **annotations: str,
) -> Pod:
    """A pod, of the UID uid-NAME, whose containers ask for so many of RESOURCE each.

    Args:
        name: Its name.
        counts: Of containers c0, c1 and so on; one with 0 asks for nothing.
        resource: What they ask for.
        init: The same of init containers i0, i1 and so on.
        sidecars: The same of sidecars s0, s1 and so on.
        also: What each of the containers asks for besides.
        assigned: What the scheduler gave each container, or the text of the annotation.
        uid: Its UID where another pod had the name.
        controlled: Whether a controller makes another one when it ends.
        phase: Its phase.
        annotations: Ours without their prefix, and with _ for -.
    """
    texts = {
        key if "/" in key else f"gigaslice.io/{key.replace('_', '-')}": text
        for key, text in annotations.items()
    }
    if assigned is not None:
        texts[ASSIGNMENT] = assigned if isinstance(assigned, str) else Assignment(assigned).encode()

    def requests(count: int) -> dict[str, int]:
        return {resource: count} if count else {}

    return parse_pod(
        pod_document(
            name,
            *({**requests(count), **(also or {})} for count in counts),
            init=tuple(map(requests, init)),
            sidecars=tuple(map(requests, sidecars)),
            annotations=texts,
            uid=uid or f"uid-{name}",
            controlled=controlled,
            phase=phase,
        )
    )
