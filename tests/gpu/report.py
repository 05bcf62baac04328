# SPDX-License-Identifier: Apache-2.0
"""The page of a GPU, from the lines of one or several runs. Needs no GPU: python -m tests.gpu.report OUT...

OUT is a folder of a run, a file of lines, or a saved output. Several are put together: a later one's line takes an
earlier one's place. Writes docs/gpu/<gpu>-<driver>-<date>.md and, with --table, the last column of
docs/proofs/hardware.md. Exit 0: written. 2: nothing to make a page of.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from pathlib import Path

from tests.gpu.lines import Line, read

ROOT = Path(__file__).resolve().parents[2]
PAGES, TABLE = ROOT / "docs/gpu", ROOT / "docs/proofs/hardware.md"
GROUPS = {
    "A": "What the design takes for granted",
    "B": "Memory and views",
    "C": "Frameworks, profilers, sanitizers",
    "D": "Tenants beside one another",
}
NOT_YET = "not yet"
RAW_CHARACTERS = 6000


def cell(text: object) -> str:
    """Text that a table can hold."""
    return " ".join(str(text).split()).replace("|", "/").replace("`", "'")


def here(lines: list[Line]) -> Line:
    """The line of the machine; an empty one where none was written."""
    return next(
        (line for line in lines if line.group == "machine"),
        Line("machine", "machine", "fail", "nothing is known of the machine"),
    )


def fact(lines: list[Line], key: str) -> str:
    """One of its facts."""
    return cell(here(lines).numbers.get(key, "unknown"))


def tested(lines: list[Line]) -> list[Line]:
    """The cases."""
    return [line for line in lines if line.group != "machine"]


def summary(lines: list[Line]) -> str:
    """Counts, and the names of what did not pass."""
    counts = Counter(line.verdict for line in tested(lines))
    told = [f"{count} {verdict}" for verdict, count in counts.most_common()]
    others = [
        f"{line.verdict:8}{line.case}: {line.evidence[:160]}"
        for line in tested(lines)
        if line.verdict != "pass"
    ]
    return "\n".join([*others, ", ".join(told) or "no case was run"])


def facts(lines: list[Line]) -> list[str]:
    """The machine, as a list."""
    numbers, told = here(lines).numbers, lambda key: fact(lines, key)
    packages = numbers.get("packages")
    named = ", ".join(f"{n} {v}" for n, v in packages.items()) if isinstance(packages, dict) else "unknown"
    return [
        f"* Kernel {told('kernel')}, {told('machine')}, {told('libc')}, Python {told('python')}, {told('cores')} "
        f"processors, PIDs {told('namespace')}",
        f"* CUDA {told('cuda')}; {told('total')} bytes of memory, {told('free')} free at the start",
        f"* Packages: {named}",
        f"* Result: {', '.join(summary(lines).splitlines()[-1:])}",
    ]


def group_table(lines: list[Line], group: str) -> list[str]:
    """The cases of a group, and what each has judged."""
    chosen = [line for line in lines if line.group == group]
    if not chosen:
        return []
    rows = [
        f"| {one.case} | {one.verdict} | {one.seconds:.1f} | {cell(one.evidence)[:600]} |" for one in chosen
    ]
    checks = [
        f"| {one.case} | {name} | {'yes' if holds else '**no**'} | {cell(saw)} |"
        for one in chosen
        for name, (holds, saw) in one.checks.items()
    ]
    return [
        f"## {GROUPS[group]}",
        "",
        "| case | verdict | seconds | evidence |",
        "| --- | --- | --- | --- |",
        *rows,
        "",
        *(["| case | check | holds | seen |", "| --- | --- | --- | --- |", *checks, ""] if checks else []),
    ]


def raw(lines: list[Line]) -> list[str]:
    """Everything that was measured, as it came."""
    told = ["## Measured", ""]
    for one in tested(lines):
        text = json.dumps(one.numbers, default=str, indent=None)
        if one.numbers:
            cut = "" if len(text) <= RAW_CHARACTERS else f" … ({len(text)} characters in the lines)"
            told += [
                f"{one.case}:",
                "",
                "```text",
                text[:RAW_CHARACTERS].replace("```", "'''") + cut,
                "```",
                "",
            ]
        if one.said and one.verdict != "pass":
            told += [
                "Said on standard error:",
                "",
                "```text",
                one.said[-1500:].replace("```", "'''"),
                "```",
                "",
            ]
    return told


def page(lines: list[Line]) -> str:
    """The whole page."""
    head = [
        f"# {fact(lines, 'name')}, driver {fact(lines, 'driver')}, {fact(lines, 'date')}",
        "",
        "Made by `python -m tests.gpu.report` from the lines of `tests/gpu/run`; not edited by hand.",
        "",
        *facts(lines),
        "",
    ]
    groups = [text for group in GROUPS for text in group_table(lines, group)]
    return "\n".join([*head, *groups, *raw(lines)])


def file_name(lines: list[Line]) -> str:
    """GPU, driver and day."""
    parts = [fact(lines, key) for key in ("name", "driver", "date")]
    return "-".join(re.sub(r"[^a-z0-9.]+", "-", part.lower()).strip("-") for part in parts) + ".md"


def results(lines: list[Line]) -> dict[str, str]:
    """case/check -> how it came out, for the last column of the table."""
    where = f"{fact(lines, 'name')}, {fact(lines, 'driver')}"
    found = {}
    for line in tested(lines):
        for name, (holds, saw) in line.checks.items():
            found[f"{line.case}/{name}"] = (
                f"holds ({where})" if holds else f"**false** ({where}): {cell(saw)[:200]}"
            )
    return found


def filled(table: str, found: dict[str, str]) -> str:
    """The table with the results of FOUND in its last column; rows that were not tried stay as they are."""
    rows = []
    for row in table.splitlines():
        cells = row.strip().strip("|").split("|")
        names = re.findall(r"`(\w+/\w+)`", cells[3]) if len(cells) == 5 else []
        told = [found[name] for name in names if name in found]
        if told:
            worst = next((text for text in told if text.startswith("**")), told[0])
            cells[4] = f" {worst if len(told) == len(names) else worst + ' in part'} "
            row = "|" + "|".join(cells) + "|"  # noqa: PLW2901 - the row as it will stand there
        rows.append(row)
    return "\n".join(rows) + "\n"


def main(argv: list[str]) -> int:
    """Write the page, and the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.report", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="OUT")
    parser.add_argument("--pages", type=Path, default=PAGES)
    parser.add_argument(
        "--table",
        type=Path,
        nargs="?",
        const=TABLE,
        help=f"fill in results (default {TABLE.relative_to(ROOT)})",
    )
    options = parser.parse_args(argv)
    found: dict[str, Line] = {}
    for run in options.runs:
        try:
            found |= {line.case: line for line in read(run)}
        except OSError as error:
            print(f"report: {run}: {error.strerror}", file=sys.stderr)
            return 2
    lines = list(found.values())
    if not tested(lines):
        print("report: no line of a case in what was given: name a folder of tests/gpu/run", file=sys.stderr)
        return 2
    options.pages.mkdir(parents=True, exist_ok=True)
    path = options.pages / file_name(lines)
    path.write_text(page(lines).rstrip() + "\n")
    print(summary(lines))
    print(f"page: {path}")
    if options.table:
        options.table.write_text(filled(options.table.read_text(), results(lines)))
        print(f"table: {options.table}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
