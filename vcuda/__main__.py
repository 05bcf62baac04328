# SPDX-License-Identifier: Apache-2.0
"""``python -m vcuda``: the same command as ``vcuda``."""

from __future__ import annotations

import sys

from vcuda.cli import main

if __name__ == "__main__":
    sys.exit(main())
