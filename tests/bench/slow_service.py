"""The dataset service with a source on the other side of a network: every read of a directory takes a while.

    python -m tests.bench.slow_service SECONDS dataset --state-dir=…

All else is the service as it is. A Dataset named "any" is there for every namespace, without an API server: it stands
for any version of the first source that `--allow` names, as one of a trusted namespace.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from agent.entry import main
from gigaslice.dataset.request import Check
from gigaslice.dataset.source_spec import SourceSpec
from gigaslice.dataset_node import service
from gigaslice.dataset_node.sources import opening
from gigaslice.dataset_node.sources.posix import PosixSource
from gigaslice.dataset_node.tasks.seams import ResolvedDataset
from tests.fakes.dataset_sources import Slow

_READS = 64  # as of a directory that is mounted from a network


class _AnyVersion:
    def __init__(self, source: str) -> None:
        self._spec = SourceSpec.parse(source)

    async def resolve(self, name: str, namespace: str) -> ResolvedDataset:
        del name, namespace
        return ResolvedDataset(self._spec, Check.NEVER, trusted=True)


def run(seconds: float, arguments: list[str]) -> int:
    """Runs the program with ARGUMENTS."""
    allowed = next(one.partition("=")[2] for one in arguments if one.startswith("--allow="))

    def directory(where: str | Path, parallel: int) -> Slow:
        del parallel
        return Slow(PosixSource(Path(where), parallel=_READS), seconds)

    opening._directory = directory
    objects = _AnyVersion(allowed.split(",")[0])
    service._ClusterSide = functools.partial(service._ClusterSide, objects=objects)
    sys.argv[1:] = arguments
    return main()


if __name__ == "__main__":
    sys.exit(run(float(sys.argv[1]), sys.argv[2:]))
