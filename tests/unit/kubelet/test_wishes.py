"""Allocations for pods whose annotations are known: where they go, what is recorded, and what waits for a person."""

import pytest

import vcuda
from agent.kube.decode import parse_pod
from agent.kubelet.allocator import ImpossibleError
from agent.kubelet.whose import Admitted, Verdict
from agent.state.records import GrantPolicy
from tests.fakes.kubeapi import pod_document
from tests.fakes.nodes import all_tokens, inventory, tokens, uuid
from tests.unit.kubelet.conftest import make_allocator
from vcuda import contract

GPU = "gigaslice.io/vgpu-memory"
CARDS = 4


@pytest.fixture
def node(store):
    """Four cards of eight slices."""
    return Node(store)


class Node:
    """A kubelet that takes what is preferred, for pods of this test's making."""

    def __init__(self, store):
        self.store = store
        self.found = inventory(CARDS, 8)
        self.allocator = make_allocator(store, self.found)
        self.free = set(all_tokens(self.found))

    def pod(self, name, *requests, init=(), **annotations):
        full = {"gigaslice.io/" + key.replace("_", "-"): text for key, text in annotations.items()}
        wanted = [{GPU: count} for count in requests]
        init = tuple({GPU: count} for count in init)
        return parse_pod(pod_document(name, *wanted, init=init, annotations=full, uid=f"uid-{name}"))

    def admit(self, pod, prefer=True, lent=frozenset()):
        """Grants of all its containers in turn."""
        grants = []
        for container in pod.asking(GPU):
            admitted = Admitted(pod, container)
            size = container.requests[GPU]
            must = set(sorted(lent)[:size])
            chosen = (
                self.allocator.prefer(sorted(self.free | must), sorted(must), size, admitted)
                if prefer
                else ()
            )
            wanted = set(chosen) or set(sorted(self.free)[:size])
            assert len(wanted) == size
            grants += self.allocator.allocate([sorted(wanted)], Verdict(admitted))
            self.free -= wanted
            lent = wanted if container.name.startswith("i") else lent - wanted
        return grants

    def one(self, name, size, **annotations):
        (grant,) = self.admit(self.pod(name, size, **annotations))
        return grant

    def parts(self, grant):
        return {hold.gpu: len(hold.tokens) for hold in grant.holds}


def named(grant):
    return {token.rpartition("/")[0] for token in grant.tokens}


def test_so_many_cards_with_equal_parts(node):
    grant = node.one("a", 8, gpus="4")
    assert set(node.parts(grant).values()) == {2} and len(node.parts(grant)) == 4
    assert named(grant) == set(node.parts(grant)), "the preference says the same"
    assert grant.owner.ref == grant.ref and str(grant.ref) == "default/a/c0"


def test_different_sizes_per_card(node):
    grant = node.one("a", 8, memory="2GiB,6GiB")
    assert sorted(node.parts(grant).values()) == [2, 6]
    assert named(grant) == set(node.parts(grant))
    page = vcuda.read_limits(node.store.dirs.path(grant.id) / contract.LIMITS_FILE)
    assert sorted(gpu.memory_bytes >> 30 for gpu in page.gpus) == [2, 6]


def test_uuids_and_types(node):
    assert set(node.parts(node.one("a", 2, gpu_uuid=uuid(3)))) == {uuid(3)}
    assert set(node.parts(node.one("b", 2, exclude_gpu_uuid=f"{uuid(3)},{uuid(0)},{uuid(1)}"))) == {uuid(2)}
    with pytest.raises(ImpossibleError, match="no GPU of type A100 on this node; it has NVIDIA L4"):
        node.one("c", 2, gpu_type="A100")
    assert len(node.store.book.grants) == 2


def test_a_card_for_oneself_and_nobody_else_on_it(node):
    first = node.one("a", 1)
    alone = node.one("b", 3, exclusive="true")
    assert set(node.parts(alone)).isdisjoint(node.parts(first))
    others = [node.one(f"p{n}", 2) for n in range(11)]
    assert not any(set(node.parts(one)) & set(node.parts(alone)) for one in others)
    assert not any(one.waiting for one in others)
    late = node.one("late", 4)
    assert late.waiting
    assert node.allocator.may_start(late) is not None


