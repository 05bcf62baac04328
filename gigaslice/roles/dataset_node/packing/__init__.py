# SPDX-License-Identifier: Apache-2.0
"""Packs: the image of a dataset, made once, so that every node fetches one object in ranges."""

from gigaslice.roles.dataset_node.packing.check import check_pack
from gigaslice.roles.dataset_node.packing.make import SCRATCH, make_pack
from gigaslice.roles.dataset_node.packing.pack_location import RemoteLocation, locate

__all__ = ["SCRATCH", "RemoteLocation", "check_pack", "locate", "make_pack"]
