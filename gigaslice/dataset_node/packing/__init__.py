"""Packs: the image of a dataset, made once, so that every node fetches one object in ranges."""

from gigaslice.dataset_node.packing.check import check_pack
from gigaslice.dataset_node.packing.ends import Remote, end_of
from gigaslice.dataset_node.packing.make import SCRATCH, make_pack

__all__ = ["SCRATCH", "Remote", "check_pack", "end_of", "make_pack"]
