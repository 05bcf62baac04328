# SPDX-License-Identifier: Apache-2.0
"""How the text of a setting becomes its value: the kinds of values that several roles have.

Each function takes the text and returns the value, or raises ValueError with a sentence for the user.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gigaslice.runtime.command_line.command import did_you_mean

__all__ = [
    "WordChoice",
    "absolute_path",
    "address",
    "auto_off",
    "choice",
    "count",
    "is_off",
    "node_name",
    "offered_words",
    "on_off",
    "optional_path",
    "path_or_off",
    "resource_name",
    "resource_or_off",
    "seconds",
]

_MAX_PATH_BYTES = 3800  # of Linux's 4,095: names are added below it
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"


def is_off(text: str) -> bool:
    """Whether TEXT turns a setting off. What YAML makes of a plain off, as Helm does with its values, counts too."""
    return text.lower() in ("off", "false", "no")


def on_off(text: str) -> str:
    """One of "on" and "off"."""
    if not is_off(text) and text.lower() not in ("on", "true", "yes"):
        raise ValueError(_none_of(text, ("on", "off")))
    return "off" if is_off(text) else "on"


def auto_off(text: str) -> str:
    """One of "auto" and "off"."""
    if not is_off(text) and text != "auto":
        raise ValueError(_none_of(text, ("auto", "off")))
    return "off" if is_off(text) else "auto"


@dataclass(frozen=True, slots=True)
class WordChoice:
    """A parser that takes one of its options."""

    options: tuple[str, ...]

    def __call__(self, text: str) -> str:
        """TEXT, where it is one of them; other words for off mean it where it is one."""
        if "off" in self.options and is_off(text):
            return "off"
        if text not in self.options:
            raise ValueError(_none_of(text, self.options))
        return text


def choice(*options: str) -> WordChoice:
    """A parser that takes one of OPTIONS."""
    return WordChoice(options)


def offered_words(parse: Callable[[str], object]) -> tuple[str, ...]:
    """The words one of which PARSE takes, for a shell to complete; none where it takes other texts."""
    return parse.options if isinstance(parse, WordChoice) else ()


def _none_of(text: str, options: tuple[str, ...]) -> str:
    return "; ".join(
        filter(None, (f"must be one of {', '.join(options)}", did_you_mean(text.lower(), options)))
    )


def count(text: str) -> int:
    """A whole number from 1 to 999."""
    if not re.fullmatch(r"[1-9][0-9]{0,2}", text):
        raise ValueError("must be a number from 1 to 999")
    return int(text)


def weight(text: str) -> float:
    """A number from 0 to 100."""
    if not re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,3})?", text) or float(text) > 100:
        raise ValueError("must be a number from 0 to 100, such as 0.5")
    return float(text)


def seconds(text: str) -> float:
    """A time with its unit, in seconds."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|)", text)
    value = float(match[1]) * {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0}[match[2]] if match else math.nan
    if not 0.1 <= value <= 86400:
        raise ValueError('must be a time between 100ms and 86400s, such as "10s" or "500ms"')
    return value


def absolute_path(text: str) -> Path:
    """A normalized absolute path."""
    if "\0" in text or not text.startswith("/"):
        raise ValueError("must be an absolute path: mount sources and sockets are named by it on the host")
    path = os.path.normpath(text)
    if len(os.fsencode(path)) > _MAX_PATH_BYTES or any(
        len(os.fsencode(name)) > 255 for name in path.split("/")
    ):
        raise ValueError(f"is too long: {_MAX_PATH_BYTES} bytes are possible, and 255 between two slashes")
    return Path(path)


def optional_path(text: str) -> Path | None:
    """A normalized absolute path, or None for an empty text."""
    return absolute_path(text) if text else None


def path_or_off(text: str) -> Path | None:
    """A normalized absolute path, or None for off."""
    return None if is_off(text) else absolute_path(text)


def address(text: str) -> tuple[str | None, int] | None:
    """Host and port to listen on; no host means every address, None means off."""
    if is_off(text):
        return None
    host, colon, port = text.rpartition(":")
    if (
        not colon
        or not re.fullmatch(r"[0-9]{1,5}", port)
        or int(port) > 65535
        or (":" in host and host[0] != "[")
    ):
        raise ValueError('must be "off", ":9445", "127.0.0.1:9445" or "[::1]:9445"')
    return host.strip("[]") or None, int(port)


def node_name(text: str) -> str:
    """The name of a node in the cluster, or an empty text."""
    if text and (len(text) > 253 or not re.fullmatch(rf"{_LABEL}(\.{_LABEL})*", text)):
        raise ValueError("must be the name that kubectl get nodes shows for this node")
    return text


def resource_name(text: str) -> str:
    """The name of an extended resource."""
    domain, slash, name = text.partition("/")
    if (
        not slash
        or not re.fullmatch(rf"{_LABEL}(\.{_LABEL})*", domain)
        or len(domain) > 253 - len("requests.")
    ):
        raise ValueError('must look like "gigaslice.io/vgpu-memory": a DNS domain, "/", a name')
    if not re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", name) or len(name) > 63:
        raise ValueError('the part after "/" must be at most 63 letters, digits, "-", "_" or "."')
    if domain.startswith("requests.") or (domain + "/").endswith("kubernetes.io/"):
        raise ValueError(f'the domain "{domain}" is reserved by Kubernetes; choose one of your own')
    return text


def resource_or_off(text: str) -> str:
    """The name of an extended resource; empty where the setting is off."""
    return "" if is_off(text) else resource_name(text)
