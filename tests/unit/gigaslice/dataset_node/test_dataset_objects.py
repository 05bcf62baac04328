"""What the names of Dataset objects stand for."""

import asyncio
import json

import pytest

from gigaslice.dataset.errors import RequestError, SourceError
from gigaslice.dataset.request import Check
from gigaslice.dataset.source_spec import SourceSpec, dataset_key
from gigaslice.dataset_node.dataset_objects import ClusterDatasets
from gigaslice.dataset_node.tasks.threads import Threads
from gigaslice.kubeapi.client import ApiFailure, KubeAnswer
from tests.unit.gigaslice.dataset_node.store.conftest import KEYS, World


class Client:
    def __init__(self):
        self.objects, self.asked, self.failure = {}, [], None

    async def request(self, method, path, *, seconds=None):
        self.asked.append(path)
        if self.failure is not None:
            raise self.failure
        found = self.objects.get(path.removeprefix("/apis/gigaslice.io/v1alpha1/namespaces/"))
        if found is None:
            raise ApiFailure("not found", 404)
        return KubeAnswer(200, json.dumps(found).encode())


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    made.client, threads = Client(), Threads()
    made.datasets = ClusterDatasets(made.client, made.store, threads)
    yield made
    threads.close()
    made.store.close()


def put(world, namespace, name, **spec):
    world.client.objects[f"{namespace}/datasets/{name}"] = {
        "metadata": {"namespace": namespace, "name": name, "uid": "u"},
        "spec": {"source": "s3://bucket/1", **spec},
    }


def resolve(world, name, namespace="team"):
    return asyncio.run(world.datasets.resolve(name, namespace))


def test_a_name_is_of_the_pods_own_namespace(world):
    put(world, "team", "coco", options={"endpoint": "http://minio"})
    found = resolve(world, "coco")
    assert found.spec.canonical == "s3://bucket/1?endpoint=http://minio"
    assert (found.check, found.key, found.credentials) == (Check.LISTING, "", None)


def test_what_may_not_be_named_is_answered_as_what_is_not_there(world):
    put(world, "other", "coco")
    texts = []
    for name in ("other/coco", "other/none"):
        with pytest.raises(RequestError) as caught:
            resolve(world, name)
        texts.append(str(caught.value).replace(name, "NAME"))
    assert texts[0] == texts[1]
    put(world, "other", "coco", allowedNamespaces=["team"])
    assert resolve(world, "other/coco").spec.canonical == "s3://bucket/1"
    with pytest.raises(RequestError, match=r"there is no Dataset team/coco .* or write source:"):
        resolve(world, "coco")


def test_a_pinned_version_is_known_without_a_listing(world):
    put(world, "team", "coco", check="pinned", digest="ab" * 32)
    found = resolve(world, "coco")
    assert found.check is Check.PINNED
    assert found.key == dataset_key(SourceSpec.parse("s3://bucket/1"), bytes.fromhex("ab" * 32))


def test_any_version_is_the_newest_that_the_node_has(world):
    put(world, "team", "coco", check="never")
    assert resolve(world, "coco").key == ""
    world.fetch(1)
    assert resolve(world, "coco").key == KEYS[1]


def test_a_server_that_does_not_answer_is_asked_again_later(world):
    world.client.failure = ApiFailure("no answer in time", 0)
    with pytest.raises(SourceError, match="Dataset team/coco not read") as caught:
        resolve(world, "coco")
    assert caught.value.retry


def test_an_invalid_object_says_what_to_write(world):
    put(world, "team", "coco", source="bucket/1")
    with pytest.raises(RequestError, match="Dataset team/coco: source"):
        resolve(world, "coco")


@pytest.mark.parametrize("name", ["../pods", "a/../b", "a/b/c", ""])
def test_a_name_never_leads_to_another_path(world, name):
    with pytest.raises((RequestError, SourceError)):
        resolve(world, name)
    assert all({"..", "pods"}.isdisjoint(path.split("/")) for path in world.client.asked)