def test_whoever_must_share_an_exclusive_card_waits_until_it_is_free(node):
    alone = node.one("alone", 2, exclusive="true", gpu_uuid=uuid(1))
    late = node.one("late", 2, gpu_uuid=uuid(1))
    reason = node.allocator.may_start(late)
    assert f"2 GiB of {uuid(1)}" in reason and "default/alone/c0 (2 GiB, exclusively)" in reason
    node.store.update(node.store.book.counted_out([alone.id]))
    assert node.allocator.may_start(node.store.book.find(late.id)) is None


def test_exclusive_waits_for_everybody_else_to_go(node):
    first = node.one("first", 2, gpu_uuid=uuid(1))
    alone = node.one("alone", 2, exclusive="true", gpu_uuid=uuid(1))
    reason = node.allocator.may_start(alone)
    assert "which is to be its alone" in reason and "default/first/c0" in reason
    node.store.update(node.store.book.counted_out([first.id]))
    assert node.allocator.may_start(node.store.book.find(alone.id)) is None


def test_the_containers_of_an_exclusive_pod_are_no_strangers_to_each_other(node):
    one, two, three = node.admit(node.pod("a", 2, 3, 8, exclusive="true"))
    assert node.parts(one).keys() == node.parts(two).keys() != node.parts(three).keys()
    assert [node.allocator.may_start(grant) for grant in (one, two, three)] == [None] * 3
    init, app = node.admit(node.pod("b", 4, init=(4,), exclusive="true"))
    assert node.parts(init).keys() == node.parts(app).keys()
    assert [node.allocator.may_start(grant) for grant in (init, app)] == [None] * 2


def test_all_containers_on_one_card(node):
    for number in range(CARDS):
        node.one(f"f{number}", 4 if number else 3, gpu_uuid=uuid(number))
    node.one("more", 3, gpu_uuid=uuid(2))  # a fragment that the first container would fill
    grants = node.admit(node.pod("a", 1, 2, 2, same_gpu="true"))
    assert {frozenset(node.parts(grant)) for grant in grants} == {frozenset({uuid(0)})}
    assert not any(grant.waiting for grant in grants)
    apart = node.admit(node.pod("b", 1, 4))
    assert len({frozenset(node.parts(grant)) for grant in apart}) == 2


def test_more_on_one_card_than_it_has_can_never_be(node):
    with pytest.raises(ImpossibleError, match="8"):
        node.admit(node.pod("a", 9, same_gpu="true"))


@pytest.mark.parametrize("requests, init, annotations, says", [
    ((5, 4), (), {"same_gpu": "true"}, "ask for 9 slices in all"),
    ((4, 2, 3), (), {"same_gpu": "true"}, "ask for 9 slices in all"),
    ((9, 9), (), {"same_gpu": "true", "gpus": "2"}, "ask for 18 slices in all"),
    ((5, 4), (), {"same_gpu.c1": "true"}, "never fit beside them"),
    ((2, 2), (), {"same_gpu": "true", "cores": "60"}, "never fit beside them"),
    ((2, 2), (), {"same_gpu": "true", "gpu_uuid.c0": uuid(0), "gpu_uuid.c1": uuid(1)}, "other annotations refuse"),
    ((2, 4), (), {"same_gpu": "true", "gpus.c0": "1", "gpus.c1": "2"}, "never fit beside them"),
    ((2, 9), (8,), {"same_gpu": "true"}, "ask for 11 slices in all"),
])  # fmt: skip
def test_containers_that_never_fit_one_card_together_are_told_at_once(
    node, requests, init, annotations, says
):
    """The last of them would wait for the first to end, which ends with it."""
    for number in range(CARDS):
        node.one(f"f{number}", 1, gpu_uuid=uuid(number))
    with pytest.raises(ImpossibleError, match=says) as caught:
        node.admit(node.pod("a", *requests, init=init, **annotations))
    assert "gigaslice.io/same-gpu" in str(caught.value)


