# SPDX-License-Identifier: Apache-2.0
"""What was seen of a real kubelet 1.36.2 with a driver of claims, of the stand-in: each of the rows is one test."""

from __future__ import annotations

import itertools
import threading
import time

import pytest

from tests.fakes.claims import ClaimPlane
from tests.fakes.eventually import wait_until
from tests.fakes.kubeapi import NODE, ApiServer
from tests.fakes.kubeapi.device_documents import (
    claim_document,
    class_document,
    device_document,
    request_document,
    slice_document,
    template_document,
)
from tests.fakes.kubelet import ClaimSpec, ClaimTimes, ContainerSpec, Pace, PodSpec, Runtime, Settings
from tests.unit.fakes.claim_driver import ClaimDriver

SCALE = 0.02
"""Of a real kubelet's times: 45 s are 0.9, 72 s are 1.44, 30 s are 0.6."""
PREPARE, UNPREPARE = "Prepare v1", "Unprepare v1"
PROMPT = 0.3 * SCALE


def scaled(**more):
    times = ClaimTimes()
    return ClaimTimes(
        **{
            "call_s": times.call_s * SCALE,
            "resync_s": times.resync_s * SCALE,
            "news_s": PROMPT,
            "unprepare_retry_s": times.unprepare_retry_s * SCALE,
            "wipe_after_s": times.wipe_after_s * SCALE,
            "register_pauses_s": (0.5 * SCALE, 122 * SCALE),
            **more,
        }
    )


@pytest.fixture
def api():
    made = ApiServer(NODE)
    made.create("deviceclasses", class_document())
    return made


@pytest.fixture
def begin(node, api):
    """Starts a kubelet with driver a, registered and with a slice; what it takes are times and how containers run."""
    drivers = []
    with ClaimPlane(api):

        def start(*, driver=True, runtime=None, **times):
            settings = Settings(
                status_period_s=0.02,
                readmit_after_s=0.05,
                pace=Pace(crash_backoff_s=0.02, start_retries_s=(0.05, 0.05), force_kill_delay_s=0.3),
                claims=scaled(**times),
            )
            more = {"runtime": runtime} if runtime else {}
            kubelet = node(api=api, settings=settings, **more)
            if not driver:
                return kubelet, None
            return kubelet, another(kubelet)

        def another(kubelet, instance="a", **more):
            made = ClaimDriver(kubelet, instance, **more).start()
            drivers.append(made)
            wait_until(lambda: ("Notify", "registered") in made.calls)
            wait_until(lambda: all(one.connected for one in kubelet.claims.plugins.instances(made.name)))
            made.publish(24)
            return made

        start.another = another
        yield start
        for one in drivers:
            one.stop()


def shared(api, name="shared"):
    api.create("resourceclaims", claim_document(name, request_document(memory="8Gi")))
    return (ClaimSpec("vgpu", claim=name),)


def using(name, claims, **more):
    return PodSpec(name, (ContainerSpec(claims=("vgpu",)),), claims=claims, **more)


def env(pod):
    return pod.container().started.env


def running(pod):
    return pod.wait("Running")


# --- the ordinary life -----------------------------------------------------------------------------------------


def test_a_pod_of_a_template_gets_what_the_driver_answered(begin, api):
    kubelet, driver = begin()
    api.create("resourceclaimtemplates", template_document("t", request_document(memory="8Gi")))
    pod = running(kubelet.run_pod(using("train", (ClaimSpec("vgpu", template="t"),))))
    (claim,) = api.all("resourceclaims")
    uid = claim["metadata"]["uid"]
    assert driver.named(PREPARE) == [(claim["metadata"]["name"],)]
    assert env(pod)["CLAIM"] == uid
    (mount,) = pod.container().started.mounts
    assert (mount.target, mount.read_only) == ("/run/claim", True)
    kubelet.delete_pod(pod)
    assert driver.named(UNPREPARE) == [(claim["metadata"]["name"],)]
    wait_until(lambda: not api.all("resourceclaims"))


def test_a_pod_that_ends_by_itself_is_unprepared_before_it_says_so(begin, api):
    kubelet, driver = begin()
    phases = []

    def unprepared(claim, context):
        phases.append(api.get("pods", "p", "default")["status"]["phase"])
        return ""

    driver.on_unprepare = unprepared
    pod = running(kubelet.run_pod(using("p", shared(api), restart_policy="Never")))
    pod.container().process.finish(0)
    pod.wait("Succeeded")
    assert phases == ["Running"]
    wait_until(lambda: not (api.get("resourceclaims", "shared", "default")["status"].get("reservedFor")))


