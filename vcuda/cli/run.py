# SPDX-License-Identifier: Apache-2.0
"""``vcuda run``: a command under a quota.

Creates a quota directory, starts the command with the library preloaded, forwards signals, and exits with the
command's own exit code. The library enforces the limit; nothing here watches the GPU. Signals that the terminal sends
to the whole foreground group reach the command directly and are not sent twice.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gigaslice.core.units import exact_size, format_bytes
from vcuda import (
    contexts,
    contract,
    errors,
    install,
    preload,
    program,
    promises,
    quota_request,
    quotas,
    settings,
)
from vcuda.ledger import read_ledger
from vcuda.limits import GpuLimit

if TYPE_CHECKING:
    from vcuda import machine
    from vcuda.devices import GpuDevice  # these load NVML

__all__ = ["DESCRIPTION", "HELP", "add_arguments", "add_quota_arguments", "check_quota", "quota_words", "run"]

HELP = "run a command under a quota of GPU memory"
DESCRIPTION = "Runs COMMAND. It and its children together use at most SIZE of each GPU."

_FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_SI_KERNEL = 0x80  # si_code of a signal that the terminal raised (asm-generic/siginfo.h)
_HARDLY_ENOUGH = 512 << 20  # for a context that nobody has measured
_UNITS = ("KIB", "MIB", "GIB", "TIB")  # where a command should stand: "8 GiB" in two words
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126  # what shells answer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.epilog = "The exit code is the command's own, 128 + n when signal n ended it."
    parser.usage = (
        "vcuda run --memory SIZE [--physical SIZE] [--host SIZE] [--cores PERCENT [--elastic]] [--gpu GPU]... "
        "[--dir DIR] [--exec] [--overcommit] -- COMMAND ..."
    )
    add_quota_arguments(parser)
    parser.add_argument(
        "--dir",
        type=Path,
        metavar="DIR",
        help="keep the quota in DIR and share it with every command that names DIR; DIR is not removed afterwards",
    )
    parser.add_argument(
        "--exec",
        action="store_true",
        help="become the command, with the same PID, instead of watching it; a later command removes the quota",
    )
    parser.add_argument(
        "--overcommit",
        action="store_true",
        help="say nothing where all quotas together promise more than a GPU has",
    )
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="COMMAND", help="the command and its arguments"
    )


def add_quota_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say how large the quota is."""
    parser.add_argument("--memory", metavar="SIZE", help="quota on each GPU: 8GiB, 512MiB, 8 (GiB)")
    parser.add_argument(
        "--physical",
        metavar="SIZE",
        help="the part of it in the GPU's own memory; the rest moves between GPU and host",
    )
    parser.add_argument(
        "--host",
        metavar="SIZE",
        help="the part of it that may lie in host memory; --memory is the sum of --physical and --host",
    )
    parser.add_argument(
        "--cores",
        metavar="PERCENT",
        help="share of each GPU's time, 1 to 100; default: no limit",
    )
    parser.add_argument(
        "--elastic",
        action="store_true",
        help="use the idle time of others beyond --cores, where an arbiter such as the node agent lends it",
    )
    parser.add_argument(
        "--gpu",
        action="append",
        default=[],
        metavar="GPU",
        help="UUID, its beginning, or NVML index of a GPU that the command may use; may be repeated; default: all GPUs",
    )


def quota_words(parsed: argparse.Namespace) -> list[str]:
    """The options of add_quota_arguments() that were given, as words of a command line."""
    sizes_given = [("--memory", parsed.memory), ("--physical", parsed.physical), ("--host", parsed.host)]
    options = [*sizes_given, ("--cores", parsed.cores), *(("--gpu", name) for name in parsed.gpu)]
    words = [word for option, value in options if value is not None for word in (option, value)]
    return [*words, *(["--elastic"] if parsed.elastic else [])]


def check_quota(parsed: argparse.Namespace) -> None:
    """Raises what ``vcuda run`` would with these options on this machine now."""
    memory = quota_request.parse_memory(parsed.memory, parsed.physical, parsed.host)
    quota_request.parse_compute(parsed.cores, elastic=parsed.elastic)
    config = settings.read_settings()
    choice = _machine_choice(parsed.gpu, config)
    costs = _context_costs(config.base_directory, choice.driver)
    _check_size(
        memory, choice.devices, costs, choice.devices if parsed.gpu else _visible(choice.devices, config)
    )


