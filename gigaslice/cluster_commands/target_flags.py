# SPDX-License-Identifier: Apache-2.0
"""What the commands that show the whole cluster have in common: which cluster, and how a list is printed."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from gigaslice.core.errors import ConfigError
from gigaslice.runtime import settings
from gigaslice.runtime.command_line.output import add_format
from gigaslice.runtime.command_line.watch import Picture, add_watch, show

if TYPE_CHECKING:
    from gigaslice.cluster_commands.cluster import ClusterContent, Target

__all__ = [
    "add_cluster_watch",
    "add_list_format",
    "add_target",
    "as_text",
    "cluster_target",
    "notes_of",
    "show_format",
]

_WATCH_SECONDS = "5"  # everything is read anew each time


def add_target(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that say which cluster is meant."""
    parser.add_argument(
        "--kubeconfig",
        metavar="FILE",
        default="",
        help="default: the files of $KUBECONFIG, else ~/.kube/config",
    )
    parser.add_argument(
        "--context", metavar="NAME", default="", help="of the kubeconfig; default: its current one"
    )
    parser.add_argument(
        "--server",
        metavar="URL",
        default="",
        help="an API server without TLS, such as http://127.0.0.1:8001 of `kubectl proxy`; for logins by a command",
    )


def add_list_format(parser: argparse.ArgumentParser, *more: str) -> None:
    """Adds how a list is printed. MORE: formats that only this command has."""
    formats = ("table", "wide", "json", "yaml", "name", *more)
    meaning = (
        f"{', '.join(formats)}; wide: a table with nothing cut; name: as kubectl takes them (default: table)"
    )
    add_format(parser, formats, meaning)


def add_cluster_watch(parser: argparse.ArgumentParser) -> None:
    """Adds --watch, at an interval that an API server is asked at."""
    add_watch(parser, _WATCH_SECONDS)


def as_text(document: object, form: str, *, one_of_many: bool = False) -> str:
    """DOCUMENT as FORM, json or yaml. ONE_OF_MANY: on one line, or as a document that others follow."""
    if form == "json":
        return json.dumps(document, indent=None if one_of_many else 2)
    import yaml

    text = str(yaml.safe_dump(document, sort_keys=False, allow_unicode=True, explicit_start=one_of_many))
    return text.rstrip("\n")


def show_format(picture: Callable[[], Picture], arguments: argparse.Namespace) -> int:
    """Shows PICTURE once, or as ARGUMENTS' --watch says; the exit code.

    Raises:
        ConfigError: It is a format that cannot be watched.
    """
    if arguments.watch is not None and arguments.format == "svg":
        raise ConfigError(
            ["--watch and -o svg: pictures do not follow each other in one file; leave one of them out"]
        )
    return show(picture, arguments.watch, documents=arguments.format not in ("table", "wide", "text"))


def cluster_target(arguments: argparse.Namespace) -> Target:
    """The cluster that is meant.

    Raises:
        ConfigError: There is none.
    """
    from gigaslice.cluster_commands import cluster

    return cluster.target(arguments.kubeconfig, arguments.context, arguments.server, settings.environment())


def notes_of(content: ClusterContent) -> tuple[str, ...]:
    """What is missing in the answer, as lines."""
    return tuple(f"note: {note}" for note in content.notes)
