# SPDX-License-Identifier: Apache-2.0
"""One container of a pod of the chart, run from the image's root as its security context says.

By util-linux: a mount namespace with the root read-only, the volumes of the pod over it, and setpriv in it for user,
capabilities and no_new_privs. What a runtime adds and this does not: seccomp, cgroups, and a network of the pod's own.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.image.root import ROOT_DIRECTORY, configuration

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_STOP_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Running:
    """A container that runs. pid: of its first process, in the namespace of whoever looks."""

    pid: int
    log: Path

    def status(self) -> dict[str, str]:
        """The kernel's words about its first process."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return {key: text.strip() for key, _, text in (line.partition(":") for line in lines)}

    def capabilities(self) -> int:
        """The capabilities that it has."""
        return int(self.status()["CapEff"], 16)

    def root_options(self) -> list[str]:
        """The options of the mount that is its root."""
        for line in Path(f"/proc/{self.pid}/mountinfo").read_text().splitlines():
            fields = line.split()
            if fields[4] == "/":
                return fields[5].split(",")
        raise AssertionError("no root")


def words_of(container: Mapping[str, Any]) -> list[str]:
    """What is executed: the image's entry point with the container's arguments."""
    config = configuration()["config"]
    return [*config["Entrypoint"], *container.get("args", config.get("Cmd", []))]


def environment_of(container: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, str]:
    """The image's environment and the container's. FIELDS: of the pod, by their path."""
    pairs = dict(pair.split("=", 1) for pair in configuration()["config"]["Env"])
    for variable in container.get("env", []):
        source = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
        pairs[variable["name"]] = fields[source] if source else variable["value"]
    return pairs


def privileges(pod: Mapping[str, Any], container: Mapping[str, Any]) -> list[str]:
    """The words of setpriv for a container's security context."""
    context = {**pod.get("securityContext", {}), **container.get("securityContext", {})}
    user = context.get("runAsUser", 0)
    assert user or not context.get("runAsNonRoot"), "the kubelet would refuse it"
    words = [f"--reuid={user}", f"--regid={context.get('runAsGroup', user)}", "--clear-groups"]
    if not context.get("privileged"):
        capabilities = context["capabilities"]
        assert capabilities["drop"] == ["ALL"], "the default capabilities of runtimes are not modelled"
        added = [f"+{name.lower()}" for name in capabilities.get("add", [])]
        words.append("--bounding-set=" + ",".join(["-all", *added]))
        words.append("--inh-caps=-all")
    if context.get("allowPrivilegeEscalation") is False:
        words.append("--no-new-privs")
    return words


def script(
    pod: Mapping[str, Any],
    container: Mapping[str, Any],
    over: Path,
    sources: Mapping[str, Path],
    more: Mapping[str, Path],
) -> str:
    """The shell commands that make the mounts and become the container's first process."""
    merged = over / "merged"
    lines = [
        f"mount -t tmpfs none {over}",
        f"mkdir {over}/up {over}/work {merged}",
        f"mount -t overlay none -o lowerdir={ROOT_DIRECTORY},upperdir={over}/up,workdir={over}/work {merged}",
        f"mount -t proc proc {merged}/proc",
        f"mount -t tmpfs -o mode=755 none {merged}/dev",
    ]
    lines += [
        f"touch {merged}/dev/{name} && mount --bind /dev/{name} {merged}/dev/{name}" for name in _DEVICES
    ]
    lines.append(f"mkdir -m 1777 {merged}/dev/shm")
    for mount in container.get("volumeMounts", []):
        lines += _bound(sources[mount["name"]], merged, mount["mountPath"], mount.get("readOnly", False))
    for path, source in more.items():
        lines += _bound(source, merged, path, read_only=False)
    if {**pod.get("securityContext", {}), **container["securityContext"]}.get("readOnlyRootFilesystem"):
        lines.append(f"mount -o remount,ro,bind {merged}")
    inside = shlex.join(["chroot", str(merged), "setpriv", *privileges(pod, container), *words_of(container)])
    return "\n".join(["set -e", *lines, f"exec {inside}"])


def _bound(source: Path, merged: Path, path: str, read_only: bool) -> Iterator[str]:
    target = f"{merged}{path}"
    parent = target if source.is_dir() else str(Path(target).parent)
    yield f"mkdir -p {parent}"
    if not source.is_dir():
        yield f"touch {target}"
    yield f"mount --rbind {source} {target}"
    if read_only:
        yield f"mount -o remount,ro,bind {target}"


@contextlib.contextmanager
def running(
    pod: Mapping[str, Any],
    name: str,
    sources: Mapping[str, Path],
    *,
    more: Mapping[str, Path] | None = None,
    environment: Mapping[str, str] | None = None,
    fields: Mapping[str, str] | None = None,
) -> Iterator[Running]:
    """Runs a container of a pod and ends it.

    Args:
        pod: The pod's spec, of the chart.
        name: Of the container.
        sources: What is mounted, by the volume's name.
        more: Files and directories beside the pod's volumes, by their path in the container: what a container
            runtime or a cluster brings.
        environment: Variables beside the container's, likewise.
        fields: What fields of the pod the environment asks for, by their path.
    """
    (container,) = [one for one in pod["containers"] if one["name"] == name]
    spaces = ["--mount", "--propagation=slave"]
    if not pod.get("hostPID"):
        spaces += ["--pid", "--fork", "--kill-child"]
    with tempfile.TemporaryDirectory(prefix="gs-") as folder:
        log = Path(folder) / "log"
        (Path(folder) / "over").mkdir()
        text = script(pod, container, Path(folder) / "over", sources, more or {})
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["unshare", *spaces, "bash", "-c", text],
                env={**environment_of(container, fields or {}), **(environment or {})},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            yield Running(_first(process, forked="--fork" in spaces), log)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(_first(process, forked="--fork" in spaces), signal.SIGTERM)
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _first(process: subprocess.Popen[bytes], *, forked: bool) -> int:
    """The container's first process: unshare itself, or its child where there is a new PID namespace."""
    if not forked:
        return process.pid
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while process.poll() is None:
        found = children.read_text().split()
        if found:
            return int(found[0])
    raise ProcessLookupError(process.pid)
