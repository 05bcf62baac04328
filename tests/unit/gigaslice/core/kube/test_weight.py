# SPDX-License-Identifier: Apache-2.0
import tracemalloc

from gigaslice.core.kube.decode import parse_pod
from gigaslice.core.kube.weight import WeighedDict, bytes_of
from tests.fakes.kubeapi import pod_document


def test_a_value_weighs_about_what_it_takes():
    annotations = {f"gigaslice.io/k{number}": f"{number}" * 50 for number in range(500)}
    tracemalloc.start()
    try:
        pod = parse_pod(pod_document("p", {"gigaslice.io/vgpu-memory": 1}, annotations=dict(annotations)))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(map(len, annotations.values())) < bytes_of(pod)
    assert taken * 0.3 < bytes_of(pod) < 4 * taken + 200_000


def test_a_dictionary_knows_what_its_values_weigh():
    table = WeighedDict[str, str](len)
    table["a"], table["b"] = "x", "xx"
    assert table.weight == 3 and table.weight_with("a", "xxx") == 5 and table.weight_with("c", "x") == 4
    table["a"] = "xxxx"
    assert table.weight == 6
    del table["a"]
    assert table.weight == 2 and table == {"b": "xx"}
