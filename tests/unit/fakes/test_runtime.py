# SPDX-License-Identifier: Apache-2.0
"""Programs in namespaces with mounts at paths that the host does not have, and the way out without namespaces."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.fakes.kubelet import Bind, ContainerSpec, Launch, PodSpec, Runtime, StartError
from tests.fakes.kubelet.runtime import preload_environment, probe
from tests.unit.fakes.conftest import QUICK
from tests.unit.fakes.plugin import RESOURCE

MODES = ["root", "user"] if os.geteuid() == 0 else ["user"]


def eventually(condition, timeout_s=60.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "condition never held"
        time.sleep(0.01)


@pytest.fixture(params=MODES)
def runtime(request, tmp_path):
    if probe()[0] == "plain":
        pytest.skip(f"no namespaces here: {probe()[1]}")
    one = Runtime(request.param)
    try:
        process = one.start(Launch(("true",)), tmp_path / "probe")
    except StartError as error:
        pytest.skip(f"no {request.param} namespaces here: {error}")
    assert process.wait(60) == 0
    process.close()
    return tracked(one, request)


def tracked(runtime, request):
    """RUNTIME, whose programs end with the test even when it fails."""

    def keeping(start):
        def started(*arguments):
            process = start(*arguments)
            request.addfinalizer(process.kill)
            return process

        return started

    runtime.start, runtime.exec = keeping(runtime.start), keeping(runtime.exec)
    return runtime


@pytest.fixture
def plain(request):
    return tracked(Runtime("plain"), request)


@pytest.fixture
def allocation(tmp_path):
    """The four mounts of an allocation, with texts in place of the real files."""
    (tmp_path / "limits").write_text("limits\n")
    (tmp_path / "ledger").write_text("ledger\n")
    (tmp_path / "preload").write_text("")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libvcuda-1.so").write_text("library\n")
    return (
        Bind(str(tmp_path / "preload"), "/etc/ld.so.preload", True),
        Bind(str(tmp_path / "lib"), "/usr/local/lib/vcuda", True),
        Bind(str(tmp_path / "limits"), "/etc/vcuda/limits", True),
        Bind(str(tmp_path / "ledger"), "/etc/vcuda/ledger", False),
    )


def host():
    """What a mount that got out of its namespace would change."""
    return {
        directory: sorted(Path(directory).iterdir()) for directory in ("/etc", "/usr/local/lib", "/usr/local")
    }


def run(runtime, tmp_path, script, **launch):
    process = runtime.start(Launch(("sh", "-c", script), **launch), tmp_path / "logs")
    code = process.wait(60)
    process.close()
    return code, process.read(), process.read("stderr")


@pytest.mark.namespaces
def test_mounts_appear_inside_and_nothing_changes_outside(runtime, tmp_path, allocation):
    before = host()
    script = """cat /etc/vcuda/limits /etc/vcuda/ledger /usr/local/lib/vcuda/libvcuda-1.so
test -f /etc/ld.so.preload && echo preload
test -s /etc/passwd && echo passwd
echo more >> /etc/vcuda/ledger
echo more 2>/dev/null >> /etc/vcuda/limits || echo read-only
touch /usr/local/lib/vcuda/x 2>/dev/null || echo read-only"""
    code, out, err = run(runtime, tmp_path, script, mounts=allocation)
    assert (code, err) == (0, "")
    expected = ["limits", "ledger", "library", "preload", "passwd", "read-only", "read-only"]
    assert out.split() == expected
    assert (tmp_path / "ledger").read_text() == "ledger\nmore\n"
    assert (tmp_path / "limits").read_text() == "limits\n"
    assert host() == before


@pytest.mark.namespaces
def test_environment_is_the_given_one_and_the_program_is_pid_1(runtime, tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "of the host")
    code, out, _ = run(runtime, tmp_path, "echo $$ $K ${SECRET:-none}", env={"K": "v"})
    assert (code, out) == (0, "1 v none\n")


@pytest.mark.namespaces
def test_exit_codes_and_signals(runtime, tmp_path):
    assert run(runtime, tmp_path, "exit 7")[0] == 7
    process = runtime.start(Launch(("sleep", "60")), tmp_path / "sleep")
    assert process.returncode is None
    process.signal(signal.SIGKILL)
    assert process.wait(60) == 137
    process.close()


def sleeper(process, seconds):
    """PID of the "sleep SECONDS" in the container of PROCESS; None before it is one."""
    wanted = f"sleep\0{seconds}\0".encode()
    found = [pid for pid in process.host_pids() if Path(f"/proc/{pid}/cmdline").read_bytes() == wanted]
    return found[0] if found else None


@pytest.mark.namespaces
def test_host_pids_and_kill_of_one_process(runtime, tmp_path):
    script = "sleep 61 & sleep 62 & echo ready; wait"
    process = runtime.start(Launch(("sh", "-c", script)), tmp_path / "logs")
    eventually(lambda: len(process.host_pids()) == 3 and "ready" in process.read())
    pids = process.host_pids()
    assert process.pid in pids
    eventually(lambda: sleeper(process, "61"))
    victim = sleeper(process, "61")
    os.kill(victim, signal.SIGKILL)
    eventually(lambda: victim not in process.host_pids())
    assert len(process.host_pids()) == 2
    process.kill()
    assert process.host_pids() == []
    assert not any(Path(f"/proc/{pid}/stat").exists() for pid in pids)


@pytest.mark.namespaces
def test_a_second_program_joins_the_container(runtime, tmp_path, allocation):
    first = runtime.start(Launch(("sleep", "60"), mounts=allocation), tmp_path / "a")
    command = ("sh", "-c", "echo $$ $K; cat /etc/vcuda/limits; read line; echo got $line")
    second = runtime.exec(first, Launch(command, {"K": "v"}, interactive=True), tmp_path / "b")
    second.write("hello\n")
    assert second.wait(60) == 0
    number, rest = second.read().split(" ", 1)
    assert int(number) > 1
    assert rest == "v\nlimits\ngot hello\n"
    second.close()
    first.kill()


@pytest.mark.namespaces
def test_containers_end_with_whoever_started_them(runtime, tmp_path):
    pid_file = tmp_path / "pid"
    script = f"""
