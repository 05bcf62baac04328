# SPDX-License-Identifier: Apache-2.0
"""Which device IDs to prefer, so that the kubelet's records agree with where placement will put the slices.

The kubelet's choice does not bind placement, since the kubelet only counts device IDs. But as long as it takes the
preferred ones, the ids a pod holds are named after the GPUs it uses, NUMA hints are true, and what is left on each
GPU is left in ids too. The answer is a preference: the kubelet may take other ids, and then placement decides anew.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from gigaslice.core.deviceplugin.device_id import format_device_id, parse_device_id
from gigaslice.core.model import NodeState, Placement, Request, Share
from gigaslice.core.placement.decide import place, place_waiting
from gigaslice.core.placement.pairs import best_effort, pair_score
from gigaslice.core.placement.policy import Policy
from gigaslice.core.placement.waiting import Waiting


def preferred_device_ids(
    state: NodeState,
    available: Sequence[str],
    must_include: Sequence[str],
    size: int,
    *,
    request: Request | None = None,
    policy: Policy = Policy.GAIA,
) -> tuple[str, ...]:
    """Return `size` device IDs: those that must be included, then ids of the GPUs that placement would choose.

    available: the ids that may be taken, including those of must_include; they can be a part of what is free,
    such as one NUMA node. Where the chosen GPUs have too few ids the nearest other GPUs fill up; fewer than
    `size` come back only if fewer are available. Nothing for a size below 1 or below what must be included.
    DeviceIdError.
    """
    must = list(
        dict.fromkeys((device_id.uuid, device_id.number) for device_id in map(parse_device_id, must_include))
    )
    spare = _by_gpu(available)
    kept: dict[str, int] = {}
    for uuid, number in must:
        spare.setdefault(uuid, set()).discard(number)
        kept[uuid] = kept.get(uuid, 0) + 1
    if size < 1 or len(must) > size:
        return ()
    counts = {uuid: count for uuid in spare if (count := len(spare[uuid]) + kept.get(uuid, 0))}
    shares = _choose(state, counts, kept, replace(request or Request(), total=size, slices=None), policy)
    taken = list(must)
    for share in shares:
        own = sorted(spare.get(share.gpu, ()))[: max(0, share.slices - kept.get(share.gpu, 0))]
        spare.get(share.gpu, set()).difference_update(own)
        taken += [(share.gpu, number) for number in own]
    if len(taken) < size:
        chosen = [share.gpu for share in shares] or list(kept)
        nearest = {uuid: rank for rank, uuid in enumerate(_by_distance(state, chosen))}
        for uuid in sorted(spare, key=lambda uuid: (nearest.get(uuid, len(nearest)), uuid)):
            taken += [(uuid, number) for number in sorted(spare[uuid])]
    return tuple(format_device_id(uuid, number) for uuid, number in taken[:size])


def _by_gpu(texts: Iterable[str]) -> dict[str, set[int]]:
    """Return the numbers of each GPU; the kubelet sends a thousand ids, and the answer waits for it."""
    numbers_by_gpu: dict[str, set[int]] = {}
    for device_id in map(parse_device_id, texts):
        numbers = numbers_by_gpu.get(device_id.uuid)
        if numbers is None:
            numbers = numbers_by_gpu[device_id.uuid] = set()
        numbers.add(device_id.number)
    return numbers_by_gpu


def _choose(
    state: NodeState,
    counts: Mapping[str, int],
    kept: Mapping[str, int],
    request: Request,
    policy: Policy,
) -> tuple[Share, ...]:
    """Return the shares that placement would choose among the GPUs that have ids to give.

    counts: ids by GPU. kept: those of them that must be included.
    """
    for gpus in _gpu_sets(state, counts, set(kept), request):
        placement = place(state, replace(request, only=gpus), policy)
        if isinstance(placement, Placement):
            return placement.shares
    named = _allowed(request, counts)
    waiting = place_waiting(state, replace(request, only=named), policy) if named else None
    return waiting.placement.shares if isinstance(waiting, Waiting) else ()


def _gpu_sets(
    state: NodeState, counts: Mapping[str, int], kept: set[str], request: Request
) -> Iterator[frozenset[str]]:
    """Yield the sets of GPUs to try: with the ids that must be included, with enough ids, with any."""
    size = request.total or 0
    gpus = {gpu.uuid: gpu for gpu in state.gpus}
    enough = {
        uuid for uuid in counts if uuid in gpus and counts[uuid] >= _least(request, size, gpus[uuid].slices)
    }
    sets = [kept, _around(state, kept, enough, size), enough, set(counts)]
    for uuids in sets:
        allowed = _allowed(request, uuids)
        if allowed:
            yield allowed


def _least(request: Request, size: int, gpu_slices: int) -> int:
    """Return the fewest ids with which a GPU can take part: all of them, but for the rest after whole GPUs."""
    if request.whole_first and size > gpu_slices > 0:
        return size % gpu_slices or gpu_slices
    return min(size, gpu_slices)


def _around(state: NodeState, kept: set[str], enough: set[str], size: int) -> set[str]:
    """Return the best set of whole GPUs that includes those already fixed (best-effort, must-include)."""
    if not kept or not kept <= {gpu.uuid for gpu in state.gpus}:
        return set()
    per_gpu = state.gpu(min(kept)).slices
    positions = [state.position(uuid) for uuid in sorted(enough | kept)]
    must = [state.position(uuid) for uuid in sorted(kept)]
    gpus = best_effort(state.topology, positions, must, -(-size // per_gpu)) if per_gpu else None
    return {state.gpus[position].uuid for position in gpus or ()}


def _allowed(request: Request, uuids: Iterable[str]) -> frozenset[str]:
    named = frozenset(uuids)
    return named & request.only if request.only else named


def _by_distance(state: NodeState, chosen: Sequence[str]) -> list[str]:
    """Return all GPUs, those best linked to the chosen ones first."""
    near = [position for position, gpu in enumerate(state.gpus) if gpu.uuid in chosen]

    def key(position: int) -> tuple[bool, int, int]:
        return (
            position not in near,
            -sum(pair_score(state.topology, position, other) for other in near),
            position,
        )

    return [state.gpus[position].uuid for position in sorted(range(len(state.gpus)), key=key)]
