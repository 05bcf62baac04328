# SPDX-License-Identifier: Apache-2.0
"""Compute shares of real processes on the simulated GPU: every way to launch is limited, nothing else is disturbed.

How exact a share is over ten seconds is printed by make bench and proven in simulated time
(tests/unit/gigaslice/core/limits/test_compute_shares.py). Here the machine may be busy, so a limited program is only
told from an unlimited one.
"""

from __future__ import annotations

import json
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from vcuda._native import lib

from tests.native import scripted
from tests.native.running import CLIENTS, LIBRARY, ROOT, SUCCESS, Place, eventually
from tests.native.sharing import BURSTS, LONG, SMALL, SYNCHRONOUS, Stage, Tenant
from tests.unit.fakedriver.conftest import Peer
from vcuda.ledger import read_shares
from vcuda.limits import read_limits, set_allowed, set_cores_limit

LIMITED = (5, 45)
"""Percent of the GPU between which a share of 25 is recognised on a machine that does other things too."""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with Stage(tmp_path, arbiter=False) as made:
        yield made


def threads(peer: Peer) -> int:
    return len(list(Path(f"/proc/{peer.pid}/task").iterdir()))


def peer_of(stage: Stage, tenant: Tenant, **extra: str) -> Peer:
    """A program of the tenant that evaluates expressions."""
    env = stage.place.plain_env() | {"LD_PRELOAD": str(LIBRARY), "VCUDA_DIR": str(tenant.directory)}
    return Peer(env | {"PYTHONPATH": str(ROOT)} | extra)


@pytest.mark.parametrize("path", ["plain", "stream", "ex", "cooperative", "graph", "ptsz", "thread"])
def test_every_way_to_launch_is_limited(stage, path):
    stage.start(stage.tenant(25), (path, "work_500us", "0", "0"))
    assert LIMITED[0] < stage.shares(1.5)[0] < LIMITED[1]


@pytest.mark.parametrize("work", [SMALL, LONG, BURSTS, SYNCHRONOUS], ids=["small", "long", "bursts", "sync"])
def test_every_kind_of_work_is_limited(stage, work):
    stage.start(stage.tenant(25), work)
    assert LIMITED[0] < stage.shares(2)[0] < LIMITED[1]


def test_many_streams_are_one_container(stage):
    stage.start(stage.tenant(25), ("stream", "work_500us", "0", "0"), streams=40)
    assert LIMITED[0] < stage.shares(1.5)[0] < LIMITED[1]


@pytest.mark.parametrize("destroy_every", [0, 7], ids=["kept", "destroyed"])
def test_no_record_goes_into_another_threads_stream(stage, destroy_every):
    """Eight threads with more streams than the first table holds. The simulated driver counts what is recorded
    elsewhere than the recording thread launched last: in another stream's capture, in a stream that is gone.
    """
    tenant = stage.tenant(90)
    env = stage.place.plain_env() | {"LD_PRELOAD": str(LIBRARY), "VCUDA_DIR": str(tenant.directory)}
    command = [str(CLIENTS / "streams"), "8", "40", "2", "kernel", str(destroy_every)]
    with subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        assert int(program.stdout.readline()) > 1000
        (process,) = json.loads(stage.place.fakectl("state"))["processes"]
        program.communicate("\n")
    assert program.returncode == 0
    assert process["records"] > 1000
    assert process["foreign_records"] == 0


def test_processes_of_a_container_share_its_share(stage):
    stage.start(stage.tenant(25), SMALL, count=4)
    assert LIMITED[0] < stage.shares(1.5)[0] < LIMITED[1]


def test_a_killed_process_leaves_the_rest_its_share(stage):
    tenant = stage.tenant(25)
    stage.start(tenant, SMALL, count=3)
    time.sleep(0.3)
    for victim in tenant.programs[:2]:
        victim.kill()
        victim.communicate()
    del tenant.programs[:2]
    assert 12 < stage.shares(2)[0] < LIMITED[1]
    assert read_shares(tenant.ledger)[tenant.uuid].flying <= 1