@pytest.mark.parametrize("requests, init, annotations", [
    ((5, 3), (), {"same_gpu": "true"}), ((4,), (8,), {"same_gpu": "true"}),
    ((8, 8), (), {"same_gpu": "true", "gpus": "2"}),
    ((2, 2), (), {"same_gpu": "true", "cores": "50"}), ((5, 3), (), {"same_gpu.c1": "true"}),
    ((4, 4), (), {"same_gpu": "true", "exclusive": "true"}), ((4, 4), (), {"same_gpu": "true", "memory": "2,2"}),
])  # fmt: skip
def test_containers_that_fit_one_card_together_are_placed_or_wait_for_others(
    node, requests, init, annotations
):
    grants = node.admit(node.pod("a", *requests, init=init, **annotations))
    assert len({frozenset(node.parts(grant)) for grant in grants}) == 1
    assert not any(grant.waiting for grant in grants)
    late = node.admit(node.pod("b", 3, 3, same_gpu="true", gpu_uuid=next(iter(node.parts(grants[0])))))
    assert len({frozenset(node.parts(grant)) for grant in late}) == 1


@pytest.mark.parametrize("annotations", [
    {"gpu_uuid": uuid(1), "exclude_gpu_uuid": uuid(1)},
    {"gpu_uuid": uuid(1), "exclude_gpu_uuid": "GPU-" + uuid(1)[4:].upper()},
    {"gpu_type": "L4", "exclude_gpu_type": "L4"}, {"gpus": "2", "memory": "1,1,2"}, {"gpus": "2", "gpu_uuid": uuid(1)},
    {"memory": "2,2", "gpu_uuid": uuid(1)}, {"gpus": "5"}, {"memory": "1,1"}, {"gpus": "2", "elastic": "1"},
    {"memory": "1,3", "elastic": "2"},
    {"gpus": "2", "memory": "1,1,2", "gpu_uuid": uuid(1), "exclude_gpu_uuid": uuid(1)},
])  # fmt: skip
def test_contradictions_hold_a_pod_back_and_do_not_fail_it(node, annotations):
    pod = node.pod("a", 4, **annotations)
    (grant,) = node.admit(pod)
    (remark,) = node.allocator.remarks(Admitted(pod, pod.containers[0]), grant)
    assert grant.undecided and "annotations to be corrected: gigaslice.io/" in remark
    assert node.allocator.settle(grant, Admitted(pod, pod.containers[0])).reason == remark
    better = node.pod("a", 4)
    assert node.allocator.settle(grant, Admitted(better, better.containers[0])).reason is None


def test_what_has_no_effect_on_a_container_is_said_of_it(node):
    pod = node.pod("a", 4, elastic="3", oversubscribe="true")
    (grant,) = node.admit(pod)
    elastic, host = node.allocator.remarks(Admitted(pod, pod.containers[0]), grant)
    assert "3 slices are no more than the 4" in elastic and "no host memory" in host
    assert not grant.undecided


def test_shares_of_compute_are_written_and_counted(node):
    first = node.one("a", 2, cores="60", gpu_uuid=uuid(0))
    page = vcuda.read_limits(node.store.dirs.path(first.id) / contract.LIMITS_FILE)
    assert [gpu.cores_percent for gpu in page.gpus] == [60]
    second = node.one("b", 2, cores="60")
    assert set(node.parts(second)) != {uuid(0)}
    third = node.one("c", 2, cores="50", gpu_uuid=uuid(0))
    assert third.waiting
    assert f"10% of the compute of {uuid(0)}" in node.allocator.may_start(third)
    assert node.allocator.may_start(node.one("d", 2, gpu_uuid=uuid(0))) is None, "no share, no promise"


def test_what_is_for_later_is_kept(node):
    grant = node.one("a", 2, elastic="4GiB", oversubscribe="true", cores="10")
    assert grant.policy == GrantPolicy(10, False, True, 4, True)
    from agent.state.store import read_only

    assert read_only(node.store.state_dir)[0].grants[0] == node.store.book.grants[0]


