"""Whose memory it is: processes, ledgers and pods that the test has made up."""

from dataclasses import replace

from agent.audit.cgroups import Place
from agent.audit.processes import Sighting
from agent.audit.rules import examine, whose
from agent.state.records import ContainerRef, Hold, whole_token
from tests.fakes.nodes import GIB, grant, uuid

UID, OTHER = "2c48913c-b29f-11e7-9350-020968147796", "ffffffff-b29f-11e7-9350-020968147796"
ONE, TWO = "a1" * 32, "b2" * 32


def of(number, pod="a", container="c0", tokens=range(8), **more):
    return grant(number, (0, tokens), container=ContainerRef("default", pod, container), **more)


def seen(pid=10, place=None, mounted="", name="sneaky"):
    return Sighting(pid, name, place, mounted)


PODS = {UID: ("default", "a")}


def test_the_only_grant_of_a_pod_is_meant():
    mine = of(1)
    assert whose(seen(place=Place(UID, ONE)), [mine, of(2, "b")], PODS, {}) == mine.id


def test_of_several_containers_the_one_with_a_known_process_is_meant():
    first, second = of(1), of(2, container="c1", tokens=range(8, 12))
    assert whose(seen(place=Place(UID, TWO)), [first, second], PODS, {TWO: second.id}) == second.id


def test_of_several_containers_the_mounted_one_is_meant():
    first, second = of(1), of(2, container="c1", tokens=range(8, 12))
    assert whose(seen(place=Place(UID, TWO), mounted=second.id), [first, second], PODS, {}) == second.id


def test_when_nobody_can_tell_nobody_is_blamed():
    first, second = of(1), of(2, container="c1", tokens=range(8, 12))
    assert whose(seen(place=Place(UID, TWO)), [first, second], PODS, {}) is None


def test_a_mount_cannot_lay_memory_at_another_pods_door():
    assert (
        whose(seen(place=Place(UID, ONE), mounted=of(2, "b").id), [of(1), of(2, "b")], PODS, {}) == of(1).id
    )
    stranger = {**PODS, OTHER: ("default", "none")}
    assert whose(seen(place=Place(OTHER, ONE), mounted=of(1).id), [of(1)], stranger, {}) is None


def test_without_the_api_server_the_mount_tells():
    assert whose(seen(place=Place(UID, ONE), mounted=of(1).id), [of(1)], {}, {}) == of(1).id
    assert whose(seen(mounted=of(1).id), [of(1)], {}, {}) == of(1).id
    assert whose(seen(mounted="ff" * 16), [of(1)], {}, {}) is None
    assert whose(seen(), [of(1)], {}, {}) is None


def test_memory_is_divided_between_owners_strangers_and_foreigners():
    mine = of(1)
    measured = {uuid(0): {10: 2 * GIB, 11: 3 * GIB, 12: GIB}, uuid(1): {12: GIB}}
    sightings = [seen(10, Place(UID, ONE)), seen(11, Place(UID, ONE)), seen(12)]
    survey = examine(measured, {11: mine.id}, sightings, [mine], PODS)
    assert survey.strangers == {mine.id: {uuid(0): 2 * GIB}}
    assert survey.foreign == {uuid(0): GIB, uuid(1): GIB}
    (finding,) = survey.findings
    assert finding.over == {}
    assert [(process.pid, gpu, count) for process, gpu, count in finding.strangers] == [
        (10, uuid(0), 2 * GIB)
    ]


def test_declared_and_undeclared_memory_together_can_be_too_much():
    mine = of(1)
    measured = {uuid(0): {10: 4 * GIB, 11: 5 * GIB}}
    survey = examine(measured, {11: mine.id}, [seen(10, Place(UID, ONE))], [mine], PODS)
    assert survey.findings[0].over == {uuid(0): GIB}


def test_every_byte_on_a_card_that_it_does_not_hold_is_too_much():
    survey = examine({uuid(1): {10: 5}}, {}, [seen(10, Place(UID, ONE))], [of(1)], PODS)
    assert survey.findings[0].over == {uuid(1): 5}


def test_a_process_that_has_ended_counts_nowhere():
    survey = examine({uuid(0): {10: GIB}}, {}, [], [of(1)], PODS)
    assert (survey.strangers, survey.foreign, survey.findings) == ({}, {uuid(0): 0}, ())


def test_an_ended_container_is_not_meant_while_another_one_lives():
    old, new = of(1), of(2)
    assert whose(seen(place=Place(UID, ONE)), [replace(old, gone=True), new], PODS, {}) == new.id


def test_on_a_whole_card_nothing_is_too_much():
    """What holds it is known, for the start gate; there is no library to pass by and no limit to exceed."""
    mine = replace(of(1), holds=(Hold(uuid(0), 24 * GIB, (whole_token(uuid(0)),)),))
    survey = examine({uuid(0): {10: 25 * GIB}}, {}, [seen(place=Place(UID, ONE))], [mine], PODS)
    assert (survey.strangers, survey.findings) == ({mine.id: {uuid(0): 25 * GIB}}, ())


def test_who_has_ended_while_it_was_measured_blames_nobody():
    """Its process was in a ledger before the measurement, and beside it one that was not; then it was given up."""
    ended = of(1)
    sightings = (seen(10, Place(UID, ONE)), seen(11, Place(UID, ONE)))
    survey = examine({uuid(0): {10: GIB, 11: GIB}}, {10: ended.id}, sightings, [of(2, "b")], PODS)
    assert survey.findings == () and survey.strangers == {}
    assert survey.foreign == {uuid(0): GIB}
