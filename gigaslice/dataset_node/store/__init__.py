"""The node's cache of datasets: files, mounts, records, and what is deleted when."""

from gigaslice.dataset_node.store.budget import Budget, Disk
from gigaslice.dataset_node.store.cache import Part, digest_of
from gigaslice.dataset_node.store.documents import About, Piece, Record, Volume
from gigaslice.dataset_node.store.store import DatasetStore, Stored

__all__ = [
    "About",
    "Budget",
    "DatasetStore",
    "Disk",
    "Part",
    "Piece",
    "Record",
    "Stored",
    "Volume",
    "digest_of",
]
