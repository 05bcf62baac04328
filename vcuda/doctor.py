# SPDX-License-Identifier: Apache-2.0
"""Checks whether limits hold on this machine: one finding per check, with a remedy where it failed.

Checks of the driver and the loader run in child processes, since a broken driver may crash or hang its caller. Each
check is a function from its inputs to findings; the command prints them. Nothing on the machine changes beyond a
temporary directory.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gigaslice.core.units import exact_size, format_bytes
from vcuda import (
    contexts,
    contract,
    errors,
    install,
    machine,
    program,
    promises,
    quotas,
    settings,
    surroundings,
)
from vcuda.finding import Finding
from vcuda.limits import GpuLimit, read_limits

__all__ = ["Finding", "check_locks", "check_managed", "examine"]

_PROBE = Path(__file__).with_name("probe.py")
_CHILD_SECONDS = 30
_OLDEST_GLIBC = (2, 17)
_PROCESSORS = ("x86_64", "aarch64")
_NO_LIMITS = (contract.ENV_DIR, contract.ENV_QUOTA, contract.ENV_LOG, contract.ENV_REFUSALS)
_FLOCK = "hhqqi4x"  # struct flock of 64-bit Linux: type, whence, start, length, pid


def examine(config: settings.UserSettings, command: str = "") -> Iterator[Finding]:
    """All findings, in an order in which an early failure explains later ones. COMMAND: a program to check."""
    yield from _check_system()
    yield from _check_nvml(config)
    yield from surroundings.check_search_path(config.environment)
    yield from _check_driver(config.environment)
    yield from _check_directory(config.base_directory)
    yield from surroundings.check_runtime_directory(config.environment, config.base_directory, os.geteuid())
    yield from surroundings.check_units(config.environment, _user_manager(config.environment))
    yield from _check_library(config)
    yield from _check_variables(config)
    yield from _check_container()
    if command:
        yield _check_program(command, config.environment.get("PATH", os.defpath))


def _check_system() -> Iterator[Finding]:
    machine = platform.machine()
    if machine in _PROCESSORS:
        yield Finding("ok", "processor", machine)
    else:
        yield Finding("fail", "processor", f"{machine} is not supported", f"use {' or '.join(_PROCESSORS)}")
    libc, version = platform.libc_ver()
    if libc != "glibc":
        yield Finding(
            "fail", "glibc", f"this is {libc or 'another C library'}", "use a system based on glibc"
        )
    elif tuple(int(part) for part in version.split(".")[:2]) < _OLDEST_GLIBC:
        yield Finding("fail", "glibc", f"{version} is too old", "use 2.17 or newer")
    else:
        yield Finding("ok", "glibc", version)


def _check_nvml(config: settings.UserSettings) -> Iterator[Finding]:
    try:
        choice = machine.choose([], config)
    except errors.VcudaError as error:
        yield Finding("fail", "NVML", f"{error.what}: {error.cause}", error.remedy)
        return
    version, present = choice.driver, choice.devices
    if not present:
        yield Finding(
            "fail", "NVML", f"driver {version}, no GPU", "check lspci, /dev/nvidia* and the kernel's log"
        )
        return
    yield Finding("ok", "NVML", f"driver {version}, {len(present)} GPU{'s' if len(present) > 1 else ''}")
    for device in present:
        size = format_bytes(device.memory_bytes)
        yield Finding("ok", f"GPU {device.index}", f"{device.name}, {size}, {device.uuid}")


def _check_driver(environment: Mapping[str, str]) -> Iterator[Finding]:
    answer = _run_probe({key: value for key, value in environment.items() if key != "LD_PRELOAD"})
    driver = str(answer.get("driver", ""))
    yield from surroundings.check_wsl(platform.release(), driver)
    if problem := answer.get("error"):
        yield Finding("fail", "CUDA driver", str(problem), errors.NoDriverError.remedy)
    elif answer.get("init") == surroundings.STUB_LIBRARY:
        yield surroundings.stub_finding(driver)
    elif answer.get("init") != 0:
        yield Finding(
            "fail", "CUDA driver", f"cuInit answered {answer.get('init')}", "run nvidia-smi; see dmesg"
        )
    else:
        version = int(str(answer["version"]))
        yield Finding("ok", "CUDA driver", f"CUDA {version // 1000}.{version % 1000 // 10}")
        yield _managed_finding(answer)


def check_managed() -> Finding:
    """Whether quotas may exceed the GPU's memory: every visible GPU has to move pages while it computes.

    The check runs in this process's own environment.
    """
    return _managed_finding(_run_probe(None))


def _managed_finding(answer: Mapping[str, object]) -> Finding:
    managed = answer.get("managed")
    if answer.get("init") != 0 or not isinstance(managed, list) or not managed:
        text = "CUDA does not start here, so concurrentManagedAccess of the GPUs is unknown"
        return Finding("warn", "host memory", text, "run vcuda doctor where programs run")
    without = [index for index, value in enumerate(managed) if not value]
    if not without:
        return Finding(
            "ok", "host memory", "all GPUs have concurrentManagedAccess: quotas may exceed the GPU"
        )
    names = ", ".join(str(index) for index in without)
    text = f"no concurrentManagedAccess on GPU {names}: allocations beyond a physical share are refused there"
    remedy = "use GPUs of compute capability 6.0 or newer with a full driver on Linux"
    return Finding("warn", "host memory", f"{text}, and in every process that sees these GPUs", remedy)


def check_locks(directory: Path, remedy: str) -> Finding:
    """Whether the file system of DIRECTORY has the two kinds of locks that the ledger's slots need.

    The kernel must tell the owner of a record lock, and the lock of an open file must exclude other open files.
    """
    try:
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".doctor-") as file:
            fcntl.fcntl(file, fcntl.F_SETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 1 << 32, 1, 0))
            owner = _lock_owner(file.name)
            if not _open_files_exclude(file.fileno(), Path(file.name)):
                text = f"locks of open files do not exclude each other on the file system of {directory}"
                return Finding("fail", "record locks", text, remedy)
    except OSError as error:
        return Finding("fail", "record locks", f"cannot lock a file in {directory}: {error.strerror}", remedy)
    if owner == os.getpid():
        return Finding("ok", "record locks", "the kernel tells their owners")
    return Finding(
        "fail", "record locks", f"the file system of {directory} does not tell the owner of a lock", remedy
    )


def _check_directory(base: Path) -> Iterator[Finding]:
    try:
        quotas.private_base(base)
    except errors.VcudaError as error:
        yield Finding("fail", "permissions", f"{error.what}: {error.cause}", error.remedy)
        return
    except OSError as error:
        yield Finding("fail", "permissions", f"{base}: {error}", "set XDG_RUNTIME_DIR")
        return
    yield Finding("ok", "permissions", f"only you can list {base}")
    yield check_locks(base, "set XDG_RUNTIME_DIR to a directory on a local file system")


def _open_files_exclude(descriptor: int, path: Path) -> bool:
    ask = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 1 << 33, 1, 0)
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, ask)
    with path.open("rb+") as other:
        try:
            fcntl.fcntl(other, fcntl.F_OFD_SETLK, ask)
        except BlockingIOError:
            return True
    return False


def _lock_owner(path: str) -> int:
    """PID that the kernel tells another process as the lock's owner; 0 for none."""
    script = (
        "import fcntl, os, struct, sys\n"
        f"ask = struct.pack({_FLOCK!r}, fcntl.F_WRLCK, os.SEEK_SET, 1 << 32, 1, 0)\n"
        "with open(sys.argv[1], 'rb+') as file:\n"
        f"    kind, _, _, _, pid = struct.unpack({_FLOCK!r}, fcntl.fcntl(file, fcntl.F_GETLK, ask))\n"
        "print(0 if kind == fcntl.F_UNLCK else pid)\n"
    )
    result = _child([sys.executable, "-I", "-c", script, path], None)
    return int(result.stdout) if result.returncode == 0 else 0


