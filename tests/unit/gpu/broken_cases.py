# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.unit.gpu.broken_cases`: the runner with cases that go wrong in every way, and one that does not."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from tests.gpu import __main__ as runner
from tests.gpu.world import REGISTRY, Found, World, case

REGISTRY.clear()
PROGRAMS = Path(__file__).parent / "broken_programs"
runner.GRACE_S = 1


def program(world: World, found: Found, name: str) -> str:
    """Runs one, and judges that it came to its end."""
    world.run(world.plain(), str(PROGRAMS / name))
    found.check("ended", True, "it did")
    return "it ran"


@case("A", 6, "ended")
def hangs(world: World, found: Found) -> str:
    """Ignores signals, and has a child that keeps its output open."""
    return program(world, found, "hangs.py")


@case("A", 20, "ended")
def is_killed(world: World, found: Found) -> str:
    """Dies of a signal after it has said something."""
    return program(world, found, "is_killed.py")


@case("A", 20, "ended")
def garbage(world: World, found: Found) -> str:
    """Prints no result."""
    return program(world, found, "garbage.py")


@case("A", 20, "ended", "never_judged")
def measures_nothing(world: World, found: Found) -> str:
    """Passes by its own word, and has not judged what it declared."""
    found.note({"something": 1})
    found.check("ended", True, "it did")
    return "all is well"


@case("A", 20)
def says_nothing(world: World, found: Found) -> str:
    """Declares nothing, and has measured nothing."""
    return "all is well"


@case("A", 20, "ended")
def is_mistaken(world: World, found: Found) -> str:
    """Has a mistake of its own."""
    return str(1 // len(found.checks))


@case("A", 1, "ended")
def does_not_return(world: World, found: Found) -> str:
    """Hangs in its own code."""
    while True:
        time.sleep(0.1)


@case("A", 20, "ended")
def lacks_a_package(world: World, found: Found) -> str:
    """Imports what is not there."""
    return program(world, found, "lacks_a_package.py")


@case("A", 20, "ended")
def leaves_a_child(world: World, found: Found) -> str:
    """Ends well, and leaves a process behind that has a session of its own."""
    return program(world, found, "leaves_a_child.py")


@case("A", 20, "ended")
def is_fine(world: World, found: Found) -> str:
    """Comes last, and passes."""
    found.note({"pid": os.getpid()})
    found.check("ended", True, "it did")
    return "all is well"


@case("B", 90, "ended")
def sleeps(world: World, found: Found) -> str:
    """Takes its time."""
    return program(world, found, "sleeps.py")


if __name__ == "__main__":
    sys.exit(runner.main(sys.argv[1:]))
