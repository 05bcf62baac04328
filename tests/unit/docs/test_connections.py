# SPDX-License-Identifier: Apache-2.0
"""What connects where: the library makes no socket, and few modules of ours can reach another machine.

A module that reports something to somebody, or looks for a newer version, would be one that is not in the list.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.unit.docs.test_docs import ROOT

LIBRARY = ROOT / "build" / "libvcuda.so"
PACKAGES = ("agent", "gigaslice", "gigaslice_cli", "vcuda", "release")
CLIENTS = re.compile(
    r"(?:http\.client|urllib\.request|urllib3|requests|httpx|aiohttp|obstore|ftplib|smtplib|xmlrpc|telnetlib|websockets)\b"
)
SERVER = re.compile(r"aiohttp(?:\.(?:web|typedefs|http_exceptions))\b")
REACHING = {"create_connection", "open_connection", "getaddrinfo", "create_datagram_endpoint"}
WHERE = {
    "gigaslice/kubeapi/": "the API server",
    "gigaslice/roles/controller/agent_usage.py": "the agents' metrics, with pageUsage: agents",
    "gigaslice/roles/dataset_node/sources/": "the sources of data",
    "gigaslice/roles/dataset_node/packing/object_store_target.py": "the store that `gigaslice dataset pack` names",
    "gigaslice/runtime/bounded_listener.py": "nothing: the addresses that it listens on",
    "agent/commands/cluster_checks.py": "names that gigaslice doctor looks up",
}
SOCKETS = {
    "socket",
    "socketpair",
    "connect",
    "bind",
    "listen",
    "accept",
    "accept4",
    "getaddrinfo",
    "gethostbyname",
}


def reaching(path: Path) -> Iterator[str]:
    """What a module imports or calls by which it could reach another machine."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if CLIENTS.match(alias.name))
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name for name in names if CLIENTS.match(name) and not SERVER.match(name))
        elif isinstance(node, ast.Attribute) and node.attr in REACHING:
            yield node.attr


def test_only_these_modules_can_reach_another_machine() -> None:
    found: dict[str, set[str]] = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            words = set(reaching(path))
            if words:
                place = next((place for place in WHERE if name.startswith(place)), name)
                found.setdefault(place, set()).update(words)
    assert found.keys() == WHERE.keys(), "docs/threat-model.md says what connects where, and so does WHERE"


def test_the_library_makes_no_socket() -> None:
    listed = subprocess.run(
        ["nm", "-D", "--undefined-only", LIBRARY], capture_output=True, text=True, check=True
    )
    needed = {line.split()[-1].partition("@")[0] for line in listed.stdout.splitlines()}
    assert "syscall" in needed and not needed & SOCKETS
    numbers = {
        number
        for path in sorted((ROOT / "native").rglob("*.[ch]"))
        for number in re.findall(r"\b(?:SYS|__NR)_(\w+)", path.read_text())
    }
    assert len(numbers) > 10 and not numbers & SOCKETS