@pytest.mark.parametrize("force", [False, True])
def test_the_kubelet_hears_of_a_deletion_from_the_api_server(begin, api, force):
    """So who reads there after the kubelet's call sees that the pod ends, or is gone."""
    kubelet, _ = begin()
    pod = running(kubelet.run_pod(using("p", shared(api))))
    before = []
    api.store.listeners.append(
        lambda resource, kind, document: resource == "pods" and before.append(pod.deleting.is_set())
    )
    kubelet.delete_pod(pod, force=force)
    assert before and before[0] is False


def test_all_claims_of_a_pod_come_in_one_call(begin, api):
    kubelet, driver = begin()
    claims = (*shared(api, "one"), ClaimSpec("other", claim="two"))
    shared(api, "two")
    container = ContainerSpec(claims=("vgpu", "other/gpu"))
    pod = running(kubelet.run_pod(PodSpec("p", (container, ContainerSpec("bare")), claims=claims)))
    assert driver.named(PREPARE) == [("one", "two")]
    assert env(pod)["CLAIM"] == api.get("resourceclaims", "two", "default")["metadata"]["uid"], (
        "the last one wins"
    )
    assert "CLAIM" not in pod.container("bare").started.env


def test_a_container_gets_the_requests_it_names(begin, api):
    kubelet, driver = begin()
    driver.requests = ("x", "y")
    api.create(
        "resourceclaims", claim_document("c", request_document("x", memory="1Gi"), request_document("y"))
    )
    containers = (ContainerSpec("whole", claims=("vgpu",)), ContainerSpec("part", claims=("vgpu/y",)))
    api.put(
        "resourceslices", slice_document(device_document("gpu-0"), device_document("gpu-1"), generation=2)
    )
    pod = running(kubelet.run_pod(PodSpec("p", containers, claims=(ClaimSpec("vgpu", claim="c"),))))
    found = [{key for key in one.started.env if key.startswith("REQUEST_")} for one in pod.containers]
    assert found == [{"REQUEST_x", "REQUEST_y"}, {"REQUEST_y"}]
    (listed,) = kubelet.pod_resources.List(None, None).pod_resources
    devices = {
        one.name: [device for resource in one.dynamic_resources for device in resource.claim_resources]
        for one in listed.containers
    }
    assert {name: len(found) for name, found in devices.items()} == {"whole": 2, "part": 1}
    assert (devices["part"][0].driver_name, devices["part"][0].device_name) == ("gigaslice.io", "gpu-0")


@pytest.mark.namespaces
def test_a_program_has_the_mounts_of_its_claim(begin, api):
    runtime = Runtime()
    if runtime.mode == "plain":
        pytest.skip(runtime.note)
    kubelet, _ = begin(runtime=runtime)
    container = ContainerSpec(claims=("vgpu",), command=("cat", "/run/claim"))
    pod = kubelet.run_pod(PodSpec("p", (container,), claims=shared(api), restart_policy="Never"))
    pod.wait("Succeeded")
    assert pod.container().read() == f"{env(pod)['CLAIM']}\n"


def test_a_pod_waits_for_a_device_and_the_node_is_not_asked(begin, api):
    kubelet, driver = begin()
    api.create("resourceclaims", claim_document("c", request_document(memory="25Gi")))
    pod = kubelet.run_pod(using("p", (ClaimSpec("vgpu", claim="c"),)))
    assert (pod.phase, pod.reason) == ("Pending", "Unschedulable")
    assert "cannot allocate all claims" in pod.message
    assert not driver.named(PREPARE)
    driver.publish(25)
    running(pod)


def test_a_pod_without_a_reservation_is_refused(begin, api):
    """One that no scheduler has seen, with a claim that nobody has allocated."""
    kubelet, driver = begin()
    pod = kubelet.create_pod(using("p", shared(api), bind=True))
    wait_until(lambda: pod.events)
    assert "is not allowed to use ResourceClaim shared" in pod.events[0].message
    assert not driver.named(PREPARE)


# --- the rows that were seen -----------------------------------------------------------------------------------


def test_a_second_pod_with_the_same_claim_runs_with_the_first_answer(begin, api):
    kubelet, driver = begin()
    claims = shared(api)
    first, second = (running(kubelet.run_pod(using(name, claims))) for name in ("p", "q"))
    assert len(driver.named(PREPARE)) == 1
    assert env(first)["CLAIM"] == env(second)["CLAIM"]


