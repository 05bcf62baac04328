# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from gigaslice.core.dataset.errors import RequestError
from gigaslice.core.dataset.source_spec import SourceSpec, dataset_key

DIGEST = bytes(range(32))


@pytest.mark.parametrize(
    ("text", "canonical", "server", "path"),
    [
        ("s3://bucket/prefix", "s3://bucket/prefix", "bucket", "prefix"),
        ("s3a://bucket/prefix/", "s3://bucket/prefix", "bucket", "prefix"),
        ("S3://Bucket", "s3://Bucket", "Bucket", ""),
        ("s3://bucket//odd//key", "s3://bucket//odd//key", "bucket", "/odd//key"),
        ("gs://b/p", "gs://b/p", "b", "p"),
        ("az://container/p", "az://container/p", "container", "p"),
        ("http://Host:80/a//b/./c/", "http://host/a/b/c", "host", "/a/b/c"),
        ("https://host:8443", "https://host:8443", "host:8443", "/"),
        ("nfs://Server/export/path/", "nfs://server/export/path", "server", "/export/path"),
        ("lustre://10.0.0.1@tcp/fs/coco", "lustre://10.0.0.1@tcp/fs/coco", "10.0.0.1@tcp", "/fs/coco"),
        ("beegfs://mgmt/coco", "beegfs://mgmt/coco", "mgmt", "/coco"),
        ("cephfs://mon1,mon2/coco", "cephfs://mon1,mon2/coco", "mon1,mon2", "/coco"),
        ("file:///data//coco/", "file:///data/coco", "", "/data/coco"),
        ("/data/./coco", "file:///data/coco", "", "/data/coco"),
        ("/", "file:///", "", "/"),
        ("rclone:remote:path/a", "rclone:remote:path/a", "remote", "path/a"),
        ("rclone:remote:/path//a/", "rclone:remote:/path/a", "remote", "/path/a"),
        ("rclone:remote:", "rclone:remote:", "remote", ""),
        ("hdfs://namenode:8020/coco", "hdfs://namenode:8020/coco", "namenode:8020", "/coco"),
    ],
)
def test_sources(text: str, canonical: str, server: str, path: str) -> None:
    spec = SourceSpec.parse(text)
    assert (spec.canonical, spec.server, spec.path) == (canonical, server, path)
    assert SourceSpec.parse(canonical) == spec


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no known kind"),
        ("data/coco", "no known kind"),
        ("nsf://server/x", "did you mean nfs://"),
        ("nfs://", "names no server"),
        ("s3:///prefix", "names no bucket"),
        ("file://data/coco", "absolute path"),
        ("/data/../etc", '".."'),
        ("s3://bucket/../other", '".."'),
        ("nfs://server/../etc", '".."'),
        ("https://host/public/..%2fprivate", '".."'),
        ("https://host/public/%2e%2e/private", '".."'),
        ("https://host/public/.%2E/private", '".."'),
        ("https://host/public/%252e%252e%252fprivate", '".."'),
        ("https://host/public/..%5cprivate", '".."'),
        ("https://host/public/..;a/private", '".."'),
        ("webdavs://host/public/%2e%2e/private", '".."'),
        ("https://user:hunter2@host/x", "Secret"),
        ("https://host/x?X-Amz-Signature=hunter2", "Secret"),
        ("rclone:remote,pass=hunter2:path", "Secret"),
        ("rclone::sftp,pass=hunter2:path", "Secret"),
        ("rclone:-v:path", "Secret"),
        ("s3://bucket/a\nb", "do not print"),
        ("s3://bucket/\x1b[31m", "do not print"),
    ],
)
def test_sources_that_are_refused(text: str, says: str) -> None:
    with pytest.raises(RequestError) as caught:
        SourceSpec.parse(text)
    assert says in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("https://slow/" + "a" * 70_000, {}),
        ("/" + "a" * 2048, {}),
        ("s3://bucket/p", {"endpoint": "http://" + "a" * 2048}),
    ],
)
def test_what_is_too_long_is_refused_and_not_shown_in_full(text: str, options: dict[str, str]) -> None:
    with pytest.raises(RequestError, match=r"characters, and may have 2048") as caught:
        SourceSpec.parse(text, options)
    assert len(str(caught.value)) < 400
    assert SourceSpec.parse("/" + "a" * 2047).path == "/" + "a" * 2047


def test_options_that_are_part_of_a_source() -> None:
    plain = SourceSpec.parse("s3://bucket/p")
    there = SourceSpec.parse("s3://bucket/p", {"endpoint": "http://minio:9000/", "region": "us-east-1"})
    assert there.canonical == "s3://bucket/p?endpoint=http://minio:9000"
    assert there.option("region") == "us-east-1"
    assert dataset_key(plain, DIGEST) != dataset_key(there, DIGEST)


@pytest.mark.parametrize("kind", ["http", "https"])
def test_two_indexes_below_one_address_are_two_sources(kind: str) -> None:
    train, val = (
        SourceSpec.parse(f"{kind}://host/data", {"manifest": f"{name}.json"}) for name in ("train", "val")
    )
    assert train.canonical == f"{kind}://host/data?manifest=train.json"
    assert dataset_key(train, DIGEST) != dataset_key(val, DIGEST)


