# SPDX-License-Identifier: Apache-2.0
"""What the tests of packs in object stores share: the ends of a pack, what is in a bucket, and two fixtures."""

from __future__ import annotations

import pytest

from gigaslice.core.dataset.source_spec import SourceSpec
from gigaslice.roles.dataset_node.packing import RemoteLocation, object_store_target
from gigaslice.roles.dataset_node.sources.credentials import Credentials
from tests.fakes.storage_servers import KEY, SECRET

__all__ = ["SECRETS", "at", "client", "objects", "scratch", "small_parts", "uploads"]

SECRETS = {"access_key": KEY, "secret_key": SECRET}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """The least parts that S3 takes, so that small images have several."""
    monkeypatch.setattr(object_store_target, "_LEAST_PART", 5 << 20)


@pytest.fixture
def scratch(tmp_path):
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


def at(endpoint, text, **secrets):
    return RemoteLocation(
        SourceSpec.parse(text, {"endpoint": endpoint}), Credentials({**SECRETS, **secrets}, "DIR")
    )


def client(endpoint):
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
        region_name="us-east-1",
    )


def objects(endpoint, where):
    bucket, _, prefix = where.removeprefix("s3://").partition("/")
    found = client(endpoint).list_objects_v2(Bucket=bucket, Prefix=f"{prefix}/").get("Contents", [])
    return {one["Key"].removeprefix(f"{prefix}/"): (one["Size"], one["LastModified"]) for one in found}


def uploads(endpoint):
    return client(endpoint).list_multipart_uploads(Bucket="packs").get("Uploads", [])
