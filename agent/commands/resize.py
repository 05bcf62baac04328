# SPDX-License-Identifier: Apache-2.0
"""`gigaslice resize`: changes what a running container may use, by asking this node's agent."""

from __future__ import annotations

import argparse
from pathlib import Path

from agent.commands.node_flags import add_state_dir
from agent.control import client
from agent.control.messages import ResizeAnswer
from gigaslice.core import units
from gigaslice.core.errors import ConfigError
from gigaslice.core.text import plain
from gigaslice.runtime.command_line.command import OK

__all__ = ["DESCRIPTION", "HELP", "add_arguments", "ask", "describe", "run"]

HELP = "change what a running container may use"
DESCRIPTION = "Takes effect at once, and lasts until the pod goes. Asks this node's agent; needs root."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds which container and what it may use."""
    parser.add_argument("pod", metavar="POD", nargs="?", help="name of the pod, or NAMESPACE/NAME")
    for flag, metavar, text in (
        ("--namespace", "NAME", "namespace of the pod (default: default)"),
        ("--container", "NAME", "which container, where several of the pod have slices"),
        ("--allocation", "ID", "in place of POD: which allocation, by the first 8 or more digits of its id"),
        ("--gpu", "UUID", "which GPU, or the beginning of its UUID (default: each of the container's)"),
        ("--memory", "SIZE", "memory of each such GPU, such as 12GiB; rounded up to whole MiB"),
        ("--cores", "PERCENT", "share of each such GPU's compute, 0 for none of its own"),
    ):
        parser.add_argument(flag, metavar=metavar, help=text)
    add_state_dir(parser)


def run(arguments: argparse.Namespace) -> int:
    """Asks the agent, and prints what has changed."""
    print(describe(ask(arguments)))
    return OK


def ask(arguments: argparse.Namespace) -> ResizeAnswer:
    """Asks for what the command line says. Raises ConfigError, MissingError or ControlError."""
    mistakes = []
    memory = cores = None
    if arguments.memory is None and arguments.cores is None:
        mistakes.append("nothing to change; say --memory SIZE or --cores PERCENT")
    if arguments.memory is not None:
        try:
            memory = units.parse_bytes(arguments.memory)
        except ValueError as error:
            mistakes.append(f'--memory "{arguments.memory}": {error}')
    if arguments.cores is not None:
        if arguments.cores.isascii() and arguments.cores.isdigit() and int(arguments.cores) <= 100:
            cores = int(arguments.cores)
        else:
            mistakes.append(f'--cores "{arguments.cores}": must be a whole number from 0 to 100')
    namespace, slash, pod = (arguments.pod or "").rpartition("/")
    if bool(pod) == bool(arguments.allocation):
        mistakes.append("say which container: POD, or --allocation ID")
    if slash and arguments.namespace not in (None, namespace):
        mistakes.append(f"{arguments.pod} and --namespace {arguments.namespace} contradict each other")
    if mistakes:
        raise ConfigError(mistakes)
    return client.resize(
        Path(arguments.state_dir),
        namespace=arguments.namespace or namespace or "default",
        pod=pod,
        container=arguments.container,
        gpu=arguments.gpu,
        allocation=arguments.allocation,
        memory=memory,
        cores=cores,
    )


def describe(answer: ResizeAnswer) -> str:
    """One line for each GPU, and one more where the container uses more than it now may."""
    lines = []
    for limit in answer.limits:
        sizes = [units.format_bytes(size) for size in (limit.memory_before, limit.memory_after)]
        text = f"{plain(answer.container)} {plain(limit.gpu)}: "
        text += " -> ".join(sizes) if sizes[0] != sizes[1] else sizes[0]
        if limit.cores_before != limit.cores_after:
            text += f", cores {limit.cores_before}% -> {limit.cores_after}%"
        lines.append(text)
        if limit.used > limit.memory_after:
            lines.append(
                f"  uses {units.format_bytes(limit.used)}: nothing is ended, but it is refused further memory until it "
                f"has freed {units.format_bytes(limit.used - limit.memory_after)}"
            )
    return "\n".join(lines)
