# SPDX-License-Identifier: Apache-2.0
"""The use of memory in the text that an agent's metrics are."""

from __future__ import annotations

from prometheus_client.core import CollectorRegistry
from prometheus_client.exposition import generate_latest

from agent.telemetry.metrics import values_of
from gigaslice.core.views.usage import USAGE_METRICS, NodeUsage, read_usage

USED, UNDECLARED, MEASURED = USAGE_METRICS
KEY = ("GPU-1", "team", "p")


def exposed(*rows: tuple[str, float, tuple[str, ...]], standby: bool = False) -> str:
    """The text that the agent's own frame writes."""
    values = values_of("gigaslice.io/vgpu-memory", registered=True)
    if standby:
        values.add("gigaslice_standby", 1)
    for name, value, labels in rows:
        values.add(name, value, *labels, "", "")  # of no claim

    class Collected(CollectorRegistry):
        def collect(self):
            return values.families({"node": "n"})

    return generate_latest(Collected()).decode()


def test_what_is_used_is_added_up_by_gpu_and_pod() -> None:
    text = exposed(
        (USED, 3e9, ("GPU-1", "team", "p", "a")),
        (USED, 1e9, ("GPU-1", "team", "p", "b")),
        (UNDECLARED, 5e8, ("GPU-1", "team", "p", "a")),
        (USED, 7, ("GPU-2", "team", "p", "a")),
        ("gigaslice_container_memory_limit_bytes", 9e9, ("GPU-1", "team", "p", "a")),
        (MEASURED, 4e9, ("GPU-1", "team", "p", "b")),
        (MEASURED, 1e9, ("GPU-1", "team", "p", "a")),
        (MEASURED, 8e9, ("GPU-3", "team", "whole", "a")),
    )
    usage = read_usage(text)
    assert usage is not None
    assert dict(usage.used) == {
        KEY: 7_500_000_000,  # of each container what was counted, or what NVML shows where that is more
        ("GPU-2", "team", "p"): 7,
        ("GPU-3", "team", "whole"): 8_000_000_000,
    }


def test_names_with_quotes_and_braces_are_read_as_they_were_written() -> None:
    pod = 'a"}\\ 5,b="c'
    usage = read_usage(exposed((USED, 5, ("GPU-1", "team", pod, "c"))))
    assert usage is not None
    assert dict(usage.used) == {("GPU-1", "team", pod): 5}


def test_a_standby_says_nothing_of_its_node() -> None:
    assert read_usage(exposed((USED, 5, ("GPU-1", "team", "p", "c")), standby=True)) is None


def test_what_cannot_be_read_is_left_out() -> None:
    labels = 'gpu_uuid="GPU-1",namespace="team",pod="p",container="c"'
    lines = [
        "\0",
        USED,
        f"{USED}{{{labels}}} NaN",
        f"{USED}{{{labels}}} +Inf",
        f"{USED}{{{labels}}} -3",
        f"{USED}{{{labels}}} 1e300",
        f"{USED}{{{labels}}} 1e+e+",
        f"{USED}_more{{{labels}}} 5",
        f'{USED}{{gpu_uuid="GPU-1",namespace="",pod="p"}} 5',
        f"{USED}{{{labels}}} 5",
    ]
    usage = read_usage("\n".join(lines))
    assert usage is not None
    assert dict(usage.used) == {KEY: 5}
    assert read_usage("") == NodeUsage({})


def test_of_endless_series_only_so_many_are_read() -> None:
    text = "\n".join(
        f'{USED}{{gpu_uuid="g",namespace="n",pod="p{number}",container="c"}} 1' for number in range(30_000)
    )
    usage = read_usage(text)
    assert usage is not None
    assert len(usage.used) == 20_000
