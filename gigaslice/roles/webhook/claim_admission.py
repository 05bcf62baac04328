# SPDX-License-Identifier: Apache-2.0
"""Pods whose GPUs are claimed: asks what holds in their namespace, and has templates made before the pod is answered.

A template is made before the answer, because Kubernetes makes a pod's claims as soon as there is the pod. What was seen
is not asked for again, so that mostly nothing is asked; pods of one kind that come together wait for one request.
What cannot be made is a refusal that says so: a pod without its template would wait for ever. A dry run makes nothing.

Whoever reaches the port can ask, for the API server has no credentials for webhooks unless it was given some. So a
namespace has a bounded number of templates that no pod names yet: what a stranger has made goes before more is made.

Pods that name claims of their own are looked at too: where they also ask by resources, and where a container has
several claims. What cannot be read then refuses nothing, for most such pods are other drivers'. Another's DeviceClass
may lead to our devices under a name of its own; that container is refused on its node.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, Protocol

from gigaslice.core.claims.names import DRIVER
from gigaslice.core.claims.templates import ClaimTemplate, is_genuine, is_template_name
from gigaslice.core.cluster.demand import ClusterUnits
from gigaslice.core.kube.fields import object_at, objects_at
from gigaslice.core.text import plain
from gigaslice.kubeapi.client import CONFLICT, NOT_FOUND, ApiFailure, KubeClient, object_path
from gigaslice.roles.webhook.admission_pod import AdmissionPod, NamedClaim
from gigaslice.roles.webhook.claim_conflicts import claims_together, claims_twice, our_requests
from gigaslice.roles.webhook.claim_plan import plan_claims, without_resources
from gigaslice.roles.webhook.facts import AdmissionFacts
from gigaslice.roles.webhook.namespace_rules import NamespaceRules, namespace_rules, parse_labels, parse_quota
from gigaslice.roles.webhook.reviews import PodReview, ReviewAnswer, answer_mutate, answer_validate, refusal
from gigaslice.runtime.time_limit import within

__all__ = ["ClaimAdmission", "ClaimKnowledge", "templates_path"]

_Answer = Callable[[AdmissionPod, AdmissionFacts], ReviewAnswer]
_ClaimAnswer = Callable[[PodReview, AdmissionPod, AdmissionFacts], Awaitable[ReviewAnswer]]
_SECONDS = 3.0  # the API server waits five
_MADE_SECONDS = 30.0  # a watch has shown it by then
_MOST_UNNAMED = 300  # templates of a namespace that no pod names: so many kinds of pods within ten minutes
_RESOURCE_API = ("apis", "resource.k8s.io", "v1")


class ClaimKnowledge(Protocol):
    """What is followed of the cluster."""

    def rules(self, namespace: str) -> NamespaceRules | None:
        """Returns what holds in a namespace; None where it has not been seen."""

    def has_template(self, namespace: str, name: str) -> bool:
        """Whether a template of ours is there, which counts as a use of it."""

    def unnamed_templates(self, namespace: str, made: Collection[tuple[str, str]]) -> int:
        """How many templates of ours no pod names in a namespace; with those of MADE that were not seen yet."""


class _TooManyTemplatesError(Exception):
    """A namespace has as many templates without pods as it may have."""


def templates_path(namespace: str, name: str = "") -> str:
    """The path of a namespace's ResourceClaimTemplates, or of one of them."""
    parts = (*_RESOURCE_API, "namespaces", namespace, "resourceclaimtemplates")
    return object_path(*parts, name) if name else object_path(*parts)


