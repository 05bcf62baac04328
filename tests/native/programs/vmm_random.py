# SPDX-License-Identifier: Apache-2.0
"""Random calls of virtual memory management against a model of handles, mappings and bindings.

After each call the model says what the library must count, and what the device must really hold. The two differ only by
imports of the process's own exports, which cost nothing and yet keep memory: the test sees to it that the process
cannot measure itself. Some calls fail by order.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tests.native.programs.vmm import HOST, MIB, TILE_POOL, UNTOUCHED, Driver, prop

PART = 2 * MIB
SLOTS = 24
STEPS = 1500
QUOTA = {0: 164 * MIB, 1: 148 * MIB}
INJECTED = 999
FAKECTL = Path(__file__).resolve().parents[3] / "build" / "fakedriver" / "fakectl"


class WrongError(Exception):
    """What the driver did is not what the model said."""


def check(condition: bool, text: str) -> None:
    if not condition:
        raise WrongError(text)


@dataclass(eq=False)
class Body:
    """Physical memory."""

    size: int
    device: int | None


@dataclass(eq=False)
class Life:
    """What a handle stands for: of the original or of an import."""

    body: Body
    handle: int
    original: bool
    references: int = 1
    mappings: int = 0
    bindings: int = 0
    team: bool = False
    devices: list[int] = field(default_factory=list)
    bound: dict[tuple[int, int], Life] = field(default_factory=dict)  # (device, part) -> memory

    def alive(self) -> bool:
        return self.references + self.mappings + self.bindings > 0


class Model:
    """The calls, each followed by what must be so."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.driver = Driver(0, 1)
        self.contexts = {device: self.driver.really_used(device) for device in QUOTA}
        self.paid = {device: self.driver.used(device) for device in QUOTA}  # nothing where NVML is missing
        self.lives: list[Life] = []
        self.base = self.driver.reserve(SLOTS * PART)
        self.at: dict[int, tuple[int, Life]] = {}  # first slot -> slots, life
        self.done: list[str] = []
        self.broken = ""
        self.ended: list[int] = []

    # --- what is so

    def charged(self, device: int) -> int:
        return sum(x.body.size for x in self.lives if x.original and x.alive() and x.body.device == device)

    def physical(self, device: int) -> int:
        bodies = {x.body for x in self.lives if x.alive() and x.body.device == device}
        return sum(body.size for body in bodies)

    def compare(self) -> None:
        for device, context in self.contexts.items():
            used, real = self.driver.used(device), self.driver.really_used(device)
            paid = used - self.paid[device]
            check(paid == self.charged(device), f"device {device}: {paid} are charged")
            check(real == self.physical(device) + context, f"device {device}: {real - context} are taken")

    def settle(self) -> None:
        """Ended teams let go of what is bound to them."""
        for life in self.lives:
            if life.team and not life.alive():
                for memory in life.bound.values():
                    memory.bindings -= 1
                life.bound.clear()
        self.lives = [life for life in self.lives if life.alive()]

    def fails(self, call: str) -> bool:
        """Sometimes: orders the next CALL to fail."""
        if self.random.random() > 0.03:
            return False
        env = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
        order = [str(FAKECTL), "fail", call, str(INJECTED), "1", "--pid", str(os.getpid())]
        subprocess.run(order, env=env, check=True)
        return True

    def referable(self, *, team: bool = False) -> list[Life]:
        return [life for life in self.lives if life.references and life.team == team]

    # --- calls

    def create(self) -> None:
        device = self.random.choice((0, 0, 1, 1, None))
        size = self.random.choice((1, 1, 2, 3, 5)) * PART
        request = prop(device or 0, 1 if device is not None else HOST, handle_types=1, usage=TILE_POOL)
        refused = self.fails("cuMemCreate")
        fits = device is None or self.charged(device) + self.contexts[device] + size <= QUOTA[device]
        code, handle = self.driver.create(size, request)
        if refused and fits:
            check((code, handle) == (INJECTED, UNTOUCHED), "an ordered failure")
        elif not fits:
            check((code, handle) == (2, UNTOUCHED), f"{size} do not fit, and the answer is {code}")
            if refused:
                check(self.driver.create(PART, prop(0, HOST))[0] == INJECTED, "the order stands")
        else:
            check(code == 0, f"cuMemCreate: {code}")
            check(all(x.handle != handle or not x.references for x in self.lives), "the handle is taken")
            self.lives.append(Life(Body(size, device), handle, original=True))

    def release(self) -> None:
        if self.random.random() < 0.05:
            handle = self.random.choice([0x1000, *self.ended[-5:]])
            if all(x.handle != handle or not x.references for x in self.lives):
                check(self.driver.release(handle) == 1, "a handle that does not exist")
            return
        candidates = [*self.referable(), *self.referable(team=True)]
        if not candidates:
            return
        life = self.random.choice(candidates)
        expected = INJECTED if self.fails("cuMemRelease") else 0
        check(self.driver.release(life.handle) == expected, "cuMemRelease")
        if expected == 0:
            life.references -= 1
            self.ended.append(life.handle)

    def map(self) -> None:
        candidates = [*self.referable(), *self.referable(team=True)]
        if not candidates:
            return
        life = self.random.choice(candidates)
        slots = life.body.size // PART
        if self.random.random() < 0.2:
            slots = self.random.randrange(1, slots + 1)
        first = self.random.randrange(SLOTS)
        free = first + slots <= SLOTS and all(
            not (start < first + slots and first < start + length) for start, (length, _) in self.at.items()
        )
        refused = self.fails("cuMemMap")
        code = self.driver.map(self.base + first * PART, slots * PART, life.handle)
        check(code == (INJECTED if refused else 0 if free else 1), f"cuMemMap: {code}")
        if code == 0:
            self.at[first] = (slots, life)
            life.mappings += 1

    def unmap(self) -> None:
        if self.at and self.random.random() < 0.6:
            first = self.random.choice(list(self.at))
            slots = self.at[first][0]
            while first + slots in self.at and self.random.random() < 0.5:
                slots += self.at[first + slots][0]
        else:
            first = self.random.randrange(SLOTS)
            slots = self.random.randrange(1, 6)
        whole, end = first, first + slots
        while whole < end and whole in self.at:
            whole += self.at[whole][0]
        expected = INJECTED if self.fails("cuMemUnmap") else 0 if whole == end else 1
        check(self.driver.unmap(self.base + first * PART, slots * PART) == expected, "cuMemUnmap")
        while expected == 0 and first < end:
            slots, life = self.at.pop(first)
            life.mappings -= 1
            first += slots

    def retain(self) -> None:
        slot = self.random.randrange(SLOTS)
        found = [life for start, (length, life) in self.at.items() if start <= slot < start + length]
        expected = INJECTED if self.fails("cuMemRetainAllocationHandle") else 0 if found else 1
        code, handle = self.driver.retain(self.base + slot * PART + self.random.randrange(PART))
        check(code == expected, f"cuMemRetainAllocationHandle: {code}")
        if expected == 0:
            check(handle == found[0].handle, "another handle")
            found[0].references += 1

    def import_own(self) -> None:
        candidates = self.referable()
        if not candidates:
            return
        life = self.random.choice(candidates)
        code, fd = self.driver.export(life.handle)
        check(code == 0, f"cuMemExportToShareableHandle: {code}")
        refused = self.fails("cuMemImportFromShareableHandle")
        code, handle = self.driver.take_in(fd)
        os.close(fd)
        check(code == (INJECTED if refused else 0), f"cuMemImportFromShareableHandle: {code}")
        if code == 0:
            self.lives.append(Life(life.body, handle, original=False))

    def team(self) -> None:
        devices = self.random.choice(([0], [1], [0, 1]))
        refused = self.fails("cuMulticastCreate")
        code, handle = self.driver.multicast(4 * PART, len(devices))
        check(code == (INJECTED if refused else 0), f"cuMulticastCreate: {code}")
        if code == 0:
            for device in devices:
                check(self.driver.add_device(handle, device) == 0, "cuMulticastAddDevice")
            self.lives.append(Life(Body(4 * PART, None), handle, original=True, team=True, devices=devices))

    def bind(self) -> None:
        teams, memories = self.referable(team=True), self.referable()
        if not teams or not memories:
            return
        team, memory = self.random.choice(teams), self.random.choice(memories)
        by_address = self.random.random() < 0.5 and self.at
        if by_address:
            first = self.random.choice(list(self.at))
            memory = self.at[first][1]
        part, device = self.random.randrange(4), memory.body.device
        fits = device in team.devices and not memory.team and (device, part) not in team.bound
        named = device if self.random.random() < 0.5 and device is not None else None
        if by_address:
            refused = self.fails("cuMulticastBindAddr_v2" if named is not None else "cuMulticastBindAddr")
            code = self.driver.bind_address(team.handle, part * PART, self.base + first * PART, PART, named)
        else:
            refused = self.fails("cuMulticastBindMem_v2" if named is not None else "cuMulticastBindMem")
            code = self.driver.bind(team.handle, part * PART, memory.handle, PART, named)
        if refused:
            check(code == INJECTED, "an ordered failure")
        else:
            check((code == 0) == fits, f"cuMulticastBind: {code}")
        if code == 0 and device is not None:
            team.bound[device, part] = memory
            memory.bindings += 1

    def unbind(self) -> None:
        teams = self.referable(team=True)
        if not teams:
            return
        team = self.random.choice(teams)
        where = self.random.choice([*team.bound, (0, self.random.randrange(4))])
        expected = INJECTED if self.fails("cuMulticastUnbind") else 0 if where in team.bound else 1
        code = self.driver.unbind(team.handle, where[0], where[1] * PART, PART)
        check(code == expected, f"cuMulticastUnbind: {code}")
        if code == 0:
            team.bound.pop(where).bindings -= 1

    def step(self) -> None:
        calls = (self.create,) * 5 + (self.release,) * 5 + (self.map,) * 5 + (self.unmap,) * 4
        calls += (self.retain,) * 2 + (
            self.import_own,
            self.team,
            self.bind,
            self.bind,
            self.bind,
            self.unbind,
        )
        call = self.random.choice(calls)
        self.done.append(call.__name__)
        call()
        self.settle()
        self.compare()

    def end(self) -> None:
        for first, (slots, life) in self.at.items():
            check(self.driver.unmap(self.base + first * PART, slots * PART) == 0, "cuMemUnmap at the end")
            life.mappings -= 1
        for life in self.lives:
            while life.references:
                check(self.driver.release(life.handle) == 0, "cuMemRelease at the end")
                life.references -= 1
        self.settle()
        check(self.lives == [], "the model is empty")
        self.compare()


def main() -> None:
    model = Model(int(sys.argv[1]))
    try:
        for _ in range(STEPS):
            model.step()
        model.end()
    except WrongError as wrong:
        print(f"step {len(model.done)}, after {model.done[-8:]}: {wrong}")
        sys.exit(1)
    print("as the model says")


if __name__ == "__main__":
    main()
