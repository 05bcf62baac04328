"""`gigaslice resize`: changes the limits of a running container."""

from __future__ import annotations

import argparse

from agent.cli._shared import add_state_dir
from gigaslice.runtime.command_line.command import OK

HELP = "change what a running container may use"
DESCRIPTION = "Takes effect at once, and lasts until the pod goes. Asks this node's agent; needs root."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds which container and what it may use."""
    parser.add_argument("pod", metavar="POD", nargs="?", help="name of the pod, or NAMESPACE/NAME")
    for flag, metavar, text in (
        ("--namespace", "NAME", "namespace of the pod (default: default)"),
        ("--container", "NAME", "which container, where several of the pod have slices"),
        ("--allocation", "ID", "in place of POD: which allocation, by the first 8 or more digits of its id"),
        ("--gpu", "UUID", "which GPU, where the container has several (default: each of them)"),
        ("--memory", "SIZE", "memory of each such GPU, such as 12GiB; rounded up to whole MiB"),
        ("--cores", "PERCENT", "share of each such GPU's compute, 0 for none of its own"),
    ):
        parser.add_argument(flag, metavar=metavar, help=text)
    add_state_dir(parser)


def run(arguments: argparse.Namespace) -> int:
    """Asks the agent, and prints what has changed."""
    from agent.commands import resize

    print(resize.describe(resize.ask(arguments)))
    return OK
