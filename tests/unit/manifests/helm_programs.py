# SPDX-License-Identifier: Apache-2.0
"""The programs of deploy/helm as modules: they belong to no package."""

import importlib.util
from pathlib import Path
from types import ModuleType

_FOLDER = Path(__file__).resolve().parents[3] / "deploy" / "helm"


def _loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"helm_{name}", _FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


manifests = _loaded("manifests")
readme = _loaded("readme")
schema = _loaded("schema")