import os, sys, time
sys.path.insert(0, {str(Path.cwd())!r})
from pathlib import Path
from tests.fakes.kubelet import Launch, Runtime
process = Runtime({runtime.mode!r}).start(Launch(("sleep", "600")), Path({str(tmp_path / "logs")!r}))
Path({str(pid_file)!r}).write_text(str(process.pid))
os.kill(os.getpid(), 9)
"""
    root = Path(__file__).resolve().parents[3]
    parent = os.posix_spawn(
        sys.executable, [sys.executable, "-c", script], {**os.environ, "PYTHONPATH": str(root)}
    )
    os.waitpid(parent, 0)
    pid = int(pid_file.read_text())
    eventually(lambda: not Path(f"/proc/{pid}").exists())


@pytest.mark.namespaces
def test_what_cannot_start_says_why_in_one_line(runtime, tmp_path):
    with pytest.raises(StartError, match=r"^No such file or directory.*$"):
        runtime.start(Launch(("/no/such/program",)), tmp_path / "a")
    mounts = (Bind(str(tmp_path), "/no-such-top-level-directory/x", True),)
    with pytest.raises(StartError, match="no private directory can be put at /"):
        runtime.start(Launch(("true",), mounts=mounts), tmp_path / "b")


@pytest.mark.namespaces
def test_a_missing_mount_source_becomes_a_directory(runtime, tmp_path):
    mounts = (Bind(str(tmp_path / "missing"), "/etc/gigaslice-test", False),)
    code, out, _ = run(runtime, tmp_path, "test -d /etc/gigaslice-test && echo directory", mounts=mounts)
    assert (code, out) == (0, "directory\n")
    assert (tmp_path / "missing").is_dir()


@pytest.mark.namespaces
def test_a_pods_program_restarts_in_its_mounts(node, plugin, tmp_path, allocation, runtime):
    kubelet = node(runtime=runtime, settings=QUICK)
    one = plugin(kubelet)
    for bind in allocation:
        one.response.mounts.add(container_path=bind.target, host_path=bind.source, read_only=bind.read_only)
    one.start()
    kubelet.wait_allocatable(RESOURCE, 24)
    command = ("sh", "-c", "cat /etc/vcuda/limits; echo $THING; exec sleep 60")
    pod = kubelet.run_pod(PodSpec("p", (ContainerSpec("c", {RESOURCE: 4}, command),), grace_s=0.1))
    for runs in (1, 2):
        pod.wait_for(lambda pod, runs=runs: pod.container().runs == runs and pod.container().running)
        eventually(lambda: pod.container().read() == "limits\nyes\n")
        pod.container().process.signal(signal.SIGKILL)
    kubelet.delete_pod(pod)
    assert pod.container().exit_code == 137


def test_without_namespaces_the_environment_stands_for_the_mounts(plain, tmp_path, allocation):
    (tmp_path / "preload").write_text("/usr/local/lib/vcuda/libvcuda-1.so\n")
    env = preload_environment(allocation)
    assert env == {"LD_PRELOAD": str(tmp_path / "lib" / "libvcuda-1.so"), "VCUDA_DIR": str(tmp_path)}
    assert preload_environment(()) == {}
    runtime = plain
    assert "without namespaces (asked for)" in runtime.note
    assert "\n" not in runtime.note
    process = runtime.start(
        Launch(("sh", "-c", "echo $VCUDA_DIR; exit 5"), mounts=allocation[2:]), tmp_path / "logs"
    )
    assert (process.wait(60), process.read()) == (5, f"{tmp_path}\n")
    process.close()


def test_plain_programs_are_killed_and_missing_ones_named(plain, tmp_path):
    runtime = plain
    process = runtime.start(Launch(("sleep", "60")), tmp_path / "a")
    assert process.host_pids() == [process.pid]
    process.kill()
    assert process.returncode == 137
    with pytest.raises(StartError, match="/no/such/program: No such file or directory"):
        runtime.start(Launch(("/no/such/program",)), tmp_path / "b")


def test_a_container_without_command_only_waits(tmp_path):
    process = Runtime("plain").start(Launch(()), tmp_path)
    assert (process.returncode, process.host_pids()) == (None, [])
    process.signal(signal.SIGTERM)
    assert (process.wait(60), process.read()) == (143, "")
