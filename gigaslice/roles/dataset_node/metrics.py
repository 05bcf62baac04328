# SPDX-License-Identifier: Apache-2.0
"""Every metric of the service in one table. Everything is read from the present state at each scrape."""

from __future__ import annotations

from gigaslice.runtime.metrics import Row

__all__ = ["METRICS"]

METRICS = (
    Row("gigaslice_dataset_hits_total", "counter", (), "datasets that were asked for and in the cache"),
    Row("gigaslice_dataset_misses_total", "counter", (), "datasets that were asked for and had to be fetched"),
    Row("gigaslice_dataset_joins_total", "counter", (),
        "datasets that were asked for while another task fetched them"),
    Row("gigaslice_dataset_fetch_bytes_total", "counter", (), "bytes read from sources, failed fetches included"),
    Row("gigaslice_dataset_fetch_files_total", "counter", (), "files of datasets that were fetched"),
    Row("gigaslice_dataset_fetch_seconds_total", "counter", (),
        "time that complete fetches took, one after the other"),
    Row("gigaslice_dataset_fetches_total", "counter", ("result",), "fetches by result: complete, failed"),
    Row("gigaslice_dataset_evictions_total", "counter", (), "datasets deleted to make room or on request"),
    Row("gigaslice_dataset_trash_failures_total", "counter", (),
        "attempts to remove what was deleted that failed; they are repeated"),
    Row("gigaslice_dataset_local_fallbacks_total", "counter", (),
        "datasets read from the storage itself because the node had no room"),
    Row("gigaslice_dataset_gate_waits_total", "counter", (),
        "pods whose containers waited at their start for a dataset"),
    Row("gigaslice_dataset_gate_wait_seconds_total", "counter", (), "how long they waited"),
    Row("gigaslice_dataset_cache_bytes", "gauge", ("state",), "bytes of the cache by state: ready, partial"),
    Row("gigaslice_dataset_in_use_bytes", "gauge", (), "bytes of datasets that pods use or wait for"),
    Row("gigaslice_dataset_free_bytes", "gauge", (), "bytes that the cache may still take without deleting anything"),
    Row("gigaslice_dataset_trash_bytes", "gauge", (),
        "bytes of deleted datasets that the disk has not given back yet"),
    Row("gigaslice_dataset_datasets", "gauge", ("state",), "datasets of the cache by state: ready, partial"),
    Row("gigaslice_dataset_volumes", "gauge", ("state",), "volumes of pods by state: published, pending"),
    Row("gigaslice_dataset_registered", "gauge", (), "1 while the kubelet has accepted the driver"),
    Row("gigaslice_dataset_agents", "gauge", (),
        "GPU agents that wait for this service before a start: 1, or 0 and nothing is early"),
)  # fmt: skip
