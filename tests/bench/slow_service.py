# SPDX-License-Identifier: Apache-2.0
"""The dataset service with a source on the other side of a network: every read of a directory takes a while.

    python -m tests.bench.slow_service SECONDS --state-dir=…

All else is the service as it is. A Dataset named "any" is there for every namespace, without an API server: it stands
for any version of the first source that `--allow` names, as one of a trusted namespace.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Mapping
from dataclasses import replace

from gigaslice.core.dataset.request import Check
from gigaslice.core.dataset.source_spec import SourceSpec
from gigaslice.roles.dataset_node.node_io import node_io
from gigaslice.roles.dataset_node.service import ClusterConnections, DatasetService
from gigaslice.roles.dataset_node.settings import DatasetSettings
from gigaslice.roles.dataset_node.sources.opening import OpenedSource
from gigaslice.roles.dataset_node.tasks.protocols import ResolvedDataset
from gigaslice.runtime import logs, settings
from tests.fakes.dataset_sources import Slow

_READS = 64  # at once, as of a directory that is mounted from a network


class _AnyVersion:
    def __init__(self, source: str) -> None:
        self._spec = SourceSpec.parse(source)

    async def resolve(self, name: str, namespace: str) -> ResolvedDataset:
        del name, namespace
        return ResolvedDataset(self._spec, Check.NEVER, trusted=True)


async def serve(seconds: float, found: DatasetSettings) -> None:
    """Runs the service until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    io = node_io(found)

    async def open_slow(spec: SourceSpec, credentials: Mapping[str, str]) -> OpenedSource:
        opened = await io.open_source(spec, credentials)
        assert isinstance(opened, OpenedSource)
        opened.inner = slow = Slow(opened.inner, seconds)
        slow.parallel = _READS
        return opened

    slow_io = replace(io, open_source=open_slow)
    cluster = ClusterConnections(objects=_AnyVersion(found.allow[0]))
    await DatasetService(found, slow_io, "bench", cluster).run(stop)


def main() -> None:
    """Reads the arguments of `gigaslice dataset`."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("seconds", type=float)
    settings.add_flags(parser, DatasetSettings)
    known = parser.parse_args()
    found = settings.load(DatasetSettings, settings.flags_of(DatasetSettings, known), {})
    logs.set_up(found.log_level, found.log_format)
    asyncio.run(serve(known.seconds, found))


if __name__ == "__main__":
    sys.exit(main())
