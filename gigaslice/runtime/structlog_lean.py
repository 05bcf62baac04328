# SPDX-License-Identifier: Apache-2.0
"""structlog without rich, which it imports for tracebacks in colour when it is there.

The agent formats stacks itself (`failures`), and rich takes 5 MiB of the 64 that agent and front may have. Commands
that print tables import it all the same: it is kept away for the moment of one import only.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["structlog"]


def _imported_without_rich() -> Any:
    if "rich" in sys.modules:
        import structlog as module  # noqa: PLC0415

        return module
    sys.modules["rich"] = None  # type: ignore[assignment]  # the language's way to say that it cannot be imported
    try:
        import structlog as module  # noqa: PLC0415
    finally:
        del sys.modules["rich"]
    return module


structlog = _imported_without_rich()