def test_a_sandbox_that_is_made_anew_asks_nothing(begin, api):
    kubelet, driver = begin()
    pod = running(kubelet.run_pod(using("p", shared(api))))
    before = env(pod)
    kubelet.kill_sandbox(pod)
    pod.wait_for(lambda pod: pod.container().runs == 2 and pod.container().running)
    assert len(driver.named(PREPARE)) == 1
    assert env(pod) == before


def test_files_of_the_runtime_that_are_lost_are_not_asked_for(begin, api):
    kubelet, driver = begin()
    pod = running(kubelet.run_pod(using("p", shared(api))))
    (uid,) = {env(pod)["CLAIM"]}
    driver.cdi_file(uid).unlink()
    kubelet.kill_sandbox(pod)
    pod.wait_for(lambda pod: pod.container().waiting == "CreateContainerError")
    assert f"unresolvable CDI devices gigaslice.io/vgpu={uid}-gpu" in pod.container().problem
    time.sleep(0.3)
    assert (pod.container().running, len(driver.named(PREPARE))) == (False, 1)
    driver.write_cdi(uid)
    pod.wait_for(lambda pod: pod.container().running)
    assert len(driver.named(PREPARE)) == 1


def test_a_kubelet_that_was_restarted_asks_when_the_next_pod_attaches(begin, api):
    kubelet, driver = begin()
    claims = shared(api)
    pod = running(kubelet.run_pod(using("p", claims)))
    assert api.all("resourceslices")
    kubelet.restart()
    assert not api.all("resourceslices"), "they are the driver's to make again"
    wait_until(lambda: driver.named("Notify") == [("registered",)] * 2)
    pod.container().process.kill()
    pod.wait_for(lambda pod: pod.container().runs == 2)
    assert len(driver.named(PREPARE)) == 1, "not for a pod that runs, even where its container starts again"
    later = running(kubelet.run_pod(using("q", claims)))
    assert len(driver.named(PREPARE)) == 2
    names = kubelet.claims.cdi_ids(later, later.spec.containers[0])
    assert len(names) == 2, "the answer that it had on disk, and the new one"


def test_an_error_is_repeated_with_the_ordinary_resync(begin, api):
    kubelet, driver = begin(resync_s=0.6)
    times = []

    def refuses(claim, context):
        times.append(time.monotonic())
        return "no room" if len(times) < 3 else ""

    driver.on_prepare = refuses
    pod = kubelet.create_pod(using("p", shared(api)))
    running(pod)
    assert all(later - earlier >= 0.6 for earlier, later in itertools.pairwise(times))
    event = next(one for one in pod.events if one.reason == "FailedPrepareDynamicResources")
    assert event.message.endswith("NodePrepareResources failed for ResourceClaim shared: no room")


def test_a_change_of_the_pods_metadata_brings_the_next_call(begin, api):
    kubelet, driver = begin(resync_s=3600, news_s=0.05)
    rooms = iter(["no room", "no room", ""])
    driver.on_prepare = lambda claim, context: next(rooms)
    pod = kubelet.create_pod(using("p", shared(api)))
    wait_until(lambda: pod.events)
    api.change("pods", "p", {"status": {"message": "x"}}, "default")
    time.sleep(0.2)
    assert len(driver.named(PREPARE)) == 1, "its status is no news"
    api.annotate("default", "p", **{"gigaslice.io/wake": "1"})
    wait_until(lambda: len(driver.named(PREPARE)) == 2)
    time.sleep(0.2)
    assert len(driver.named(PREPARE)) == 2, "a change brings one call"
    api.annotate("default", "p", **{"gigaslice.io/wake": "2"})
    running(pod)
    assert len(driver.named(PREPARE)) == 3


def test_a_change_during_the_call_counts(begin, api):
    kubelet, driver = begin(resync_s=3600)

    def refuses(claim, context):
        if len(driver.named(PREPARE)) == 1:
            api.annotate("default", "p", **{"gigaslice.io/wake": "1"})
            return "no room"
        return ""

    driver.on_prepare = refuses
    running(kubelet.create_pod(using("p", shared(api))))


def test_a_call_that_takes_too_long_ends_with_the_deadline(begin, api):
    kubelet, driver = begin(call_s=0.3)
    ended = threading.Event()
    driver.on_prepare = lambda claim, context: ended.wait(10) and ""
    claims = shared(api)
    pods = [kubelet.create_pod(using(name, claims)) for name in ("p", "q")]
    for pod in pods:
        wait_until(lambda pod=pod: pod.events)
        assert "code = DeadlineExceeded desc = context deadline exceeded" in pod.events[0].message
    assert len(driver.named(PREPARE)) == 2, "two pods of one claim are two calls"
    ended.set()
    for pod in pods:
        running(pod)


