"""Grants as JSON, in an envelope that betrays every changed byte.

    {"version":1,"sha256":"<of version and state>","state":{…}}

Tokens are written as ranges ("GPU-…/0-7,9"), since a node may have a thousand. The envelope keeps its form in all
versions, so an older agent can tell "newer than I am" from "damaged". Bytes to values and back; files are elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from agent.errors import CheckpointError, CheckpointVersionError, TokenError
from agent.model import DEFAULT_PRIORITY, PRIORITIES, format_token, parse_token
from agent.state.records import Book, ContainerRef, Grant, GrantPolicy, Hold, LiveLimit, Owner

__all__ = ["VERSION", "decode_book", "decode_grant", "encode_book", "encode_grant"]

VERSION = 4
"""1: the first. 2: owner, policy and undecided of a grant; a grant of version 1 has none of them.
3: parts of a policy, and live limits with their count; a grant of version 2 has none of them.
4: the part of a hold that is the card's own memory; in older ones all of it is.
"""
_ENVELOPE = re.compile(rb'\{"version":(\d{1,9}),"sha256":"([0-9a-f]{64})","state":(.*)\}\n', re.DOTALL)
_GRANT_ID = re.compile(r"[0-9a-f]{32}")
_LIBRARY = re.compile(r"[A-Za-z0-9][-A-Za-z0-9._+]{0,127}")
_MAX_TOKENS = 1 << 20
_KEPT = "_codec_json"  # beside the fields of a grant or hold, like what it works out itself


def encode_book(book: Book) -> bytes:
    """The checkpoint file's content."""
    grants = b",".join([_grant_json(grant) for grant in book.grants])
    return _sealed(b'{"next":%d,"grants":[%s]}' % (book.next_number, grants))


def decode_book(raw: bytes) -> Book:
    """The book in a checkpoint file. Raises CheckpointError or CheckpointVersionError."""
    state = _opened(raw)
    try:
        grants = tuple(sorted((_grant(item) for item in state["grants"]), key=lambda grant: grant.number))
        if len({grant.id for grant in grants}) != len(grants):
            raise ValueError("an allocation is listed twice")
        following = max([int(state["next"]), *(grant.number + 1 for grant in grants)])
        return Book(grants, following)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(f"its content makes no sense ({error!r})") from error


def encode_grant(grant: Grant) -> bytes:
    """The content of the file in the grant's own directory."""
    return _sealed(_grant_json(grant))


def decode_grant(raw: bytes) -> Grant:
    """The grant in such a file. Raises CheckpointError or CheckpointVersionError."""
    state = _opened(raw)
    try:
        return _grant(state)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(f"its content makes no sense ({error!r})") from error


def _sealed(state: bytes, version: int = VERSION) -> bytes:
    digest = _digest(version, state).encode("ascii")
    return b'{"version":%d,"sha256":"%s","state":%s}\n' % (version, digest, state)


def _opened(raw: bytes) -> Any:
    match = _ENVELOPE.fullmatch(raw)
    if not match:
        raise CheckpointError("it is cut short or not a checkpoint")
    version = int(match[1])
    if _digest(version, match[3]) != match[2].decode("ascii"):
        raise CheckpointError("its checksum is wrong")
    if version > VERSION:
        raise CheckpointVersionError(f"it has version {version}, and this agent knows up to {VERSION}")
    try:
        return json.loads(match[3])
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"it is no JSON ({error})") from error


def _digest(version: int, state: bytes) -> str:
    summed = hashlib.sha256(b"%d\n" % version)
    summed.update(state)
    return summed.hexdigest()


def _grant_json(grant: Grant) -> bytes:
    """One grant; kept with it, since a checkpoint is written whole and most of it is as it was."""
    known: bytes | None = grant.__dict__.get(_KEPT)
    if known is None:
        known = grant.__dict__[_KEPT] = _new_grant_json(grant)
    return known


def _new_grant_json(grant: Grant) -> bytes:
    document: dict[str, object] = {
        "id": grant.id,
        "number": grant.number,
        "created": grant.created,
        "library": grant.library,
        "holds": [
            {
                "gpu": hold.gpu,
                "sliceBytes": hold.slice_bytes,
                "tokens": _ranges_of(hold),
                **({"physical": hold.physical_bytes} if hold.physical_bytes else {}),
            }
            for hold in grant.holds
        ],
    }
    if grant.lent:
        document["lent"] = list(_ranges(grant.lent))
    if grant.supersedes:
        document["supersedes"] = list(grant.supersedes)
    if grant.container:
        document["container"] = [grant.container.namespace, grant.container.pod, grant.container.container]
    if grant.suspects is not None:
        document["suspects"] = list(grant.suspects)
    if grant.gone:
        document["gone"] = True
    if grant.forgotten:
        document["forgotten"] = True
    if grant.foreign:
        document["foreign"] = True
    if grant.waiting:
        document["waiting"] = True
    if grant.owner:
        document["owner"] = {
            "uid": grant.owner.uid,
            "name": [grant.owner.namespace, grant.owner.pod, grant.owner.container],
            "init": grant.owner.init,
        }
    if grant.policy != GrantPolicy():
        document["policy"] = {
            "cores": grant.policy.cores,
            "exclusive": grant.policy.exclusive,
            "elastic": grant.policy.elastic,
            "maxSlices": grant.policy.max_slices,
            "oversubscribe": grant.policy.oversubscribe,
            "turns": grant.policy.turns,
            "parts": list(grant.policy.parts),
            "coresElastic": grant.policy.cores_elastic,
            "priority": grant.policy.priority,
        }
    if grant.undecided:
        document["undecided"] = True
    if grant.resizes:
        document["resizes"] = grant.resizes
        document["limits"] = [
            {"gpu": one.gpu, "memory": one.memory_bytes, "cores": one.cores} for one in grant.limits
        ]
    return json.dumps(document, separators=(",", ":")).encode("ascii")


