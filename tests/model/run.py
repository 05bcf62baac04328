# SPDX-License-Identifier: Apache-2.0
"""Runs the model of the ledger through spin: configurations that must hold, mutations that must be found.

`python -m tests.model.run quick` takes seconds and is part of `make check`; `all` is `make model`, takes minutes, and
writes docs/proofs/model.md with --write. Without spin it says so and succeeds: the model is a proof to be repeated by
those who change the ledger, not a thing that a build needs.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

from tests.steps import each

MODEL = Path(__file__).resolve().parent / "ledger.pml"
PAGE = MODEL.parents[2] / "docs" / "proofs" / "model.md"
MEMORY_MB = 8000


@dataclass(frozen=True)
class Case:
    """One run of the model checker. FOUND: the property whose violation must be found; "": everything must hold."""

    name: str
    defines: str
    says: str
    found: str = ""
    quick: bool = False
    cycles: bool = False  # look for non-progress cycles under weak fairness instead of wrong states


R2, R3 = "REGISTERED PROCS=2", "REGISTERED PROCS=3"
HOLDS = [
    Case("charge", f"{R2} OPS=1", "two registered processes, a charge each", quick=True),
    Case("charge-twice", f"{R2} OPS=2", "the same, two charges each"),
    Case("charge-kill", f"{R2} OPS=1 KILLS=1", "one of them killed at any step"),
    Case("charge-twice-kill", f"{R2} OPS_FIRST=2 OPS=1 KILLS=1", "two charges and one"),
    Case(
        "charge-stop",
        f"{R2} OPS=1 STOPS=1 ROUNDS=1 SIZE_MAX=1",
        "one stopped for ever, bounded tries",
        quick=True,
    ),
    Case("charge-lost", f"{R2} OPS=1 LOSSES=1", "one loses its lock at any step"),
    Case("charge-threads", f"{R2} THREADS=3 OPS=1", "one process has two threads"),
    Case("charge-threads-kill", f"{R2} THREADS=3 OPS=1 KILLS=1 SIZE_MAX=1", "that, and one process killed"),
    Case("charge-three", f"{R3} OPS=1", "three registered processes"),
    Case("charge-three-kill", f"{R3} OPS=1 KILLS=1 SIZE_MAX=1", "one of three killed at any step"),
    Case("charge-three-kill-full", f"{R3} OPS=1 KILLS=1 LIMIT=1", "the same, and one may have all there is"),
    Case("register", "PROCS=2 OPS=1", "two processes register and charge"),
    Case("register-kill", "PROCS=2 OPS=1 KILLS=1", "one of them killed at any step"),
    Case("register-corpse", "CORPSE PROCS=2 OPS=1", "both beside the slot of a dead process"),
    Case("register-corpse-lost", "CORPSE PROCS=2 OPS=1 LOSSES=1", "that, and one loses its lock"),
    Case("register-lost-kill", "PROCS=2 OPS=1 LOSSES=1 KILLS=1", "one loses its lock, one is killed"),
    Case(
        "register-lost-twice",
        "PROCS=2 OPS=1 LOSSES=2",
        "two locks are lost",
    ),
    Case("charge-lost-kill", f"{R2} OPS=1 LOSSES=1 KILLS=1", "that, and one is killed"),
    Case("unmaps", f"{R2} OPS=1 LOSSES=1 UNMAPS", "one program unmaps what holds its slot"),
    Case("unmaps-keep", f"{R2} OPS=1 LOSSES=1 UNMAPS KEEP", "the same, nothing given back at the end"),
    Case("unmaps-kill", f"{R2} OPS=1 LOSSES=1 KILLS=1 UNMAPS", "the same, and one killed"),
    Case("unmaps-register", "PROCS=2 OPS=1 LOSSES=1 UNMAPS KEEP SIZE_MAX=1", "the same while they register"),
    # Faults that were found when a slot was owned by its record lock alone: with a slot that is held they are none.
    Case(
        "held-pid-overwritten", "PROCS=2 LOSSES=1 MUT_NO_SECOND_READ", "the PID of a slot is written blindly"
    ),
    Case("held-plain-pid", "PROCS=2 LOSSES=1 OLD_PLAIN_PID", "and read beforehand"),
    Case(
        "held-blind-clearing",
        "PROCS=2 OPS=1 LOSSES=2 ONLY_OVER OLD_BLIND_CLEARING",
        "a slot is emptied blindly",
    ),
    Case("allow", f"{R2} ALLOW=1 OPS_FIRST=2 OPS=1", "and one reserves room beforehand", quick=True),
    Case("allow-two", f"{R2} ALLOW=2 OPS=2 SIZE_MAX=1", "both may, two charges each"),
    Case("allow-kill", f"{R2} ALLOW=1 OPS_FIRST=2 OPS=1 KILLS=1", "one reserves, one is killed"),
    Case("allow-threads", f"{R2} ALLOW=2 THREADS=3 OPS=1 SIZE_MAX=1", "one process has two threads"),
    Case("allow-three", f"{R3} ALLOW=1 OPS_FIRST=2 OPS=1 SIZE_MAX=1", "three processes"),
    Case("allow-register", "PROCS=2 ALLOW=1 OPS_FIRST=2 OPS=1", "while they register"),
    Case("allow-lost", f"{R2} ALLOW=1 OPS_FIRST=2 OPS=1 LOSSES=1", "and one loses its lock"),
    Case(
        "split",
        f"{R2} SPLIT OPS_FIRST=1 OPS=2",
        "a part and the whole: the GPU's and the host's",
        quick=True,
    ),
    Case("split-twice", f"{R2} SPLIT OPS=2", "two charges each"),
    Case("split-kill", f"{R2} SPLIT OPS_FIRST=2 OPS=1 KILLS=1", "one of them killed at any step"),
    Case("split-lost", f"{R2} SPLIT OPS=1 LOSSES=1", "one loses its lock"),
    Case("split-register", "SPLIT PROCS=2 OPS=1", "while they register"),
    Case("split-corpse", "SPLIT CORPSE PROCS=2 OPS=1", "both beside the slot of a dead process"),
    Case("linger", f"{R2} LINGER OPS=1", "what is given back ends by itself", quick=True),
    Case("linger-kill", f"{R2} LINGER OPS=1 KILLS=1", "one of them killed at any step"),
    Case("linger-split", f"{R2} SPLIT LINGER OPS_FIRST=1 OPS=2", "in a part and the whole"),
    Case("patient", f"{R2} OPS=1 LIVELOCK PATIENT", "no livelock once pauses differ", cycles=True),
]
FINDS = [
    Case("no-second-sum", f"{R2} MUT_NO_SECOND_SUM", "", "OVER", quick=True),
    Case("no-mark", f"{R2} MUT_NO_MARK", "", "FALSE", quick=True),
    Case("mark-cleared-early", f"{R2} MUT_EARLY_CLEAR", "", "FALSE"),
    Case("one-collection", f"{R3} MUT_ONE_COLLECTION SIZE_MAX=1", "", "FALSE"),
    Case("no-change-count", f"{R3} OPS_FIRST=1 OPS=2 SIZE_MAX=1 MUT_NO_TICK", "", "FALSE"),
    Case("refund-twice", f"{R2} OPS_FIRST=2 OPS=1 SIZE_MAX=1 MUT_REFUND_TWICE", "", "OVER", quick=True),
    Case("never-taken-back", f"{R2} MUT_NO_TAKING_BACK", "", "FALSE"),
    Case("no-reclaim", f"{R2} KILLS=1 MUT_NO_RECLAIM", "", "FALSE"),
    # The old marks: with the new ones every step of emptying fails by itself when another process was there.
    Case("reclaim-without-lock", "CORPSE PROCS=2 MUT_NO_LOCK OLD_BLIND_MARKS", "", "FALSE"),
    # Both need bytes of the dead alone that leave no room, and a process that is emptying just then.
    Case("busy-not-seen", "CORPSE PROCS=2 MUT_NOT_BUSY", "", "FALSE"),
    Case("generation-raised-once", "CORPSE PROCS=2 MUT_RAISED_ONCE", "", "FALSE"),
    Case("hold-not-asked", f"{R2} LOSSES=1 ONLY_OVER MUT_NO_HOLD", "", "OVER"),
    Case("no-generation", f"{R2} LOSSES=1 UNMAPS KEEP MUT_NO_GENERATION", "", "LITTLE"),
    Case("old-no-recheck", "CORPSE PROCS=2 LOSSES=1 OLD_NO_RECHECK", "", "FALSE"),
    Case("old-refusal", f"{R3} KILLS=1 SIZE_MAX=1 OLD_REFUSAL", "", "FALSE"),
    Case(
        "old-blind-subtraction",
        "PROCS=2 OPS=1 LOSSES=1 UNMAPS KEEP SIZE_MAX=1 OLD_SUBTRACT_BLINDLY",
        "",
        "LITTLE",
    ),
    Case(
        "allowance-not-checked-after",
        f"{R2} ALLOW=1 OPS_FIRST=2 OPS=1 MUT_NOT_CHECKED",
        "",
        "OVER",
        quick=True,
    ),
    Case("allowance-not-confirmed", f"{R2} ALLOW=2 OPS=2 SIZE_MAX=1 MUT_NOT_CONFIRMED", "", "OVER"),
    # Between the two reads of the second sum the owner charges within its allowance, and another thread revokes it. The
    # first sum was over before the owner's first charge.
    Case(
        "allowance-read-last",
        f"{R2} THREADS=3 ALLOW=1 OPS_FIRST=2 OPS=1 LIMIT=1 ONLY_OVER MUT_USED_FIRST",
        "",
        "OVER",
    ),
    # A level that was revoked is written anew, and before it is confirmed another thread charges within it.
    Case(
        "allowance-not-forgotten",
        f"{R2} THREADS=3 ALLOW=2 OPS_FIRST=1 OPS=2 OPS_LAST=1 SIZE_MAX=1 ONLY_OVER MUT_NOT_FORGOTTEN",
        "",
        "OVER",
    ),
    Case("old-blind-marks", "CORPSE PROCS=2 LOSSES=1 OLD_BLIND_MARKS", "", "FALSE"),
    Case("part-not-cleared", f"{R2} SPLIT OPS=1 KILLS=1 MUT_PART_NOT_CLEARED", "", "FALSE"),
    Case(
        "old-part-freed-first", f"{R2} SPLIT OPS_FIRST=1 OPS=2 OLD_PART_FREED_FIRST", "", "WHOLE", quick=True
    ),
    Case(
        "old-generation-alone",
        "SPLIT PROCS=2 OPS=1 LOSSES=1 UNMAPS KEEP OLD_GENERATION_ALONE",
        "",
        "LITTLE",
    ),
    Case("linger-ends-twice", f"{R2} LINGER OPS_FIRST=2 OPS=1 MUT_LINGER_TWICE", "", "OVER", quick=True),
    Case(
        "linger-of-any-process",
        "PROCS=2 LINGER KILLS=1 OPS=2 OPS_FIRST=1 SIZE_MAX=1 MUT_LINGER_NO_GENERATION",
        "",
        "OVER",
    ),
    Case("livelock", f"{R2} LIVELOCK", "", "CYCLE", cycles=True),
]


# How spin prints the assertions of the properties.
ASSERTIONS = {
    r"total\[\d\]<=": "OVER",
    r"outcome!=\d+\)\|\|was_full": "FALSE",
    r"finished": "HANG",
    r">=\(*(0\+)?(held|lingers)": "LITTLE",
    r"plane!=0\)\|\|\(outcome==": "WHOLE",
    r"\(outcome==\d+\)": "RETURN",
    r"non-progress cycle": "CYCLE",
}


@dataclass(frozen=True)
class Result:
    """What spin said: the property it saw violated ("": none), and how much it searched."""

    violated: str
    states: str
    depth: str
    seconds: float
    complete: bool

    def is_what(self, case: Case) -> bool:
        return self.violated == case.found and (self.complete or case.found != "")


def read_output(text: str, seconds: float) -> Result:
    """Spin's report as a result; a search that was cut short proves nothing."""
    error = "".join(re.findall(r"^pan:\d+: .*$", text, re.MULTILINE))
    violated = next((name for pattern, name in ASSERTIONS.items() if re.search(pattern, error)), error)
    numbers = [
        match[1] if (match := re.search(pattern, text, re.MULTILINE)) else "?"
        for pattern in (r"^\s*([0-9.e+]+) states, stored", r"depth reached (\d+)")
    ]
    cut_short = re.search(r"max search depth too small|out of memory|Search not completed", text)
    return Result(violated, numbers[0], numbers[1], seconds, cut_short is None and "errors: 0" in text)


