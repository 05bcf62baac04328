# SPDX-License-Identifier: Apache-2.0
"""One claim as requests for the allocation service: what the API server has allocated, executed as it stands. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from agent.allocation.request import AllocationRequest, NotExecutableError
from gigaslice.core import units
from gigaslice.core.allocation.consumer import Consumer
from gigaslice.core.allocation.table import AllocationTable
from gigaslice.core.claims.origin import ClaimDevice, ClaimOrigin
from gigaslice.core.claims.resource_claim import ResourceClaim
from gigaslice.core.model import CORES_PER_GPU, Gpu, Placement, RequestOptions, Share

__all__ = ["AbsentGpuError", "ClaimRequest", "claim_request"]


class AbsentGpuError(NotExecutableError):
    """This node does not have the GPU of a device now. device: The device's name."""

    def __init__(self, text: str, device: str) -> None:
        super().__init__(text)
        self.device = device


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """Requests of a claim that have one quota, as the allocation service takes them.

    Attributes:
        request: What is asked for, in slices of now: what was allocated in slices of another size is rounded up.
        claim_origin: The claim.
        amounts: Bytes and per cent of the compute of each GPU that were allocated, by UUID.
        problem: Why it cannot be given out as it was allocated; empty where it can. What is given out already stays.
    """

    request: AllocationRequest
    claim_origin: ClaimOrigin
    amounts: Mapping[str, tuple[int, int]]
    problem: str = ""

    @property
    def key(self) -> str:
        """The key of the origin."""
        return self.claim_origin.key

    def before(self, table: AllocationTable) -> AllocationTable:
        """Returns the table as it is: a claim takes nobody's place."""
        return table

    def origin(self, placement: Placement) -> ClaimOrigin:
        """Returns the claim: the placement is the API server's."""
        del placement
        return self.claim_origin

    def after(self, table: AllocationTable) -> AllocationTable:
        """Returns the table as it is."""
        return table

    def refusal(self, detail: str) -> str:
        """Returns the sentence for a claim that can never be served."""
        return f"claim {self.claim_origin}: {detail}"


def claim_request(
    claim: ResourceClaim,
    group: Sequence[str],
    gpus: Mapping[str, Gpu],
    options: RequestOptions,
    *,
    consumers: tuple[Consumer, ...],
    boot_id: str,
    follows_annotations: bool,
) -> ClaimRequest:
    """Returns the request for some requests of a claim.

    Args:
        claim: The claim, with its devices.
        group: The requests that have one quota.
        gpus: The node's GPUs by the names of their devices.
        options: What the claim asks for beside memory.
        consumers: The containers that use them, as far as they are known.
        boot_id: The boot of the machine.
        follows_annotations: Its options are those of its pod's annotations.

    Raises:
        AbsentGpuError: A device is none of this node's GPUs.
        NotExecutableError: A device has no memory, or none was counted where a part was asked for.
    """
    results = [result for result in claim.results if result.main in group]
    amounts: dict[str, tuple[int, int]] = {}
    devices = []
    for result in results:
        gpu = gpus.get(result.device)
        if gpu is None:
            raise AbsentGpuError(
                f"claim {claim}: this node has no GPU {result.device} now; its pods start here once it is back, or "
                "on another node when they are made again",
                result.device,
            )
        if result.memory_bytes == 0:
            raise NotExecutableError(
                f"claim {claim}: request {result.main} was given no memory of a GPU; write capacity.requests.memory in "
                "it, or leave that out for a whole GPU"
            )
        if result.memory_bytes is None and result.request in claim.asking_capacity:
            raise NotExecutableError(
                f"claim {claim}: request {result.main} asks for a part of a GPU, and the scheduler has allocated a GPU "
                "without counting parts; switch on its feature gate DRAConsumableCapacity, then delete the claim and "
                "its pods, so that they are placed again"
            )
        size, cores = amounts.get(gpu.uuid, (0, 0))
        size += gpu.bytes_of(gpu.slices) if result.memory_bytes is None else result.memory_bytes
        amounts[gpu.uuid] = size, min(CORES_PER_GPU, cores + (result.cores or 0))
        devices.append(ClaimDevice(result.request, result.pool, result.device, result.share_id, gpu.uuid))
    by_uuid = {gpu.uuid: gpu for gpu in gpus.values()}
    shares = tuple(
        Share(uuid, -(-size // by_uuid[uuid].slice_bytes), cores) for uuid, (size, cores) in amounts.items()
    )
    # A part of a GPU cannot be had alone: the cluster gives out the rest of it.
    alone = options.exclusive and all(share.slices == by_uuid[share.gpu].slices for share in shares)
    return ClaimRequest(
        AllocationRequest(
            sum(share.slices for share in shares),
            replace(options, cores=shares[0].cores, exclusive=alone),
            assigned=shares,
        ),
        ClaimOrigin(
            claim.namespace,
            claim.name,
            claim.uid,
            tuple(group),
            tuple(devices),
            consumers,
            boot_id,
            follows_annotations,
        ),
        amounts,
        next(filter(None, (_problem(by_uuid[uuid], size) for uuid, (size, _) in amounts.items())), ""),
    )


def _problem(gpu: Gpu, size: int) -> str:
    """Returns why so many bytes of a GPU cannot be given out; an empty text where they can."""
    again = "delete the claim and its pods, so that they are placed again"
    slices = -(-size // gpu.slice_bytes)
    if slices > gpu.slices:
        return f"{slices} slices of {gpu.uuid}, which has {gpu.slices}; {again}"
    if size % gpu.slice_bytes:  # more than was allocated is somebody else's
        unit = units.format_bytes(gpu.slice_bytes)
        return (
            f"{units.format_bytes(size)} of {gpu.uuid} were allocated when its slices were not of {unit}, and are no "
            f"whole number of them; {again}"
        )
    return ""
