# SPDX-License-Identifier: Apache-2.0
"""Which templates are made again and which are deleted, by a clock of the test's own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gigaslice.core.claims.templates import CLAIMS, ClaimTemplate, ContainerClaim, encode_templates
from gigaslice.core.model import Pod, PodClaim
from gigaslice.kubeapi.client import ApiFailure
from gigaslice.roles.controller.claim_templates import ClaimTemplates, _parse
from gigaslice.roles.controller.work_queue import RateLimit

GIB = 1 << 30
EIGHT, NINE = (ClaimTemplate((ContainerClaim((size * GIB,)),)) for size in (8, 9))
KEY = ("team", EIGHT.name)


class Server:
    def __init__(self) -> None:
        self.posted: list[dict[str, Any]] = []
        self.deleted: list[tuple[str, Any]] = []
        self.failure: ApiFailure | None = None

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if self.failure is not None:
            raise self.failure
        self.posted.append(body)
        return body

    async def delete(self, path: str, body: Any) -> dict[str, Any]:
        if self.failure is not None:
            raise self.failure
        self.deleted.append((path, body))
        return {}


class Site:
    """A replica that has seen everything and leads."""

    def __init__(self) -> None:
        self.now, self.leads = 0.0, True
        self.server = Server()
        self.told: list[tuple[str, str]] = []
        api: Any = self.server
        self.keeper = ClaimTemplates(
            api,
            lambda: self.leads,
            RateLimit(1000.0, 1000, clock=lambda: self.now),
            tell=lambda pod, sentence: self.told.append((pod.name, sentence)),
            clock=lambda: self.now,
        )

    def shown(self, template: ClaimTemplate = EIGHT, **changes: Any) -> Any:
        document = template.document("team")
        document["metadata"] |= {"uid": "u-1", "resourceVersion": "7", **changes.pop("metadata", {})}
        found = _parse({**document, **changes})
        self.keeper._seen(found)
        return found

    def named(self, uid: str = "p", *, gone: bool = False, made: str = "", text: str | None = None) -> None:
        annotations = {CLAIMS: encode_templates([EIGHT]) if text is None else text}
        claims = (PodClaim("gigaslice-0", made, EIGHT.name),)
        self.keeper.pod_changed(Pod("team", uid, uid, annotations, claims=claims), gone)

    async def passed(self, seconds: float) -> None:
        """What is due within so many seconds is done."""
        end = self.now + seconds
        queue = self.keeper.queue
        while queue._due and min(queue._due.values()) <= end:
            self.now = max(self.now, min(queue._due.values()))
            key = await queue._next()
            await self.keeper._pass(key)
        self.now = end


def story(site: Site, *steps: Any) -> None:
    async def run() -> None:
        for step in steps:
            if isinstance(step, (int, float)):
                await site.passed(step)
            else:
                step()

    asyncio.run(run())


def test_a_missing_template_is_made_again_when_a_pod_names_it():
    site = Site()
    story(site, site.named, 0.5)
    assert site.server.posted == []
    story(site, 1)
    assert site.server.posted == [EIGHT.document("team")]


def test_templates_without_pods_are_counted_by_namespace():
    site = Site()
    site.shown(EIGHT)
    site.shown(NINE)
    assert site.keeper.unnamed("team", ()) == 2
    assert site.keeper.unnamed("other", ()) == 0
    site.named()
    assert site.keeper.unnamed("team", ()) == 1
    site.named(gone=True)
    assert site.keeper.unnamed("team", ()) == 2
    made = {("team", "gigaslice-00"), ("team", EIGHT.name), ("other", "gigaslice-00")}
    assert site.keeper.unnamed("team", made) == 3, "what is seen already counts once"


def test_what_is_never_deleted_does_not_count():
    """Else who may write templates could keep a namespace's pods from being made."""
    site = Site()
    site.shown(EIGHT, spec={"spec": {"devices": {"requests": []}}})
    assert site.keeper.unnamed("team", ()) == 0


