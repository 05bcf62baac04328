# SPDX-License-Identifier: Apache-2.0
"""What `gigaslice dataset ps`, `evict` and `wait` do: questions to the dataset service of this node, as lines."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gigaslice.core.dataset.source_spec import SourceSpec
from gigaslice.core.errors import ConfigError, ControlError, MissingError
from gigaslice.core.text import plain
from gigaslice.core.units import format_bytes
from gigaslice.roles.dataset_node.control import CONTROL_SOCKET
from gigaslice.runtime.command_line.command import OK, report
from gigaslice.runtime.local_protocol import ask, conversation
from gigaslice.runtime.progress import StepProgress
from gigaslice.runtime.table import Column, as_table

__all__ = ["age", "as_lines", "evict", "listed", "wait"]

_SECRET = "DATASET_SECRET_"
_SERVER = "dataset service"
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_NUMBERS = re.compile(r"[0-9]+ % of .*")  # of a text of the service: what changes while a step goes on
_RETRY_SECONDS, _LONGEST_RETRY = 2.0, 60.0


def listed(state_dir: Path) -> dict[str, Any]:
    """Everything that the service shows."""
    return ask(state_dir / CONTROL_SOCKET, _SERVER, {"ps": {}})


def as_lines(listing: Mapping[str, Any], now: float | None = None) -> str:
    """What the service shows, for people."""
    at = time.time() if now is None else now
    columns = (
        Column("KEY"),
        Column("SOURCE", most=60),
        Column("SIZE", right=True),
        Column("FILES", right=True),
        Column("STATE"),
        Column("USED"),
        Column("PODS", most=60),
    )
    rows = [
        (
            str(dataset["key"])[:12],
            plain(str(dataset["source"])),
            format_bytes(int(dataset["bytes"])),
            str(dataset["files"]),
            _state(dataset),
            "now"
            if dataset["holders"] or dataset["waiting"]
            else f"{_ago(at - float(dataset['last_used']))} ago",
            plain(", ".join(dataset["holders"])) or "-",
        )
        for dataset in sorted(listing["datasets"], key=lambda dataset: -float(dataset["last_used"]))
    ]
    lines = [as_table(columns, rows)] if rows else ["no datasets"]
    lines += [f"{plain(task['pod'])} waits for {plain(task['detail'])}" for task in listing["tasks"]]
    trash = int(listing.get("trash", 0))
    later = f", with {format_bytes(trash)} that the disk is giving back" if trash else ""
    lines.append(f"{format_bytes(int(listing['room']))} free for datasets{later}")
    return "\n".join(lines)


def age(text: str) -> float:
    """A time such as "12h" or "7d", in seconds. Raises ConfigError."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhdw])", text)
    if match is None:
        raise ConfigError([f'--older-than "{plain(text)}": write a time such as 30m, 12h or 7d'])
    return float(match[1]) * _UNITS[match[2]]


def evict(state_dir: Path, names: Sequence[str], idle_seconds: float | None) -> tuple[str, tuple[str, ...]]:
    """Deletes datasets. Returns a line on what is gone, and one for each that stays although it was named."""
    asked: dict[str, Any] = {"names": list(names)}
    if idle_seconds is not None:
        asked["idle_seconds"] = idle_seconds
    answer = ask(state_dir / CONTROL_SOCKET, _SERVER, {"evict": asked})
    gone = answer["evicted"]
    size = format_bytes(sum(int(dataset["bytes"]) for dataset in gone))
    done = f"{len(gone)} {'dataset' if len(gone) == 1 else 'datasets'} deleted, {size}"
    if gone:
        done += "; the disk gives the room back in the background"
    return done, tuple(f"{plain(source)}: {plain(str(why))}" for source, why in answer["refused"].items())


def wait(path: Path, volume: str, environment: Mapping[str, str]) -> str:
    """Waits for the dataset that the environment names. Returns where it is.

    Raises:
        ConfigError: The environment names none.
        ControlError: It cannot be had; the text says what to do.
    """
    spec = SourceSpec.from_environment(environment)
    text = SourceSpec(spec.kind, spec.location).canonical  # the options have an attribute of their own
    attributes = {"source": text, "options": ",".join(f"{key}={value}" for key, value in spec.options)}
    pod = {name: environment.get(f"POD_{name.upper()}", "") for name in ("uid", "namespace", "name")}
    missing = [f"POD_{name.upper()}" for name, value in pod.items() if not value]
    if missing:
        raise ConfigError([f"{', '.join(missing)} is not set; set it by fieldRef, as in docs/datasets.md"])
    credentials = {
        key.removeprefix(_SECRET).lower(): value
        for key, value in environment.items()
        if key.startswith(_SECRET)
    }
    request = {
        "wait": {
            "uid": pod["uid"],
            "namespace": pod["namespace"],
            "pod": pod["name"],
            "volume": volume,
            "attributes": {key: value for key, value in attributes.items() if value},
            "credentials": credentials,
        }
    }
    pause = _RETRY_SECONDS
    while True:
        try:
            return _waited(path, request)
        except _AgainError as error:
            report(OK, f"{error}; tried again in {pause:g} s")
        time.sleep(pause)
        pause = min(pause * 2, _LONGEST_RETRY)


class _AgainError(Exception):
    """The attempt has failed for a reason that may pass."""


def _waited(path: Path, request: dict[str, Any]) -> str:
    try:
        with StepProgress("asking the dataset service") as progress:
            for answer in conversation(path, _SERVER, request):
                if answer.get("ready") is True:
                    return str(answer["path"])
                if "error" in answer:
                    if answer.get("retry") is True:
                        raise _AgainError(str(answer["error"]))
                    raise ControlError(plain(str(answer["error"])))
                text = str(answer.get("progress", ""))
                share = float(answer.get("share", 0.0))
                progress.show(text, share, 1.0, timed=False, phase=_NUMBERS.sub("", text))
    except MissingError as error:  # it is started anew, or has not been started yet
        raise _AgainError(str(error)) from error
    raise _AgainError("the dataset service has ended")


def _state(dataset: Mapping[str, Any]) -> str:
    if dataset["state"] != "fetching":
        return str(dataset["state"])
    return (
        f"fetching {int(float(dataset['share']) * 100)} %, {format_bytes(int(dataset['bytes_per_second']))}/s"
    )


def _ago(seconds: float) -> str:
    for unit, size in reversed(_UNITS.items()):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return "0s"