def test_options_that_say_only_how_it_is_read() -> None:
    plain = SourceSpec.parse("nfs://server/x")
    fast = SourceSpec.parse("nfs://server/x", {"proto": "rdma", "nconnect": "8", "port": "2049"})
    assert fast.options != plain.options
    assert SourceSpec.parse("nfs://server/x", {"nconnect": "8"}).canonical == plain.canonical
    assert "port" in fast.canonical


@pytest.mark.parametrize(
    ("text", "options", "says"),
    [
        ("s3://b/p", {"endpint": "x"}, "did you mean endpoint?"),
        ("s3://b/p", {"allow_http": "true"}, "no option"),
        ("gs://b/p", {"allow_http": "true"}, "no option"),
        ("az://b/p", {"allow_http": "true"}, "no option"),
        ("/p", {"fetchers": "abc"}, "a number from 1 to 256"),
        ("/p", {"fetchers": "0"}, "a number from 1 to 256"),
        ("http://h/p", {"manifest": "../private/index.json"}, "not below"),
        ("http://h/p", {"manifest": "%2e%2e/private/index.json"}, "not below"),
        ("http://h/p", {"manifest": "/index.json"}, "not below"),
        ("nfs://s/p", {"endpoint": "x"}, "no option"),
        ("s3://b/p", {"secret_access_key": "hunter2"}, "Secret"),
        ("s3://b/p", {"password": "hunter2"}, "Secret"),
        ("s3://b/p", {"endpoint": "http://u:hunter2@h"}, "Secret"),
        ("s3://b/p", {"endpoint": "http://10.77.0.2:9000/a b"}, "write it as https://host:port"),
        ("s3://b/p", {"endpoint": "http://u\\h"}, "write it as https://host:port"),
        ("s3://b/p", {"endpoint": "minio:9000"}, "write it as https://host:port"),
        ("s3://a b/p", {}, "bucket"),
        ("gs://a`b/p", {}, "bucket"),
        ("az://a%2fb/p", {}, "bucket"),
        ("hdfs://a:8020,b c:8020/p", {}, "write it as hdfs://host"),
        ("nfs://s/p", {"vers": "4\n"}, "cannot have"),
        ("nfs://s/p", {"vers": "4,exec"}, "cannot have"),
    ],
)
def test_options_that_are_refused(text: str, options: dict[str, str], says: str) -> None:
    with pytest.raises(RequestError) as caught:
        SourceSpec.parse(text, options)
    assert says in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("environment", "text", "options"),
    [
        ({"DATASET_SOURCE": "nfs://server/x"}, "nfs://server/x", {}),
        (
            {
                "DATASET_TYPE": "NFS",
                "DATASET_SERVER": "server",
                "DATASET_PATH": "/x",
                "DATASET_OPTIONS": "proto=rdma,nolock",
            },
            "nfs://server/x",
            {"proto": "rdma", "nolock": "true"},
        ),
        ({"DATASET_TYPE": "s3", "DATASET_SERVER": "bucket", "DATASET_PATH": "p"}, "s3://bucket/p", {}),
        ({"DATASET_TYPE": "local", "DATASET_PATH": "/data"}, "/data", {}),
        ({"DATASET_TYPE": "rclone", "DATASET_SERVER": "remote:", "DATASET_PATH": "p"}, "rclone:remote:p", {}),
        ({"DATASET_TYPE": "hdfs", "DATASET_SERVER": "nn:8020", "DATASET_PATH": "/p"}, "hdfs://nn:8020/p", {}),
        (
            {"DATASET_TYPE": "lustre", "DATASET_SERVER": "10.0.0.1@o2ib", "DATASET_PATH": "/fs/p"},
            "lustre://10.0.0.1@o2ib/fs/p",
            {},
        ),
    ],
)
def test_the_environment_form(environment: dict[str, str], text: str, options: dict[str, str]) -> None:
    assert SourceSpec.from_environment(environment) == SourceSpec.parse(text, options)


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({}, "set DATASET_SOURCE"),
        ({"DATASET_TYPE": "nfs"}, "set DATASET_SOURCE"),
        ({"DATASET_SOURCE": "/x", "DATASET_TYPE": "nfs"}, "the one or the others"),
        ({"DATASET_TYPE": "nsf", "DATASET_SERVER": "s", "DATASET_PATH": "/p"}, "did you mean nfs"),
    ],
)
def test_an_environment_that_is_refused(environment: dict[str, str], says: str) -> None:
    with pytest.raises(RequestError, match=says):
        SourceSpec.from_environment(environment)


def test_a_key_is_of_source_and_listing() -> None:
    one, other = SourceSpec.parse("/a"), SourceSpec.parse("/b")
    keys = {dataset_key(spec, digest) for spec in (one, other) for digest in (DIGEST, bytes(32))}
    assert len(keys) == 4
    assert all(len(key) == 64 and int(key, 16) >= 0 for key in keys)
    with pytest.raises(ValueError, match="32 bytes"):
        dataset_key(one, b"short")
