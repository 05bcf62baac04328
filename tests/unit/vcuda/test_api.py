# SPDX-License-Identifier: Apache-2.0
"""The public surface: what __all__ lists exists, and nothing else is public by accident."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import vcuda

MODULES = [
    name
    for _, name, _ in pkgutil.walk_packages(vcuda.__path__, "vcuda.")
    if name.rpartition(".")[2] not in {"_build", "_native", "__main__", "version", "probe"}
]


def test_all_is_sorted_and_importable() -> None:
    assert sorted(vcuda.__all__, key=str.lower) == sorted(set(vcuda.__all__), key=str.lower)
    for name in vcuda.__all__:
        assert getattr(vcuda, name) is not None


def test_all_is_complete() -> None:
    modules = {name.removeprefix("vcuda.") for name in MODULES}
    public = {name for name in vars(vcuda) if not name.startswith("_")} - modules
    assert public <= set(vcuda.__all__) | {"annotations", "version"}


@pytest.mark.parametrize("name", MODULES)
def test_every_module_says_what_is_public_and_what_for(name: str) -> None:
    module = importlib.import_module(name)
    assert (module.__doc__ and module.__doc__[0].isupper()) or module.__doc__.startswith("``")
    for public in module.__all__:
        assert hasattr(module, public), public


def test_the_version_has_one_home() -> None:
    root = Path(vcuda.__file__).parent.parent
    assert re.fullmatch(r"\d+\.\d+\.\d+(-dev)?", vcuda.__version__)
    assert f'version = "{vcuda.__version__}"' not in (root / "pyproject.toml").read_text(encoding="utf-8")
