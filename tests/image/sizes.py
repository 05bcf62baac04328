# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of docs/image.md: the layers that `make image-root` has built, and the packages in ours by role.

python -m tests.image.sizes
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path

from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import canonicalize_name

from tests.image.root import ROOT, ROOT_DIRECTORY, layers
from tests.unit.docs.page_tables import markdown, rendered

PAGE = ROOT / "docs" / "image.md"
EXTRAS = {"cluster": "controller", "dataset": "dataset service"}
"""Extra of pyproject.toml -> the role that alone needs its packages."""
_SMALL = 1 << 20


def megabytes(count: int) -> str:
    """COUNT bytes as people read them: 10⁶ each, as registries and disks count."""
    return f"{count / 1e6:.1f} MB"


def layer_table() -> str:
    """The layers, and what a node pulls and keeps of them."""
    names = ("a Debian root with its Python, in the place of BASE_IMAGE", "/opt/gigaslice")
    rows = [
        (name, megabytes(layer.packed), megabytes(layer.unpacked))
        for name, layer in zip(names, layers(), strict=True)
    ]
    return markdown(("layer", "pulled (gzip)", "on the disk"), rows)


def packages_directory() -> Path:
    """Where the image's Python packages are."""
    (found,) = (ROOT_DIRECTORY / "opt" / "gigaslice" / "lib").glob("python3.*/site-packages")
    return found


def package_table() -> str:
    """What of the layer is whose, the largest first."""
    found = {
        canonicalize_name(one.metadata["Name"]): one
        for one in distributions(path=[str(packages_directory())])
    }
    only = {name: role for extra, role in EXTRAS.items() for name in needed_by(found, extra)}
    sizes = {name: size_of(one) for name, one in found.items()}
    rows = [
        (f"`{name}`", megabytes(sizes[name]), only.get(name, "every role"))
        for name in sorted(sizes, key=lambda name: -sizes[name])
        if sizes[name] >= _SMALL
    ]
    small = [size for size in sizes.values() if size < _SMALL]
    rows.append((f"{len(small)} others", megabytes(sum(small)), ""))
    for role in EXTRAS.values():
        total = sum(size for name, size in sizes.items() if only.get(name) == role)
        rows.append((f"together, for the {role} alone", megabytes(total), ""))
    return markdown(("package", "on the disk, compiled", "who needs it"), rows)


def needed_by(found: dict[str, Distribution], extra: str) -> set[str]:
    """Packages that are there for EXTRA and not for every role."""
    marked = [Requirement(text) for text in found["gigaslice"].requires or ()]
    of_extra = [one for one in marked if one.marker and one.marker.evaluate({"extra": extra})]
    of_all = [one for one in marked if not one.marker or one.marker.evaluate({"extra": ""})]
    return closure(found, of_extra) - closure(found, of_all)


def closure(found: dict[str, Distribution], requirements: list[Requirement]) -> set[str]:
    """REQUIREMENTS with all that they require."""
    names: set[str] = set()
    waiting = [canonicalize_name(one.name) for one in requirements]
    while waiting:
        name = waiting.pop()
        if name in names or name not in found:
            continue
        names.add(name)
        below = [Requirement(text) for text in found[name].requires or ()]
        waiting += [
            canonicalize_name(one.name)
            for one in below
            if not one.marker or one.marker.evaluate({"extra": ""})
        ]
    return names


def size_of(distribution: Distribution) -> int:
    """Bytes of a package, with what was compiled of it."""
    return sum(path.stat().st_size for path in set(files_of(distribution)) if path.is_file())


def files_of(distribution: Distribution) -> Iterator[Path]:
    """The files of a package; those that Python has compiled are in no record."""
    for file in distribution.files or ():
        path = Path(str(distribution.locate_file(file))).resolve()
        yield path
        if path.suffix == ".py":
            yield from (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc")


def main() -> int:
    """Writes the page's tables; the exit code."""
    tables = {"image-layers": layer_table, "image-packages": package_table}
    PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8"), tables), encoding="utf-8")
    print(layer_table() + "\n" + package_table(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
