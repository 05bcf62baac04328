# SPDX-License-Identifier: Apache-2.0
"""Names that the library, the agent and the command agree on: paths, file modes, environment variables.

Their C side is the library's own configuration; in Python they are written down here and nowhere else. Values only.
"""

from __future__ import annotations

__all__ = [
    "COMMAND_FILE",
    "CONTAINER_ALLOCATIONS",
    "CONTAINER_DIR",
    "CONTAINER_LEDGER",
    "CONTAINER_LIBRARY_DIR",
    "CONTAINER_LIMITS",
    "CONTAINER_PRELOAD",
    "ENV_CORES",
    "ENV_DIR",
    "ENV_LOG",
    "ENV_MEMORY_LIMIT",
    "ENV_PHYSICAL_LIMIT",
    "ENV_QUOTA",
    "ENV_REFUSALS",
    "HOST_ALLOCATIONS",
    "HOST_STATE_DIR",
    "LEDGER_FILE",
    "LEDGER_MODE",
    "LIBRARY_MODE",
    "LIMITS_FILE",
    "LIMITS_MODE",
    "OWNER_FILE",
    "PRELOAD_FILE",
    "PRELOAD_LINKS",
    "PRELOAD_MODE",
    "QUOTA_PREFIX",
]

# Inside a container: four mounts.
CONTAINER_DIR = "/etc/vcuda"
CONTAINER_LIMITS = "/etc/vcuda/limits"
CONTAINER_LEDGER = "/etc/vcuda/ledger"
CONTAINER_PRELOAD = "/etc/ld.so.preload"
CONTAINER_LIBRARY_DIR = "/usr/local/lib/vcuda"
CONTAINER_ALLOCATIONS = "/etc/vcuda/allocations"  # of claims: the page again, by its allocation

# Names inside the directory of one allocation, on the host or of vcuda run.
LIMITS_FILE = "limits"
LEDGER_FILE = "ledger"
PRELOAD_FILE = "ld.so.preload"
COMMAND_FILE = "command.json"  # of vcuda run: quotas.CommandRecord as JSON
PRELOAD_LINKS = "preload"  # of vcuda run: links through which the loader finds the library
OWNER_FILE = "owner.json"  # of an agent, optional: {"namespace": …, "pod": …, "container": …}

# Below a user's base directory: the quota that ENV_QUOTA names.
QUOTA_PREFIX = "quota-"

# The host's side of an agent.
HOST_STATE_DIR = "/var/lib/gigaslice"
HOST_ALLOCATIONS = "/var/lib/gigaslice/allocations"

# Permission bits: processes of any user in the container read the page and write the ledger.
LIMITS_MODE = 0o644
LEDGER_MODE = 0o666
PRELOAD_MODE = 0o644
LIBRARY_MODE = 0o755

# The library reads these only where CONTAINER_LIMITS does not exist.
ENV_DIR = "VCUDA_DIR"
ENV_QUOTA = "VCUDA_QUOTA"
ENV_MEMORY_LIMIT = "VCUDA_MEMORY_LIMIT"
ENV_PHYSICAL_LIMIT = "VCUDA_PHYSICAL_LIMIT"
ENV_CORES = "VCUDA_CORES"
ENV_LOG = "VCUDA_LOG"  # read in containers too, like the next
ENV_REFUSALS = "VCUDA_REFUSALS"
