# SPDX-License-Identifier: Apache-2.0
"""What a container's resources and annotations say, as the spec of a ResourceClaimTemplate. Pure.

A pod says "8 slices" in one line, and DRA takes claims. `container_claim` says what the line means, or in sentences
what no claim can say. `ClaimTemplate` is one claim: of one container, or of all containers of a pod that are to be on
the same GPUs. Its name is a hash of its spec, so that pods of one kind share one template, and so that nobody can have
anything else made under the name. Pods carry the short form (`ClaimTemplate.encode`), by which a template that is
missing is made again; it can say nothing but what stands here, whoever wrote it.

Options that the node follows while a container runs (elastic, priority, …) are no part of this. They stay annotations.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gigaslice.core.claims.names import DRIVER, FOLLOWS_POD
from gigaslice.core.claims.parameters import API_VERSION, KIND
from gigaslice.core.model.gpu import CORES_PER_GPU
from gigaslice.core.model.options import PREFIX, RequestOptions
from gigaslice.core.model.pod import Pod
from gigaslice.core.text import plain

__all__ = [
    "CLAIMS",
    "CLASS",
    "TEMPLATE_LABEL",
    "ClaimTemplate",
    "ContainerClaim",
    "container_claim",
    "decode_templates",
    "encode_templates",
    "is_genuine",
    "is_template_name",
    "spec_name",
    "template_names",
]

CLASS = "vgpu.gigaslice.io"
"""The DeviceClass of all GPUs of ours."""
TEMPLATE_LABEL = "gigaslice.io/template"
"""Label of the templates that are made by us, with the value "true": no other is ever deleted."""
CLAIMS = "gigaslice.io/claims"
"""Annotation of a pod: the short forms of the templates that it names."""

_CLAIM_METADATA = {"annotations": {FOLLOWS_POD: "true"}}
"""Of the claims: the options that their nodes follow are those of the pod."""
_NAME = re.compile(r"gigaslice-[0-9a-f]{12}")
_MOST_REQUESTS = 32  # of a claim, and devices of all of them together
_MOST_GPUS = 16
_MOST_EXPRESSION = 10 << 10  # bytes of CEL
_MOST_TEXT = 64 << 10  # of all short forms in a pod
_GAP = "[^a-z0-9]"
_MAKERS = "nvidia|tesla|geforce|quadro"
_FORM = r"[0-9]+gb|sxm[0-9]*|pcie|nvl|hbm[0-9]*[a-z]*|generation|laptop"
_UNITS = ("", "Ki", "Mi", "Gi", "Ti", "Pi")
_DOMAIN = f'device.attributes["{DRIVER}"]'


@dataclass(frozen=True, slots=True)
class ContainerClaim:
    """What one container has of a claim.

    Attributes:
        parts: Bytes of each of its GPUs, the largest first. With `whole` each GPU has at least as many.
        whole: Nobody else gets anything of its GPUs.
        alike: The GPUs are of one model.
        cores: Per cent of each GPU's compute, 0 for no share.
        types, not_types: Words of model names, as `RequestOptions` has them.
        uuids, not_uuids: Likewise for UUIDs.
        models: Names of models, one of which it must be; empty for any.
        kind: The short name of a type of GPUs, where the models are not known; empty for any.
        oversubscribe: May use host memory that its node lends.
    """

    parts: tuple[int, ...]
    whole: bool = False
    alike: bool = False
    cores: int = 0
    types: tuple[str, ...] = ()
    not_types: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()
    not_uuids: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    kind: str = ""
    oversubscribe: bool = False

    def request(self, name: str, memory: int, count: int) -> dict[str, Any]:
        """Returns a request of a claim for so many GPUs with so much memory of each."""
        capacity = {} if self.whole else {"memory": _quantity(memory)}
        if self.cores and not self.whole:
            capacity["cores"] = str(self.cores)
        selectors = [{"cel": {"expression": expression}} for expression in self.selectors(memory)]
        return {
            "name": name,
            "exactly": {
                "deviceClassName": CLASS,
                "allocationMode": "ExactCount",
                "count": count,
                **({"capacity": {"requests": capacity}} if capacity else {}),
                **({"selectors": selectors} if selectors else {}),
            },
        }

    def selectors(self, memory: int) -> list[str]:
        """Returns the conditions on a GPU, as CEL; all of them hold. MEMORY: bytes that it must have."""
        conditions = []
        if self.models:
            conditions.append(_of_model(f"{_DOMAIN}.model in {_texts(self.models)}"))
        if self.kind:
            conditions.append(_of_model(_matches(_short_name_pattern(self.kind))))
        if self.types:
            conditions.append(_of_model(_matches(_words_pattern(self.types))))
        if self.not_types:
            conditions.append(_of_model(f"!{_matches(_words_pattern(self.not_types))}"))
        for uuids, sign in ((self.uuids, ""), (self.not_uuids, "!")):
            if uuids:
                lower = _texts(tuple(uuid.lower() for uuid in uuids))
                conditions.append(f'"uuid" in {_DOMAIN} && {sign}({_DOMAIN}.uuid.lowerAscii() in {lower})')
        if self.whole and memory:
            capacity = f'device.capacity["{DRIVER}"]'
            conditions.append(
                f'"memory" in {capacity} && {capacity}.memory.compareTo(quantity("{_quantity(memory)}")) >= 0'
            )
        return conditions

    def encode(self) -> dict[str, Any]:
        """Returns the short form: what differs from the defaults."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name in self.__slots__
            if (value := getattr(self, name)) not in ((), "", 0, False)
        }

    @classmethod
    def decode(cls, document: object) -> ContainerClaim:
        """Reads a short form.

        Raises:
            ValueError: It is none, or says what no pod could have asked for.
        """
        if not isinstance(document, dict) or not document.keys() <= set(cls.__slots__):
            raise ValueError("a claim has unknown fields")
        fields: dict[str, Any] = {name: _checked(name, value) for name, value in document.items()}
        claim = cls(**{"parts": (), **fields})
        if not 0 < len(claim.parts) <= _MOST_GPUS or claim.cores > CORES_PER_GPU:
            raise ValueError("a claim has no GPUs, or too many of them or of their cores")
        if not claim.whole and min(claim.parts) < 1:
            raise ValueError("a claim asks for no memory")
        return claim


