# SPDX-License-Identifier: Apache-2.0
"""Limits and usage of shared GPUs: the Python side of the vCUDA library.

Creates and changes limits pages, reads ledgers, finds and installs the library; the command ``vcuda`` uses it. The
file formats are implemented once, in C, and reached through cffi. Nothing here depends on Kubernetes or the agent.
"""

from __future__ import annotations

from vcuda import contract, errors
from vcuda.errors import VcudaError
from vcuda.install import install_library, library_path
from vcuda.ledger import (
    LedgerUsage,
    ProcessUsage,
    ShareReader,
    ShareUsage,
    create_ledger,
    fill_ledger,
    ledger_file_bytes,
    ledger_owners,
    locks_last,
    read_ledger,
    read_shares,
    reserve_ledger,
    trim_ledger,
    trim_open_ledger,
)
from vcuda.limits import (
    GpuLimit,
    LimitsPage,
    create_limits,
    fill_limits,
    read_limits,
    reserve_limits,
    set_allowed,
    set_compute_policy,
    set_cores_limit,
    set_credit,
    set_memory_limit,
    set_physical_limit,
    set_time_slice,
    set_undeclared,
)
from vcuda.quota_request import memory_available
from vcuda.sizes import parse_size
from vcuda.time_slices import (
    TimeSliceUsage,
    end_time_slices,
    give_time_slice,
    read_time_slices,
    shorten_queues,
    time_slice_clock,
    withhold_time_slice,
)
from vcuda.version import VERSION as __version__  # noqa: N811

__all__ = [
    "GpuLimit",
    "LedgerUsage",
    "LimitsPage",
    "ProcessUsage",
    "ShareReader",
    "ShareUsage",
    "TimeSliceUsage",
    "VcudaError",
    "__version__",
    "contract",
    "create_ledger",
    "create_limits",
    "end_time_slices",
    "errors",
    "fill_ledger",
    "fill_limits",
    "give_time_slice",
    "install_library",
    "ledger_file_bytes",
    "ledger_owners",
    "library_path",
    "locks_last",
    "memory_available",
    "parse_size",
    "read_ledger",
    "read_limits",
    "read_shares",
    "read_time_slices",
    "reserve_ledger",
    "reserve_limits",
    "set_allowed",
    "set_compute_policy",
    "set_cores_limit",
    "set_credit",
    "set_memory_limit",
    "set_physical_limit",
    "set_time_slice",
    "set_undeclared",
    "shorten_queues",
    "time_slice_clock",
    "trim_ledger",
    "trim_open_ledger",
    "withhold_time_slice",
]
