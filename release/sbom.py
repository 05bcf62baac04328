# SPDX-License-Identifier: Apache-2.0
"""`python -m release.sbom WHEEL FILE`: what an installation of the wheel consists of, as CycloneDX.

The packages are those of the image, by version (deploy/image/runtime.txt): the wheel with its extras is installed under
these constraints into an environment of its own, and cyclonedx-py describes that. The library and the extensions link
to the C library alone; of NVIDIA's headers nothing is in them that is a component. A package that does not name its
licence has the one that docs/licences.md says.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from release import versions

ROOT = Path(__file__).resolve().parents[1]
LICENCES = ROOT / "docs" / "licences.md"
LOCK = ROOT / "deploy" / "image" / "runtime.txt"
EXTRAS = "cluster,dataset"


def main(arguments: Sequence[str]) -> int:
    """Returns 0, or the status of the first command that failed."""
    wheel, file = map(Path, arguments)
    place = ROOT / "build" / "sbom"
    shutil.rmtree(place, ignore_errors=True)
    venv.create(place / "venv", with_pip=False)
    constraints = place / "constraints.txt"
    constraints.write_text(constraints_of(LOCK.read_text(encoding="utf-8")), encoding="utf-8")
    interpreter = str(place / "venv" / "bin" / "python")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--quiet",
        "--disable-pip-version-check",
        "--python",
        interpreter,
        "install",
    ]
    described = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible", "--of", "JSON"]
    try:
        subprocess.run(
            [*pip, "--only-binary", ":all:", "--constraint", str(constraints), f"{wheel}[{EXTRAS}]"],
            check=True,
        )
        subprocess.run(
            [
                *described,
                "--pyproject",
                str(ROOT / "pyproject.toml"),
                "--output-file",
                str(file),
                interpreter,
            ],
            check=True,
        )
    except subprocess.CalledProcessError as error:
        print(f"error: {' '.join(map(str, error.cmd))} failed: see above", file=sys.stderr)
        return error.returncode
    document = with_version(json.loads(file.read_text(encoding="utf-8")), versions.present(ROOT))
    try:
        document = with_licences(document, LICENCES.read_text(encoding="utf-8"))
    except LookupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    file.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return 0


def with_version(document: dict[str, Any], version: str) -> dict[str, Any]:
    """DOCUMENT with the version of what it describes: cyclonedx-py reads none that pyproject.toml calls dynamic."""
    document["metadata"]["component"]["version"] = version
    return document


def with_licences(document: dict[str, Any], page: str) -> dict[str, Any]:
    """DOCUMENT in which components without a licence have that of PAGE, the text of docs/licences.md.

    Raises LookupError for a component that has none there either.
    """
    known = dict(re.findall(r"(?m)^\| `([a-z0-9-]+)` \| ([^|]+?) \|$", page))
    for component in document["components"]:
        name = re.sub(r"[-_.]+", "-", component["name"]).lower()
        if not component.get("licenses"):
            if name not in known:
                raise LookupError(
                    f"{name} names no licence, and neither does docs/licences.md: make lock tables"
                )
            component["licenses"] = [{"expression": known[name]}]
    return document


def constraints_of(lock: str) -> str:
    """The versions of a lock file, without their hashes, which are those of one Python's wheels."""
    return "".join(f"{line}\n" for line in re.findall(r"(?m)^([A-Za-z0-9._-]+==\S+)", lock))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
