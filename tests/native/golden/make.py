# SPDX-License-Identifier: Apache-2.0
"""Makes the frozen files of this directory: `python -m tests.native.golden.make` (after make all native-clients).

They were written once, by the library of 0.1.0 on the simulated driver, and stay as they are: containers that run today
keep their library and their files while agents around them are upgraded. Only a new format version adds new files, with
its number in their names. A ledger is kept without the empty slots at its end.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.native.running import GIB, MIB, Place
from vcuda import GpuLimit, create_ledger, create_limits, set_memory_limit, set_undeclared

HERE = Path(__file__).resolve().parent
LIMITS, LEDGER = HERE / "limits-v1.bin", HERE / "ledger-v1.bin"
UUIDS = ("GPU-58a9c2ed-a697-4a1c-9aa1-906b87e19b3f", "GPU-d487fb0d-4afb-4eef-a6ab-ec838678d356")  # of two-24g
ID = bytes(range(0xA0, 0xB0))
SLOTS_KEPT = 3
HEADER_BYTES, SLOT_BYTES = 4096, 320


def main() -> None:
    """Two processes charge, one of them is refused once; both are killed."""
    if LIMITS.exists() or LEDGER.exists():
        sys.exit(f"{HERE} has its files: they are frozen")
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder), settings={"VCUDA_DIR": str(Path(folder) / "quota")})
        place.quota.mkdir()
        limits, ledger = place.quota / "limits", place.quota / "ledger"
        gpus = [GpuLimit(uuid, (8 + i) * GIB, cores_percent=30 * i) for i, uuid in enumerate(UUIDS)]
        create_limits(limits, ID, gpus)
        create_ledger(ledger, ID, gpus)
        with place.client() as first, place.client() as second:
            first.ready()
            second.ready(1)
            assert first.do("alloc a", 1 * GIB).code == 0
            assert second.do("alloc b", 3 * GIB).code == 0
            assert second.do("alloc c", 100 * GIB).code == 2
        set_memory_limit(limits, UUIDS[0], 6 * GIB)
        set_undeclared(limits, UUIDS[1], 5 * MIB)
        LIMITS.write_bytes(limits.read_bytes())
        LEDGER.write_bytes(ledger.read_bytes()[: HEADER_BYTES + SLOTS_KEPT * SLOT_BYTES])


if __name__ == "__main__":
    main()
