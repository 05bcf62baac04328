# SPDX-License-Identifier: Apache-2.0
"""A life of a state directory with sudden ends: forked agents that work on it and die between two steps of theirs.

Run as a program of its own (one thread, so that a fork is whole): `killing.py DIRECTORY ROUNDS SEED MODE`. Each round
forks a child that opens the store and does what an agent does; after a number of calls that is drawn anew each time it
kills itself (MODE kill) or all its writing calls fail from there on as on a full or read-only disk (full, read-only).
Then another child opens the store as a successor does and compares it with what the first had answered. What is known
of the answers comes through a pipe, as a kubelet gets them. Prints one line of JSON; ends with 1 at the first loss.

Steps inside of the C code that makes limits pages and ledgers are not cut apart: they work in a directory that has no
name yet. The kills of whole agents (tests/integration/agent/storm.py) hit those too.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import random
import secrets
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import vcuda
from agent.allocation.request import ImpossibleError
from agent.deviceplugin.reviews import carry_out
from agent.inventory.holder import InventoryHolder
from agent.persistence.store import Store
from agent.roles.records import CODEC
from gigaslice.core.allocation.consumer import ContainerRef
from gigaslice.core.allocation.table import LiveLimit
from gigaslice.core.deviceplugin.lifetime import Evidence, Listed, PodListing
from gigaslice.core.deviceplugin.origin import held, plugin
from gigaslice.core.deviceplugin.reconcile import review
from gigaslice.core.errors import GigasliceError
from gigaslice.core.placement import Policy
from gigaslice.runtime import logs
from tests.fakes.nodes import GIB, all_device_ids, device_allocator, inventory
from vcuda import contract

GPUS = inventory(gpus=3, slices=16)
_WRITES = ("open", "write", "pwrite", "mkdir", "rename", "replace", "link", "unlink", "rmdir", "ftruncate",
           "fchmod", "fsync")  # fmt: skip
_FILES = ("posix", "_io", "fcntl")  # modules whose functions are system calls,
_NO_CALLS = ("fspath", "uuid_parse")  # but for these


class Kubelet:
    """What a kubelet knows after answers that reached it: allocation id -> device IDs, and what was resized.

    tried: all sizes that an agent set out to give, since a page can be one resize behind the allocation table when it
    is killed.
    """

    def __init__(self) -> None:
        self.answered: dict[str, list[str]] = {}
        self.sizes: dict[str, int] = {}
        self.tried: dict[str, set[int]] = {}

    def hear(self, text: str) -> None:
        for line in filter(None, text.splitlines()):
            word = json.loads(line)
            if "allocated" in word:
                self.answered[word["allocated"]] = word["device_ids"]
            elif "resizing" in word:
                self.tried.setdefault(word["resizing"], set()).add(word["bytes"])
            else:
                self.sizes[word["resized"]] = word["bytes"]

    @property
    def listing(self) -> PodListing:
        rows = [
            Listed(ContainerRef("ns", key[:8], "main"), frozenset(device_ids))
            for key, device_ids in self.answered.items()
        ]
        return PodListing(tuple(rows), frozenset(f"ns/{key[:8]}" for key in self.answered))


def poll(store: Store, kubelet: Kubelet) -> None:
    """One regular pass of the poller, without its patience: an allocation that is not listed is over."""
    found = review(
        store.table,
        Evidence(kubelet.listing),
        young=frozenset(),
        asked_at=store.table.next_number,
        unlisted={},
        patience=1,
        gpus=GPUS.gpus,
        library=store.library,
        now=time.time(),
    )
    carry_out(store, found)


def work(state: Path, library: Path, kubelet: Kubelet, rng: random.Random, say: Callable[..., None]) -> None:
    """An agent's work: start, learn and give up, resize, allocate, sync."""
    store = Store(state, library, codec=CODEC)
    store.open()
    poll(store, kubelet)
    for allocation in store.table.allocations[:2]:
        size = rng.randint(1, len(plugin(allocation).device_ids)) * GIB // 2
        say(resizing=allocation.id, bytes=size)
        limits = tuple(LiveLimit(hold.gpu, memory_bytes=size) for hold in allocation.holds)
        store.resize(replace(allocation, limits=limits, resizes=allocation.resizes + 1))
        store.dirs.set_limits(allocation.id, dict.fromkeys(allocation.quota(), (size, 0)))
        if allocation.id in kubelet.answered:
            say(resized=allocation.id, bytes=size)
    allocator = device_allocator(
        store, InventoryHolder(GPUS), Policy.GAIA, time.time, lambda: secrets.token_hex(16)
    )
    if rng.random() < 0.5:
        store.make_ahead()
    taken = {device_id for device_ids in kubelet.answered.values() for device_id in device_ids}
    for _ in range(3):
        free = [device_id for device_id in all_device_ids(GPUS) if device_id not in taken]
        size = rng.randint(1, 8)
        if len(free) < size:
            break
        device_ids = allocator.prefer(free, [], size) or tuple(rng.sample(free, size))
        try:
            (allocation,) = allocator.allocate([device_ids])
        except ImpossibleError:
            continue
        say(allocated=allocation.id, device_ids=sorted(device_ids))
        taken |= set(device_ids)
        if rng.random() < 0.5:
            store.tidy()
    store.sync()
    store.close()


