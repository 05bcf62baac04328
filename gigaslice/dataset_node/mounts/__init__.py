"""What is mounted on the node, behind a protocol, so that everything above it is tested without being root."""

from gigaslice.dataset_node.mounts.protocol import MountError, Mounts
from gigaslice.dataset_node.mounts.table import MountEntry, parse_mountinfo, top_at

__all__ = ["MountEntry", "MountError", "Mounts", "parse_mountinfo", "top_at"]