def test_processes_poll_at_the_instants_that_all_agree_on(stage):
    """A poll moves the bucket's time, which nothing else does while no launch waits: the words of the ledger that are
    times of now. A thread is late on a busy machine, so it is tried until most of a second's polls are within a fifth
    of a tick. Of polls at other instants a fifth would be.
    """
    tenant = stage.tenant(99)
    stage.start(tenant, ("plain", "work_500us", "1", "2000"), count=2)

    def polls() -> list[int]:
        instants: set[int] = set()
        end = time.monotonic() + 1
        while time.monotonic() < end:
            with tenant.ledger.open("rb") as file:
                words = struct.unpack("512Q", file.read(4096))
            now = time.monotonic_ns()
            instants.update(word for word in words if now - 20_000_000 < word <= now)
        return sorted(instants)

    def lateness(poll: int) -> int:
        """Nanoseconds since the last instant."""
        instant = lib.poll_instant(poll - 2 * lib.VC_POLL_TICK_NS)
        while (following := lib.poll_instant(instant)) <= poll:
            instant = following
        return poll - instant

    def on_time() -> bool:
        late = [lateness(poll) for poll in polls()]
        return len(late) > 100 and sum(ns < lib.VC_POLL_TICK_NS / 5 for ns in late) > len(late) / 2

    assert eventually(on_time, 60)


def test_work_goes_on_while_its_process_has_no_processor_time(stage):
    """As in a container at its limit of CPU time: what the thread could not poll is charged when it comes back."""
    tenant = stage.tenant(25)
    stage.start(tenant, ("plain", "work_1500ms", "1", "0"))
    assert eventually(lambda: read_shares(tenant.ledger)[tenant.uuid].spent > 0.05)
    tenant.programs[0].send_signal(signal.SIGSTOP)
    time.sleep(0.8)
    tenant.programs[0].send_signal(signal.SIGCONT)
    assert eventually(lambda: read_shares(tenant.ledger)[tenant.uuid].spent > 1.2, 1.2), (
        "before the next kernel"
    )


def test_a_share_is_changed_while_the_program_runs(stage):
    tenant = stage.tenant(5)
    stage.start(tenant, SMALL)
    low = stage.shares(1.5)[0]
    set_cores_limit(tenant.page, stage.uuid, 90)
    high = stage.shares(1.5)[0]
    assert low < 20
    assert high > 40
    set_cores_limit(tenant.page, stage.uuid, 0)
    assert stage.shares(1)[0] > 60, "0 is no limit"


def test_throttled_time_is_told(stage):
    tenant = stage.tenant(25)
    stage.start(tenant, LONG)
    assert eventually(lambda: read_shares(tenant.ledger)[tenant.uuid].throttled > 0.2)
    use = read_shares(tenant.ledger)[tenant.uuid]
    assert use.spent > 0.05
    assert eventually(lambda: read_shares(tenant.ledger)[tenant.uuid].waiting)
    assert eventually(lambda: read_shares(tenant.ledger)[tenant.uuid].flying == 1)


def test_without_a_share_programs_get_the_drivers_own_functions(tmp_path):
    place = Place(tmp_path)
    peer = Peer(place.env("4GiB", PYTHONPATH=str(ROOT)))
    names = ["cuLaunchKernel", "cuLaunchKernelEx_ptsz", "cuStreamDestroy_v2", "cuMemAlloc_v2"]
    owner = (
        "(lambda name: next(line.split()[-1].split('/')[-1] for line in open('/proc/self/maps') "
        "if int(line.split('-')[0], 16) <= ctypes.cast(getattr(ctypes.CDLL('libcuda.so.1'), name), c_void_p).value "
        "< int(line.split()[0].split('-')[1], 16)))"
    )
    try:
        owners = [peer(f"{owner}('{name}')") for name in names]
    finally:
        peer.kill()
    assert [name.startswith("libcuda.so") for name in owners] == [True, True, True, False]