def check(state: Path, library: Path, kubelet: Kubelet) -> None:
    """A successor's start: every answer is there, whole, once; a resize that was answered holds."""
    store = Store(state, library, codec=CODEC)
    store.open()
    table = store.table
    for key, device_ids in kubelet.answered.items():
        allocation = table.find(key)
        assert allocation is not None, f"the answered allocation {key} is lost"
        assert plugin(allocation).device_ids == set(device_ids) and held(allocation) == set(device_ids), (
            f"{key} has other device IDs"
        )
        assert store.dirs.problem(allocation) is None, store.dirs.problem(allocation)
        if key in kubelet.sizes and allocation.resizes:
            latest = [one.memory_bytes for one in allocation.limits]
            page = vcuda.read_limits(store.dirs.path(key) / contract.LIMITS_FILE)
            assert latest, "a resize is lost"
            for gpu in page.gpus:
                assert gpu.memory_bytes in (*kubelet.tried[key], allocation.quota()[gpu.uuid])
            assert set(latest) <= kubelet.tried[key]
        assert not (key in kubelet.sizes and not allocation.resizes), "an answered resize is lost"
    taken = [device_id for allocation in table.allocations for device_id in held(allocation)]
    assert len(taken) == len(set(taken)), "a device ID counts twice"
    numbers = [allocation.number for allocation in table.allocations]
    assert len(numbers) == len(set(numbers)) and table.next_number > max(numbers, default=0)
    half = [path.name for path in (state / "allocations").iterdir() if path.name.startswith(".")]
    assert half == [], half
    poll(store, kubelet)
    assert {allocation.id for allocation in store.table.allocations} == set(kubelet.answered), (
        "something stays for ever"
    )
    store.sync()
    store.tidy()
    kept = {
        path.name for path in (state / "allocations").iterdir() if not path.name.startswith(".new-spare-")
    }
    assert kept == set(kubelet.answered)
    assert [path.name for path in state.glob("*.ended-*")] == []
    assert [path.name for path in store.library_dir.iterdir() if path.name.startswith(".")] == []
    store.close()


def dying_after(calls: int) -> Callable[[object, str, object], None]:
    """A profile function that kills the process at the CALLS-th beginning or end of a call that may reach a file."""
    counter = itertools.count(1)

    def hook(_frame: object, event: str, called: object) -> None:
        if event not in ("c_call", "c_return"):
            return
        home = getattr(called, "__module__", None) or type(getattr(called, "__self__", None)).__module__
        if called.__name__ in _NO_CALLS or not (home in _FILES or "_native" in home):  # type: ignore[attr-defined]
            return
        if next(counter) == calls:
            os.kill(os.getpid(), signal.SIGKILL)

    return hook


