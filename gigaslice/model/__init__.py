"""Values: GPUs, their links, requests, placements and the state of a node. No decisions and no I/O.

Everything here is frozen; the decisions over these values are in `gigaslice.placement`.
"""

from gigaslice.model.annotation_rights import AnnotationRights, annotation_rights
from gigaslice.model.annotations import (
    ANNOTATIONS,
    Annotation,
    annotations_by_container,
    parse_options,
)
from gigaslice.model.csi_volume import DATASET_DRIVER, CsiVolume
from gigaslice.model.gpu import CORES_PER_GPU, Gpu, count_slices, matches_model
from gigaslice.model.lending import Lending, lend
from gigaslice.model.matrix import TopoMatrix, parse_topo_matrix
from gigaslice.model.node import NodeState, Occupant, Pool, Usage
from gigaslice.model.options import (
    DEFAULT_PRIORITY,
    PRIORITIES,
    RequestOptions,
    SliceUnit,
)
from gigaslice.model.pod import ContainerKind, Pod, PodContainer
from gigaslice.model.request import Infeasible, Placement, Reason, Request, Share
from gigaslice.model.resource_types import ResourceTypes, short_name
from gigaslice.model.topology import LinkLevel, Topology

__all__ = [
    "ANNOTATIONS",
    "CORES_PER_GPU",
    "DATASET_DRIVER",
    "DEFAULT_PRIORITY",
    "PRIORITIES",
    "Annotation",
    "AnnotationRights",
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