class ClaimAdmission:
    """Answers about pods, by claims where their namespace says so.

    Args:
        api: The API server.
        knowledge: What is followed of the cluster.
        units: What pods count in.
        default: The API where a namespace says nothing.
        seconds: How long a pod may wait for the API server.
        clock: Gives seconds that only grow.
    """

    def __init__(
        self,
        api: KubeClient,
        knowledge: ClaimKnowledge,
        units: ClusterUnits,
        default: str,
        *,
        seconds: float = _SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._knowledge = knowledge
        self._units = units
        self._default = default
        self._seconds = seconds
        self._clock = clock
        self._made: dict[tuple[str, str], float] = {}
        self._under_way: dict[tuple[str, str], asyncio.Task[None]] = {}

    async def mutate(self, review: PodReview, facts: AdmissionFacts) -> ReviewAnswer:
        """Completes a pod, with claims where its namespace has them."""
        return await self._answer(review, facts, answer_mutate, self._claims)

    async def validate(self, review: PodReview, facts: AdmissionFacts) -> ReviewAnswer:
        """Checks a pod as it is going to be stored."""
        if review.pod is not None and (together := claims_together(review.pod)):
            requests = await self._requests_of_ours(review.namespace, together)
            if sentences := claims_twice(review.pod, requests):
                return refusal(sentences)
        return await self._answer(review, facts, answer_validate, _left_over)

    async def _answer(
        self, review: PodReview, facts: AdmissionFacts, plain_answer: _Answer, claim_answer: _ClaimAnswer
    ) -> ReviewAnswer:
        pod = review.pod
        if pod is None:
            return ReviewAnswer()
        if not pod.asking and not pod.ephemeral:
            return plain_answer(pod, facts)
        try:
            return await within(self._by_rules(review, pod, facts, plain_answer, claim_answer), self._seconds)
        except asyncio.TimeoutError:
            sentence = f"the API server did not answer the webhook within {self._seconds:g} s; try again"
        except ApiFailure as failure:
            sentence = f"the API server did not do what the pod's claims need: {failure}; try again"
        except _TooManyTemplatesError as many:
            sentence = str(many)
        return refusal([sentence], passing=True)

    async def _by_rules(
        self,
        review: PodReview,
        pod: AdmissionPod,
        facts: AdmissionFacts,
        plain_answer: _Answer,
        claim_answer: _ClaimAnswer,
    ) -> ReviewAnswer:
        rules = self._knowledge.rules(review.namespace)
        if rules is None:
            rules = await self._read_rules(review.namespace)
        if rules.mistakes:
            return refusal(rules.mistakes)
        return await claim_answer(review, pod, facts) if rules.claims else plain_answer(pod, facts)

    async def _claims(self, review: PodReview, pod: AdmissionPod, facts: AdmissionFacts) -> ReviewAnswer:
        plan = plan_claims(pod, facts)
        mistakes = [*plan.mistakes]
        if plan.templates:
            mistakes = [
                f"the pod has a claim of ours ({plain(name)}) and asks by resources too; write one of the two"
                for name in await self._own_claims(review.namespace, pod.claims)
            ]
        if mistakes:
            return refusal(mistakes)
        if not review.dry_run:
            for template in plan.templates:
                await self._ensure(review.namespace, template)
        return ReviewAnswer(warnings=tuple(map(plain, dict.fromkeys(plan.warnings))), patch=plan.patch)

    # --- templates ----------------------------------------------------------------------------------------------

    async def _ensure(self, namespace: str, template: ClaimTemplate) -> None:
        """Returns when a template is there. Raises ApiFailure."""
        key = (namespace, template.name)
        if (
            self._knowledge.has_template(*key)
            or self._clock() - self._made.get(key, -_MADE_SECONDS) < _MADE_SECONDS
        ):
            return
        task = self._under_way.get(key)
        if task is None:
            self._check_room(namespace)
            task = asyncio.create_task(self._make(namespace, template), name=f"template {template.name}")
            self._under_way[key] = task
            task.add_done_callback(lambda done: self._ended(key, done))
        await asyncio.shield(task)

    def _check_room(self, namespace: str) -> None:
        """Raises _TooManyTemplatesError."""
        now = self._clock()
        made = {key for key, at in self._made.items() if now - at < _MADE_SECONDS} | self._under_way.keys()
        if self._knowledge.unnamed_templates(namespace, made) >= _MOST_UNNAMED:
            raise _TooManyTemplatesError(
                f"Namespace {plain(namespace)} has {_MOST_UNNAMED} ResourceClaimTemplates of ours that no pod names "
                "(kubectl get resourceclaimtemplates -l gigaslice.io/template=true); they are deleted ten minutes "
                "after they were made: ask for what pods there have already, or try again then"
            )

    def _ended(self, key: tuple[str, str], task: asyncio.Task[None]) -> None:
        del self._under_way[key]
        if task.cancelled() or task.exception() is not None:
            return
        now = self._clock()
        self._made = {made: at for made, at in self._made.items() if now - at < _MADE_SECONDS}
        self._made[key] = now

    def forget(self, namespace: str, name: str) -> None:
        """Takes note that a template is gone."""
        self._made.pop((namespace, name), None)

    async def _make(self, namespace: str, template: ClaimTemplate) -> None:
        try:
            await self._api.post(templates_path(namespace), template.document(namespace))
        except ApiFailure as failure:
            if failure.status != CONFLICT:
                raise
            present = await self._api.get(templates_path(namespace, template.name))
            if not is_genuine(template.name, object_at(present, "spec")):
                raise ApiFailure(
                    f"the ResourceClaimTemplate {template.name} of Namespace {namespace} is not what its name stands "
                    "for; delete it",
                    CONFLICT,
                ) from failure

    # --- what is not followed -----------------------------------------------------------------------------------

    async def _read_rules(self, namespace: str) -> NamespaceRules:
        """What holds in a namespace that was made just now. Raises ApiFailure."""
        found = await self._api.get(object_path("api", "v1", "namespaces", namespace))
        listed = await self._api.get(object_path("api", "v1", "namespaces", namespace, "resourcequotas"))
        quotas = [parse_quota(document, self._units) for document in objects_at(listed, "items")]
        counting = [quota for quota in quotas if quota is not None]
        return namespace_rules(namespace, parse_labels(found), counting, self._default)

    async def _own_claims(self, namespace: str, claims: Iterable[NamedClaim]) -> list[str]:
        """The claims of a pod that are of our driver, by what their requests say. Raises ApiFailure."""
        own = []
        for claim in claims:
            named = bool(claim.template or claim.claim)
            if is_template_name(claim.template) or (
                named and await self._is_ours(_path_of(namespace, claim))
            ):
                own.append(claim.name)
        return own

    async def _requests_of_ours(
        self, namespace: str, claims: Iterable[NamedClaim]
    ) -> dict[str, frozenset[str]]:
        """The requests for devices of ours of a pod's claims, by what it calls these, as far as that can be read."""

        async def read(claim: NamedClaim) -> frozenset[str]:
            if not claim.template and not claim.claim:
                return frozenset()
            try:
                document: Mapping[str, Any] = await self._api.get(_path_of(namespace, claim))
            except ApiFailure:
                return frozenset()
            spec = object_at(document, "spec")
            return our_requests(object_at(spec, "spec") if claim.template else spec)

        listed = list(claims)
        try:
            found = await within(asyncio.gather(*map(read, listed)), self._seconds)
        except asyncio.TimeoutError:
            return {}
        return {claim.name: requests for claim, requests in zip(listed, found, strict=True)}

    async def _is_ours(self, path: str) -> bool:
        try:
            document: Mapping[str, Any] = await self._api.get(path)
        except ApiFailure as failure:
            if failure.status == NOT_FOUND:
                return False  # it may come later; the node refuses the container then
            raise
        return DRIVER in json.dumps(document.get("spec"))


def _path_of(namespace: str, claim: NamedClaim) -> str:
    kind = "resourceclaimtemplates" if claim.template else "resourceclaims"
    return object_path(*_RESOURCE_API, "namespaces", namespace, kind, claim.template or claim.claim)


async def _left_over(review: PodReview, pod: AdmissionPod, facts: AdmissionFacts) -> ReviewAnswer:
    del review
    return refusal(without_resources(pod, facts))