def command(line: list[str], folder: Path) -> str:
    """Output of a program that must succeed."""
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(line)}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def explore(case: Case, folder: Path) -> Result:
    """Generates, compiles and runs the checker of one case."""
    command(["spin", "-a", *(f"-D{d}" for d in case.defines.split()), str(MODEL)], folder)
    kind = ["-DNP", "-DNFAIR=4"] if case.cycles else ["-DSAFETY"]
    build = [
        os.environ.get("CC", "gcc"),
        "-w",
        "-O0" if case.quick else "-O2",
        "-DNOREDUCE",
        "-DCOLLAPSE",
        f"-DMEMLIM={MEMORY_MB}",
    ]
    command([*build, *kind, "-o", "pan", "pan.c"], folder)
    start = time.monotonic()
    text = command(["./pan", "-E", "-m2000000", *(["-l", "-f"] if case.cycles else [])], folder)
    return read_output(text, time.monotonic() - start)


def row(case: Case, result: Result) -> str:
    """One line of the page."""
    verdict = f"{result.violated or 'holds'}" if result.is_what(case) else f"**WRONG: {result}**"
    settings = " ".join(case.defines.split())
    return (
        f"| {case.name} | {case.says} | `{settings}` | {verdict} | "
        f"{result.states} | {result.depth} | {result.seconds:.0f} |"
    )