def test_a_mistake_is_placed_without_it_and_held_back_until_it_is_corrected(node):
    pod = node.pod("a", 4, gpus="two", cores="30")
    (grant,) = node.admit(pod)
    assert grant.undecided and len(node.parts(grant)) == 1
    (remark,) = node.allocator.remarks(Admitted(pod, pod.containers[0]))
    assert 'gigaslice.io/gpus: "two" must be a whole number' in remark
    settled = node.allocator.settle(grant, Admitted(pod, pod.containers[0]))
    assert settled.reason == remark and not settled.remake
    better = node.pod("a", 4, gpus="1", cores="40")
    assert node.allocator.settle(grant, Admitted(better, better.containers[0])).reason is None
    decided = node.store.book.find(grant.id)
    assert (decided.undecided, decided.policy.cores) == (False, 40)
    page = vcuda.read_limits(node.store.dirs.path(grant.id) / contract.LIMITS_FILE)
    assert page.gpus[0].cores_percent == 40


def test_a_correction_that_needs_other_cards_needs_another_pod(node):
    pod = node.pod("a", 4, gpus="two")
    (grant,) = node.admit(pod)
    better = node.pod("a", 4, gpus="2")
    settled = node.allocator.settle(grant, Admitted(better, better.containers[0]))
    assert settled.remake and "delete the pod" in settled.reason
    assert node.store.book.find(grant.id).undecided


def test_a_correction_on_the_same_cards_may_move_memory_between_them(node):
    pod = node.pod("a", 8, gpus="2", elastic="lots")
    (grant,) = node.admit(pod)
    assert sorted(node.parts(grant).values()) == [4, 4]
    better = node.pod("a", 8, memory="3,5")
    assert node.allocator.settle(grant, Admitted(better, better.containers[0])).reason is None
    decided = node.store.book.find(grant.id)
    assert sorted(node.parts(decided).values()) == [3, 5]
    assert decided.tokens == grant.tokens
    assert node.store.dirs.problem(decided) is None
    page = vcuda.read_limits(node.store.dirs.path(grant.id) / contract.LIMITS_FILE)
    assert sorted(gpu.memory_bytes >> 30 for gpu in page.gpus) == [3, 5]


def test_what_nobody_could_tell_is_decided_later(node):
    (grant,) = node.allocator.allocate([tokens(0, 1, 2)], Verdict(None, ("default/a",), ("default/a",)))
    assert grant.undecided and grant.owner is None and grant.suspects == ("default/a",)
    pod = node.pod("a", 2, exclusive="true")
    assert node.allocator.settle(grant, Admitted(pod, pod.containers[0])).reason is None
    decided = node.store.book.find(grant.id)
    assert decided.policy.exclusive and decided.owner.uid == "uid-a" and not decided.undecided
    (other,) = node.allocator.allocate([tokens(2, 1, 2)], Verdict())
    assert node.allocator.settle(other, None).reason is None
    assert not node.store.book.find(other.id).undecided


def test_without_access_nothing_is_undecided(node):
    (grant,) = node.allocator.allocate([tokens(0, 1, 2)])
    assert not grant.undecided


def test_tokens_of_another_card_than_the_wish_allows_are_counted_and_not_followed(node):
    pod = node.pod("a", 2, gpu_uuid=uuid(3))
    (grant,) = node.admit(pod, prefer=False)
    assert named(grant) == {uuid(0)} and set(node.parts(grant)) == {uuid(3)}


def test_init_containers_lend_by_name_and_a_pod_of_another_uid_lends_nothing(node):
    init, app = node.admit(node.pod("a", 2, init=(4,)))
    assert app.supersedes == (init.id,)
    kept = node.store.book.find(init.id)
    assert len(kept.held) == 2 and not kept.gone
    other = node.pod("b", 2)
    node.allocator.allocate([sorted(app.tokens)], Verdict(Admitted(other, other.containers[0])))
    assert not node.store.book.find(app.id).lent
    assert node.store.book.find(app.id).forgotten
