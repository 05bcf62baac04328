# SPDX-License-Identifier: Apache-2.0
"""The kubeconfig files that count, and what they say together, as kubectl has it.

One file is named by a flag; or several by $KUBECONFIG, divided by ":"; else a person's ~/.kube/config. Of several, the
first that has a cluster, a user or a context by a name has all of it: nothing of a later file's is mixed in. The first
that names a current context decides. A path in a file is relative to that file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gigaslice.core.errors import ConfigError

__all__ = ["Kubeconfig", "KubeconfigEntry", "KubeconfigFiles", "kubeconfig_files", "read_kubeconfig"]

_TABLES = {"contexts": "context", "clusters": "cluster", "users": "user"}


@dataclass(frozen=True, slots=True)
class KubeconfigFiles:
    """Files in the order in which they count. origin: who named them, "--kubeconfig" or "$KUBECONFIG"."""

    paths: tuple[Path, ...]
    origin: str = "--kubeconfig"

    def __str__(self) -> str:
        return os.pathsep.join(map(str, self.paths))


@dataclass(frozen=True, slots=True)
class KubeconfigEntry:
    """A cluster, a user or a context, and the file that has it."""

    values: Mapping[str, Any] = field(repr=False)
    path: Path


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """What the files say together: "contexts", "clusters" and "users" by name, and the name of the current context."""

    files: KubeconfigFiles
    current: object
    tables: Mapping[str, Mapping[object, KubeconfigEntry]]

    def context(self, chosen: str = "") -> Mapping[str, Any]:
        """The context CHOSEN, the current one if empty. Raises ConfigError where there is none of that name."""
        return self.entry("contexts", chosen or self.current).values

    def namespace(self, chosen: str = "") -> str:
        """The namespace of a context. Raises as `context` does."""
        return str(self.context(chosen).get("namespace") or "default")

    def entry(self, table: str, name: object) -> KubeconfigEntry:
        """An entry of TABLE. Raises ConfigError where there is none of that name."""
        entry = self.tables[table].get(name) if isinstance(name, str) else None
        if entry is None:
            raise ConfigError(
                [f'{self.files.origin} "{self.files}": {table} has no {_TABLES[table]} named "{name}"']
            )
        return entry


def kubeconfig_files(
    flag: str | Path | None, variable: str, home: Path | None = None
) -> KubeconfigFiles | None:
    """The files that count; None where there is none.

    Args:
        flag: The file that a flag names, which must be there.
        variable: $KUBECONFIG. Files that are not there are passed over, as by kubectl, and ~/.kube/config does not
            count beside it.
        home: The directory of the person that runs a command; None for a role, which takes nobody's.
    """
    if flag:
        return KubeconfigFiles((Path(flag),))
    if variable:
        named = tuple(dict.fromkeys(Path(name) for name in variable.split(os.pathsep) if name))
        there = tuple(path for path in named if os.path.lexists(path))
        return KubeconfigFiles(there, "$KUBECONFIG") if there else None
    usual = None if home is None else home / ".kube" / "config"
    return KubeconfigFiles((usual,), "the usual kubeconfig") if usual and usual.exists() else None


def read_kubeconfig(files: KubeconfigFiles) -> Kubeconfig:
    """Reads and merges FILES. Raises ConfigError for the first that cannot be read or is no YAML."""
    current: object = None
    tables: dict[str, dict[object, KubeconfigEntry]] = {table: {} for table in _TABLES}
    for path in files.paths:
        document = _document(path, files.origin)
        current = current or document.get("current-context")
        for table, key in _TABLES.items():
            entries = document.get(table)
            for entry in entries if isinstance(entries, list) else []:
                if isinstance(entry, dict) and isinstance(entry.get(key), dict):
                    name = entry.get("name")
                    if isinstance(name, str):
                        tables[table].setdefault(name, KubeconfigEntry(entry[key], path))
    return Kubeconfig(files, current, tables)


def _document(path: Path, origin: str) -> Mapping[str, Any]:
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            [f'{origin} "{path}": {error.strerror}; name a readable kubeconfig file']
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError, TypeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        raise ConfigError([f'{origin} "{path}": not YAML{where}; kubectl config view shows why']) from None
    return document if isinstance(document, dict) else {}
