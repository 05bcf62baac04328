# SPDX-License-Identifier: Apache-2.0
"""How admission has templates made: once, before the answer, not in a dry run; and an API server that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import pytest

from gigaslice.core.cluster.demand import ClusterUnits
from gigaslice.kubeapi.client import ApiFailure
from gigaslice.roles.webhook import claim_admission
from gigaslice.roles.webhook.claim_admission import ClaimAdmission
from gigaslice.roles.webhook.namespace_rules import NamespaceRules
from gigaslice.roles.webhook.reviews import read_review, write_review
from tests.unit.gigaslice.roles.webhook.pods import asks, facts, h100, pod
from tests.unit.gigaslice.roles.webhook.test_claim_plan import slices

FACTS = facts()
QUOTA = {
    "metadata": {"name": "q", "namespace": "team"},
    "spec": {"hard": {"requests.gigaslice.io/vgpu-memory": "8"}},
}
OURS = {"spec": {"spec": {"devices": {"requests": [{"exactly": {"deviceClassName": "vgpu.gigaslice.io"}}]}}}}
THEIRS = {"spec": {"spec": {"devices": {"requests": [{"exactly": {"deviceClassName": "gpu.nvidia.com"}}]}}}}


class Server:
    """What of an API server is asked for. delay: seconds of each answer; failure: of each write."""

    def __init__(self, **objects: Any) -> None:
        self.objects: dict[str, Any] = {f"/{path}": one for path, one in objects.items()}
        self.asked: list[tuple[str, str]] = []
        self.delay = 0.0
        self.failure: ApiFailure | None = None

    async def get(self, path: str) -> Any:
        self.asked.append(("GET", path))
        await asyncio.sleep(self.delay)
        if path not in self.objects:
            raise ApiFailure("not found", 404)
        return self.objects[path]

    async def post(self, path: str, body: Any) -> Any:
        self.asked.append(("POST", path))
        await asyncio.sleep(self.delay)
        if self.failure is not None:
            raise self.failure
        where = f"{path}/{body['metadata']['name']}"
        if where in self.objects:
            raise ApiFailure("already exists", 409)
        self.objects[where] = body
        return body


class Known:
    """What is followed."""

    def __init__(self, rules: NamespaceRules | None) -> None:
        self.held = rules
        self.templates: set[tuple[str, str]] = set()
        self.named: set[tuple[str, str]] = set()

    def rules(self, namespace: str) -> NamespaceRules | None:
        return self.held

    def has_template(self, namespace: str, name: str) -> bool:
        return (namespace, name) in self.templates

    def unnamed_templates(self, namespace: str, made: Collection[tuple[str, str]]) -> int:
        return sum(key[0] == namespace for key in {*self.templates, *made} - self.named)


CLAIMS = NamespaceRules(claims=True)


class Site:
    def __init__(
        self, rules: NamespaceRules | None = CLAIMS, *, seconds: float = 0.5, **objects: Any
    ) -> None:
        self.now = 0.0
        self.server, self.known = Server(**objects), Known(rules)
        api: Any = self.server
        self.admission = ClaimAdmission(
            api, self.known, ClusterUnits(), "device-plugin", seconds=seconds, clock=lambda: self.now
        )

    async def answer(self, document: Any, path: str = "mutate", **request: Any) -> Any:
        request = {"uid": "u", "kind": {"kind": "Pod"}, "operation": "CREATE", "namespace": "team", **request}
        review = read_review({"request": {**request, "object": document}})
        found = await getattr(self.admission, path)(review, FACTS)
        return write_review("u", found)["response"]

    @property
    def posts(self) -> int:
        return sum(method == "POST" for method, _ in self.server.asked)


def test_a_template_is_made_before_the_answer_and_not_again():
    async def story() -> None:
        site = Site()
        for _ in range(3):
            assert "patch" in await site.answer(pod(slices(8)))
        assert site.posts == 1 and len(site.server.asked) == 1
        (template,) = site.server.objects.values()
        assert template["metadata"]["namespace"] == "team"
        site.now = 40.0  # the watch has shown it
        site.known.templates.add(("team", template["metadata"]["name"]))
        await site.answer(pod(slices(8)))
        assert site.posts == 1
        site.known.templates.clear()  # and has shown that it is gone
        site.server.objects.clear()
        await site.answer(pod(slices(8)))
        assert site.posts == 2
        site.admission.forget("team", template["metadata"]["name"])
        site.server.objects.clear()
        await site.answer(pod(slices(8)))
        assert site.posts == 3

    asyncio.run(story())


def test_a_dry_run_makes_nothing():
    async def story() -> None:
        site = Site()
        assert "patch" in await site.answer(pod(slices(8)), dryRun=True)
        assert site.server.asked == []

    asyncio.run(story())


def test_a_stranger_cannot_fill_a_namespace_with_templates(monkeypatch: pytest.MonkeyPatch):
    """Whoever reaches the webhook's port can ask about pods that nobody makes."""
    monkeypatch.setattr(claim_admission, "_MOST_UNNAMED", 3)

    async def story() -> None:
        site = Site()
        for size in (1, 2, 3):
            assert "patch" in await site.answer(pod(slices(size)))
        answer = await site.answer(pod(slices(4)))
        assert not answer["allowed"] and answer["status"]["code"] == 503
        assert (
            "Namespace team has 3 ResourceClaimTemplates of ours that no pod names"
            in answer["status"]["message"]
        )
        assert "try again" in answer["status"]["message"]
        assert "patch" in await site.answer(pod(slices(4)), dryRun=True), "which makes nothing"
        assert "patch" in await site.answer(pod(slices(2))), "whose template is there"
        assert "patch" in await site.answer(pod(slices(4)), namespace="other"), "which has its own number"
        assert site.posts == 4
        site.known.named = {(name.split("/")[5], name.split("/")[-1]) for name in site.server.objects}
        assert "patch" in await site.answer(pod(slices(4))), "the pods are there"
        assert site.posts == 5

    asyncio.run(story())


