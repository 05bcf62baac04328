# SPDX-License-Identifier: Apache-2.0
"""The service's metrics: names by the conventions, every one that is listed, and values of the present."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from gigaslice.core.cluster.refusal import RefusalReason
from gigaslice.roles.scheduler.metrics import METRICS, SchedulerMetrics
from gigaslice.runtime.metrics import Values


def reading(*, ready: bool = True) -> Values:
    values = Values(METRICS)
    values.add("gigaslice_scheduler_reservations", 1, "binding")
    values.add("gigaslice_scheduler_objects", 2, "pods")
    values.add_all("gigaslice_scheduler_bindings_total", {"bound": 3})
    values.add("gigaslice_scheduler_waiting_pods", 4)
    values.add("gigaslice_scheduler_wakeups_total", 5)
    values.add("gigaslice_scheduler_ready", int(ready))
    return values


def samples(metrics: SchedulerMetrics) -> dict[str, float]:
    text = metrics.prepare()().decode()
    return {
        one.name + "".join(f"/{value}" for value in one.labels.values()): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def test_every_metric_that_is_listed_is_shown_and_no_other():
    metrics = SchedulerMetrics(reading)
    metrics.refused([RefusalReason.NO_ROOM])
    text = metrics.prepare()().decode()
    shown = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE gigaslice_")}
    assert {name for name in shown if not name.endswith("_created")} == {row.name for row in METRICS}
    assert "process_resident_memory_bytes" in text


def test_values_are_those_of_the_scrape():
    now = reading()
    metrics = SchedulerMetrics(lambda: now)
    found = samples(metrics)
    assert found["gigaslice_scheduler_reservations/binding"] == 1
    assert found["gigaslice_scheduler_objects/pods"] == 2
    assert found["gigaslice_scheduler_bindings_total/bound"] == 3
    assert (found["gigaslice_scheduler_waiting_pods"], found["gigaslice_scheduler_wakeups_total"]) == (4, 5)
    assert found["gigaslice_scheduler_ready"] == 1
    render = metrics.prepare()
    now = reading(ready=False)
    assert "gigaslice_scheduler_ready 1.0" in render().decode(), "read before, rendered later"
    assert samples(metrics)["gigaslice_scheduler_ready"] == 0


def test_durations_and_refusals_are_counted():
    metrics = SchedulerMetrics(reading)
    for seconds in (0.0004, 0.003, 20.0):
        metrics.took("filter", seconds)
    metrics.refused({RefusalReason.NO_ROOM, RefusalReason.UNHEALTHY})
    metrics.refused([RefusalReason.NO_ROOM])
    found = samples(metrics)
    assert found["gigaslice_scheduler_filter_seconds_count"] == 3
    assert found["gigaslice_scheduler_filter_seconds_bucket/0.005"] == 2
    assert found["gigaslice_scheduler_filter_seconds_bucket/+Inf"] == 3
    assert found["gigaslice_scheduler_rejections_total/no-room"] == 2
    assert found["gigaslice_scheduler_rejections_total/unhealthy"] == 1


def test_each_verb_has_durations_of_its_own():
    metrics = SchedulerMetrics(reading)
    for verb, times in (("filter", 1), ("prioritize", 2), ("preempt", 3), ("bind", 4)):
        for _ in range(times):
            metrics.took(verb, 0.003)
    found = samples(metrics)
    assert found["gigaslice_scheduler_filter_seconds_count"] == 1
    assert found["gigaslice_scheduler_prioritize_seconds_count"] == 2
    assert found["gigaslice_scheduler_preempt_seconds_count"] == 3
    assert found["gigaslice_scheduler_bind_seconds_count"] == 4
