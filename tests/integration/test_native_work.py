# SPDX-License-Identifier: Apache-2.0
"""Every call that may have to wait for a time slice or a compute share (tests/native/clients/work.def).

What is asked of each is what its line in native/hooks/cuda/launch.def or copy.def says: that it is hooked, that what is
passed on is what the driver was called with, the stream, and that programs which wait for nothing have the driver's own
function.
"""

from __future__ import annotations

import json
import re

import pytest

from tests.native.running import LIBRARY, NOT_READY, ROOT, Place, eventually
from tests.native.sharing import Stage
from tests.native.time_slices import LONG, Page
from tests.native.work import ALL, WAITING, Work, Worker
from vcuda import read_shares

DONE_AT_ONCE = ("NO_ENGINE", "DISCARD", "PAGES")
"""Kinds that the simulated driver does not record in a capture."""
ACTIVE = 1
STREAMED = [work for work in WAITING if work.streamed]
LAUNCHES = [work for work in ALL if work.kind == "LAUNCH"]
UNSEEN = [work for work in ALL if work.kind in ("CAPTURE", "NO_CAPTURE", "END")]


def test_every_call_that_may_have_to_wait_is_tried():
    text = "".join(path.read_text() for path in sorted((ROOT / "native/hooks/cuda").glob("*.def")))
    assert sorted(work.name for work in ALL) == sorted(
        re.findall(r"^HOOK\(SHARED, (\w+),", text, re.MULTILINE)
    )


# --- time slices --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def slicing(tmp_path_factory):
    """A program of a container that may have time slices, and their page."""
    place = Place(tmp_path_factory.mktemp("slicing"))
    with Worker(place.env("4GiB", VCUDA_PHYSICAL_LIMIT="2GiB")) as worker:
        yield worker.started("work_1us"), Page(place)


def held(worker: Worker, page: Page, work: Work, patience: float) -> tuple[bool, str]:
    """The call while the time slice is withheld for PATIENCE seconds. Whether it waited at all, and its answer."""
    before = page.usage().held_us
    page.hold(LONG)
    worker.tell(f"call {work.name}")
    early = worker.has_answered(patience)
    page.free()
    answer = worker.hear()
    return not early and page.usage().held_us > before, answer


@pytest.mark.parametrize("work", WAITING, ids=lambda work: work.name)
def test_work_waits_for_its_time_slice_and_is_done_then(slicing, work):
    """A program that gets no processor for so long has not asked before the time slice came: it is tried again."""
    worker, page = slicing
    for patience in (0.005, 0.1, 1.0):
        passed = page.usage().progress
        waited, answer = held(worker, page, work, patience)
        assert (answer, page.usage().progress) == (str(work.code), passed + 1)
        assert worker.do(f"look {work.name}") == "ok"
        if waited:
            break
    assert waited


@pytest.mark.parametrize("work", STREAMED, ids=lambda work: work.name)
def test_work_in_a_capture_does_not_wait(slicing, work):
    """Its stream is the one that captures, and so the one that is asked about."""
    worker, page = slicing
    page.hold(LONG)
    worker.tell(f"record {work.name}")
    early = worker.has_answered(20)
    page.free()
    code, nodes = worker.hear().split()
    assert worker.do(f"look {work.name}")
    assert early
    assert code == str(work.code)
    assert (int(nodes) > 0) == (work.kind not in DONE_AT_ONCE)


def test_programs_that_wait_for_nothing_have_the_drivers_own_functions(tmp_path):
    owners = {}
    for name, physical in (("limited", {}), ("slicing", {"VCUDA_PHYSICAL_LIMIT": "2GiB"})):
        with Worker(Place(tmp_path / name).env("4GiB", **physical)) as worker:
            owners[name] = {work.name: worker.do(f"owner {work.name}") for work in ALL}
    assert owners["limited"] == {work.name: "libcuda.so.1" for work in ALL}
    assert owners["slicing"] == {work.name: LIBRARY.name for work in ALL}


