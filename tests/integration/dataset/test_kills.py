# SPDX-License-Identifier: Apache-2.0
"""kill -9 of the service, and of the kubelet, at random points of the whole path, with the kernel's mounts."""

import asyncio
import random
import tempfile
from pathlib import Path

import pytest

from tests.integration.dataset.service import ServiceNode, can_mount
from tests.integration.dataset.storm import Storm

KEPT = 0.9
FEW_KEPT = 0.5
"""The same of a few kills: what one of them costs is then several hundredths."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "kills", [8, pytest.param(1000, marks=[pytest.mark.long, pytest.mark.timeout(3 * 3600)])]
)
def test_kills_at_random_points_leave_nothing_wrong(kills):
    """No wrong byte is mounted, no mount or partial is left, nine tenths are kept, readers are undisturbed."""
    seed = random.SystemRandom().randrange(1 << 30)
    print("seed", seed)

    async def main(node):
        storm = Storm(node, seed)
        async with node.running():
            return await storm.run(kills)

    with tempfile.TemporaryDirectory(prefix="gs-", dir="/tmp") as name:  # the paths of sockets must be short
        if not can_mount(Path(name)):
            pytest.skip("mounting needs root and a kernel with EROFS")
        figures = asyncio.run(main(ServiceNode(Path(name))))
    print(f"{figures}, kept {figures.kept:.3f}")
    assert figures.interrupted or kills < 100, "no fetch was ever resumed: nothing was tried"
    assert figures.kept >= (KEPT if kills >= 100 else FEW_KEPT), figures