def fail_after(calls: int, number: int, own: int) -> None:
    """From the CALLS-th of them on, every writing call fails with the error NUMBER; but for the descriptor OWN."""
    counter = itertools.count(1)

    def wrapped(name: str) -> Callable[..., object]:
        real = getattr(os, name)

        def call(*arguments: object, **more: object) -> object:
            reading = name == "open" and not arguments[1] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)  # type: ignore[operator]
            freeing = number == errno.ENOSPC and name in ("unlink", "rmdir", "rename", "replace")
            there = name == "mkdir" and os.path.exists(arguments[0])  # type: ignore[arg-type]  # noqa: PTH110
            if arguments[0] != own and not (reading or freeing or there) and next(counter) >= calls:
                raise OSError(number, os.strerror(number), str(arguments[0]))
            return real(*arguments, **more)

        return call

    def refused(real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **more: object) -> object:
            if next(counter) >= calls:
                raise vcuda.errors.SystemError_("cannot write a file", os.strerror(number))
            return real(*arguments, **more)

        return call

    for name in _WRITES:
        setattr(os, name, wrapped(name))
    for name in ("reserve_limits", "reserve_ledger", "fill_limits", "fill_ledger"):
        setattr(vcuda, name, refused(getattr(vcuda, name)))


def forked(job: Callable[[int], None]) -> tuple[int, str]:
    """Runs JOB in a child with the writing end of a pipe; its wait status, and what it has written."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reader)
            job(writer)
            code = 0
        except GigasliceError as error:
            print(f"refused: {error}", file=sys.stderr)
            code = 3
        except vcuda.VcudaError as error:
            print(f"refused: {error}", file=sys.stderr)
            code = 3
        except BaseException:  # noqa: BLE001
            import traceback

            sys.setprofile(None)
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "r") as pipe:
        text = pipe.read()
    return os.waitpid(child, 0)[1], text


def main(directory: Path, rounds: int, seed: int, mode: str) -> int:
    logs.set_up("error", "json")
    rng, kubelet = random.Random(seed), Kubelet()
    state, library = directory / "state", directory / "libvcuda.so"
    library.write_bytes(b"\x7fELF library" * 1000)
    counts = {"rounds": rounds, "ended": 0, "refused": 0, "whole": 0, "answers": 0}
    most = 1500 if mode == "kill" else 150  # such calls of a whole round, or a little more
    for number in range(rounds):
        calls, job_seed = rng.randint(1, most), rng.getrandbits(32)

        def job(writer: int, calls: int = calls, job_seed: int = job_seed) -> None:
            real = os.write

            def say(**words: object) -> None:
                real(writer, json.dumps(words).encode() + b"\n")

            if mode == "kill":
                sys.setprofile(dying_after(calls))
            else:
                fail_after(calls, errno.ENOSPC if mode == "full" else errno.EROFS, writer)
            work(state, library, kubelet, random.Random(job_seed), say)

        status, text = forked(job)
        kubelet.hear(text)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        refused = os.WIFEXITED(status) and os.WEXITSTATUS(status) == 3
        counts["ended"] += killed
        counts["refused"] += refused
        counts["whole"] += status == 0
        if not killed and not refused and status != 0:
            print(f"round {number}, call {calls}: the agent failed in another way", file=sys.stderr)
            return 1
        if forked(lambda _: check(state, library, kubelet))[0] != 0:
            print(f"round {number}, call {calls}: see above", file=sys.stderr)
            return 1
        for key in rng.sample(sorted(kubelet.answered), len(kubelet.answered) // 2):
            del kubelet.answered[key]
            kubelet.sizes.pop(key, None)
        counts["answers"] += text.count("allocated")
    print(json.dumps(counts))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
