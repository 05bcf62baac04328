"""Values: GPUs, their links, requests, placements and the state of a node. No decisions and no I/O.

Everything here is frozen; the decisions over these values are in `agent.placement`.
"""

from agent.model.gpu import CORES_PER_CARD, Gpu, count_slices, matches_model
from agent.model.lending import Lending, lend
from agent.model.matrix import TopoMatrix, format_topo_matrix, parse_topo_matrix
from agent.model.node import Allocation, NodeState, Pool, Usage
from agent.model.pod import ContainerKind, Pod, PodContainer
from agent.model.request import Infeasible, Placement, Prefer, Reason, Request, Shape, Share
from agent.model.token import Token, format_token, gpu_tokens, parse_token
from agent.model.topology import LinkLevel, Topology
from agent.model.wish import (
    ANNOTATIONS,
    DEFAULT_PRIORITY,
    PRIORITIES,
    Annotation,
    SliceUnit,
    Wish,
    parse_wish,
)

__all__ = [
    "ANNOTATIONS",
    "CORES_PER_CARD",
    "DEFAULT_PRIORITY",
    "PRIORITIES",
    "Allocation",
    "Annotation",
    "ContainerKind",
    "Gpu",
    "Infeasible",
    "Lending",
    "LinkLevel",
    "NodeState",
    "Placement",
    "Pod",
    "PodContainer",
    "Pool",
    "Prefer",
    "Reason",
    "Request",
    "Shape",
    "Share",
    "SliceUnit",
    "Token",
    "TopoMatrix",
    "Topology",
    "Usage",
    "Wish",
    "count_slices",
    "format_token",
    "format_topo_matrix",
    "gpu_tokens",
    "lend",
    "matches_model",
    "parse_token",
    "parse_topo_matrix",
    "parse_wish",
]
