# SPDX-License-Identifier: Apache-2.0
"""What the processes of each group hold, by NVML, once. Arguments: groups of PIDs such as 12,13,14. Without
the library.
"""

import sys

from driver import Nvml, done, say

nvml = Nvml()
seen = nvml.processes()
say(
    held=[sum(max(0, seen.get(int(pid), 0)) for pid in word.split(",")) for word in sys.argv[1:]],
    used=nvml.used(),
)
done()