def test_many_that_come_together_are_counted_while_they_are_made(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(claim_admission, "_MOST_UNNAMED", 3)

    async def story() -> None:
        site = Site(seconds=60)
        site.server.delay = 0.01
        answers = await asyncio.gather(*(site.answer(pod(slices(size))) for size in range(1, 11)))
        assert sum("patch" in answer for answer in answers) == site.posts == 3

    asyncio.run(story())


def test_pods_that_come_together_wait_for_one_request():
    async def story() -> None:
        site = Site(seconds=60)
        site.server.delay = 0.05
        answers = await asyncio.gather(*(site.answer(pod(slices(8))) for _ in range(200)))
        assert all("patch" in answer for answer in answers) and site.posts == 1

    asyncio.run(story())


def test_an_api_server_that_fails_or_is_silent_is_a_refusal_that_says_so():
    async def story() -> None:
        site = Site()
        site.server.failure = ApiFailure("connection refused")
        answer = await site.answer(pod(slices(8)))
        assert not answer["allowed"] and answer["status"]["code"] == 503
        assert "connection refused; try again" in answer["status"]["message"]
        site.server.failure = None
        assert (await site.answer(pod(slices(8))))["allowed"]
        site.server.delay = 5.0
        answer = await site.answer(pod(slices(9)))
        assert (
            answer["status"]["code"] == 503
            and "did not answer the webhook within 0.5 s" in answer["status"]["message"]
        )

    asyncio.run(story())


def test_a_template_of_that_name_that_is_another_is_told():
    async def story() -> None:
        site = Site()
        await site.answer(pod(slices(8)))
        (path,) = site.server.objects
        again = Site()
        again.server.objects = dict(site.server.objects)
        assert (await again.answer(pod(slices(8))))["allowed"]
        third = Site()
        third.server.objects[path] = THEIRS
        assert (
            "is not what its name stands for; delete it"
            in (await third.answer(pod(slices(8))))["status"]["message"]
        )

    asyncio.run(story())


def test_other_pods_and_other_namespaces_are_answered_as_ever():
    async def story() -> None:
        site = Site()
        assert "patch" not in await site.answer(pod(asks(limits={"cpu": 1})))
        site.known.held = NamespaceRules(claims=False)
        answer = await site.answer(pod(h100()))
        assert "patch" in answer
        assert (await site.answer(pod(h100(0)), "validate"))["status"]["code"] == 422
        assert site.server.asked == []

    asyncio.run(story())


def test_what_the_namespace_forbids_is_said_for_both_questions():
    async def story() -> None:
        site = Site(NamespaceRules(True, ("write a quota",)))
        for path in ("mutate", "validate"):
            assert (await site.answer(pod(slices(8)), path))["status"]["message"] == "write a quota"

    asyncio.run(story())


def test_a_pod_that_kept_its_resources_is_refused_in_the_end():
    async def story() -> None:
        answer = await Site().answer(pod(slices(8)), "validate")
        assert "was not asked before" in answer["status"]["message"]

    asyncio.run(story())


@pytest.mark.parametrize("label, quotas, sentence", [
    ("dra", [], ""), ("dra", [QUOTA], "ResourceQuota q"), ("device-plugin", [QUOTA], ""), ("drb", [], "drb"),
])  # fmt: skip
def test_a_namespace_that_was_made_just_now_is_read(label, quotas, sentence):
    async def story() -> None:
        site = Site(None)
        site.server.objects["/api/v1/namespaces/team"] = {"metadata": {"labels": {"gigaslice.io/api": label}}}
        site.server.objects["/api/v1/namespaces/team/resourcequotas"] = {"items": quotas}
        answer = await site.answer(pod(slices(8)))
        assert sentence in answer.get("status", {}).get("message", "") and answer["allowed"] == (not sentence)
        assert site.posts == (label == "dra" and not quotas)

    asyncio.run(story())


@pytest.mark.parametrize("claim, there, sentence", [
    ({"resourceClaimTemplateName": "gigaslice-0123456789ab"}, None, "names claims of ours already"),
    ({"resourceClaimTemplateName": "own"}, OURS, "a claim of ours (mine)"),
    ({"resourceClaimTemplateName": "own"}, THEIRS, ""), ({"resourceClaimTemplateName": "own"}, None, ""),
    ({"resourceClaimName": "own"}, OURS, "a claim of ours (mine)"), ({"resourceClaimName": "own"}, THEIRS, ""),
])  # fmt: skip
def test_a_pod_that_also_has_a_claim_of_ours_is_refused(claim, there, sentence):
    async def story() -> None:
        site = Site()
        if there is not None:
            kind = "resourceclaims" if "resourceClaimName" in claim else "resourceclaimtemplates"
            site.server.objects[f"/apis/resource.k8s.io/v1/namespaces/team/{kind}/own"] = there
        answer = await site.answer(pod(slices(8), resourceClaims=[{"name": "mine", **claim}]))
        assert sentence in answer.get("status", {}).get("message", "") and answer["allowed"] == (not sentence)
        assert site.posts == (not sentence)

    asyncio.run(story())


# --- several claims in a container -----------------------------------------------------------------------------

_API = "/apis/resource.k8s.io/v1/namespaces/team"
_TEMPLATED = f"{_API}/resourceclaimtemplates"


def devices(**requests: Any) -> Any:
    """A claim's spec: the class of each request, or those of its alternatives."""
    return {
        "devices": {
            "requests": [
                {"name": name, "exactly": {"deviceClassName": given}}
                if isinstance(given, str)
                else {
                    "name": name,
                    "firstAvailable": [{"name": one, "deviceClassName": one} for one in given],
                }
                for name, given in requests.items()
            ]
        }
    }


VGPU, NIC = "vgpu.gigaslice.io", "nic.example.com"
A = {"name": "a", "resourceClaimName": "one"}
B = {"name": "b", "resourceClaimTemplateName": "two"}


def having(*uses: str) -> Any:
    """A container with such claims, or requests of them: "a", "a/gpu"."""
    named = [dict(zip(("name", "request"), use.split("/"), strict=False)) for use in uses]
    return {"resources": {"claims": named}}


@pytest.mark.parametrize("first, second, uses, refused", [
    (devices(gpu=VGPU), devices(gpu=VGPU), ("a", "b"), True),
    (devices(gpu=VGPU, nic=NIC), devices(gpu=VGPU), ("a/gpu", "b/gpu"), True),
    (devices(gpu=VGPU, nic=NIC), devices(gpu=VGPU), ("a/nic", "b/gpu"), False),
    (devices(gpu=VGPU), devices(nic=NIC), ("a", "b"), False),
    (devices(gpu=VGPU), devices(gpu=[VGPU, "half.gigaslice.io"]), ("a", "b"), True),
    (devices(gpu=VGPU), devices(gpu=[VGPU, "gpu.nvidia.com"]), ("a", "b"), False),
    (devices(gpu=VGPU), devices(gpu="notgigaslice.io"), ("a", "b"), False),
    (devices(gpu=VGPU), None, ("a", "b"), False), (None, devices(gpu=VGPU), ("a", "b"), False),
    (devices(gpu=VGPU), devices(gpu=VGPU), ("a",), False),
])  # fmt: skip
@pytest.mark.parametrize("claims", [True, False])
def test_a_container_with_two_claims_of_ours_is_refused_where_that_is_certain(
    first, second, uses, refused, claims
):
    async def story() -> None:
        site = Site(NamespaceRules(claims=claims))
        for path, spec in ((f"{_API}/resourceclaims/one", first), (f"{_TEMPLATED}/two", second)):
            if spec is not None:
                whole = {"spec": {"spec": spec}} if path.startswith(_TEMPLATED) else {"spec": spec}
                site.server.objects[path] = whole
        answer = await site.answer(pod(having(*uses), resourceClaims=[A, B]), "validate")
        assert answer["allowed"] is not refused
        if refused:
            assert answer["status"]["code"] == 422
            assert answer["status"]["message"] == (
                "container c0 has GPU memory of a and b, and a container can have that of one claim; put the requests "
                "into one claim, or give them to different containers"
            )

    asyncio.run(story())


def test_claims_of_different_containers_and_one_claim_under_two_names_are_taken():
    async def story() -> None:
        site = Site()
        site.server.objects[f"{_API}/resourceclaims/one"] = {"spec": devices(gpu=VGPU)}
        site.server.objects[f"{_TEMPLATED}/two"] = {"spec": {"spec": devices(gpu=VGPU)}}
        apart = pod(having("a"), having("b"), resourceClaims=[A, B])
        assert (await site.answer(apart, "validate"))["allowed"] and site.server.asked == []
        same = pod(having("a", "b"), resourceClaims=[A, {**A, "name": "b"}])
        assert (await site.answer(same, "validate"))["allowed"]

    asyncio.run(story())


@pytest.mark.parametrize("way", ["fails", "is silent"])
def test_an_api_server_that_does_not_say_whose_claims_these_are_refuses_no_pod(way):
    async def story() -> None:
        site = Site(seconds=0.05)
        if way == "is silent":
            site.server.delay = 5.0

        async def get(path: str) -> Any:
            raise ApiFailure("forbidden", 403)

        if way == "fails":
            site.server.get = get  # type: ignore[method-assign]
        assert (await site.answer(pod(having("a", "b"), resourceClaims=[A, B]), "validate"))["allowed"]

    asyncio.run(story())
