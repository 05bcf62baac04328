# SPDX-License-Identifier: Apache-2.0
"""The licences of the image's Python packages, for the table in docs/licences.md: names from the lock, licences as the
packages themselves say.

Another version of a package is installed here than in the image, now and then, and may say it in other words. What the
page says is then kept until `make lock` and `make tables` have met.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

from license_expression import LicenseExpression, get_spdx_licensing

__all__ = ["PAGE", "PERMISSIVE", "WEAK", "is_met_by", "locked", "rows", "said", "spdx"]

ROOT = Path(__file__).resolve().parents[3]
LOCK = ROOT / "deploy" / "image" / "runtime.txt"
PAGE = ROOT / "docs" / "licences.md"

PERMISSIVE = frozenset(
    ("Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MIT-0", "PSF-2.0")
)
"""Ask for their text and the names of their authors to go along, which the packages themselves carry."""
WEAK = frozenset(("MPL-2.0",))
"""Ask for the source of their own files, too."""
_OLD_WORDS = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",  # nvidia-ml-py, whose text has three clauses
    "MIT License": "MIT",
    "Python Software Foundation License": "PSF-2.0",
}
_SPDX = get_spdx_licensing()


def locked() -> dict[str, str]:
    """The packages of the image with their versions."""
    return dict(re.findall(r"(?m)^([A-Za-z0-9._-]+)==([^\s;]+)", LOCK.read_text(encoding="utf-8")))


def spdx(text: str) -> str:
    """The licence as an expression of SPDX. Raises ValueError for words that are none."""
    expression = _SPDX.parse(_OLD_WORDS.get(text, text), validate=True)
    return str(expression)


@cache
def said() -> dict[str, str]:
    """What the packages that are installed here say, by their names in the lock."""
    names = locked()
    command = [sys.executable, "-m", "piplicenses", "--from=mixed", "--format=json", "--packages", *names]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    by_name = {_plain(row["Name"]): row["License"] for row in json.loads(run.stdout)}
    return {name: spdx(by_name[_plain(name)]) for name in names if _plain(name) in by_name}


def is_met_by(expression: str, accepted: frozenset[str]) -> bool:
    """Whether a licence can be kept by keeping licences of ACCEPTED."""
    return _is_met(_SPDX.parse(expression), accepted)


def _is_met(part: LicenseExpression, accepted: frozenset[str]) -> bool:
    if not part.args:
        return str(part) in accepted
    return (any if part.operator.strip() == "OR" else all)(_is_met(one, accepted) for one in part.args)


def on_page() -> dict[str, str]:
    """What the page says."""
    return dict(re.findall(r"(?m)^\| `([^`]+)` \| ([^|]+) \|$", PAGE.read_text(encoding="utf-8")))


def rows() -> list[tuple[str, str]]:
    """Package and licence. Raises LookupError for a package that is neither installed nor on the page."""
    present, before = said(), on_page()
    return [(f"`{name}`", _licence(name, version, present, before)) for name, version in locked().items()]


def _licence(name: str, version: str, present: dict[str, str], before: dict[str, str]) -> str:
    if name in before and (name not in present or metadata.version(name) != version):
        return before[name]
    if name not in present:
        raise LookupError(f"{name} is not installed, and docs/licences.md does not have it yet")
    return present[name]


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