def test_a_process_without_launches_has_no_thread(stage):
    tenant = stage.tenant(25)
    peer = peer_of(stage, tenant)
    try:
        peer("context(0)")
        assert threads(peer) == 1
        peer("launch(function('work_1ms'))")
        assert threads(peer) == 2
        status = Path(f"/proc/{peer.pid}/task").iterdir()
        blocked = [
            line
            for task in status
            for line in (task / "status").read_text().splitlines()
            if line.startswith("SigBlk") and task.name != str(peer.pid)
        ]
        assert all(int(line.split()[1], 16) & 1 << (signal.SIGTERM - 1) for line in blocked), (
            "handlers are the program's"
        )
    finally:
        peer.kill()


def test_a_capture_is_neither_held_nor_harmed(stage):
    """The container is deep in debt and the thread polls; still a capture records, and costs nothing."""
    tenant = stage.tenant(10)
    peer = peer_of(stage, tenant)
    try:
        peer("context(0)")
        peer("globals().update(kernel=function('work_100ms'))")
        streams = [peer("handles('cuStreamCreate', 0)") for _ in range(2)]
        peer(f"launch(kernel, {streams[0]})")
        time.sleep(0.15)
        for _ in range(50):
            assert peer(f"call('cuStreamBeginCapture_v2', c_void_p({streams[1]}), 0)") == 0
            begin = time.monotonic()
            assert peer(f"[launch(kernel, {streams[1]}) for _ in range(3)]") == [0, 0, 0]
            taken = time.monotonic() - begin
            assert (
                peer(f"[g := c_void_p(), call('cuStreamEndCapture', c_void_p({streams[1]}), byref(g))][1]")
                == 0
            )
            if taken < 0.1:
                break
        else:
            pytest.fail("each of fifty captures was held back")
    finally:
        peer.kill()


CAPTURED = (
    "[[call('cuStreamBeginCapture_v2', c_void_p(s), 2) for s in streams],"
    " [launch(short, s) for s in streams for _ in range(8)], time.sleep(0.02),"
    " [(g := c_void_p(), call('cuStreamEndCapture', c_void_p(s), byref(g)))[1] for s in streams].count(0)][-1]"
)


def capture_in(peer: Peer, streams: int) -> None:
    """The program has so many streams that do not block, and each has captured launches for a while."""
    peer("context(0)")
    peer(
        "globals().update(time=__import__('time'), short=function('work_1us'), kernel=function('work_500us'))"
    )
    peer(f"globals().update(streams=[handles('cuStreamCreate', 1) for _ in range({streams})])")
    assert peer(CAPTURED) == streams


def test_what_was_captured_is_no_queue_that_later_launches_wait_for(stage):
    peer = peer_of(stage, stage.tenant(50))
    try:
        capture_in(peer, 5)
        times = peer("[[t := time.monotonic(), launch(short, s), time.monotonic() - t][-1] for s in streams]")
        assert min(times) < 0.1, (
            "a quarter of a second is the throttle's patience with a queue that does not move"
        )
    finally:
        peer.kill()


def test_streams_that_captured_and_ended_leave_room_for_others(stage):
    peer = peer_of(stage, stage.tenant(25))
    try:
        capture_in(peer, 2000)
        assert peer("[call('cuStreamDestroy_v2', c_void_p(s)) for s in streams].count(0)") == 2000
        peer("globals().update(stream=handles('cuStreamCreate', 1))")
        before, begin = stage.busy()[peer.pid], time.monotonic()
        launching = "[launch(kernel, stream) for _ in iter(lambda: time.monotonic() - begin > 1, True)]"
        peer(f"[begin := time.monotonic(), {launching}, 0][-1]")
        assert (stage.busy()[peer.pid] - before) / (time.monotonic() - begin) < LIMITED[1] / 100
    finally:
        peer.kill()