def run(parsed: argparse.Namespace) -> int:
    """Runs the command; the exit code."""
    words: list[str] = [*parsed.command, *(parsed.tail if parsed.command else parsed.tail[1:])]
    if not words:
        raise errors.UsageError(
            "no command was given", "", "write it after --, as in vcuda run --memory 8GiB -- ls"
        )
    memory = quota_request.parse_memory(parsed.memory, parsed.physical, parsed.host)
    config = settings.read_settings()
    if settings.in_container():
        raise errors.UsageError(
            "this is a container with a limit of its own",
            f"only the limits in {contract.CONTAINER_LIMITS} count",
            "run the command directly",
        )
    library = _preloadable(install.library_path())
    compute = quota_request.parse_compute(parsed.cores, elastic=parsed.elastic)
    choice = _machine_choice(parsed.gpu, config)
    driver, chosen = choice.driver, choice.devices
    costs = _context_costs(config.base_directory, driver)
    _check_size(memory, chosen, costs, chosen if parsed.gpu else _visible(chosen, config))
    gpus = _gpu_limits(chosen, memory, compute)
    executable = program.find_program(words[0], config.environment.get("PATH", os.defpath))
    if executable is None:
        remedy = "; write size and unit as one word: 8GiB" if words[0].upper() in _UNITS else ""
        print(
            f"vcuda run: error: {errors.printable(words[0])}: no such program, or not executable{remedy}",
            file=sys.stderr,
        )
        return _NOT_FOUND
    reason = program.preload_obstacle(executable)
    if reason == program.MUSL:
        print(
            f"vcuda run: error: {errors.printable(words[0])} cannot be limited: {reason}; "
            "use a build for glibc, or run it without vcuda run",
            file=sys.stderr,
        )
        return _NOT_EXECUTABLE
    if reason:
        print(f"vcuda run: warning: the limit will not hold for {executable}: {reason}", file=sys.stderr)
    base = quotas.private_base(config.base_directory)
    contexts.keep(base, driver, costs)  # the directories that it was read from may go now
    directory = _quota_directory(parsed.dir, base, gpus, words)
    if not parsed.overcommit:
        _warn_of_promises(chosen, memory, quotas.quotas_in_use(config.base_directory, directory))
    environment = settings.child_environment(
        config,
        library=_preload_entry(library, config.base_directory, None if parsed.dir else directory),
        directory=directory,
        visible_devices=",".join(device.uuid for device in chosen) if parsed.gpu else None,
    )
    try:
        if parsed.exec:
            return _become(executable, words, environment, None if parsed.dir else directory)
        return _supervise(executable, words, environment, None if parsed.dir else directory)
    finally:  # also where the command could not be executed
        _keep_context_cost(config.base_directory, driver, directory)
        if parsed.dir is None:
            quotas.remove_if_unused(directory, launcher_done=True)


def _preloadable(library: Path) -> Path:
    if reason := settings.not_preloadable(library):
        raise errors.LibraryMissingError(f"cannot preload {library}", reason, "install gigaslice elsewhere")
    return library


def _library_for_all(library: Path, base: Path) -> Path:
    """LIBRARY, or a copy of it that every user can read.

    A program that root starts may change its user, and then the loader skips a library that this user cannot read.
    """
    if os.geteuid() != 0 or install.is_readable_by_all(library):
        return library
    copy = install.install_library(quotas.private_base(base) / "lib", library)
    if install.is_readable_by_all(copy) and not os.statvfs(copy).f_flag & os.ST_NOEXEC:
        return _preloadable(copy)
    print(
        f"vcuda run: warning: the limit will not hold for children of other users: they cannot read {library}; "
        "install gigaslice where every user can read it",
        file=sys.stderr,
    )
    return library


def _preload_entry(library: Path, base: Path, own: Path | None) -> Path:
    """The entry for LD_PRELOAD. OWN: the command's own quota directory; other users may write to one of --dir."""
    library = _library_for_all(library, base)
    home = own if own is not None else quotas.private_base(base) / preload.shared_name(library)
    return preload.entry_for(library, home)


def _machine_choice(names: list[str], config: settings.UserSettings) -> machine.MachineGpus:
    from vcuda import machine

    choice = machine.choose(names, config)
    if not choice.devices:
        raise errors.NoDriverError("there is no GPU to limit", "NVML lists none")
    return choice


def _visible(present: Sequence[GpuDevice], config: settings.UserSettings) -> Sequence[GpuDevice]:
    from vcuda import devices

    listed = config.environment.get("CUDA_VISIBLE_DEVICES")
    by_bus = config.environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    return present if listed is None else devices.visible_devices(listed, present, by_bus=by_bus)


