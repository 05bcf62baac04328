# SPDX-License-Identifier: Apache-2.0
"""Values: GPUs, their links, requests, placements and the state of a node. No decisions and no I/O.

Everything here is frozen; the decisions over these values are in `gigaslice.core.placement`.
"""

from gigaslice.core.model.annotation_rights import AnnotationRights, annotation_rights
from gigaslice.core.model.annotations import (
    ANNOTATIONS,
    Annotation,
    annotations_by_container,
    parse_options,
)
from gigaslice.core.model.csi_volume import DATASET_DRIVER, CsiVolume
from gigaslice.core.model.gpu import CORES_PER_GPU, Gpu, count_slices, matches_model
from gigaslice.core.model.lending import Lending, lend
from gigaslice.core.model.matrix import TopoMatrix, parse_topo_matrix
from gigaslice.core.model.node import NodeState, Occupant, Pool, Usage
from gigaslice.core.model.options import (
    DEFAULT_PRIORITY,
    PRIORITIES,
    RequestOptions,
    SliceUnit,
)
from gigaslice.core.model.pod import ClaimUse, ContainerKind, Pod, PodClaim, PodContainer
from gigaslice.core.model.request import Infeasible, Placement, Reason, Request, Share
from gigaslice.core.model.resource_types import ResourceTypes, short_name
from gigaslice.core.model.topology import LinkLevel, Topology

__all__ = [
    "ANNOTATIONS",
    "CORES_PER_GPU",
    "DATASET_DRIVER",
    "DEFAULT_PRIORITY",
    "PRIORITIES",
    "Annotation",
    "AnnotationRights",
    "ClaimUse",
    "ContainerKind",
    "CsiVolume",
    "Gpu",
    "Infeasible",
    "Lending",
    "LinkLevel",
    "NodeState",
    "Occupant",
    "Placement",
    "Pod",
    "PodClaim",
    "PodContainer",
    "Pool",
    "Reason",
    "Request",
    "RequestOptions",
    "ResourceTypes",
    "Share",
    "SliceUnit",
    "TopoMatrix",
    "Topology",
    "Usage",
    "annotation_rights",
    "annotations_by_container",
    "count_slices",
    "lend",
    "matches_model",
    "parse_options",
    "parse_topo_matrix",
    "short_name",
]
