# SPDX-License-Identifier: Apache-2.0
"""`gigaslice dataset wait`: has a dataset on this node, and waits for it: for init containers."""

from __future__ import annotations

import argparse
from pathlib import Path

from gigaslice.runtime import settings
from gigaslice.runtime.command_line.command import OK

HELP = "have a dataset on this node and wait until it can be read; for init containers"
DESCRIPTION = (
    "The source is read from the environment: DATASET_SOURCE, or DATASET_TYPE, DATASET_SERVER and DATASET_PATH, and "
    "DATASET_OPTIONS as a=b,c=d. POD_UID, POD_NAME and POD_NAMESPACE say which pod it is. Every variable that begins "
    "with DATASET_SECRET_ is a credential. Prints the path of the data on the node."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the socket."""
    default = "/run/gigaslice-dataset/wait/wait.sock"
    parser.add_argument(
        "--socket", metavar="FILE", default=default, help=f"of the service (default: {default})"
    )
    parser.add_argument(
        "--volume", metavar="NAME", default="data", help="one of several of the pod (default: data)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Waits, with a bar where a person watches."""
    from gigaslice.roles.dataset_node.subcommands import service_requests

    print(service_requests.wait(Path(arguments.socket), arguments.volume, settings.environment()))
    return OK