def test_only_the_last_pod_of_a_claim_unprepares_it(begin, api):
    kubelet, driver = begin()
    claims = shared(api)
    pods = [running(kubelet.run_pod(using(name, claims))) for name in ("p", "q")]
    kubelet.delete_pod(pods[0])
    assert not driver.named(UNPREPARE)
    kubelet.delete_pod(pods[1])
    assert driver.named(UNPREPARE) == [("shared",)]


def test_an_unprepare_that_fails_keeps_the_pod_and_is_repeated(begin, api):
    kubelet, driver = begin()
    answers = iter(["busy", "busy", ""])
    driver.on_unprepare = lambda claim, context: next(answers)
    pod = running(kubelet.run_pod(using("p", shared(api))))
    kubelet.delete_pod(pod)
    assert len(driver.named(UNPREPARE)) == 3


def test_without_its_driver_a_pod_stays_and_the_slices_go(begin, api):
    kubelet, driver = begin()
    pod = running(kubelet.run_pod(using("p", shared(api))))
    driver.kill()
    gone = threading.Thread(target=kubelet.delete_pod, args=(pod,))
    gone.start()
    wait_until(lambda: not api.all("resourceslices"))
    assert not pod.ended.wait(0.3)
    assert api.get("pods", "p", "default")["metadata"]["deletionTimestamp"]
    driver.start()
    gone.join(30)
    assert pod.ended.is_set()
    assert driver.named(UNPREPARE) == [("shared",)]


def test_slices_stay_where_the_driver_is_back_in_time(begin, api):
    kubelet, driver = begin(wipe_after_s=60.0)
    driver.kill()
    time.sleep(0.3)
    driver.start()
    wait_until(lambda: any(one.connected for one in kubelet.claims.plugins.instances(driver.name)))
    kubelet.claims.plugins._wipe_after_s = 0.2  # less than it was away
    time.sleep(0.5)
    assert api.all("resourceslices")
    driver.kill()
    wait_until(lambda: not api.all("resourceslices"))


def test_the_newest_instance_has_the_calls_and_the_older_one_gets_them_back(begin, api):
    kubelet, old = begin()
    new = begin.another(kubelet, "b")
    claims = shared(api)
    pod = running(kubelet.run_pod(using("p", claims)))
    assert (len(new.named(PREPARE)), len(old.named(PREPARE))) == (1, 0)
    new.kill()
    # The killed one is forgotten at once or a moment later.
    wait_until(lambda: sum(one.connected for one in kubelet.claims.plugins.instances(old.name)) == 1)
    kubelet.delete_pod(pod)
    assert old.named(UNPREPARE) == [("shared",)]
    time.sleep(30 * SCALE * 2)
    assert api.all("resourceslices"), "they stay while one instance lives"


def test_an_allocation_of_somebody_else_is_taken_and_needs_its_time_stamp(begin, api):
    kubelet, _ = begin()
    api.create("deviceclasses", class_document("never"))
    plane = ClaimPlane(api, {"never": lambda device: False})  # only for its allocator
    for name, stamped in (("stamped", True), ("bare", False)):
        document = claim_document(name, request_document(memory="9Gi"))
        made = plane.allocator.allocate(document, NODE)
        if not stamped:
            del made["allocationTimestamp"]
        document["status"] = {"allocation": made}
        api.create("resourceclaims", document)
    running(kubelet.run_pod(using("p", (ClaimSpec("vgpu", claim="stamped"),))))
    pod = kubelet.run_pod(using("q", (ClaimSpec("vgpu", claim="bare"),)))
    assert (pod.phase, pod.reason) == ("Pending", "SchedulerError")
    assert "field is immutable" in pod.message


def test_a_forced_deletion_is_free_in_the_api_before_it_is_unprepared(begin, api):
    kubelet, driver = begin()
    pod = running(kubelet.run_pod(using("p", shared(api))))
    kubelet.delete_pod(pod, force=True)
    wait_until(lambda: not api.get("resourceclaims", "shared", "default")["status"].get("allocation"))
    assert not driver.named(UNPREPARE)
    assert pod.container().running
    wait_until(lambda: driver.named(UNPREPARE))


# --- names, races, registrations -------------------------------------------------------------------------------


