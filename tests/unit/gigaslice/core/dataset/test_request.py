# SPDX-License-Identifier: Apache-2.0
"""What users write under volumeAttributes, and what they are told."""

import re

import pytest

from gigaslice.core.dataset.errors import RequestError
from gigaslice.core.dataset.request import ATTRIBUTES, Check, Mode, parse_attributes


def test_one_source():
    request = parse_attributes(
        {"source": "s3://bucket/coco/", "options": "endpoint=http://minio:9000,region=eu"}
    )
    (one,) = request.datasets
    assert (one.directory, one.spec.canonical) == ("", "s3://bucket/coco?endpoint=http://minio:9000")
    assert dict(one.spec.options)["region"] == "eu"
    assert (request.mode, request.check, request.directories) == (Mode.CACHE, None, ())


def test_the_kubelets_own_entries_are_left_out():
    attributes = {
        "dataset": "coco",
        "csi.storage.k8s.io/pod.name": "p",
        "csi.storage.k8s.io/ephemeral": "true",
    }
    (one,) = parse_attributes(attributes).datasets
    assert (one.name, one.dataset, one.directory, one.spec) == ("coco", "coco", "", None)


def test_several_datasets_become_directories():
    request = parse_attributes(
        {
            "dataset": "coco, imagenet",
            "source.extra": "s3://b/x",
            "options.extra": "region=eu",
            "check": "listing",
        }
    )
    assert request.directories == ("coco", "imagenet", "extra")
    assert [one.dataset for one in request.datasets] == ["coco", "imagenet", ""]
    assert request.datasets[2].spec.option("region") == "eu"
    assert request.check is Check.LISTING


def test_one_named_source_has_a_directory_too():
    assert parse_attributes({"source.coco": "s3://b/x"}).directories == ("coco",)


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({}, "the volume names no data; write dataset: NAME or source: s3://bucket/prefix"),
        ({"sorce": "s3://b"}, 'volumeAttributes has no "sorce"; did you mean source?'),
        ({"Mode": "local", "source": "/d"}, 'volumeAttributes has no "Mode"; did you mean mode?'),
        ({"secretKey": "x"}, "credentials go into a Secret that nodePublishSecretRef names"),
        ({"whatever": "x"}, "there are dataset, source"),
        ({"source.": "s3://b"}, "did you mean source?"),
        ({"source": "s3://b", "mode": "locl"}, 'mode is "locl"; did you mean local?'),
        ({"source": "s3://b", "mode": "?"}, "write one of cache, local"),
        ({"source": "s3://b", "check": "never"}, "check: never is for Dataset objects"),
        ({"source": "s3://b", "check": "pinned"}, "check: pinned is for Dataset objects"),
        ({"source": "s3://b", "mode": "local"}, "which a s3 source has none for; write mode: cache"),
        ({"source": "s3://b", "dataset": "coco"}, "source stands beside other datasets"),
        ({"source": "s3://b", "source.x": "s3://c"}, "source stands beside other datasets"),
        ({"dataset": "coco,coco"}, "dataset coco is there twice"),
        ({"dataset": "coco", "source.coco": "s3://b"}, "dataset coco is there twice"),
        ({"dataset": "../etc"}, '"../etc" is no name of a dataset'),
        ({"dataset": "a" * 80}, "is no name of a dataset"),
        ({"dataset": ",".join(f"d{n}" for n in range(40))}, "40 datasets in one volume; at most 32"),
        ({"dataset": "coco", "options": "a=b"}, "options stands beside no source"),
        ({"dataset": "coco", "options.x": "a=b"}, "options.x belongs to no source; write source.x: too"),
        ({"source": "s3://b", "options": "region=a,region=b"}, "options has region twice"),
        ({"source": "s3//b"}, 's3//b" is of no known kind'),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_to_write(attributes, said):
    with pytest.raises(RequestError) as caught:
        parse_attributes(attributes)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_credential_is_repeated():
    said = []
    for attributes in ({"access_key": "hunter2"}, {"source": "s3://b", "options": "secret_key=hunter2"}):
        with pytest.raises(RequestError) as caught:
            parse_attributes(attributes)
        said.append(str(caught.value))
    assert not any("hunter2" in one for one in said)
    assert all(re.search("Secret", one) for one in said)


def test_every_attribute_has_its_meaning():
    assert {key.partition(".")[0] for key in ATTRIBUTES} == {"dataset", "source", "options", "mode", "check"}


def test_a_dataset_of_another_namespace_has_the_last_part_as_its_directory():
    both = parse_attributes({"dataset": "shared/coco, wiki"})
    assert [(one.dataset, one.directory) for one in both.datasets] == [
        ("shared/coco", "coco"),
        ("wiki", "wiki"),
    ]
    alone = parse_attributes({"dataset": "shared/coco"})
    assert [(one.dataset, one.directory) for one in alone.datasets] == [("shared/coco", "")]
    with pytest.raises(RequestError, match="coco is there twice"):
        parse_attributes({"dataset": "shared/coco, coco"})
    for name in ("a/b/c", "/coco", "A/coco", "shared/"):
        with pytest.raises(RequestError, match="is no name"):
            parse_attributes({"dataset": name})
