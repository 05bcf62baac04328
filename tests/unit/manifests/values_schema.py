"""deploy/helm/schema.py as a module: it is a program and belongs to no package."""

import importlib.util
from pathlib import Path

_PATH = Path(__file__).resolve().parents[3] / "deploy" / "helm" / "schema.py"
_SPEC = importlib.util.spec_from_file_location("values_schema", _PATH)
assert _SPEC is not None and _SPEC.loader is not None
schema = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(schema)
