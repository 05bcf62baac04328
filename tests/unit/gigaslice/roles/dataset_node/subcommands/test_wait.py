# SPDX-License-Identifier: Apache-2.0
"""What `gigaslice dataset wait` asks the service for."""

from __future__ import annotations

import pytest

from gigaslice.core.dataset.request import parse_attributes
from gigaslice.core.dataset.source_spec import SourceSpec
from gigaslice.roles.dataset_node.subcommands import service_requests

POD = {"POD_UID": "u", "POD_NAMESPACE": "team", "POD_NAME": "p"}


@pytest.mark.parametrize(
    ("source", "options"),
    [
        ("/data/a?b", ""),
        ("/data/a#b", "fetchers=4"),
        ("rclone:remote:a?b", ""),
        ("s3://bucket/p", "endpoint=http://minio:9000,region=eu"),
        ("https://host/data", "manifest=train.json"),
    ],
)
def test_it_asks_for_the_source_that_the_environment_names(tmp_path, monkeypatch, source, options):
    asked = []

    def conversation(_path, _server, request):
        asked.append(request["wait"])
        yield {"ready": True, "path": "/there"}

    monkeypatch.setattr(service_requests, "conversation", conversation)
    environment = {**POD, "DATASET_SOURCE": source, "DATASET_OPTIONS": options}
    assert service_requests.wait(tmp_path, "v", environment) == "/there"
    (found,) = parse_attributes(asked[0]["attributes"]).datasets
    assert found.spec == SourceSpec.from_environment(environment)
