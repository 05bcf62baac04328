"""Where datasets come from: every kind of storage behind one seam (`Source`)."""

from gigaslice.dataset_node.sources.credentials import Credentials
from gigaslice.dataset_node.sources.kernel_mounts import KernelMounts
from gigaslice.dataset_node.sources.opening import OpenedSource, effective_spec, open_source
from gigaslice.dataset_node.sources.seam import BusyError, Sink, Source

__all__ = [
    "BusyError",
    "Credentials",
    "KernelMounts",
    "OpenedSource",
    "Sink",
    "Source",
    "effective_spec",
    "open_source",
]