def _check_library(config: settings.UserSettings) -> Iterator[Finding]:
    try:
        library = install.library_path()
    except errors.VcudaError as error:
        yield Finding("fail", "library", f"{error.what}: {error.cause}", error.remedy)
        return
    if reason := settings.not_preloadable(library):
        yield Finding("fail", "library", f"{library}: {reason}", "install gigaslice elsewhere")
        return
    result = _child([sys.executable, "-I", "-c", ""], {**config.environment, "LD_PRELOAD": str(library)})
    message = errors.printable(result.stderr.strip().splitlines()[0]) if result.stderr.strip() else ""
    if result.returncode or message:
        yield Finding(
            "fail", "library", message or f"{library} ends its program", errors.LibraryMissingError.remedy
        )
        return
    yield Finding("ok", "library", f"{library} can be preloaded")
    yield from _check_interception(config, library)


def _check_interception(config: settings.UserSettings, library: Path) -> Iterator[Finding]:
    """Runs the probe under a quota and checks whose cuMemAlloc it would call."""
    try:
        present = machine.choose([], config).devices[:16]
    except errors.VcudaError:
        present = ()
    if not present:
        yield Finding("warn", "interception", "not checked: there is no GPU", "see the lines above")
        return
    with tempfile.TemporaryDirectory(prefix="vcuda-doctor-") as folder:
        gpus = [GpuLimit(device.uuid, device.memory_bytes) for device in present]
        quotas.open_named(Path(folder), gpus)
        answer = _run_probe(settings.child_environment(config, library=library, directory=Path(folder)))
    for key, name in (("dlsym", "dlsym"), ("get_proc_address", "cuGetProcAddress")):
        if answer.get(key) == str(library.resolve()):
            yield Finding("ok", f"via {name}", "the library intercepts a program's allocations")
        else:
            got = answer.get("error") or f"the program gets {answer.get(key) or 'nothing'}"
            remedy = "check for another LD_PRELOAD, then report this with the driver's version"
            yield Finding(
                "fail",
                f"via {name}",
                f"the library does not intercept a program's allocations: {got}",
                remedy,
            )


