# SPDX-License-Identifier: Apache-2.0
"""The chart's alerts evaluated by Prometheus itself: each fires on what it is for, and is silent on what is well."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.manifests.test_rules import FILES, RULES

PROMTOOL = shutil.which("promtool")
pytestmark = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not installed (Debian's package prometheus)"
)

NODE = 'node="a", instance="a:9445"'
GPU = f'{NODE}, gpu_uuid="GPU-1"'
OWNER = f'{NODE}, namespace="ml", pod="p", container="c"'
Scene = tuple[dict[str, str], dict[str, str]]
"""Series with their values once a minute: on which an alert fires once, and on which it does not."""
SCENES: dict[str, Scene] = {
    "GigasliceAgentsNotScraped": ({}, {f"gigaslice_build_info{{{NODE}}}": "1x60"}),
    "GigasliceAgentNotRegistered": (
        {
            f"gigaslice_kubelet_registered{{{NODE}}}": "0x60",
            'gigaslice_standby{node="b", instance="b:9445"}': "1x60",
        },
        {
            f"gigaslice_kubelet_registered{{{NODE}}}": "0x60",
            f"gigaslice_standby{{{NODE}}}": "1x60",
            'gigaslice_kubelet_registered{node="b", instance="b:9445"}': "0x60",
            'gigaslice_waiting_for_gpus{node="b", instance="b:9445", reason="no-gpu"}': "1x60",
            'gigaslice_kubelet_registered{node="c", instance="c:9445"}': "0x3 1x57",
        },
    ),
    "GigasliceGPUsUnusable": (
        {f'gigaslice_waiting_for_gpus{{{NODE}, reason="driver-hangs"}}': "1x60"},
        {f'gigaslice_waiting_for_gpus{{{NODE}, reason="no-gpu"}}': "1x60"},
    ),
    "GigasliceGPUUnhealthy": (
        {f"gigaslice_gpu_healthy{{{GPU}}}": "0x60", f"gigaslice_gpu_cordoned{{{GPU}}}": "0x60"},
        {f"gigaslice_gpu_healthy{{{GPU}}}": "0x60", f"gigaslice_gpu_cordoned{{{GPU}}}": "1x60"},
    ),
    "GigasliceStateDirectoryUnusable": (
        {f"gigaslice_state_dir_usable{{{NODE}}}": "0x60"},
        {f"gigaslice_state_dir_usable{{{NODE}}}": "1x60"},
    ),
    "GigasliceComponentFailed": (
        {f'gigaslice_component_failures_total{{{NODE}, component="poller"}}': "0x10 1x50"},
        {f'gigaslice_component_failures_total{{{NODE}, component="poller"}}': "5x60"},
    ),
    "GigasliceAllocationsFail": (
        {f"gigaslice_allocate_failures_total{{{NODE}}}": "0+1x60"},
        {f"gigaslice_allocate_failures_total{{{NODE}}}": "3x60"},
    ),
    "GigasliceStartWaits": (
        {f"gigaslice_container_start_waiting{{{OWNER}}}": "1x60"},
        {f"gigaslice_container_start_waiting{{{OWNER}}}": "1x10 0x50"},
    ),
    "GigasliceProgramWithoutLibrary": (
        {f"gigaslice_container_memory_without_library_bytes{{{OWNER}}}": "5x60"},
        {f"gigaslice_container_memory_without_library_bytes{{{OWNER}}}": "0x60"},
    ),
    "GigasliceClaimsRefused": (
        {f"gigaslice_claims_refused{{{NODE}}}": "1x60"},
        {f"gigaslice_claims_refused{{{NODE}}}": "1x14 0x46"},
    ),
    "GigasliceSlicesNotPublished": (
        {f"gigaslice_slices_published{{{NODE}}}": "0x60"},
        {f"gigaslice_slices_published{{{NODE}}}": "1x60"},
    ),
    "GigasliceInventoryOutdated": (
        {f"gigaslice_inventory_outdated_seconds{{{NODE}}}": "61x60"},
        {f"gigaslice_inventory_outdated_seconds{{{NODE}}}": "60x60"},
    ),
    "GigasliceInventoryWithheld": (
        {f"gigaslice_inventory_withheld{{{NODE}}}": "1x60"},
        {f"gigaslice_inventory_withheld{{{NODE}}}": "0x60"},
    ),
    "GigasliceInventoryUnreadable": (
        {
            'gigaslice_cluster_nodes{instance="x", inventory="unreadable"}': "0x60",
            'gigaslice_cluster_nodes{instance="y", inventory="unreadable"}': "2x60",
        },
        {
            'gigaslice_cluster_nodes{instance="x", inventory="unreadable"}': "0x60",
            'gigaslice_cluster_nodes{instance="x", inventory="current"}': "9x60",
        },
    ),
    "GigasliceControllerNotLeading": (
        {
            'gigaslice_controller_leader{instance="x"}': "0x60",
            'gigaslice_controller_leader{instance="y"}': "0x60",
        },
        {
            'gigaslice_controller_leader{instance="x"}': "0x60",
            'gigaslice_controller_leader{instance="y"}': "1x60",
        },
    ),
    "GigasliceWatchSilent": (
        {'gigaslice_controller_watch_silent_seconds{instance="x", resource="pods"}': "301x60"},
        {'gigaslice_controller_watch_silent_seconds{instance="x", resource="pods"}': "300x60"},
    ),
    "GigasliceDatasetNotRegistered": (
        {f"gigaslice_dataset_registered{{{NODE}}}": "0x60"},
        {f"gigaslice_dataset_registered{{{NODE}}}": "1x60"},
    ),
    "GigasliceDatasetFetchesFail": (
        {f'gigaslice_dataset_fetches_total{{{NODE}, result="failed"}}': "0+1x60"},
        {
            f'gigaslice_dataset_fetches_total{{{NODE}, result="failed"}}': "3x60",
            f'gigaslice_dataset_fetches_total{{{NODE}, result="done"}}': "0+9x60",
        },
    ),
    "GigasliceDatasetFilesNotRemoved": (
        {f"gigaslice_dataset_trash_failures_total{{{NODE}}}": "0x10 1x50"},
        {f"gigaslice_dataset_trash_failures_total{{{NODE}}}": "1x60"},
    ),
    "GigasliceSchedulerNotReady": (
        {
            'gigaslice_scheduler_ready{instance="x"}': "0x60",
            'gigaslice_scheduler_ready{instance="y"}': "0x60",
        },
        {
            'gigaslice_scheduler_ready{instance="x"}': "0x60",
            'gigaslice_scheduler_ready{instance="y"}': "1x60",
        },
    ),
}


def promtool(*words: str | Path) -> None:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *words], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_takes_every_file() -> None:
    promtool("check", "rules", *FILES)


def test_every_alert_has_a_scene() -> None:
    assert SCENES.keys() == {rule["alert"] for rule in RULES}


def firing(alert: str, series: dict[str, str], count: int) -> dict[str, Any]:
    """What promtool is to see after 40 minutes."""
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="{alert}", alertstate="firing"}}) or vector(0)',
                "eval_time": "40m",
                "exp_samples": [{"labels": "{}", "value": count}],
            }
        ],
    }


def test_each_fires_on_what_it_is_for_and_not_on_what_is_well(tmp_path: Path) -> None:
    tests = [
        firing(alert, series, count)
        for alert, scene in SCENES.items()
        for series, count in zip(scene, (1, 0), strict=True)
    ]
    document = {"rule_files": [str(path) for path in FILES], "evaluation_interval": "1m", "tests": tests}
    path = tmp_path / "alerts.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    promtool("test", "rules", path)


def test_an_alert_without_any_series_is_one_where_nothing_is_scraped(tmp_path: Path) -> None:
    silent = {"GigasliceAgentsNotScraped", "GigasliceControllerNotLeading", "GigasliceSchedulerNotReady"}
    tests = [firing(alert, {}, int(alert in silent)) for alert in SCENES]
    path = tmp_path / "alerts.yaml"
    document = {"rule_files": [str(path) for path in FILES], "evaluation_interval": "1m", "tests": tests}
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    promtool("test", "rules", path)
