# SPDX-License-Identifier: Apache-2.0
"""What is mounted on the node, behind a protocol, so that everything above it is tested without being root."""

from gigaslice.roles.dataset_node.mounts.protocol import MountError, Mounts, mount_errors
from gigaslice.roles.dataset_node.mounts.table import MountEntry, parse_mountinfo, top_at

__all__ = ["MountEntry", "MountError", "Mounts", "mount_errors", "parse_mountinfo", "top_at"]
