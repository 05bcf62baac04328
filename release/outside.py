# SPDX-License-Identifier: Apache-2.0
"""What a release does to the rest of the world, as commands. They are printed, and never run from here. Pure."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["outside_commands"]


def outside_commands(version: str, files: Iterable[str]) -> list[str]:
    """The commands after `make release VERSION=… CUT=yes`, in their order. FILES: the names of what is in dist/."""
    packages = [name for name in files if name.endswith((".whl", ".tar.gz"))]
    charts = [name for name in files if name.startswith("gigaslice-") and name.endswith(".tgz")]
    commit = f"$(git log -1 --format=%H --grep='^release: {version}$')"
    image = "$REGISTRY/gigaslice"
    return [
        f"git tag --sign v{version} --message 'Gigaslice {version}' \"{commit}\"",
        f"git push origin v{version}    # the release workflow builds, attests and publishes what the tag has",
        *(f"twine upload {' '.join(f'dist/{name}' for name in packages)}" for _ in packages[:1]),
        f"make image PLATFORMS=linux/amd64,linux/arm64 IMAGE={image}    # of the tag; then push {image}:{version}",
        *(f"helm push dist/{name} oci://$REGISTRY/charts" for name in charts),
    ]
