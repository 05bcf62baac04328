# SPDX-License-Identifier: Apache-2.0
"""Has obstore connect to checked addresses only, from the first source on that may not be at local ones.

That goes for the whole process, in which one setting decides (--local-addresses); an endpoint that is opened with local
addresses allowed all the same stays one that may be connected to.
"""

from __future__ import annotations

import contextlib
import threading
from datetime import timedelta
from pathlib import Path

from obstore import _obstore, exceptions
from obstore.store import S3Store

from gigaslice.core.dataset.errors import SourceError
from gigaslice.roles.dataset_node.sources.addresses import may_connect, resolved
from gigaslice.roles.dataset_node.sources.checked_connects import CheckedConnects
from gigaslice.roles.dataset_node.sources.panics import LibraryPanicError, panics_raised
from gigaslice.runtime.logs import get_logger

__all__ = ["keep_to_checked", "permit"]

_PROBE = "127.0.0.1"
_lock = threading.Lock()
_permitted: set[str] = set()
_outcome: list[bool] = []


def permit(host: str) -> None:
    """Has the addresses of HOST be connected to whatever they are."""
    with contextlib.suppress(SourceError):  # who connects says it
        _permitted.update(resolved(host, 0))


def keep_to_checked() -> bool:
    """Has obstore connect to checked addresses only. Blocking at the first call.

    Returns:
        Whether it does, which it was seen doing; else its clients are to be pointed at a proxy.
    """
    with _lock:
        if not _outcome:
            _outcome.append(_installed())
        return _outcome[0]


def _installed() -> bool:
    connects = CheckedConnects(lambda address: address in _permitted or may_connect(address))
    try:
        connects.replace_in(Path(_obstore.__file__))
        is_called = _is_called(connects)
    except (OSError, ValueError, KeyError) as error:
        get_logger("sources").warning("object stores are read through a proxy", detail=str(error))
        return False
    if not is_called:
        get_logger("sources").warning(
            "object stores are read through a proxy", detail="connect(2) is not the library's own"
        )
    return is_called


def _is_called(connects: CheckedConnects) -> bool:
    """Has obstore connect to an address that is refused, without anything being sent.

    The refusal comes at once, except on a machine that has no time for us.
    """
    store = S3Store(
        "probe",
        config={"aws_endpoint_url_s3": f"http://{_PROBE}:9", "region": "probe", "skip_signature": True},
        client_options={"allow_http": True, "timeout": timedelta(seconds=30)},
        retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=30)},
    )
    before = connects.calls
    with contextlib.suppress(exceptions.BaseError, LibraryPanicError, OSError), panics_raised():
        store.head("probe")
    return connects.calls > before