def test_one_that_comes_meanwhile_or_whose_claim_is_made_is_not():
    site = Site()
    story(site, site.named, 0.5, site.shown, 700)
    assert (site.server.posted, site.server.deleted) == ([], [])
    site = Site()
    story(site, lambda: site.named(made="p-gigaslice-0-x"), 700)
    assert site.server.posted == []


def test_one_that_nobody_names_for_ten_minutes_is_deleted_by_the_version_that_was_seen():
    site = Site()
    story(site, site.shown, 599)
    assert site.server.deleted == []
    story(site, 2)
    path = f"/apis/resource.k8s.io/v1/namespaces/team/resourceclaimtemplates/{EIGHT.name}"
    assert site.server.deleted == [(path, {"preconditions": {"uid": "u-1", "resourceVersion": "7"}})]


def test_the_time_counts_from_the_last_pod_that_named_it():
    site = Site()
    story(
        site, site.shown, 500, site.named, lambda: site.named("q"), 5000, lambda: site.named(gone=True), 5000
    )
    assert site.server.deleted == []
    story(site, lambda: site.named("q", gone=True), 599)
    assert site.server.deleted == []
    story(site, 2)
    assert len(site.server.deleted) == 1


def test_the_webhook_that_relies_on_it_counts_as_a_use():
    site = Site()
    story(site, site.shown, 500)
    assert site.keeper.has("team", EIGHT.name) and not site.keeper.has("other", EIGHT.name)
    story(site, 500)
    assert site.server.deleted == []
    story(site, 200)
    assert len(site.server.deleted) == 1


@pytest.mark.parametrize("changes", [
    {"spec": NINE.document("team")["spec"]}, {"spec": {"metadata": {"labels": {"a": "b"}}, "spec": EIGHT.spec()}},
    {"spec": {"spec": EIGHT.spec()}},
    {"metadata": {"name": "theirs"}}, {"spec": {}},
])  # fmt: skip
def test_what_is_not_ours_is_never_deleted_and_never_relied_on(changes):
    site = Site()
    story(site, lambda: site.shown(**changes), 10_000)
    assert site.server.deleted == []
    assert not site.keeper.has("team", changes.get("metadata", {}).get("name", EIGHT.name))


def test_a_replica_that_does_not_lead_writes_nothing_and_has_counted_when_it_does():
    site = Site()
    site.leads = False
    story(site, site.shown, site.named, 1, lambda: site.named(gone=True), 595)
    site.leads = True
    site.keeper.queue_all()
    story(site, 3)
    assert site.server.deleted == []
    story(site, 3)
    assert len(site.server.deleted) == 1 and site.server.posted == []


def test_a_replica_that_has_just_started_waits_ten_minutes_too():
    site = Site()
    site.now = 1e6
    story(site, site.shown, 599)
    assert site.server.deleted == []


@pytest.mark.parametrize(
    "text", ["{}", "nonsense", encode_templates([NINE]), f'{{"{EIGHT.name}":[{{"parts":[1]}}]}}']
)
def test_a_pod_that_does_not_say_what_its_template_was_is_told_once(text):
    site = Site()
    story(site, lambda: site.named(text=text), 5, site.keeper.queue_all, 5)
    assert site.server.posted == [] and [name for name, _ in site.told] == ["p"]
    assert EIGHT.name in site.told[0][1] and "delete the pod" in site.told[0][1]
    story(site, lambda: site.named("q"), 5)
    assert site.server.posted == [EIGHT.document("team")]


def test_a_namespace_that_is_gone_is_given_up_and_another_failure_is_tried_again():
    site = Site()
    site.server.failure = ApiFailure("no such namespace", 404)
    story(site, site.named, 5)
    site.server.failure = ApiFailure("it ends", 403)
    site.keeper.queue_all()
    with pytest.raises(ApiFailure):
        story(site, 5)
    site.server.failure = ApiFailure("it is there", 409)
    site.keeper.queue_all()
    story(site, 5)
    assert site.server.posted == []


def test_names_that_no_template_has_are_not_kept():
    """Whoever may write pods chooses what they name."""
    site = Site()
    site.named()
    site.named(gone=True)
    assert not site.keeper._named and not site.keeper._users
    site.shown()
    site.named()
    site.named(gone=True)
    assert set(site.keeper._named) == {KEY}
