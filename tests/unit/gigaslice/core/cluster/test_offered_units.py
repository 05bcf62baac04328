# SPDX-License-Identifier: Apache-2.0
"""The names and the size of slices that a cluster counts in, from its nodes alone."""

from __future__ import annotations

import pytest

from gigaslice.core.cluster.demand import ClusterUnits
from gigaslice.core.cluster.hardware import Hardware
from gigaslice.core.cluster.offered_units import offered_units
from gigaslice.core.model import Topology
from tests.fakes.gpus import GIB, make_gpu


def node(*resources: str, whole: str = "gigaslice.io/gpu", size: int = GIB) -> Hardware:
    gpus = [make_gpu(n, 80 * GIB // size, slice_bytes=size) for n in range(len(resources))]
    return Hardware.of(gpus, Topology.flat(len(gpus)), resources, whole)


USUAL = ClusterUnits()


@pytest.mark.parametrize(("nodes", "units"), [
    ([], USUAL),
    ([node("gigaslice.io/vgpu-memory", whole="")], USUAL),
    ([node("gigaslice.io/vgpu-memory.h100", "gigaslice.io/vgpu-memory")], USUAL),
    ([node("gigaslice.io/vgpu-memory.h100")], USUAL),
    ([node("a.com/x", whole="a.com/gpu", size=2 * GIB)], ClusterUnits(2 * GIB, "a.com/x", "a.com/gpu")),
    ([node("a.com/x.h100", "a.com/x.t4")], ClusterUnits(GIB, "a.com/x")),
    ([node("a.com/gpu.gib")], ClusterUnits(GIB, "a.com/gpu.gib")),
    ([node("a.com/x"), node("gigaslice.io/vgpu-memory", "gigaslice.io/vgpu-memory")], USUAL),
])  # fmt: skip
def test_what_most_gpus_are_counted_in(nodes, units):
    assert offered_units(nodes) == units
