# SPDX-License-Identifier: Apache-2.0
"""Many damaged questions: each is answered by a decision or by a sentence, never by an exception."""

from __future__ import annotations

import base64
import copy
import json
import random
from typing import Any

import orjson
import pytest

from gigaslice.roles.webhook.reviews import (
    ReviewError,
    answer_mutate,
    answer_validate,
    read_review,
    write_review,
)
from tests.unit.gigaslice.roles.webhook.pods import asks, facts, h100, pod
from tests.unit.gigaslice.roles.webhook.test_decisions import applied, question

FACTS = facts()
REVIEWS = 20_000
ODD = [
    None, True, 0, -1, 3.5, 1e308, 2**63, "", " ", "x", "0", "1e99", "\x00\x1b[31m", "é" * 50, "y" * 5000, [], {}, [[]],
    [None], [{}], {"": ""}, {"limits": {}}, {"gigaslice.io/gpu": "1"}, ["gigaslice.io/gpu"], "gigaslice.io/memory",
    "gpuclass.gigaslice.io/nvidia.h100", "gpuclass.gigaslice.io/h100.small", "gpuclass.gigaslice.io/", "8GiB,16GiB",
    "UPDATE", "DELETE", "Pod",
]  # fmt: skip
WORDS = [one for one in ODD if isinstance(one, str)]
SEEDS = [
    question(pod(h100(2), {}, init=({**h100(), "restartPolicy": "Always"},))),
    question(pod(asks(limits={"gigaslice.io/vgpu-memory": 8}), annotations={
        "gigaslice.io/memory": "4GiB,4", "gigaslice.io/cores.c0": "30", "gigaslice.io/gpu-type": "H100", "team": "a",
    })),
    question(pod(asks(limits={"gpuclass.gigaslice.io/h100.small": 1, "gpuclass.gigaslice.io/h100.odd": 2}))),
    question(pod(asks(limits={"gigaslice.io/gpu": 1}), schedulerName="mine", nodeName="n"), operation="UPDATE"),
]  # fmt: skip


def places(document: Any) -> list[tuple[Any, Any]]:
    """Every value of a document, as what holds it and the key there."""
    found: list[tuple[Any, Any]] = []
    inside = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in list(inside):
        found.append((document, key))
        if isinstance(value, dict | list):
            found += places(value)
    return found


def damage(document: Any, chance: random.Random) -> None:
    """Changes one value or name: replaced, removed, renamed, copied to another place."""
    everywhere = places(document)
    if not everywhere:
        return
    holder, key = chance.choice(everywhere)
    way = chance.randrange(5)
    if way == 0 or (isinstance(holder, list) and way == 2):
        del holder[key]
    elif way == 1:
        other, there = chance.choice(everywhere)
        holder[key] = copy.deepcopy(other[there])
    elif way == 2:
        holder[chance.choice(WORDS)] = holder.pop(key)
    else:
        holder[key] = copy.deepcopy(chance.choice(ODD))


@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_question_is_decided_or_refused_with_a_sentence(seed: int):
    chance = random.Random(seed)
    outcomes = {"decided": 0, "refused": 0, "no question": 0}
    for _ in range(REVIEWS // 4):
        document = copy.deepcopy(chance.choice(SEEDS))
        for _ in range(chance.randint(1, 4)):
            damage(document, chance)
        sent = orjson.loads(orjson.dumps(document))
        try:
            review = read_review(sent)
        except ReviewError as error:
            assert str(error) and str(error).isprintable()
            outcomes["no question"] += 1
            continue
        if review.pod is None:
            outcomes["decided"] += 1
            continue
        for answer in (answer_mutate(review.pod, FACTS), answer_validate(review.pod, FACTS)):
            response = orjson.loads(orjson.dumps(write_review(review.uid, answer)))["response"]
            assert response["allowed"] is (not answer.message) and answer.message.isprintable()
            if "patch" in response:
                applied(sent["request"]["object"], json.loads(base64.b64decode(response["patch"])))
            outcomes["decided" if response["allowed"] else "refused"] += 1
    assert min(outcomes.values()) > 100, "every way out is reached"