def test_a_claim_of_the_same_name_waits_for_the_old_one(begin, api):
    kubelet, driver = begin(resync_s=0.1)
    driver.on_unprepare = lambda claim, context: "busy"
    pod = running(kubelet.run_pod(using("p", shared(api))))
    old = api.get("resourceclaims", "shared", "default")["metadata"]["uid"]
    kubelet.delete_pod(pod, force=True)
    api.delete("resourceclaims", "shared", "default")
    wait_until(lambda: not api.all("resourceclaims"))
    later = kubelet.create_pod(using("q", shared(api)))
    wait_until(lambda: later.events)
    text = f"old ResourceClaim with same name shared and different UID {old} still exists"
    assert text in later.events[0].message
    driver.on_unprepare = lambda claim, context: ""
    running(later)
    assert env(later)["CLAIM"] != old


@pytest.mark.parametrize("race", [True, False])
def test_a_pod_that_attaches_during_an_unprepare(begin, api, race):
    """As 1.36 it runs with what is not prepared any more; later kubelets prepare it again, behind the unprepare."""
    kubelet, driver = begin(race=race)
    claims = shared(api)
    first = running(kubelet.run_pod(using("p", claims)))
    began, goes_on = threading.Event(), threading.Event()

    def unprepared(claim, context):
        began.set()
        goes_on.wait(30)
        return ""

    driver.on_unprepare = unprepared
    gone = threading.Thread(target=kubelet.delete_pod, args=(first,))
    gone.start()
    assert began.wait(30)
    second = kubelet.create_pod(using("q", claims))
    if race:
        running(second)
    else:
        assert not second.container().runs
    goes_on.set()
    gone.join(30)
    running(second)
    assert len(driver.named(PREPARE)) == (1 if race else 2)
    assert driver.cdi_file(env(second)["CLAIM"]).exists() == (not race)


def test_an_answer_without_a_claim_is_an_error(begin, api):
    kubelet, driver = begin(resync_s=3600)
    driver.silent = True
    pod = kubelet.create_pod(using("p", shared(api)))
    wait_until(lambda: pod.events)
    assert "NodePrepareResources skipped 1 of 1 ResourceClaims" in pod.events[0].message


def test_without_a_driver_nothing_is_prepared(begin, api):
    kubelet, _ = begin(driver=False, resync_s=0.2)
    api.put("resourceslices", slice_document(device_document()))
    pod = kubelet.create_pod(using("p", shared(api)))
    wait_until(lambda: pod.events)
    assert "DRA driver gigaslice.io is not registered" in pod.events[0].message
    begin.another(kubelet)
    running(pod)


def test_a_pod_that_is_deleted_breaks_its_call_off(begin, api):
    kubelet, driver = begin(call_s=3600)
    cancelled = threading.Event()

    def waits(claim, context):
        context.add_callback(cancelled.set)
        cancelled.wait(30)
        return ""

    driver.on_prepare = waits
    pod = kubelet.create_pod(using("p", shared(api)))
    wait_until(lambda: driver.named(PREPARE))
    kubelet.delete_pod(pod)
    assert cancelled.is_set()
    assert driver.named(UNPREPARE) == [("shared",)], "it may be half prepared"


def test_an_older_driver_is_asked_in_its_version(begin, api):
    kubelet, _ = begin(driver=False)
    driver = begin.another(kubelet, services=("v1beta1.DRAPlugin",))
    running(kubelet.run_pod(using("p", shared(api))))
    assert driver.named("Prepare v1beta1") == [("shared",)]


def test_a_registration_that_makes_no_sense_is_refused_and_tried_again(begin):
    kubelet, driver = begin()
    same = ClaimDriver(kubelet, "b", services=["v9.DRAPlugin"])
    same.start()
    try:
        wait_until(lambda: len(same.named("Notify")) > 1)
        assert "none of the services of DRA plugin gigaslice.io is known" in same.named("Notify")[0][0]
        same.services, same.endpoint = ["v1.DRAPlugin"], driver.endpoint
        wait_until(lambda: f'endpoint "{driver.endpoint}" already registered' in same.named("Notify")[-1][0])
    finally:
        same.stop()


def test_a_reboot_asks_for_every_pod_again(begin, api):
    kubelet, driver = begin()
    pod = running(kubelet.run_pod(using("p", shared(api))))
    kubelet.reboot(before_start=lambda: kubelet.cdi_directory.exists() and pytest.fail("it is in memory"))
    pod.wait_for(lambda pod: pod.container().running)
    assert len(driver.named(PREPARE)) == 2