def page(rows: dict[str, str]) -> str:
    """docs/proofs/model.md with ROWS, and those that it has of cases that were not run now."""
    version = subprocess.run(["spin", "-V"], capture_output=True, text=True, check=True).stdout.strip()
    known = (
        dict(re.findall(r"^(?=\| ([a-z-]+) \|)(.*)$", PAGE.read_text(), re.MULTILINE))
        if PAGE.exists()
        else {}
    )
    rows = known | rows
    head = "| case | what | configuration | result | states | depth | s |\n| --- | --- | --- | --- | --- | --- | --- |"
    holds = "\n".join(rows[c.name] for c in HOLDS if c.name in rows)
    finds = "\n".join(rows[c.name] for c in FINDS if c.name in rows)
    remark = (
        re.search(r"^Of `.*?(?=^## Must hold)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
        if PAGE.exists()
        else None
    )
    missing = [c.name for c in [*HOLDS, *FINDS] if c.name not in rows]
    without = ", ".join(f"`{name}`" for name in missing) or "none"
    return (
        "# The model of the ledger: last results\n\n"
        f"{version}. What the words mean: [README](README.md), and the beginning of `tests/model/ledger.pml`.\n"
        "Every search was exhaustive: all states that there are, but for cases that end with a find.\n"
        "`python -m tests.model.run NAME… --write` repeats some, `make model` all.\n\n"
        f"{textwrap.fill(f'Without a result: {without}.', 120)}\n\n"
        f"{remark[0] if remark else ''}"
        f"## Must hold\n\n{head}\n{holds}\n\n"
        "## Must be found\n\n"
        "The same model with something taken out of it, or as the code was before the model found fault with it\n"
        f"(`old-`). The result is the property that the search saw violated.\n\n{head}\n{finds}\n"
    )


def skipped(cases: list[Case]) -> str:
    """What is not looked at where spin is missing, and what that means for a change."""
    holds = [case.name for case in cases if not case.found]
    finds = [case.name for case in cases if case.found]
    return (
        "model: SKIPPED, spin is not installed (apt install spin). Not looked at:\n"
        f"  the ledger under kills and lost locks, which must hold: {', '.join(holds) or 'nothing'}\n"
        f"  mutations of it that must be found: {', '.join(finds) or 'none'}\n"
        "  A change of native/shm/ledger_* or tests/model needs them; any other change does not."
    )


def main() -> int:
    """Run quick, all, or named cases."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("cases", nargs="+", help="quick, all, or names")
    parser.add_argument("--write", action="store_true", help="write what was found into docs/proofs/model.md")
    args = parser.parse_args()
    every = [*HOLDS, *FINDS]
    cases_to_run = [
        c for c in every if "all" in args.cases or c.name in args.cases or ("quick" in args.cases and c.quick)
    ]
    if unknown := set(args.cases) - {c.name for c in every} - {"quick", "all"}:
        sys.exit(f"no such case: {', '.join(sorted(unknown))}; there are: {', '.join(c.name for c in every)}")
    if shutil.which("spin") is None:
        print(skipped(cases_to_run))
        return 0
    rows, wrong = {}, 0
    for case in each(cases_to_run, lambda case: case.name):
        with tempfile.TemporaryDirectory() as folder:
            result = explore(case, Path(folder))
        rows[case.name] = row(case, result)
        wrong += not result.is_what(case)
        print(rows[case.name], flush=True)
    if args.write and not wrong:
        PAGE.write_text(page(rows))
    print(f"model: {len(cases_to_run) - wrong} as they must be, {wrong} not")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
