# SPDX-License-Identifier: Apache-2.0
"""What the names of Dataset objects stand for."""

import asyncio

import pytest

from gigaslice.core.dataset.errors import RequestError, SourceError
from gigaslice.core.dataset.request import Check
from gigaslice.kubeapi.client import ApiFailure
from gigaslice.roles.dataset_node.dataset_objects import ClusterDatasets
from tests.fakes.dataset_objects import DatasetApi

TRUSTED = ("admin", "shared")


@pytest.fixture
def api():
    return DatasetApi()


def resolve(api, name, namespace="team"):
    return asyncio.run(ClusterDatasets(api, TRUSTED).resolve(name, namespace))


def test_a_name_is_of_the_pods_own_namespace(api):
    api.put("team", "coco", options={"endpoint": "http://minio"})
    found = resolve(api, "coco")
    assert found.spec.canonical == "s3://bucket/1?endpoint=http://minio"
    assert (found.check, found.digest, found.trusted) == (Check.LISTING, "", False)


def test_what_may_not_be_named_is_answered_as_what_is_not_there(api):
    api.put("other", "coco")
    texts = []
    for name in ("other/coco", "other/none"):
        with pytest.raises(RequestError) as caught:
            resolve(api, name)
        texts.append(str(caught.value).replace(name, "NAME"))
    assert texts[0] == texts[1]
    api.put("other", "coco", allowedNamespaces=["team"])
    assert resolve(api, "other/coco").spec.canonical == "s3://bucket/1"
    with pytest.raises(RequestError, match=r"there is no Dataset team/coco .* or write source:"):
        resolve(api, "coco")


def test_a_pinned_version_is_the_digest_of_its_listing(api):
    api.put("team", "coco", check="pinned", digest="AB" * 32)
    found = resolve(api, "coco")
    assert (found.check, found.digest) == (Check.PINNED, "ab" * 32)


@pytest.mark.parametrize(("home", "trusted"), [("team", False), ("admin", True), ("shared", True)])
def test_trusted_is_who_writes_the_object_and_not_who_names_it(api, home, trusted):
    api.put(home, "coco", check="never", allowedNamespaces=["*"])
    assert resolve(api, f"{home}/coco").trusted is trusted
    assert resolve(api, f"{home}/coco", namespace="admin").trusted is trusted


def test_a_server_that_does_not_answer_is_asked_again_later(api):
    api.failure = ApiFailure("no answer in time", 0)
    with pytest.raises(SourceError, match="Dataset team/coco not read") as caught:
        resolve(api, "coco")
    assert caught.value.retry


def test_an_invalid_object_says_what_to_write(api):
    api.put("team", "coco", source="bucket/1")
    with pytest.raises(RequestError, match="Dataset team/coco: source"):
        resolve(api, "coco")


def test_the_mistakes_of_another_namespaces_object_are_not_told(api):
    api.put("other", "coco", source="secret-bucket/1")
    with pytest.raises(RequestError) as caught:
        resolve(api, "other/coco")
    assert "there is no Dataset other/coco" in str(caught.value) and "secret" not in str(caught.value)
    api.put("other", "coco", source="secret-bucket/1", allowedNamespaces=["team"])
    with pytest.raises(RequestError, match="Dataset other/coco: source"):
        resolve(api, "other/coco")


@pytest.mark.parametrize("name", ["../pods", "a/../b", "a/b/c", ""])
def test_a_name_never_leads_to_another_path(api, name):
    with pytest.raises((RequestError, SourceError)):
        resolve(api, name)
    assert all({"..", "pods"}.isdisjoint(path.split("/")) for path in api.asked)