def _check_variables(config: settings.UserSettings) -> Iterator[Finding]:
    """Whether the variables with limits that programs get here make sense, and whether anything obeys them."""
    values = {name: value for name, value in config.environment.items() if name.startswith("VCUDA_")}
    limits = {name: value for name, value in values.items() if name not in _NO_LIMITS}
    named = sorted({*limits, *(values.keys() & {contract.ENV_DIR, contract.ENV_QUOTA})})
    if not named or settings.in_container():
        return
    library = install.library_path()
    if not re.search(r"/libvcuda[^/\n]*$", _own_mappings(), re.MULTILINE):
        text = f"{named[0]} is set, but the library is not loaded: what is started here has no limit"
        yield Finding("fail", "limits", text, f"export LD_PRELOAD={library}, or use vcuda run")
    if not limits:
        return
    with tempfile.TemporaryDirectory(prefix="vcuda-doctor-") as folder:
        quota = Path(folder) / "quota"
        asked = {
            **limits,
            "LD_PRELOAD": str(library),
            contract.ENV_DIR: str(quota),
            contract.ENV_LOG: "error",
        }
        plain = settings.unlimited_environment(config)
        said = _child([sys.executable, "-I", str(_PROBE)], {**plain, **asked}).stderr
        mistake = re.search(r"^vcuda: (.*); (.*?)(?: \(until then .*\))?$", said, re.MULTILINE)
        if mistake:
            yield Finding("fail", "limits", errors.printable(mistake[1]), errors.printable(mistake[2]))
        elif (quota / contract.LIMITS_FILE).exists():
            yield from _check_room(config, read_limits(quota / contract.LIMITS_FILE).gpus)