@pytest.mark.parametrize("limit", [None, "4GiB"])
def test_a_linked_program_that_waits_for_nothing_has_its_work_done_too(tmp_path, limit):
    """It cannot be given the driver's own functions: the library's call them."""
    with Worker(Place(tmp_path).env(limit), linked=True) as worker:
        worker.started("work_1us")
        done = {
            work.name: [worker.do(f"call {work.name}"), worker.do(f"look {work.name}")] for work in WAITING
        }
    assert done == {work.name: [str(work.code), "ok"] for work in WAITING}


def test_no_work_is_done_under_limits_that_cannot_be_used(tmp_path):
    place = Place(tmp_path)
    place.quota.mkdir()
    (place.quota / "limits").write_bytes(b"\x01" * 4096)
    with Worker(place.env(VCUDA_DIR=str(place.quota))) as worker:
        assert {work.name: worker.do(f"call {work.name}") for work in ALL} == {
            work.name: str(NOT_READY) for work in ALL
        }


# --- compute shares -----------------------------------------------------------------------------------------------


@pytest.fixture
def sharing(tmp_path):
    """A GPU, a container with nearly all of its time, and the environment of its programs."""
    with Stage(tmp_path, arbiter=False) as stage:
        tenant = stage.tenant(95)
        env = stage.place.plain_env() | {"LD_PRELOAD": str(LIBRARY), "VCUDA_DIR": str(tenant.directory)}
        yield stage, tenant, env


def test_every_launch_is_charged(sharing):
    """A thread that gets no processor while a kernel runs does not see it: it is launched until it was seen. Before
    each launch the thread has seen that nothing runs: then it asks about no stream any more.
    """
    stage, tenant, env = sharing
    spent = lambda: read_shares(tenant.ledger)[tenant.uuid].spent  # noqa: E731
    launches = 0

    def is_charged(work: Work) -> bool:
        nonlocal launches
        assert eventually(lambda: read_shares(tenant.ledger)[tenant.uuid].flying == 0)
        before, launches = spent(), launches + 1
        assert worker.do(f"call {work.name}") == "0"
        assert worker.do("sync") == "0"
        return eventually(lambda: spent() > before + 0.001, 0.2)

    with Worker(env) as worker:
        worker.started("work_20ms")
        charged = {work.name: any(is_charged(work) for _ in range(20)) for work in LAUNCHES}
        (process,) = json.loads(stage.place.fakectl("state"))["processes"]
    assert charged == {work.name: True for work in LAUNCHES}
    assert process["launches"] == launches


def test_no_poll_meets_a_call_that_a_poll_would_disturb(sharing):
    """Polls enter the context of the stream that they ask about. The last two looks before the call's end see equally
    many.
    """
    stage, _, env = sharing
    slow = ", ".join(f"{name}=100ms" for name in ("cuStreamBegin*", "cuStreamDestroy*"))

    def polls() -> int:
        return int(json.loads(stage.place.fakectl("state"))["calls"].get("cuCtxPushCurrent_v2", 0))

    def counts(work: Work) -> list[int]:
        """Polls at each look while the call is under way."""
        worker.tell(f"call {work.name}")
        seen: list[int] = []
        while True:
            number = polls()
            if worker.has_answered():
                break
            seen.append(number)
        assert worker.hear() == str(work.code)
        if work.kind != "END":
            assert worker.do("capturing") == f"0 {ACTIVE if work.kind == 'CAPTURE' else 0}"
        return seen

    def is_undisturbed(work: Work) -> bool:
        seen = counts(work)
        return len(seen) > 1 and seen[-1] == seen[-2]

    with Worker(env | {"FAKEDRIVER_LATENCY": slow}) as worker:
        worker.started("work_1us")
        stage.place.fakectl("count", "on")
        assert worker.do("keep work_60s") == "0"
        before = polls()
        assert eventually(lambda: polls() > before), "it polls all the time"
        undisturbed = {work.name: any(is_undisturbed(work) for _ in range(20)) for work in UNSEEN}
    assert undisturbed == {work.name: True for work in UNSEEN}