@dataclass(frozen=True, slots=True)
class ClaimTemplate:
    """One claim. containers: those whose GPUs are the same ones, each with a part of its own; mostly one."""

    containers: tuple[ContainerClaim, ...]

    @property
    def name(self) -> str:
        """Of the ResourceClaimTemplate: a hash of the spec."""
        return spec_name(self.spec())

    def request_names(self, position: int) -> tuple[str, ...]:
        """Returns which requests the container at POSITION has; empty where it has all."""
        if len(self.containers) == 1:
            return ()
        return tuple(request["name"] for request in self._requests()[position])

    def spec(self) -> dict[str, Any]:
        """Returns the spec of the ResourceClaims, with what the API server would add to it."""
        by_container = self._requests()
        requests = [request for group in by_container for request in group]
        constraints = self._constraints(by_container)
        config = self._config(by_container)
        return {
            "devices": {
                "requests": requests,
                **({"constraints": constraints} if constraints else {}),
                **({"config": config} if config else {}),
            }
        }

    def document(self, namespace: str) -> dict[str, Any]:
        """Returns the ResourceClaimTemplate."""
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": self.name, "namespace": namespace, "labels": {TEMPLATE_LABEL: "true"}},
            "spec": {"metadata": _CLAIM_METADATA, "spec": self.spec()},
        }

    def mistakes(self) -> tuple[str, ...]:
        """Returns what the API server would refuse, as sentences."""
        requests = [request for group in self._requests() for request in group]
        if sum(request["exactly"]["count"] for request in requests) > _MOST_REQUESTS:
            return (
                f"{PREFIX}same-gpu: a claim has {_MOST_REQUESTS} parts of GPUs at most; put fewer containers into the "
                "pod, or leave it out",
            )
        if any(
            len(selector["cel"]["expression"].encode()) > _MOST_EXPRESSION
            for request in requests
            for selector in request["exactly"].get("selectors", ())
        ):
            return (
                f"{PREFIX}gpu-type and {PREFIX}gpu-uuid: these are too many words for a claim; write fewer",
            )
        return ()

    def _requests(self) -> list[list[dict[str, Any]]]:
        """The requests by container. One request has GPUs of one size, unless each must be named by itself."""
        if len(self.containers) == 1:
            (container,) = self.containers
            sizes = sorted(set(container.parts), reverse=True)
            names = ["gpu"] if len(sizes) == 1 else [f"gpu-{number}" for number in range(len(sizes))]
            return [
                [
                    container.request(name, size, container.parts.count(size))
                    for name, size in zip(names, sizes, strict=True)
                ]
            ]
        return [
            [
                container.request(f"container-{position}-gpu-{number}", size, 1)
                for number, size in enumerate(container.parts)
            ]
            for position, container in enumerate(self.containers)
        ]

    def _constraints(self, by_container: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
        first = [request["name"] for request in by_container[0]]
        constraints: list[dict[str, Any]] = []
        if len(self.containers) > 1:
            for number in range(len(first)):
                names = [requests[number]["name"] for requests in by_container]
                constraints.append({"requests": names, "matchAttribute": f"{DRIVER}/uuid"})
        if len(first) > 1:
            constraints.append({"requests": first, "distinctAttribute": f"{DRIVER}/uuid"})
        if self.containers[0].alike and len(self.containers[0].parts) > 1:
            constraints.append({"requests": first, "matchAttribute": f"{DRIVER}/model"})
        return constraints

    def _config(self, by_container: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
        parameters = {"apiVersion": API_VERSION, "kind": KIND, "oversubscribe": True}
        return [
            {
                "requests": [request["name"] for request in requests],
                "opaque": {"driver": DRIVER, "parameters": parameters},
            }
            for container, requests in zip(self.containers, by_container, strict=True)
            if container.oversubscribe
        ]

    def encode(self) -> list[dict[str, Any]]:
        """Returns the short form."""
        return [container.encode() for container in self.containers]


def container_claim(
    options: RequestOptions,
    *,
    slices: int,
    gpus: int,
    slice_bytes: int,
    kind: str = "",
    models: Sequence[str] = (),
) -> ContainerClaim | tuple[str, ...]:
    """Returns what a container has of a claim; sentences about what no claim can say.

    Args:
        options: Of its annotations; they contradict neither each other nor the counts.
        slices: That it asks for; 0 where it asks for whole GPUs.
        gpus: Whole GPUs; 0 where it asks for slices.
        slice_bytes: Of one slice.
        kind: The type of GPUs that its resource is of; empty for any.
        models: The models of that type, as far as they are known.
    """
    if options.whole_first:
        return (
            f'{PREFIX}split: "whole-first" cannot be said in a claim, which counts GPUs before their size is known; '
            f"write {PREFIX}memory with a size for each GPU",
        )
    whole = bool(gpus) or options.exclusive
    return ContainerClaim(
        parts=(0,) * gpus or _parts(options, slices, slice_bytes),
        whole=whole,
        alike=bool(gpus or options.gpus),
        cores=0 if whole else options.cores,
        types=tuple(sorted(options.types)),
        not_types=tuple(sorted(options.not_types)),
        uuids=tuple(sorted(options.uuids)),
        not_uuids=tuple(sorted(options.not_uuids)),
        models=tuple(sorted(models)),
        kind="" if models else kind,
        oversubscribe=options.oversubscribe and not whole,
    )


def _parts(options: RequestOptions, slices: int, slice_bytes: int) -> tuple[int, ...]:
    """Bytes of each GPU, the largest first."""
    count = options.gpus or 1
    each, larger = divmod(slices, count)
    counts = options.parts or (each + 1,) * larger + (each,) * (count - larger)
    return tuple(sorted((count * slice_bytes for count in counts), reverse=True))


def encode_templates(templates: Sequence[ClaimTemplate]) -> str:
    """Returns what a pod that names the templates carries."""
    forms = {template.name: template.encode() for template in templates}
    return json.dumps(forms, sort_keys=True, separators=(",", ":"))


def decode_templates(text: str) -> dict[str, ClaimTemplate]:
    """Reads what a pod carries.

    Raises:
        ValueError: It is none, or a name is not that of what stands under it.
    """
    if len(text) > _MOST_TEXT:
        raise ValueError("it is too long")
    try:
        forms = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(forms, dict):
        raise ValueError("it is no object")
    templates = {}
    for name, containers in forms.items():
        if not isinstance(containers, list) or not 0 < len(containers) <= _MOST_REQUESTS:
            raise ValueError(f"{plain(name[:32])} has no containers")
        template = ClaimTemplate(tuple(map(ContainerClaim.decode, containers)))
        if len({len(container.parts) for container in template.containers}) > 1 or template.mistakes():
            raise ValueError(f"{plain(name[:32])} is no claim that can be made")
        if template.name != name:
            raise ValueError(f"{plain(name[:32])} is the name of another claim")
        templates[name] = template
    return templates


def is_template_name(name: str) -> bool:
    """Whether a name has the form of our templates'."""
    return _NAME.fullmatch(name) is not None


def is_genuine(name: str, spec: Mapping[str, Any]) -> bool:
    """Whether the spec of a template of that name is what we have made or would make."""
    return spec.get("metadata") == _CLAIM_METADATA and spec_name(spec.get("spec")) == name


def template_names(pod: Pod) -> frozenset[str]:
    """Returns the templates of ours that a pod names."""
    return frozenset(claim.template for claim in pod.claims if is_template_name(claim.template))


def spec_name(spec: object) -> str:
    """Returns the name of the template whose claims have this spec."""
    text = json.dumps(spec, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"gigaslice-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _checked(name: str, value: object) -> object:
    """The value of a field of a short form, of the field's type."""
    if name == "parts":
        sizes = value if isinstance(value, list) else [None]
        if not all(
            isinstance(size, int) and not isinstance(size, bool) and 0 <= size < 1 << 60 for size in sizes
        ):
            raise ValueError("a part is no size")
        return tuple(sizes)
    if name in ("whole", "alike", "oversubscribe"):
        if not isinstance(value, bool):
            raise ValueError(f"{name} is neither true nor false")
        return value
    if name == "cores":
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ValueError("cores is no number")
        return value
    if name == "kind":
        if not isinstance(value, str) or not re.fullmatch(r"[a-z0-9][-a-z0-9]{0,62}", value):
            raise ValueError("kind is no type of GPUs")
        return value
    if not isinstance(value, list) or not all(isinstance(word, str) and len(word) <= 128 for word in value):
        raise ValueError(f"{name} are no words")
    return tuple(value)


def _of_model(condition: str) -> str:
    """A condition on the model. One on an attribute that a GPU does not have ends the search for all GPUs."""
    return f'"model" in {_DOMAIN} && {condition}'


def _matches(pattern: str) -> str:
    return f"{_DOMAIN}.model.matches({_text(pattern)})"


def _words_pattern(words: Sequence[str]) -> str:
    """What `matches_model` says of any of the words: its own words, in order and side by side, in any case."""
    named = [f"{_GAP}+".join(re.findall("[a-z0-9]+", word.lower())) for word in words]
    return f"(?i)(^|{_GAP})({'|'.join(named)})({_GAP}|$)"


def _short_name_pattern(kind: str) -> str:
    """The models whose type by `short_name` is KIND: its words, behind those of makers and before those of the form."""
    words = f"{_GAP}+".join(kind.split("-"))
    return f"(?i)^{_GAP}*(({_MAKERS}){_GAP}+)*{words}({_GAP}+({_FORM})({_GAP}.*)?|{_GAP}*)$"


def _texts(words: Sequence[str]) -> str:
    return f"[{', '.join(map(_text, words))}]"


def _text(word: str) -> str:
    """A text of CEL, whose escapes JSON's are among."""
    return json.dumps(word, ensure_ascii=False)


def _quantity(size: int) -> str:
    """A number of bytes as the API server writes it."""
    unit = 0
    while size and not size % 1024 and unit + 1 < len(_UNITS):
        size //= 1024
        unit += 1
    return f"{size}{_UNITS[unit]}"