def _grant(item: Mapping[str, Any]) -> Grant:
    if not _GRANT_ID.fullmatch(item["id"]) or not _LIBRARY.fullmatch(item["library"]):
        raise ValueError("an id or a library name is malformed")
    holds = tuple(
        Hold(
            _string(hold["gpu"]),
            _positive(hold["sliceBytes"]),
            tuple(_tokens(hold["tokens"])),
            _positive(hold["physical"]) if hold.get("physical") else 0,
        )
        for hold in item["holds"]
    )
    if not holds or any(not hold.tokens for hold in holds):
        raise ValueError("an allocation without devices")
    limits = tuple(_limit(one) for one in item.get("limits", []))
    if not {one.gpu for one in limits} <= {hold.gpu for hold in holds}:
        raise ValueError("a limit for a card that the allocation does not have")
    container, suspects = item.get("container"), item.get("suspects")
    return Grant(
        id=item["id"],
        number=_positive(item["number"]),
        created=float(item["created"]),
        holds=holds,
        library=item["library"],
        lent=frozenset(_tokens(item.get("lent", []))),
        supersedes=tuple(_string(one) for one in item.get("supersedes", [])),
        container=ContainerRef(*(_string(part) for part in container)) if container else None,
        suspects=None if suspects is None else tuple(_string(pod) for pod in suspects),
        gone=item.get("gone", False) is True,
        forgotten=item.get("forgotten", False) is True,
        foreign=item.get("foreign", False) is True,
        waiting=item.get("waiting", False) is True,
        owner=_owner(item["owner"]) if item.get("owner") else None,
        policy=_policy(item.get("policy", {})),
        undecided=item.get("undecided", False) is True,
        limits=limits,
        resizes=_positive(item["resizes"]) if item.get("resizes") else 0,
    )


def _limit(item: Mapping[str, Any]) -> LiveLimit:
    gpu = _string(item["gpu"])
    memory, cores = item.get("memory"), item.get("cores")
    return LiveLimit(
        gpu,
        None if memory is None else _positive(memory),
        None if cores is None else cores and _positive(cores),
    )


def _owner(item: Mapping[str, Any]) -> Owner:
    namespace, pod, container = (_string(part) for part in item["name"])
    return Owner(_string(item["uid"]), namespace, pod, container, item.get("init", False) is True)


def _policy(item: Mapping[str, Any]) -> GrantPolicy:
    cores, most = item.get("cores", 0), item.get("maxSlices")
    return GrantPolicy(
        cores=_positive(cores) if cores else 0,
        exclusive=item.get("exclusive", False) is True,
        elastic=item.get("elastic", False) is True,
        max_slices=None if most is None else _positive(most),
        oversubscribe=item.get("oversubscribe", False) is True,
        turns=item.get("turns", True) is not False,
        parts=tuple(_positive(part) for part in item.get("parts", [])),
        cores_elastic=item.get("coresElastic", False) is True,
        priority=_priority(item.get("priority", DEFAULT_PRIORITY)),
    )


def _priority(value: object) -> str:
    """A class of a later agent is taken for the one in the middle."""
    return value if isinstance(value, str) and value in PRIORITIES else DEFAULT_PRIORITY


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def _positive(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{value!r} is not a positive number")
    return value


def _ranges_of(hold: Hold) -> list[str]:
    """Kept with the hold: it stays what it is while its grant changes."""
    known: list[str] | None = hold.__dict__.get(_KEPT)
    if known is None:
        known = hold.__dict__[_KEPT] = list(_ranges(hold.tokens))
    return known


def _ranges(tokens: Iterable[str]) -> Iterator[str]:
    """Tokens of each card as "uuid/0-7,9"; a token of another form stands alone after "=" ."""
    numbers: dict[str, list[int]] = {}
    for token in sorted(tokens):
        try:
            parsed = parse_token(token)
        except TokenError:
            yield f"={token}"
            continue
        numbers.setdefault(parsed.uuid, []).append(parsed.number)
    for uuid, found in numbers.items():
        yield f"{uuid}/{','.join(_runs(sorted(found)))}"


def _runs(numbers: list[int]) -> Iterator[str]:
    for _, group in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        yield str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}"


def _tokens(texts: Iterable[Any]) -> Iterator[str]:
    for text in texts:
        if _string(text).startswith("="):
            yield text[1:]
            continue
        uuid, _, runs = text.rpartition("/")
        for run in runs.split(","):
            first, _, last = run.partition("-")
            low, high = int(first), int(last or first)
            if not 0 <= low <= high < _MAX_TOKENS:
                raise ValueError(f"{text!r} is no range of devices")
            for number in range(low, high + 1):
                yield format_token(uuid, number)
