# SPDX-License-Identifier: Apache-2.0
"""`gigaslice driver-limits` with ordinary directories for cgroups: SOCKET ROOT.

The kernel here may have no cgroup v2 whose controllers the driver needs. All but the type of the file system is as on a
node: the walk, the watch, NVML of the simulated driver, and the socket.
"""

import sys
from pathlib import Path

from gigaslice.roles.driver_limits import cgroup_tree, service
from gigaslice.roles.driver_limits.settings import DriverLimitSettings
from gigaslice.runtime import settings

if __name__ == "__main__":
    socket, root = sys.argv[1:]
    cgroup_tree.filesystem = lambda path: cgroup_tree._CGROUP2 if path == Path(root) else 0  # type: ignore[assignment]
    service.run(settings.load(DriverLimitSettings, {"socket": socket, "cgroup-root": root}, {}), "test")
