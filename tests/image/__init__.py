# SPDX-License-Identifier: Apache-2.0
"""The image, built from its Dockerfile on a local Debian root, and its roles started from it as the chart says.

    make image-root     builds it: as root, with buildah and mmdebstrap; writes docs/image.md
    make test-image     starts the roles from it (check_roles.py)

Not the published image: that one stands on BASE_IMAGE, and this one on a root made of Debian's packages, with their
Python. Steps, packages by version, files, entry point and the chart's security contexts are the same.

root: the build · sizes: the page about it · container: one container of a pod, by mounts and setpriv.
"""
