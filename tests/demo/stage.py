# SPDX-License-Identifier: Apache-2.0
"""Puts up what the story needs (machine, kubelet stand-in, node agent, client program) and takes it down again."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.demo import clients
from tests.demo.clients import Client, DemoError
from tests.demo.machine import ROOT, Machine, find
from tests.demo.report import Report
from tests.demo.supervise import PARENT
from tests.fakes.kubelet import ContainerSpec, FakeKubelet, Pod, PodSpec, Runtime

RESOURCE = "gigaslice.io/vgpu-memory"


class Stage:
    """A context manager; whatever happens inside, nothing of it is left behind."""

    def __init__(self, report: Report, simulate: bool, namespaces: str, seed: int, prefix: str) -> None:
        self.report = report
        self.simulate = simulate
        self.namespaces = namespaces
        self.seed = seed
        self.prefix = prefix
        self.cleanup = contextlib.ExitStack()
        self.agent: subprocess.Popen[bytes] | None = None
        places = ("/etc/vcuda", "/usr/local/lib/vcuda", "/etc/ld.so.preload")
        self.already_there = [place for place in places if Path(place).exists()]

    def __enter__(self) -> Stage:
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Takes everything down."""
        self.cleanup.close()

    def _build(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix=self.prefix, dir=PARENT))
        self.directory.chmod(0o755)
        self.cleanup.callback(shutil.rmtree, self.directory, ignore_errors=True)
        self.report.step("compiling the client program and looking for a GPU")
        self.client = clients.build(self.directory)
        try:
            self.machine: Machine = find(self.directory, self.simulate)
        except OSError as error:
            raise DemoError(f"the simulated driver does not work: {error}; run `make fakedriver`") from error
        if not self.machine.real:
            self.report.note(f"the GPUs are simulated: {self.machine.why_simulated}")
        self.runtime = Runtime(self.namespaces, env=self.machine.env, select_gpus=self.machine.real)
        if self.runtime.note:
            self.report.note(self.runtime.note)
        self.report.step("starting the kubelet stand-in and `gigaslice node`")
        self.kubelet = FakeKubelet(self.directory / "k", seed=self.seed, runtime=self.runtime)
        self.cleanup.callback(self.kubelet.close)
        self.kubelet.start()
        self.start_agent()

    # --- the node agent --------------------------------------------------------------------------------------

    @property
    def state_dir(self) -> Path:
        return self.directory / "state"

    @property
    def agent_log(self) -> Path:
        return self.directory / "agent.log"

    def start_agent(self) -> None:
        """Starts it and waits until the node advertises its slices."""
        command = [sys.executable, "-m", "gigaslice_cli", "node", "--state-dir", str(self.state_dir)]
        command += ["--kubelet-dir", str(self.kubelet.plugin_directory)]
        command += ["--pod-resources", str(self.kubelet.pod_resources_socket)]
        command += ["--resource", RESOURCE, "--slice", "1GiB", "--inventory", "nvml"]
        command += ["--poll-interval", "200ms", "--measure-interval", "200ms"]
        with self.agent_log.open("ab") as log:
            self.agent = subprocess.Popen(
                command, cwd=ROOT, env=self.tool_env(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.cleanup.callback(self.stop_agent)
        deadline = time.monotonic() + 30
        while not self.kubelet.allocatable().get(RESOURCE):
            if self.agent.poll() is not None:
                raise DemoError(f"gigaslice node ended with {self.agent.returncode}: {self.last_words()}")
            if time.monotonic() > deadline:
                raise DemoError(f"gigaslice node registered nothing in 30 s: {self.last_words()}")
            time.sleep(0.02)
        offered = self.kubelet.allocatable()[RESOURCE]
        self.kubelet.wait_allocatable(RESOURCE, offered)  # until the scheduler knows it, too

    def stop_agent(self) -> int:
        """Its exit code after SIGTERM."""
        assert self.agent is not None
        if self.agent.poll() is None:
            self.agent.send_signal(signal.SIGTERM)
            try:
                self.agent.wait(10)
            except subprocess.TimeoutExpired:
                self.agent.kill()
                self.agent.wait()
        return self.agent.returncode

    def log_tail(self, count: int) -> str:
        """The last COUNT lines that the agent wrote."""
        lines = (
            self.agent_log.read_text(errors="replace").strip().splitlines() if self.agent_log.exists() else []
        )
        return "\n".join(lines[-count:]) or "it said nothing"

    def last_words(self) -> str:
        return self.log_tail(1)[:300]

    def tool_env(self) -> dict[str, str]:
        """For programs of the node: everything is found by this interpreter, and the driver by its path."""
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TERM") if name in os.environ}
        return {**kept, **self.machine.env, "PYTHONPATH": str(ROOT), "COLUMNS": "150"}

    def tool(self, *arguments: str) -> str:
        """Output of a command of the node, such as ("vcuda", "ps")."""
        command = [sys.executable, "-m", *arguments]
        result = subprocess.run(
            command, cwd=ROOT, env=self.tool_env(), capture_output=True, text=True, timeout=60, check=False
        )
        if result.returncode != 0:
            raise DemoError(
                f"{' '.join(arguments[:2])} ended with {result.returncode}: {result.stderr.strip()}"
            )
        return result.stdout

    def usage(self) -> list[dict]:
        """The quotas that `vcuda ps` sees on the node."""
        answer = json.loads(self.tool("vcuda", "ps", "--json", "--dir", str(self.state_dir / "allocations")))
        return answer["quotas"]

    # --- pods ------------------------------------------------------------------------------------------------

    def pod(self, name: str, slices: int, env: dict[str, str] | None = None) -> Pod:
        """Asks for a pod whose program is the client; returns at the node's verdict."""
        container = ContainerSpec(
            "app", {RESOURCE: slices}, command=(str(self.client),), env=env or {}, stdin=True
        )
        return self.kubelet.run_pod(PodSpec(name, (container,), restart_policy="Never", grace_s=0.2))

    def main_program(self, pod: Pod) -> Client:
        """The client that the pod was started with."""
        process = pod.container().process
        if process is None:
            raise DemoError(f"pod {pod.name} does not run: {pod.reason} {pod.message}; {self.last_words()}")
        return Client(process)

    def another_program(self, pod: Pod) -> Client:
        """A second client in the same container."""
        process = self.kubelet.exec(pod, (str(self.client),), interactive=True)
        self.cleanup.callback(process.kill)
        return Client(process)

    def run_in(self, pod: Pod, *command: str) -> str:
        """Output of a third-party program in the pod's container."""
        process = self.kubelet.exec(pod, command)
        try:
            code = process.wait(30)
        except subprocess.TimeoutExpired:
            raise DemoError(f"{command[0]} in pod {pod.name} did not end within 30 s") from None
        finally:
            process.kill()
        if code != 0:
            text = (process.read("stderr") or process.read()).strip()[-300:]
            raise DemoError(f"{' '.join(command)} in pod {pod.name} ended with {code}: {text}")
        return process.read()
