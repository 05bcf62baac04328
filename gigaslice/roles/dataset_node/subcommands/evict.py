# SPDX-License-Identifier: Apache-2.0
"""`gigaslice dataset evict`: deletes datasets of this node that no pod uses."""

from __future__ import annotations

import argparse
from pathlib import Path

from gigaslice.core.errors import ConfigError
from gigaslice.runtime.command_line.command import FAILED, OK, report

HELP = "delete datasets of this node; what pods use is never deleted"
DESCRIPTION = (
    "A dataset is named by its source, its key, or the beginning of that; `gigaslice dataset ps` shows them."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what to delete."""
    parser.add_argument("names", metavar="NAME", nargs="*", help="a source, a key, or the beginning of a key")
    parser.add_argument(
        "--older-than", metavar="TIME", help="whatever has not been used for so long, such as 12h or 7d"
    )
    parser.add_argument(
        "--idle", action="store_true", help="whatever no pod uses, fetches that were given up included"
    )
    parser.add_argument("--all", action="store_true", help="the same as --idle")
    parser.add_argument(
        "--state-dir", metavar="DIR", default="/var/lib/gigaslice-dataset", help="of the service"
    )


def run(arguments: argparse.Namespace) -> int:
    """Deletes, and says what stays and why."""
    from gigaslice.roles.dataset_node.subcommands import service_requests

    idle = 0.0 if arguments.idle or arguments.all else None
    if arguments.older_than is not None:
        idle = service_requests.age(arguments.older_than)
    if not arguments.names and idle is None:
        raise ConfigError(["nothing is named; write a NAME, --older-than TIME or --idle"])
    done, refused = service_requests.evict(Path(arguments.state_dir), arguments.names, idle)
    print(done)
    return report(FAILED, *refused) if refused else OK
