# SPDX-License-Identifier: Apache-2.0
"""The chart as it is published: its values name the image that was published beside it, by its digest.

`python -m release.published_chart IMAGE DIGEST FOLDER` copies the chart to FOLDER, for `helm package` (.ci/publish). It
imports Python's own modules alone. The chart of the tree keeps a name without a registry, which `make image` makes.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from release import versions

__all__ = ["with_image", "write"]

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "deploy" / "helm" / "gigaslice"
LOCAL = "gigaslice"
"""The image's name in the tree."""


def with_image(values: str, image: str, digest: str) -> str:
    """The text of values.yaml with the image's repository and digest. Raises ValueError where it has no such lines."""
    for key, before, after in (("repository", LOCAL, image), ("digest", '""', digest)):
        line = re.compile(rf"(?m)^(image:\n(?: .*\n)*?  {key}: ){re.escape(before)}(?=\s)")
        values, count = line.subn(rf"\g<1>{after}", values)
        if count != 1:
            raise ValueError(f"values.yaml has no line {key}: {before} below image:")
    return values


def write(folder: Path, image: str, digest: str) -> None:
    """Writes the chart to FOLDER with that image in its values and in its list of images."""
    shutil.copytree(CHART, folder)
    values = folder / "values.yaml"
    values.write_text(with_image(values.read_text(encoding="utf-8"), image, digest), encoding="utf-8")
    images = folder / "images.txt"
    local = f"{LOCAL}:{versions.present(ROOT)}"
    lines = images.read_text(encoding="utf-8").splitlines()
    if local not in lines:
        raise ValueError(f"images.txt has no line {local}: make manifests")
    lines[lines.index(local)] = f"{image}@{digest}"
    images.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    """Returns 0, or 3 where the chart is not one that names the image of the tree."""
    image, digest, folder = arguments
    try:
        write(Path(folder), image, digest)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
