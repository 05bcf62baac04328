"""Packs: the image of a dataset, made once beside its files, so that every node fetches one object in ranges."""

from gigaslice.dataset_node.packing.check import check_pack
from gigaslice.dataset_node.packing.make import make_pack

__all__ = ["check_pack", "make_pack"]