def test_a_forked_child_is_limited_by_a_thread_of_its_own(stage):
    tenant = stage.tenant(25)
    script = (
        "import os,sys,subprocess\n"
        "pid=os.fork()\n"
        f"os.execv({str(CLIENTS / 'load')!r}, ['load','plain','work_500us','0','0','1.5']) if pid == 0 else None\n"
        "os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    env = stage.place.plain_env() | {"LD_PRELOAD": str(LIBRARY), "VCUDA_DIR": str(tenant.directory)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    launches = int(done.stdout.split()[1])
    assert launches * 0.0005 < 0.45 * 1.5 + 0.1


@pytest.mark.parametrize("path", ["plain", "stream", "thread"])
def test_programs_end_as_they_would_without_the_library(stage, path):
    """A hundred short lives: the thread is never in the driver's way at exit."""
    tenant = stage.tenant(80)
    env = stage.place.plain_env() | {"LD_PRELOAD": str(LIBRARY), "VCUDA_DIR": str(tenant.directory)}
    for _ in range(15):
        done = subprocess.run(
            [str(CLIENTS / "load"), path, "work_100us", "0", "0", "0.01"],
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def test_streams_and_contexts_that_end_with_work_left_are_paid_for(stage):
    tenant = stage.tenant(25)
    peer = peer_of(stage, tenant)
    try:
        peer("context(0)")
        for _ in range(3):
            stream = peer("handles('cuStreamCreate', 1)")
            assert peer(f"launch(function('work_100ms'), {stream})") == 0
            assert peer(f"call('cuStreamDestroy_v2', c_void_p({stream}))") == 0
        assert eventually(lambda: read_shares(tenant.ledger)[tenant.uuid].spent > 0.25)
        context = peer("handles('cuCtxCreate_v2', 0, 0)")
        assert peer("launch(function('work_50ms'))") == 0
        assert peer(f"call('cuCtxDestroy_v2', c_void_p({context}))") == 0
        assert peer("context(0)") is not None
        assert peer("[launch(function('work_1ms')), good('cuCtxSynchronize')][0]") == 0
    finally:
        peer.kill()


@pytest.mark.parametrize(
    "end", ["cuGreenCtxDestroy(g)", "cuDevicePrimaryCtxReset_v2(0) or cuGreenCtxDestroy(g)"]
)
def test_a_green_context_that_ends_takes_what_marks_its_queue_along(stage, end):
    """One that comes again with the same handle has a queue of its own, marked by events of its own."""
    tenant = stage.tenant(25)
    env = stage.place.plain_env() | {"LD_PRELOAD": str(LIBRARY), "VCUDA_DIR": str(tenant.directory)}
    calls = lambda: json.loads(stage.place.fakectl("state"))["calls"]  # noqa: E731
    with scripted.Program(env) as program:
        program.ready()
        program.do(
            "keep(r=ctypes.create_string_buffer(256), d=Handle(), g=Handle(), c=Handle(), m=Handle(), f=Handle())"
        )
        begin = ("cuCtxFromGreenCtx(ref(c), g)", "cuCtxSetCurrent(c)", "cuModuleLoadData(ref(m), b'image')")
        for call in ("cuDeviceGetDevResource(0, r, 1)", "cuDevResourceGenerateDesc(ref(d), r, 1)"):
            assert program.do(call) == SUCCESS, call
        stage.place.fakectl("count", "on")
        handles, made = set(), 0
        for _ in range(3):
            for call in ("cuDevicePrimaryCtxRetain(ref(c), 0)", "cuGreenCtxCreate(ref(g), d, 0, 1)", *begin):
                assert program.do(call) == SUCCESS, call
            handles.add(program.do("c.value"))
            assert program.do("cuModuleGetFunction(ref(f), m, b'work_1us')") == SUCCESS
            launch = (
                "cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, None, None, None)"  # so often that all marks are used
            )
            assert program.do(f"[{launch} or cuCtxSynchronize() for _ in range(500)].count(0)") == 500
            assert calls()["cuEventCreate"] > made, "its own"
            assert program.do(f"cuCtxSetCurrent(None), {end}") == [SUCCESS, SUCCESS]
            made = calls()["cuEventCreate"]
            if "Reset" not in end:
                assert calls()["cuEventDestroy_v2"] == made
        assert len(handles) == 1


WAYS_TO_PAUSE = {
    "no thread waits": "(launch(), time.sleep(0.001))",
    "stream": "(launch(), cuStreamSynchronize_ptsz(None), time.sleep(0.0002))",
    "named stream": "(launch(), cuStreamSynchronize(c_void_p(2)), time.sleep(0.0002))",
    "context": "(launch(), cuCtxSynchronize(), time.sleep(0.0002))",
    "question": "(launch(), time.sleep(0.0002), cuStreamQuery_ptsz(None))",
}


@pytest.mark.parametrize("way", WAYS_TO_PAUSE.values(), ids=WAYS_TO_PAUSE)
def test_a_thread_does_not_pay_for_pauses_between_launches_into_its_own_stream(stage, way):
    tenant = stage.tenant(95)
    env = stage.place.plain_env() | {"LD_PRELOAD": str(LIBRARY), "VCUDA_DIR": str(tenant.directory)}
    with scripted.Program(env) as program:
        program.ready()
        program.do("keep(m=Handle(), f=Handle())")
        program.do("keep(launch=lambda: cuLaunchKernel_ptsz(f, 1, 1, 1, 1, 1, 1, 0, None, None, None))")
        assert program.do("cuModuleLoadData(ref(m), b'image')") == SUCCESS
        assert program.do("cuModuleGetFunction(ref(f), m, b'work_20us')") == SUCCESS

        def charged() -> float:
            """Of a second, in which the GPU is busy for the fiftieth part or a tenth."""
            before = read_shares(tenant.ledger)[tenant.uuid].spent
            until = "iter(lambda end=time.monotonic() + 1: time.monotonic() < end, False)"
            program.do(f"[{way} for _ in {until}] and None")
            return read_shares(tenant.ledger)[tenant.uuid].spent - before

        assert any(charged() < 0.35 for _ in range(3)), "it was charged for pauses"


def test_a_page_that_stops_being_written_takes_back_what_it_lent(stage):
    tenant = stage.tenant(20, elastic=True)
    set_allowed(tenant.page, stage.uuid, 1000)
    stage.start(tenant, SMALL)
    time.sleep(3)
    assert stage.shares(2)[0] < 45


def lookup(place: Place, cores: str, limit: str = "1GiB", **extra: str) -> subprocess.CompletedProcess[str]:
    """A program that allocates a little, with VCUDA_CORES."""
    return place.run(
        CLIENTS / "load", "plain", "work_1ms", "1", "0", "0.01", limit=limit, VCUDA_CORES=cores, **extra
    )


@pytest.mark.parametrize(("cores", "wanted"), [("30", [30, 30]), ("0=40,1=5", [40, 5]), ("1=100", [0, 100])])
def test_a_share_from_the_environment(tmp_path, cores, wanted):
    place = Place(tmp_path)
    limit = "0=1GiB,1=2GiB" if "=" in cores else "1GiB"
    done = lookup(place, cores, limit)
    assert done.returncode == 0, done.stderr
    assert [gpu.cores_percent for gpu in read_limits(place.quota / "limits").gpus] == wanted
    again = lookup(place, "7", limit)
    assert "VCUDA_CORES gives" in again.stderr
    assert again.returncode != 0, "another share than the directory has is a mistake, not a change"


@pytest.mark.parametrize("cores", ["0", "101", "30%", "", "GPU-x=30", "30,40", "0=30,0=40", "-1"])
def test_a_share_that_makes_no_sense_is_an_error(tmp_path, cores):
    done = lookup(Place(tmp_path), cores)
    assert "VCUDA_CORES" in done.stderr
    assert "percentage from 1 to 100" in done.stderr
    assert done.returncode != 0


def test_a_share_of_a_gpu_without_a_quota_is_an_error(tmp_path):
    done = lookup(Place(tmp_path), "1=30", "0=1GiB")
    assert "VCUDA_CORES names a GPU that VCUDA_MEMORY_LIMIT does not name" in done.stderr


def test_a_share_alone_is_an_error(tmp_path):
    place = Place(tmp_path)
    done = place.run(
        CLIENTS / "load",
        "plain",
        "work_1ms",
        "1",
        "0",
        "0.01",
        VCUDA_CORES="30",
        VCUDA_DIR=str(tmp_path / "x"),
    )
    assert "VCUDA_CORES is set without VCUDA_MEMORY_LIMIT" in done.stderr
    assert done.returncode != 0
