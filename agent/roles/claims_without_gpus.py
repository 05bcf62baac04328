# SPDX-License-Identifier: Apache-2.0
"""Claims on a node whose GPUs are not there: what ends is given up, and nothing is prepared.

After a reboot, or while a driver is exchanged, pods with claims may have to end before there can be GPUs again. Their
end waits for this driver: the kubelet keeps a pod Terminating until its claims are unprepared. So that is answered
meanwhile, for which no GPU is needed. When the GPUs are there the agent goes on with the same sockets, and wakes the
pods that were answered with an error.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping, Sequence

from agent.allocation.service import AllocationService
from agent.apiserver import NoCluster, PodLists
from agent.claims.cdi_files import CdiFiles
from agent.claims.messages import ClaimName, PrepareAnswer
from agent.claims.registration import ClaimRegistration
from agent.claims.release import ClaimRelease
from agent.config import Config
from agent.inventory.holder import InventoryHolder
from agent.inventory.source import Inventory
from agent.link import Link
from agent.persistence.store import Store
from agent.roles.records import CODEC
from gigaslice.core.claims.resource_claim import ResourceClaim
from gigaslice.core.errors import GigasliceError
from gigaslice.core.model import Topology
from gigaslice.core.placement import Policy
from gigaslice.runtime.logs import get_logger

__all__ = ["ClaimsWithoutGpus"]

_ANSWER = "this node's GPUs are not there now; the kubelet is asked to try again once they are"


class ClaimsWithoutGpus:
    """Gives claims up on behalf of an agent that waits for GPUs."""

    def __init__(self, config: Config, link: Link) -> None:
        """Args: config: The settings. link: The way to the front."""
        self._config = config
        self._link = link
        self._release: ClaimRelease | None = None
        self._log = get_logger("claims")

    async def run(self, stop: asyncio.Event) -> None:
        """Serves until asked to stop, and leaves what is open to what comes next. Fails never: it is not needed."""
        config = self._config
        store = Store(config.state_dir, codec=CODEC, gpu_bytes=dict, ledger_dir=config.ledger_dir)
        try:
            store.open()
            await self._serve(store, stop)
        except (
            GigasliceError
        ) as error:  # another agent serves the node, or the state cannot be used: said later, too
            self._log.info("claims are not given up without GPUs", detail=str(error))
            await stop.wait()
        finally:
            store.close()

    async def prepare(
        self, claims: Sequence[ClaimName], remaining: float | None
    ) -> Mapping[str, PrepareAnswer]:
        """Prepares nothing. Returns an error for each, by UID."""
        del remaining
        return {name.uid: PrepareAnswer(error=_ANSWER) for name in claims}

    async def unprepare(self, claims: Sequence[ClaimName]) -> Mapping[str, str]:
        """Unprepares claims. Returns why not, by UID."""
        assert self._release is not None
        return {name.uid: await self._release.unprepare(name) for name in claims}

    async def read(self, namespace: str, name: str, seconds: float) -> ResourceClaim | None:
        """Reads no claim: none is compared with the API server's here."""
        del namespace, name, seconds
        return None

    async def _serve(self, store: Store, stop: asyncio.Event) -> None:
        service = AllocationService(
            store,
            InventoryHolder(Inventory((), Topology.flat(0))),
            Policy(self._config.placement),
            time.monotonic,
            lambda: secrets.token_hex(16),
        )
        cluster = NoCluster()
        self._release = ClaimRelease(
            store,
            service,
            cluster,
            self,
            CdiFiles(self._config.cdi_dir),
            lists=PodLists(cluster),
            preparing=lambda uid: False,
        )
        following = asyncio.ensure_future(self._release.run())
        try:
            async with self._link.attached():
                await ClaimRegistration(self, self._config.kubelet_root, self._link).run(stop)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
