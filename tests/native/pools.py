# SPDX-License-Identifier: Apache-2.0
"""Processes of one container that use pools, for the tests of stream-ordered memory."""

from __future__ import annotations

from tests.native.running import MIB, ROOT, Place
from tests.unit.fakedriver.conftest import Peer
from vcuda import read_ledger

UNKNOWN = 999
CHUNK = 32 * MIB  # of pools on the simulated machines


class Pools:
    """Processes of one container, and one outside that sees what is physically used."""

    def __init__(self, place: Place, limit: str) -> None:
        self.place, self.limit = place, limit
        self.peers: list[Peer] = []
        self.outside = self.start(place.plain_env())

    def start(self, env: dict[str, str]) -> Peer:
        peer = Peer(env | {"PYTHONPATH": str(ROOT)}, module="tests.native.pool_client")
        self.peers.append(peer)
        return peer

    def peer(self, device: int = 0, **extra: str) -> Peer:
        """A process under the quota with a current context."""
        peer = self.start(self.place.env(self.limit, **extra))
        peer(f"context({device})")
        return peer

    def peak(self) -> int:
        """The most that the ledger ever held of GPU 0."""
        return max(read_ledger(self.place.quota / "ledger").peak.values())

    def physical(self, gpu: int = 0) -> int:
        """Bytes used on the GPU, contexts included."""
        return int(self.outside(f"gpu_used({gpu})"))


def charged(here):
    """What the ledger says that all processes hold, whatever the quota is."""
    return sum(sum(slot.used.values()) for slot in read_ledger(here.place.quota / "ledger").processes)


def destroyed_while_a_free_waits(here, stream, **extra):
    """A process whose destroyed pool holds 896 MiB that are freed behind a kernel in STREAM."""
    peer = here.peer(**extra)
    peer("globals().update(s=make_stream(1), t=make_stream(1), kernel=function('work_1s'), pool=make_pool())")
    block = peer(f"take({28 * CHUNK}, {stream}, pool)")
    assert peer(f"launch(kernel, {stream}) or give({block}, {stream}) or destroy(pool)") == 0
    return peer


def unmeasured(here):
    """A process that cannot see in NVML what it holds: nothing but the blocks of its pools counts."""
    here.place.fakectl("fail", "nvmlDeviceGetComputeRunningProcesses_v3", UNKNOWN, 10000)
    return here.peer()
