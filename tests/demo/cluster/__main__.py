# SPDX-License-Identifier: Apache-2.0
"""The command `python -m tests.demo.cluster`, run by `make demo-cluster`. Exit code 0 when every claim held, else 1."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
import traceback

from gigaslice.runtime import logs
from tests.demo.cluster.stage import CHOICES, missing, stage
from tests.demo.cluster.story import Story
from tests.demo.report import Report
from tests.demo.supervise import prefix, supervise

PAUSE = 1.5  # between two steps, for whoever reads along


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="demo-cluster", description="Three nodes, and pods that come and go."
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=0.0,
        metavar="N",
        help="tell it without pauses, let pods come and go for the rest of N seconds, and end; else until Ctrl-C",
    )
    parser.add_argument(
        "--control-plane",
        choices=CHOICES,
        default="auto",
        help="a real one needs etcd, kube-apiserver and kube-scheduler in the folder K8S_BIN or in PATH; auto takes it "
        "where they are",
    )
    parser.add_argument("--prefix", default="", help=argparse.SUPPRESS)  # the child that tells has one
    arguments = parser.parse_args(argv)
    if reason := missing(arguments.control_plane):
        parser.error(reason)
    return arguments


async def play(arguments: argparse.Namespace, report: Report) -> None:
    end = time.monotonic() + arguments.seconds if arguments.seconds else float("inf")
    async with stage(report, arguments.prefix, arguments.control_plane) as cluster:
        story = Story(cluster, report, 0.0 if arguments.seconds else PAUSE)
        config = cluster.plane.kubeconfig
        report.block(
            "The cluster is up",
            f"the page           {cluster.processes.page}\n"
            f"in another shell   export KUBECONFIG={config}\n"
            "                   build/venv/bin/gigaslice nodes    (or: top, explain pod NAME -n NAMESPACE)",
        )
        try:
            await story.tell()
            report.title("Pods come and go" + ("" if arguments.seconds else "; Ctrl-C ends it"))
            await story.go_on(end)
        finally:
            if report.failed:
                for log in sorted(cluster.directory.rglob("*.log")):
                    report.block(f"The end of {log.relative_to(cluster.directory)}", log.read_text()[-2000:])


def tell(arguments: argparse.Namespace) -> int:
    """Tells it once; returns the exit code."""
    report = Report()
    logs.set_up("error", "console")  # of the dataset services, which run in this process
    try:
        asyncio.run(play(arguments, report))
    except Exception as error:  # noqa: BLE001 - whatever keeps it from going on is a claim that does not hold
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__} in {where.name}, line {where.lineno}: {error}"
        report.claim("the demo runs to its end", False, text)
    report.close()
    print(
        f"\n{report.passed} claims held, {len(report.failed)} did not, in {time.monotonic() - report.started:.1f} s"
    )
    for text in report.failed:
        print(f"FAIL  {text}")
    return 1 if report.failed else 0


def main(argv: list[str]) -> int:
    """Tells it in a child, so that Ctrl-C at any instant leaves nothing behind; returns the exit code."""
    arguments = parse(argv)
    if arguments.prefix:
        return tell(arguments)
    return supervise([sys.executable, "-m", "tests.demo.cluster", *argv, "--prefix", prefix()])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
