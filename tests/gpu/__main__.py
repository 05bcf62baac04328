# SPDX-License-Identifier: Apache-2.0
"""`tests/gpu/run`, `make test-gpu`: runs cases on this machine's own driver. Needs Python and libvcuda.so,
nothing else.

Each case leaves its line in OUT/lines.jsonl before the next begins, so that a run that is cut off has lost
nothing. The page is made from the lines, here or anywhere, by `python -m tests.gpu.report OUT...`.

Exit codes, at the very end only. 0: all passed. 1: something failed, or measured nothing. 2: wrong arguments.
3: there is no GPU to test on. 4: what could run passed, but something is missing here or did not fit into
the budget.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from tests.gpu import cases, report
from tests.gpu.lines import Line, Output
from tests.gpu.machine import machine
from tests.gpu.running import adopt_orphans, end_orphans
from tests.gpu.world import ROOT, Case, CaseError, Found, Options, World, missing_checks

GRACE_S, LEAST_S = (
    15,
    2,
)  # what a case's own code may take beyond its deadline; less time than this starts nothing
BAD = {"fail", "timeout", "killed", "garbage"}


class OverdueError(Exception):
    """The case's own code did not end in time."""


class EndedError(BaseException):
    """The run is told to end."""


def _overdue(_signal: int, _frame: FrameType | None) -> None:
    raise OverdueError


def _ended(number: int, _frame: FrameType | None) -> None:
    raise EndedError(signal.Signals(number).name)


