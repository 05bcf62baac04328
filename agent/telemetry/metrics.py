# SPDX-License-Identifier: Apache-2.0
"""Every metric of the agent in one table, in the order in which they are shown. All have the label "node" besides.

How values are collected and written is `gigaslice.runtime.metrics`; the table in docs/operations.md is made from this
one.
"""

from __future__ import annotations

import vcuda
from gigaslice.core.allocation.consumer import OBJECT_LABELS
from gigaslice.runtime.metrics import Row, Values

__all__ = ["METRICS", "values_of"]

_CONTAINER = ("gpu_uuid", *OBJECT_LABELS)
_OWNER = OBJECT_LABELS
_GPU = ("gpu_uuid",)

METRICS = (
    Row("gigaslice_container_memory_limit_bytes", "gauge", _CONTAINER, "what the container may use of the GPU"),
    Row("gigaslice_container_memory_physical_limit_bytes", "gauge", _CONTAINER,
        "part of the limit that may be in the GPU's own memory; for containers that may use host memory"),
    Row("gigaslice_container_memory_managed_bytes", "gauge", _CONTAINER,
        "part of used that may be in host memory; for the same containers"),
    Row("gigaslice_container_time_slice_wait_seconds_total", "counter", _CONTAINER,
        "time that its threads waited for a time slice, added up; for the same containers"),
    Row("gigaslice_container_memory_used_bytes", "gauge", _CONTAINER,
        "what its living processes have declared or measured on themselves"),
    Row("gigaslice_container_memory_measured_bytes", "gauge", _CONTAINER,
        "what NVML shows for all its processes; missing where NVML does not show them"),
    Row("gigaslice_container_memory_drift_bytes", "gauge", _CONTAINER, "measured minus used"),
    Row("gigaslice_container_memory_undeclared_bytes", "gauge", _CONTAINER,
        "what the agent has measured beyond used; counts against the limit"),
    Row("gigaslice_container_memory_without_library_bytes", "gauge", _CONTAINER,
        "part of undeclared that processes without the library hold"),
    Row("gigaslice_container_memory_peak_bytes", "gauge", _CONTAINER, "largest use so far"),
    Row("gigaslice_container_compute_limit_ratio", "gauge", _CONTAINER,
        "share of the GPU's time that it may use; for containers with such a limit"),
    Row("gigaslice_container_compute_seconds_total", "counter", _CONTAINER,
        "GPU time that it was charged; for the same containers"),
    Row("gigaslice_container_compute_throttled_seconds_total", "counter", _CONTAINER,
        "time that its launches were delayed, all threads added up; for the same containers"),
    Row("gigaslice_container_slices", "gauge", _CONTAINER, "slices of the GPU that it holds"),
    Row("gigaslice_container_processes", "gauge", _OWNER, "living processes under the quota"),
    Row("gigaslice_container_oom_errors_total", "counter", _OWNER, "CUDA allocations that failed for lack of quota"),
    Row("gigaslice_container_attached", "gauge", _OWNER, "1 once a process has loaded the library and used CUDA"),
    Row("gigaslice_container_start_waiting", "gauge", _OWNER, "1 while its start waits for memory of its GPUs"),
    Row("gigaslice_gpu_info", "gauge", (*_GPU, "index", "model"), "1 for each GPU"),
    Row("gigaslice_gpu_memory_bytes", "gauge", _GPU, "memory of the GPU that programs can have"),
    Row("gigaslice_gpu_host_memory_bytes", "gauge", _GPU, "host memory lent to the GPU; missing without any"),
    Row("gigaslice_gpu_working_set_resident", "gauge", _GPU,
        "1 while the managed memory that containers use fits the GPU; missing without such containers"),
    Row("gigaslice_gpu_time_slicing_active", "gauge", _GPU,
        "1 while its containers run in time slices, to end thrashing"),
    Row("gigaslice_gpu_time_slices_total", "counter", _GPU, "time slices given since the agent started"),
    Row("gigaslice_gpu_time_slice_seconds_total", "counter", _GPU, "length of these time slices, added up"),
    Row("gigaslice_gpu_page_faults_total", "counter", _GPU,
        "page faults on GPUs with lent host memory; missing where nvidia-uvm does not count them"),
    Row("gigaslice_gpu_paged_in_bytes_total", "counter", _GPU, "bytes that page faults have moved to it; likewise"),
    Row("gigaslice_gpu_paged_out_bytes_total", "counter", _GPU, "bytes that page faults have moved away; likewise"),
    Row("gigaslice_gpu_slice_bytes", "gauge", _GPU, "size of its slices"),
    Row("gigaslice_gpu_slices", "gauge", (*_GPU, "state"),
        "slices by state: allocated, free, or unavailable on a GPU that gets no new containers"),
    Row("gigaslice_gpu_healthy", "gauge", _GPU, "1 for a GPU that gets new containers"),
    Row("gigaslice_gpu_condition", "gauge", (*_GPU, "condition"),
        "1 for each condition of the GPU: an Xid such as xid-79, ecc, lost, silent, recovery, remapping"),
    Row("gigaslice_gpu_cordoned", "gauge", _GPU, "1 for a cordoned GPU"),
    Row("gigaslice_gpu_xid_errors_total", "counter", (*_GPU, "xid"), "Xids since the agent started"),
    Row("gigaslice_gpu_uncorrectable_errors", "gauge", _GPU, "uncorrectable memory errors since the GPU's last reset"),
    Row("gigaslice_gpu_foreign_memory_bytes", "gauge", _GPU,
        "memory of the GPU that processes outside of all our containers hold"),
    Row("gigaslice_driver_limits", "gauge", ("backend",),
        "1 for what keeps the driver's own limits of pods: dmem, misc, or none"),
    Row("gigaslice_pod_driver_limit_bytes", "gauge", (*_GPU, "namespace", "pod"),
        "what the driver lets the pod have of the GPU; missing where it does not limit it"),
    Row("gigaslice_pod_driver_used_bytes", "gauge", (*_GPU, "namespace", "pod"), "what it counts against that"),
    Row("gigaslice_gpu_driver_limits_excess_bytes", "gauge", _GPU,
        "by how much the driver's limits of all pods exceed the GPU's memory; missing where they fit"),
    Row("gigaslice_waiting_for_gpus", "gauge", ("reason",),
        "1 while there is no GPU to serve: no-gpu, gpu-unusable for GPUs that the driver does not show, driver-hangs; "
        "else missing"),
    Row("gigaslice_standby", "gauge", (),
        "1 while another agent serves this node and this one is ready to take over; else missing"),
    Row("gigaslice_kubelet_registered", "gauge", (),
        "1 while the kubelet watches the device list; with --api=dra, while it has accepted the driver of claims"),
    Row("gigaslice_kubelet_registrations_total", "counter", (),
        "device list streams that the kubelet has opened; each registration begins with one"),
    Row("gigaslice_allocate_duration_seconds", "histogram", (), "duration of the kubelet's Allocate calls"),
    Row("gigaslice_allocate_failures_total", "counter", (), "Allocate calls that failed their pods"),
    Row("gigaslice_start_waits_total", "counter", (), "container starts that were refused until there is memory"),
    Row("gigaslice_claim_prepare_duration_seconds", "histogram", (),
        "duration of the kubelet's NodePrepareResources calls, with what they waited for; here and below: where claims "
        "are served"),
    Row("gigaslice_claim_unprepare_duration_seconds", "histogram", (), "duration of its NodeUnprepareResources calls"),
    Row("gigaslice_claim_errors_total", "counter", ("operation",),
        "claims that the kubelet was answered with an error for: prepare, unprepare"),
    Row("gigaslice_claims_refused", "gauge", (), "claims that were last answered with an error and wait"),
    Row("gigaslice_slice_writes_total", "counter", (), "times that the node's ResourceSlices were written"),
    Row("gigaslice_slice_write_failures_total", "counter", (), "times that they could not be written"),
    Row("gigaslice_slices_published", "gauge", (), "1 while nothing keeps the ResourceSlices from being published"),
    Row("gigaslice_ledger_truncations_total", "counter", (), "ledgers that had grown on the disk and were truncated"),
    Row("gigaslice_overuse_evictions_total", "counter", (), "pods evicted for more memory than they may have"),
    Row("gigaslice_component_failures_total", "counter", ("component",),
        "components of the agent that failed and were restarted; each failure is a bug of the agent"),
    Row("gigaslice_state_dir_usable", "gauge", (),
        "0 while the state directory is full, read-only or refuses writes, and nothing new is allocated"),
    Row("gigaslice_inventory_writes_total", "counter", (),
        "times that the node's annotation was written, by which the cluster sees its GPUs; missing without API server, "
        "as the next four"),
    Row("gigaslice_inventory_write_failures_total", "counter", (), "times that it could not be written"),
    Row("gigaslice_inventory_written_timestamp_seconds", "gauge", (),
        "when it was last written, in Unix time; missing before the first time"),
    Row("gigaslice_inventory_outdated_seconds", "gauge", (),
        "for how long the cluster has seen another inventory than the node's; 0 while it sees the present one"),
    Row("gigaslice_inventory_withheld", "gauge", (),
        "1 while it is not written because the agent's token may change more of its node than annotations of ours"),
    Row("gigaslice_build_info", "gauge", ("version", "resource"), "1, with the agent's version and its resource"),
)  # fmt: skip


def values_of(resource: str, *, registered: bool) -> Values:
    """Values of an agent of RESOURCE, with what is true of every agent: a serving one, a waiting one, a standby."""
    values = Values(METRICS)
    values.add("gigaslice_kubelet_registered", int(registered))
    values.add("gigaslice_build_info", 1, vcuda.__version__, resource)
    return values
