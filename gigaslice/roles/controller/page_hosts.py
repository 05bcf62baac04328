# SPDX-License-Identifier: Apache-2.0
"""Under which names the web page answers: those that nobody else can give to the page's address.

A page of another site may have its name resolve to the address at which the administrator's browser reaches this page,
such as 127.0.0.1 under kubectl port-forward, and could then read it as its own (DNS rebinding). The browser says in the
header Host by which name it came. What answers to a machine with a token (metrics) or by TLS to the API server (the
webhook) needs no such check: a browser has neither the token nor trust in that certificate, and the metrics' port is
reached by a name only where an administrator has forwarded it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["PageHosts", "host_names"]

_LABEL = r"[a-z0-9_]([-a-z0-9_]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_LONGEST = 253


def host_names(text: str) -> tuple[str, ...]:
    """Names of hosts from a setting, separated by commas. Raises ValueError."""
    names = tuple(name.strip().lower().removesuffix(".") for name in text.split(",") if name.strip())
    for name in names:
        if len(name) > _LONGEST or not _NAME.fullmatch(name):
            raise ValueError(
                f'"{name}" is no name of a host; write each as a browser shows it, without scheme, port and "*", '
                'as in "gpus.example.com"'
            )
    return names


@dataclass(frozen=True, slots=True)
class PageHosts:
    """Which values of the header Host are answered.

    Attributes:
        namespace: The controller's own; every Service there may be one of the page's, and no tenant makes one there.
        names: Further names.
    """

    namespace: str
    names: tuple[str, ...] = ()

    def admits(self, headers: Sequence[str]) -> bool:
        """Whether a request with these headers Host is answered: with one, that is localhost, an IP address, a Service
        of the namespace in full, or one of the further names; with a port or without.
        """
        if len(headers) != 1:
            return False
        name = _without_port(headers[0].strip().lower())
        if name.startswith("["):
            return _is_address(name.removeprefix("[").removesuffix("]"), 6)
        name = name.removesuffix(".")
        return name == "localhost" or _is_address(name, 4) or name in self.names or self._is_service(name)

    def _is_service(self, name: str) -> bool:
        return bool(re.fullmatch(rf"{_LABEL}\.{re.escape(self.namespace)}\.svc(\.cluster\.local)?", name))


def _without_port(text: str) -> str:
    return re.sub(r":[0-9]{0,5}\Z", "", text)


def _is_address(text: str, version: int) -> bool:
    try:
        return ipaddress.ip_address(text).version == version
    except ValueError:
        return False
