# SPDX-License-Identifier: Apache-2.0
"""What a release does to the rest of the world, as commands. They are printed, and never run from here. Pure.

The tag alone publishes: the release workflow builds everything from it, attests and signs it. What a package index gets
are those files, and none that was built on somebody's machine.
"""

from __future__ import annotations

__all__ = ["outside_commands"]


def outside_commands(version: str) -> list[str]:
    """The commands after `make release VERSION=… CUT=yes`, in their order."""
    commit = f"$(git log -1 --format=%H --grep='^release: {version}$')"
    place = f"build/release/{version}/published"
    return [
        f"git tag --sign v{version} --message 'Gigaslice {version}' \"{commit}\"",
        f"git push origin v{version}    # the release workflow builds, attests and publishes what the tag has; then:",
        f"gh release download v{version} --dir {place}",
        f"(cd {place} && sha256sum --check SHA256SUMS)",
        f"twine upload {place}/*.whl {place}/*.tar.gz    # once the name is registered (RELEASING.md)",
    ]
