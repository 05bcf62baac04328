# SPDX-License-Identifier: Apache-2.0
"""What the service does to its machine and reads from the network, as one value that tests replace.

The libraries of storage systems are loaded when the first source of their kind is opened: an idle service has none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gigaslice.core.dataset.image import ImagePlan
from gigaslice.core.dataset.listing import Listing
from gigaslice.core.dataset.source_spec import SourceSpec
from gigaslice.roles.dataset_node.fetching.fetch_limits import FetchLimits
from gigaslice.roles.dataset_node.fetching.progress import ProgressMeter
from gigaslice.roles.dataset_node.mounts import Mounts
from gigaslice.roles.dataset_node.mounts.linux import LinuxMounts
from gigaslice.roles.dataset_node.settings import DatasetSettings
from gigaslice.roles.dataset_node.sources.protocol import DataSource, in_thread
from gigaslice.roles.dataset_node.store import PartialImage
from gigaslice.roles.dataset_node.tasks.local_mounts import MountSource
from gigaslice.roles.dataset_node.tasks.provisioner import Fetch
from gigaslice.roles.dataset_node.tasks.shared_listings import OpenSource

if TYPE_CHECKING:
    from gigaslice.roles.dataset_node.sources.kernel_mounts import KernelMounts
    from gigaslice.roles.dataset_node.sources.opening import OpenedSource

__all__ = ["NodeIo", "node_io"]


@dataclass(frozen=True, slots=True)
class NodeIo:
    """Mounts and sources. unpack: writes the files of an image into a directory."""

    mounts: Mounts
    open_source: OpenSource
    fetch: Fetch
    mount_source: MountSource
    unpack: Callable[[Path, Path], None] | None = None


class _WithoutErofs(LinuxMounts):
    """The kernel's mounts, as if it had no EROFS: --layout=tree."""

    @property
    def has_erofs(self) -> bool:
        """No."""
        return False


def node_io(settings: DatasetSettings) -> NodeIo:
    """The real ones."""
    mounts = _WithoutErofs() if settings.layout == "tree" else LinuxMounts()
    bounds = FetchLimits(
        datasets=settings.datasets, reads=settings.fetchers, bytes_per_second=settings.bandwidth
    )

    local = settings.local_addresses == "on"
    kernel: list[KernelMounts] = []
    preparing = asyncio.Lock()

    async def open_source(spec: SourceSpec, credentials: Mapping[str, str]) -> OpenedSource:
        from gigaslice.roles.dataset_node.sources.kernel_mounts import KernelMounts  # noqa: PLC0415
        from gigaslice.roles.dataset_node.sources.opening import open_source as opened  # noqa: PLC0415

        async with preparing:  # what an earlier process has left goes before anything is mounted
            if not kernel:
                kernel_mounts = KernelMounts(mounts, settings.state_dir / "sources", local=local)
                await asyncio.to_thread(kernel_mounts.reconcile)
                kernel.append(kernel_mounts)
        return await opened(
            spec,
            credentials,
            mounts=kernel[0],
            local_addresses=local,
            run_directory=settings.run_dir,
        )

    async def fetch(
        plan: ImagePlan,
        listing: Listing,
        source: DataSource,
        part: PartialImage,
        *,
        task: str,
        started: Callable[[ProgressMeter], None],
    ) -> str:
        from gigaslice.roles.dataset_node.fetching.engine import fetch as fetch_all  # noqa: PLC0415

        return await fetch_all(plan, listing, source, part, bounds=bounds, task=task, started=started)

    async def mount_source(spec: SourceSpec, credentials: Mapping[str, str], below: Path) -> str:
        from gigaslice.roles.dataset_node.sources.credentials import Credentials  # noqa: PLC0415
        from gigaslice.roles.dataset_node.sources.kernel_mounts import KernelMounts  # noqa: PLC0415

        kernel_mounts = KernelMounts(mounts, below, local=local)
        _, root = await in_thread(
            "dataset-mount", lambda _: kernel_mounts.acquire(spec, Credentials(credentials))
        )
        return str(root)

    return NodeIo(mounts, open_source, fetch, mount_source, _unpack)


def _unpack(image: Path, into: Path) -> None:
    from gigaslice.roles.dataset_node.unpack import unpack_image  # noqa: PLC0415

    unpack_image(image, into)
