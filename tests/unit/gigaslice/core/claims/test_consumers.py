# SPDX-License-Identifier: Apache-2.0
"""Who uses a claim, and which of its requests have one quota."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gigaslice.core.claims.consumers import claim_consumers, claim_groups, misuse
from gigaslice.core.model import ClaimUse, ContainerKind, Pod, PodClaim, PodContainer

REQUESTS = ("a", "b", "c", "d")


def pod(name, **containers):
    """A pod that has claim "claim" under the name "own". containers: the requests of each, None for all of them."""
    users = tuple(
        PodContainer(
            container,
            claims=(ClaimUse("own"),)
            if named is None
            else tuple(ClaimUse("own", request) for request in named),
        )
        for container, named in containers.items()
    )
    return Pod("team", name, f"uid-{name}", containers=users, claims=(PodClaim("own", "claim"),))


def test_what_a_container_has_together_is_one_quota():
    assert claim_groups(REQUESTS, [pod("p", x=["a"], y=["b"])], "claim") == (("a",), ("b",), ("c",), ("d",))
    assert claim_groups(REQUESTS, [pod("p", x=["a", "c"], y=["b"])], "claim") == (("a", "c"), ("b",), ("d",))
    assert claim_groups(REQUESTS, [pod("p", x=["a", "c"]), pod("q", x=["c", "b"])], "claim") == (
        ("a", "b", "c"),
        ("d",),
    )
    assert claim_groups(REQUESTS, [pod("p", x=None)], "claim") == (REQUESTS,)


def test_without_a_pod_that_says_it_all_is_one():
    assert claim_groups(REQUESTS, [], "claim") == (REQUESTS,)
    assert claim_groups(REQUESTS, [pod("p", x=[])], "claim") == (REQUESTS,)


def test_requests_of_other_drivers_are_nobodys():
    assert claim_groups(("a", "b"), [pod("p", x=["a", "nic"], y=["nic", "b"])], "claim") == (("a",), ("b",))


@given(
    st.lists(
        st.one_of(st.none(), st.lists(st.sampled_from(REQUESTS), max_size=4, unique=True)), max_size=6
    ).map(lambda uses: [pod("p", **{f"c{number}": named for number, named in enumerate(uses)})])
)
def test_groups_are_the_finest_that_split_no_container(pods):
    groups = claim_groups(REQUESTS, pods, "claim")
    assert sorted(request for group in groups for request in group) == sorted(REQUESTS)
    uses = [set(named) or set(REQUESTS) for one in pods for _, named in one.users_of("claim")]
    for use in uses:
        assert any(use <= set(group) for group in groups)
    reached = {request: {request} for request in REQUESTS}  # by another way: until nothing changes
    for _ in REQUESTS:
        for use in uses or [set(REQUESTS)]:
            for request in REQUESTS:
                if reached[request] & use:
                    reached[request] = reached[request] | use
    assert {frozenset(group) for group in groups} == {frozenset(reach) for reach in reached.values()}


def test_consumers_are_the_containers_that_have_one_of_the_requests():
    pods = [pod("q", x=["a"], y=["b"]), pod("p", main=None, none=[])]
    init = Pod(
        "team", "i", "uid-i",
        containers=(PodContainer("i", ContainerKind.INIT, claims=(ClaimUse("own", "a"),)),),
        claims=(PodClaim("own", "claim"),),
    )  # fmt: skip
    consumers = claim_consumers(("a",), [*pods, init], "claim", REQUESTS)
    assert [(str(consumer.ref), consumer.uid, consumer.init) for consumer in consumers] == [
        ("team/i/i", "uid-i", True),
        ("team/p/main", "uid-p", False),
        ("team/q/x", "uid-q", False),
    ]
    assert claim_consumers(("a",), pods, "another", REQUESTS) == ()


def test_a_pod_that_fits_is_no_misuse():
    groups = (("a", "b"), ("c",))
    for fitting in (
        pod("p", x=["a", "b"]),
        pod("p", x=["a", "b"], y=["c"]),
        pod("p", x=None),
        pod("p", x=[]),
    ):
        assert misuse(fitting, "claim", groups, ["other"]) is None
    assert "container x has only a of claim claim" in (
        misuse(pod("p", x=["a", "c"]), "claim", groups, []) or ""
    )