@contextlib.contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """OverdueError in the main thread after so many seconds."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def carry_out(one: Case, world: World) -> tuple[str, str]:
    """Verdict and evidence of a case, whatever happens in it."""
    try:
        with alarm(world.left() + GRACE_S):
            evidence = one.body(world, world.found)
    except CaseError as error:
        return error.verdict, str(error)
    except OverdueError:
        return "timeout", f"the case itself was not done after {one.seconds + GRACE_S} s"
    except Exception as error:  # noqa: BLE001 - a mistake in a case must not end the run
        where = traceback.extract_tb(error.__traceback__)[-1]
        return "fail", f"{type(error).__name__} in {where.name}, line {where.lineno}: {error}"
    unjudged = list(missing_checks(one, world.found))
    if unjudged or not world.found.numbers:
        return "fail", f"measured nothing for {', '.join(unjudged) or 'the report'}: {evidence}"
    broken = [f"{name}: {saw}" for name, (holds, saw) in world.found.checks.items() if not holds]
    return ("fail", "; ".join(broken)) if broken else ("pass", evidence)


def run_case(one: Case, options: Options, seconds: float, output: Output) -> Line:
    """One case from its start to its line."""
    begun, found = time.monotonic(), Found()
    world = World(options, one.id, begun + seconds, found, output.log)
    verdict, evidence = carry_out(one, world)
    if seconds < one.seconds and verdict == "timeout":
        verdict, evidence = "not run", f"the budget left it {seconds:.0f} of {one.seconds} s: {evidence}"
    end_orphans()
    said = "\n".join(text for text in found.said if text.strip())[-4000:]
    return Line(
        one.id,
        one.group,
        verdict,
        " ".join(evidence.split())[:2000],
        round(time.monotonic() - begun, 2),
        found.checks,
        found.numbers,
        said,
    )


def run_all(chosen: list[Case], options: Options, budget: float, output: Output) -> None:
    """Every case within the budget; the rest is written down as not run."""
    deadline = time.monotonic() + budget
    left = list(chosen)
    try:
        while left:
            one, remaining = left[0], deadline - time.monotonic()
            if remaining < LEAST_S:
                line = Line(one.id, one.group, "not run", f"the budget of {budget:.0f} s was over")
            else:
                line = run_case(one, options, min(one.seconds, remaining), output)
            output.line(line)
            left.pop(0)
            print(
                f"{line.verdict:7} {line.group} {line.case:20} {line.seconds:6.1f} s  {line.evidence[:300]}",
                flush=True,
            )
    except (EndedError, KeyboardInterrupt) as reason:
        end_orphans()
        for one in left:
            output.line(Line(one.id, one.group, "not run", f"the run was ended: {reason or 'interrupted'}"))


def exit_code(lines: list[Line]) -> int:
    """What the run says as a whole."""
    verdicts = {line.verdict for line in lines if line.group != "machine"}
    if not verdicts or verdicts & BAD:
        return 1
    return 4 if verdicts - {"pass"} else 0


def parse(argv: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="tests/gpu/run", description=__doc__)
    parser.add_argument("--group", default="ABCD", help="letters of groups: A, B, C, D (default: all)")
    parser.add_argument(
        "--case", action="append", default=[], help="only this one; may be given several times"
    )
    parser.add_argument("--budget", type=float, default=3600.0, metavar="SECONDS", help="for all of it")
    parser.add_argument("--out", type=Path, help="folder for the lines (default: a new one in build/gpu-run)")
    parser.add_argument("--library", type=Path, default=ROOT / "build/libvcuda.so")
    parser.add_argument("--pack", type=Path, default=ROOT / "build/gpu", help="what tests.gpu.pack has made")
    parser.add_argument("--limit-gib", type=int, default=8, help="quota of a case (default 8)")
    parser.add_argument(
        "--short", action="store_true", help="a rehearsal: shorter, and worth nothing as a measurement"
    )
    parser.add_argument("--list", action="store_true", help="names of the cases")
    options = parser.parse_args(argv)
    unknown = [name for name in options.case if name not in cases.ALL]
    if unknown:
        parser.error(f"no case is called {', '.join(unknown)}; --list tells their names")
    if options.budget <= 0:
        parser.error(f"a budget of {options.budget:g} seconds runs nothing; write more than 0")
    if not set(options.group) <= set("ABCD"):
        parser.error(f"--group {options.group}: write letters of A, B, C and D")
    return options


def quota(wished_gib: int, here: Line) -> int:
    """Bytes of a quota: as wished, less on a GPU that has not six times as much free; 0: not even 1 GiB."""
    fits = int(str(here.numbers["free"])) // 6 >> 30
    if fits < wished_gib:
        print(f"test-gpu: quotas are {fits} GiB, not {wished_gib}: {here.evidence}", flush=True)
    return min(wished_gib, fits) << 30


def choose(arguments: argparse.Namespace) -> list[Case]:
    """The cases that the command line names, in the order of their groups."""
    if arguments.case:
        return [cases.ALL[name] for name in dict.fromkeys(arguments.case)]
    return [
        one
        for group in "ABCD"
        if group in arguments.group
        for one in cases.ALL.values()
        if one.group == group
    ]


def main(argv: list[str]) -> int:
    """Run the cases and say how it was."""
    arguments = parse(argv)
    chosen = choose(arguments)
    if arguments.list:
        for one in chosen:
            print(f"{one.group} {one.id:22} {one.seconds:4} s  {one.title}")
        return 0
    if not arguments.library.exists():
        print(
            f"test-gpu: {arguments.library} is missing: run make native, or bring it along", file=sys.stderr
        )
        return 2
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _ended)
    signal.signal(signal.SIGALRM, _overdue)
    adopt_orphans()
    out = arguments.out or ROOT / "build/gpu-run" / f"{arguments.group}-{time.strftime('%Y%m%d-%H%M%S')}"
    output = Output(out.resolve())
    with tempfile.TemporaryDirectory(prefix="gigaslice-gpu-", ignore_cleanup_errors=True) as scratch:
        here = machine(Path(scratch))
        output.line(here)
        print(f"machine   {here.evidence}", flush=True)
        if here.verdict != "pass":
            print(f"test-gpu: {here.evidence}", file=sys.stderr)
            return 3
        limit = quota(arguments.limit_gib, here)
        if limit == 0:
            print(
                f"test-gpu: too little memory is free for any quota: {here.evidence}; stop what uses the GPU",
                file=sys.stderr,
            )
            return 3
        options = Options(
            arguments.library.resolve(),
            Path(scratch),
            limit,
            arguments.pack.resolve(),
            arguments.short,
            str(here.numbers.get("uuid", "")),
        )
        run_all(chosen, options, arguments.budget, output)
    return finish(output)


def finish(output: Output) -> int:
    """The page, and the last lines of the output."""
    try:
        output.page("report.md", report.page(output.lines))
    except Exception as error:  # noqa: BLE001 - the lines are there; the page can be made from them later
        print(
            f"test-gpu: no page was made ({type(error).__name__}: {error}); the lines are whole",
            file=sys.stderr,
        )
    print(report.summary(output.lines), flush=True)
    for trouble in output.troubles:
        print(f"test-gpu: {trouble}", flush=True)
    print(f"lines: {output.directory / 'lines.jsonl'}", flush=True)
    return max(exit_code(output.lines), 1 if output.troubles else 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