def _check_size(
    memory: quota_request.MemoryRequest,
    chosen: Sequence[GpuDevice],
    contexts_measured: Mapping[str, int],
    visible: Sequence[GpuDevice],
) -> None:
    """A quota must fit on each GPU, and a context into it. Raises UsageError. VISIBLE: what the command sees."""
    option = "--physical" if memory.host_bytes else "--memory"
    beyond = "" if memory.host_bytes else "; with --physical SIZE the rest may lie in host memory"
    size = exact_size(memory.on_gpu)
    for device in chosen:
        if memory.on_gpu > device.memory_bytes:
            raise errors.UsageError(
                f"{option} {size} is more than GPU {device.index} has",
                f"{device.name} has {format_bytes(device.memory_bytes)}",
                f"request less, or name larger GPUs with --gpu{beyond}",
            )
        cost = contexts_measured.get(device.uuid, 0)
        if memory.on_gpu < cost:
            raise errors.UsageError(
                f"{option} {size} is less than a context takes of GPU {device.index}",
                f"one took {exact_size(cost)} when it was last measured here",
                "request that and what the program needs besides",
            )
    unmeasured = [str(device.index) for device in visible if device.uuid not in contexts_measured]
    if unmeasured and memory.on_gpu < _HARDLY_ENOUGH:
        print(
            f"vcuda run: warning: {option} {size} is hardly enough for a context on GPU {', '.join(unmeasured)}, where "
            "none was measured: one takes some hundred MiB, and the program may not get it",
            file=sys.stderr,
        )
    quota_request.check_host_memory(memory, len(chosen))


def _gpu_limits(
    chosen: Sequence[GpuDevice], memory: quota_request.MemoryRequest, compute: quota_request.ComputeRequest
) -> list[GpuLimit]:
    return [
        GpuLimit(
            device.uuid,
            memory.memory_bytes,
            cores_percent=compute.cores,
            physical_bytes=memory.physical_bytes,
            compute_policy=compute.policy,
        )
        for device in chosen
    ]


def _warn_of_promises(
    chosen: Sequence[GpuDevice], memory: quota_request.MemoryRequest, others: Sequence[quotas.Quota]
) -> None:
    """Tells where this quota and those in use are more than a GPU has. The own one is there already, so of two commands
    that start at once one sees the other.
    """
    promised = {
        of_gpu.uuid: of_gpu
        for of_gpu in promises.summed((quota.name, quota.limits.gpus, {}) for quota in others)
    }
    for device in chosen:
        text = promises.overcommitted(
            f"GPU {device.index}", device.memory_bytes, memory.on_gpu, promised.get(device.uuid)
        )
        if text:
            print(f"vcuda run: warning: {text}; --overcommit silences this", file=sys.stderr)


def _context_costs(base: Path, driver: str) -> dict[str, int]:
    """What a context takes of each GPU: as it was kept, and as quotas have it whose commands nobody watched."""
    return contexts.measured(base, driver) | quotas.context_costs(base)


def _keep_context_cost(base: Path, driver: str, directory: Path) -> None:
    with contextlib.suppress(errors.VcudaError):
        contexts.keep(base, driver, read_ledger(directory / contract.LEDGER_FILE).context_bytes)


def _quota_directory(named: Path | None, base: Path, gpus: Sequence[GpuLimit], words: Sequence[str]) -> Path:
    if named is not None:
        return quotas.open_named(named.absolute(), gpus)
    quotas.sweep(base)
    return quotas.create_in(base, gpus, words)


def _become(executable: Path, words: list[str], environment: dict[str, str], record: Path | None) -> int:
    """Executes the command in this process, which then is the launcher that keeps the quota; returns only a failure."""
    if record is not None:
        with contextlib.suppress(OSError):
            quotas.write_command(record, words, os.getpid())
    sys.stdout.flush()
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these two
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execve(executable, words, environment)
    except OSError as error:
        print(f"vcuda run: error: {errors.printable(words[0])}: {error.strerror}", file=sys.stderr)
    return _NOT_EXECUTABLE


def _supervise(executable: Path, words: list[str], environment: dict[str, str], record: Path | None) -> int:
    """Starts the command, forwards signals until it ends, and returns its exit code.

    RECORD: the quota directory in which to record its PID, if any.
    """
    watched = {*_FORWARDED, signal.SIGCHLD}
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # inherited as ignored it would leave no exit status
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        try:
            pid = os.posix_spawn(
                executable,
                words,
                environment,
                setsigmask=before,
                setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),  # Python ignores these two
            )
        except OSError as error:
            print(f"vcuda run: error: {errors.printable(words[0])}: {error.strerror}", file=sys.stderr)
            return _NOT_EXECUTABLE
        if record is not None:
            with contextlib.suppress(OSError):  # only vcuda ps shows the PID
                quotas.write_command(record, words, pid)
        return _wait(pid, watched)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wait(pid: int, watched: set[signal.Signals]) -> int:
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        information = signal.sigwaitinfo(watched)
        if information.si_signo != signal.SIGCHLD and information.si_code != _SI_KERNEL:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, information.si_signo)
