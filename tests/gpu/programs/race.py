# SPDX-License-Identifier: Apache-2.0
"""One of many that race for a quota: takes and gives back blocks of random sizes. Arguments: SECONDS, SEED,
FOLDER, ROUNDS.

Round N begins when FOLDER/N is there, lasts SECONDS and ends with everything held as it is (`frozen`), so
that what all hold can be measured. Every refusal must be 2, and everything that was taken is given back at
the end.
"""

import random
import sys
import time
from pathlib import Path

from driver import MIB, OUT_OF_MEMORY, allocate, call, create, done, open_context, release, say, u64


class Racer:
    """What one process holds, and how it got it."""

    def __init__(self, seed):
        self.chance, self.held = random.Random(seed), []
        self.taken = self.refused = 0
        self.wrong = {}

    def give(self, number):
        """One block back."""
        kind, what, _ = self.held.pop(number)
        release(what) if kind == 0 else call("cuMemRelease", u64(what))

    def step(self):
        """Takes one or gives one."""
        if self.held and (len(self.held) > 60 or self.chance.random() < 0.45):
            self.give(self.chance.randrange(len(self.held)))
            return
        kind, size = int(self.chance.random() < 0.3), self.chance.choice((2, 4, 16, 64, 256)) * MIB
        code, what = allocate(size) if kind == 0 else create(size)
        if code == 0:
            self.held.append((kind, what, size))
            self.taken += 1
        elif code == OUT_OF_MEMORY:
            self.refused += 1
        else:
            self.wrong[code] = self.wrong.get(code, 0) + 1


open_context()
seconds, racer, folder = float(sys.argv[1]), Racer(int(sys.argv[2])), Path(sys.argv[3])
say(ready=True)
for number in range(int(sys.argv[4])):
    while not (folder / str(number)).exists():
        time.sleep(0.002)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        racer.step()
    say(**{f"frozen {number}": sum(one[2] for one in racer.held)})
while not (folder / "end").exists():
    time.sleep(0.002)
while racer.held:
    racer.give(0)
say(taken=racer.taken, refused=racer.refused, wrong=racer.wrong)
done()
