# SPDX-License-Identifier: Apache-2.0
"""What a command needs beyond `pip install .`: which extra has a package, and the line that installs it.

Nothing of ours is in a package index, so the line names a checkout and never a name that somebody else may have taken.
"""

from __future__ import annotations

import importlib.util

from gigaslice.core.errors import MissingError

__all__ = ["EXTRAS", "need", "remedy"]

EXTRAS = {
    "cryptography": "cluster",
    "blake3": "dataset",
    "obstore": "dataset",
}
"""Import name -> the extra of pyproject.toml that installs it."""


def remedy(module: str | None) -> str:
    """The sentence for a MODULE that cannot be imported; empty where no extra has it, which is a fault of ours."""
    package = (module or "").partition(".")[0]
    if package not in EXTRAS:
        return ""
    return (
        f"this command needs the Python package {package}; in a checkout of Gigaslice run "
        f"pip install '.[{EXTRAS[package]}]', or use the image, which has it"
    )


def need(package: str) -> None:
    """Checks for a PACKAGE that a role loads late, when the sentence would no longer reach a person.

    Raises:
        MissingError: It is not installed.
    """
    if importlib.util.find_spec(package) is None:
        raise MissingError(remedy(package))