def _check_room(config: settings.UserSettings, limits: Sequence[GpuLimit]) -> Iterator[Finding]:
    """What ``vcuda run`` says before it starts a command, and programs with their limit from the environment do not."""
    choice = machine.choose([], config)
    base = config.base_directory
    costs = contexts.measured(base, choice.driver) | quotas.context_costs(base)
    others = quotas.quotas_in_use(base, config.own_directory or Path())
    promised = {
        of_gpu.uuid: of_gpu
        for of_gpu in promises.summed((quota.name, quota.limits.gpus, {}) for quota in others)
    }
    fits = True
    for gpu in limits:
        device = next((device for device in choice.devices if device.uuid == gpu.uuid), None)
        own, cost = promises.promised_of(gpu), costs.get(gpu.uuid, 0)
        name = f"GPU {device.index}" if device else gpu.uuid
        if own < cost:
            text = f"{exact_size(own)} are less than a context takes of {name}: one took {exact_size(cost)}"
            yield Finding("fail", "limits", text, "set that and what the program needs besides")
        elif device and own > device.memory_bytes:
            text = f"{exact_size(own)} are more than {name} has, {format_bytes(device.memory_bytes)}"
            yield Finding("warn", "limits", text, "set less")
        elif device and (
            text := promises.overcommitted(name, device.memory_bytes, own, promised.get(gpu.uuid))
        ):
            yield Finding("warn", "limits", text, "set less, or end one of them")
        else:
            continue
        fits = False
    if fits:
        yield Finding(
            "ok", "limits", ", ".join(f"{gpu.uuid} {exact_size(gpu.memory_bytes)}" for gpu in limits)
        )


def _own_mappings() -> str:
    return Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")


def _check_container() -> Iterator[Finding]:
    """Only inside a container of an agent: whether its page is readable and this process has the library."""
    if not settings.in_container():
        return
    try:
        page = read_limits(contract.CONTAINER_LIMITS)
    except errors.VcudaError as error:
        yield Finding(
            "fail", "container", f"{error.what}: {error.cause}", "delete the pod, so that it is created again"
        )
        return
    if contract.CONTAINER_LIBRARY_DIR in _own_mappings():
        yield Finding("ok", "container", f"limits on {len(page.gpus)} GPU(s), and the library is loaded")
    else:
        yield Finding(
            "fail",
            "container",
            "there are limits, but the library is not loaded",
            f"check that {contract.CONTAINER_PRELOAD} is mounted and that the image is based on glibc",
        )


def _check_program(command: str, search_path: str) -> Finding:
    path = program.find_program(command, search_path)
    if path is None:
        return Finding("fail", "program", f"{command} was not found", "check PATH and its permissions")
    if reason := program.preload_obstacle(path):
        return Finding(
            "fail", "program", f"limits do not hold for {path}: {reason}", "run a program linked with glibc"
        )
    return Finding("ok", "program", f"the library can be preloaded into {path}")


def _user_manager(environment: Mapping[str, str]) -> str | None:
    """The environment that units of this user's systemd start with; None where no such manager answers."""
    if contract.ENV_MEMORY_LIMIT not in environment:
        return None
    try:
        plain = {key: value for key, value in environment.items() if key != "LD_PRELOAD"}
        result = _child(["systemctl", "--user", "show-environment"], plain)
    except OSError:
        return None
    return result.stdout if result.returncode == 0 else None


def _run_probe(environment: Mapping[str, str] | None) -> dict[str, object]:
    result = _child([sys.executable, "-I", str(_PROBE)], environment)
    try:
        answer = json.loads(result.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        reason = result.stderr.strip().splitlines()[-1:] or [f"it ended with {result.returncode}"]
        return {"error": f"a program that starts the driver fails: {reason[0]}"}
    return answer if isinstance(answer, dict) else {}


def _child(command: list[str], environment: Mapping[str, str] | None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_CHILD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"no answer within {_CHILD_SECONDS} s")
