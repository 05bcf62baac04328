# SPDX-License-Identifier: Apache-2.0
"""deploy/image/lock.py as a module: it is a program and belongs to no package."""

import importlib.util
from pathlib import Path

_PATH = Path(__file__).resolve().parents[3] / "deploy" / "image" / "lock.py"
_SPEC = importlib.util.spec_from_file_location("lock", _PATH)
assert _SPEC is not None and _SPEC.loader is not None
lock = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(lock)
