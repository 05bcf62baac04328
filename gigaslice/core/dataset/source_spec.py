# SPDX-License-Identifier: Apache-2.0
"""Where a dataset comes from: one text such as "s3://bucket/prefix", parsed and normalised.

Two requests share a copy on a node only if their sources are the same, which is decided by `canonical`: equal sources
must give equal text. So every kind says which options are part of what is meant (an endpoint) and which only say how it
is read (`nconnect`); anything else is refused, and so is everything that carries credentials. They come by the Secret
of the volume and are in no source, since a source is shown in events, logs and records.

A dataset's key is the BLAKE3 of its canonical source and of its listing's digest. The listing is taken with the asking
pod's credentials: who has a key has read the listing.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from gigaslice.core.dataset.endpoint import ServerAddress, ServerUrl
from gigaslice.core.dataset.errors import RequestError
from gigaslice.core.text import plain

__all__ = [
    "ENVIRONMENT",
    "KINDS",
    "MOST_TEXT",
    "MOUNTED_KINDS",
    "RCLONE_KINDS",
    "SourceSpec",
    "dataset_key",
    "option_pairs",
]

MOST_TEXT = 2048
"""Characters of a source, and of its options together: it is shown in texts and objects, which have limits."""

_SCHEMES = {"gcs": "gs", "azure": "az", "s3a": "s3", "webdavs": "webdavs", "posix": "file", "local": "file"}
MOUNTED_KINDS = frozenset(("nfs", "lustre", "beegfs", "cephfs"))
"""Kinds that the node's kernel mounts, and that are read as files then."""
OBJECT_KINDS = frozenset(("s3", "gs", "az"))
RCLONE_KINDS = frozenset(("rclone", "hdfs", "sftp", "ftp", "smb", "webdav", "webdavs"))
"""Kinds that rclone reads."""
KINDS = frozenset(("file", "http", "https")) | MOUNTED_KINDS | OBJECT_KINDS | RCLONE_KINDS
_WEB_KINDS = frozenset(("http", "https", "webdav", "webdavs"))
_SHARE_KINDS = frozenset(("sftp", "ftp", "smb", "hdfs"))
_BUCKET = re.compile(
    r"[A-Za-z0-9._~!$&'()*+,;=:-]+"
)  # stores allow less; other characters change what a URL means
_DEFAULT_PORTS = {
    "http": "80",
    "https": "443",
    "webdav": "80",
    "webdavs": "443",
    "sftp": "22",
    "ftp": "21",
    "nfs": "2049",
}

# What is part of a source's identity, and what only says how it is read.
_IDENTITY: dict[str, frozenset[str]] = {
    "s3": frozenset(("endpoint",)),
    "gs": frozenset(("endpoint",)),
    "az": frozenset(("endpoint", "account")),
    "cephfs": frozenset(("fs", "port")),
    "nfs": frozenset(("port",)),
    "beegfs": frozenset(("port",)),
    "http": frozenset(
        ("manifest",)
    ),  # it says which files are meant, and who may write one is not the URL's owner
    "https": frozenset(("manifest",)),
}
_READING: dict[str, frozenset[str]] = {
    "s3": frozenset(("region", "path_style", "anonymous", "request_payer")),
    "gs": frozenset(("anonymous",)),
    "az": frozenset(("anonymous",)),
    "nfs": frozenset(
        ("vers", "proto", "nconnect", "rsize", "sec", "timeo", "retrans", "hard", "soft", "nolock", "noatime")
    ),
    "lustre": frozenset(("flock", "noflock", "localflock", "noatime")),
    "beegfs": frozenset(("cfgfile",)),
    "cephfs": frozenset(("ms_mode", "noatime", "recover_session")),
}
_ANY_KIND = frozenset(("fetchers",))
_SECRETS = re.compile(
    r"secret|passw|token|access_?key|api_?key|credential|signature|sas|private|bearer|^(key|pass|auth)$"
)

ENVIRONMENT = ("DATASET_SOURCE", "DATASET_TYPE", "DATASET_SERVER", "DATASET_PATH", "DATASET_OPTIONS")
"""The environment of the init-container form: the whole text, or type, server and path; and options as "a=b,c=d"."""


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """A source, normalised: kind, location and options say the same in only one way."""

    kind: str
    location: str
    """What stands behind "kind://": a server or bucket and a path below it; "/path" of a file source."""
    options: tuple[tuple[str, str], ...] = ()
    """Sorted by name."""

    @staticmethod
    def parse(text: str, options: Mapping[str, str] | None = None) -> SourceSpec:
        """The source that TEXT names, with OPTIONS.

        Args:
            text: As in "s3://bucket/prefix", "nfs://server/export/path", "https://host/path", "/path", "file:///path",
                "rclone:remote:path".
            options: Of the kind, such as {"endpoint": "http://minio:9000"}.

        Raises:
            RequestError: A kind that there is none of, an incomplete or ambiguous location, an option that the kind
                has none of, credentials in either, too many characters.
        """
        text = text.strip()
        if len(text) > MOST_TEXT:
            raise RequestError(
                f"source {_shown(text)} has {len(text)} characters, and may have {MOST_TEXT}; name a directory or "
                "prefix that has a shorter path"
            )
        if plain(text) != text or "\\" in text:
            raise RequestError(
                f"source {_shown(text)} has characters that do not print; write it in plain text"
            )
        if text.startswith("rclone:"):
            kind, location = "rclone", _rclone(text)
        elif text.startswith("/"):
            kind, location = "file", _path(text, text)
        else:
            scheme, divider, rest = text.partition("://")
            kind = _SCHEMES.get(scheme.lower(), scheme.lower())
            if not divider or kind not in KINDS or kind == "rclone":
                raise RequestError(_no_kind(text, kind if divider else ""))
            location = _path(rest, text) if kind == "file" else _remote(kind, rest, text)
        return SourceSpec(kind, location, _options(kind, options or {}))

    @staticmethod
    def from_environment(environment: Mapping[str, str]) -> SourceSpec:
        """The source that the variables of the init-container form name (see ENVIRONMENT).

        Raises:
            RequestError: As `parse`, or variables that are missing or say two things.
        """
        whole, kind, server, path, options = (environment.get(name, "").strip() for name in ENVIRONMENT)
        parsed_options = option_pairs("DATASET_OPTIONS", options)
        if whole:
            if kind or server or path:
                raise RequestError(
                    "DATASET_SOURCE is set together with DATASET_TYPE, _SERVER or _PATH; set the one or the others"
                )
            return SourceSpec.parse(whole, parsed_options)
        kind = kind.lower()
        if not kind or not (server or path):
            raise RequestError(
                "no source in the environment; set DATASET_SOURCE (nfs://server/path), or DATASET_TYPE, "
                "DATASET_SERVER and DATASET_PATH"
            )
        if _SCHEMES.get(kind, kind) == "file" and not server:
            return SourceSpec.parse(path, parsed_options)
        if kind == "rclone":
            return SourceSpec.parse(f"rclone:{server.removesuffix(':')}:{path}", parsed_options)
        return SourceSpec.parse(f"{kind}://{server}/{path.lstrip('/')}", parsed_options)

    @property
    def server(self) -> str:
        """Host, servers or bucket; "" of a file source; the remote's name of rclone."""
        if self.kind == "rclone":
            return self.location.partition(":")[0]
        return "" if self.kind == "file" else self.location.partition("/")[0]

    @property
    def path(self) -> str:
        """What is below the server: without a leading "/" of buckets and rclone, else with it."""
        if self.kind == "file":
            return self.location
        if self.kind == "rclone":
            return self.location.partition(":")[2]
        path = self.location.partition("/")[2]
        return path if self.kind in OBJECT_KINDS else f"/{path}"

    def option(self, name: str, default: str = "") -> str:
        """The option NAME, or DEFAULT."""
        return dict(self.options).get(name, default)

    @property
    def canonical(self) -> str:
        """One text for every way to name this source: what a key is made of, and what is shown."""
        identity = _IDENTITY.get(self.kind, frozenset())
        shown_options = ",".join(f"{name}={value}" for name, value in self.options if name in identity)
        text = f"rclone:{self.location}" if self.kind == "rclone" else f"{self.kind}://{self.location}"
        return f"{text}?{shown_options}" if shown_options else text


def option_pairs(where: str, text: str) -> dict[str, str]:
    """Options written as "a=b,c=d"; a name alone is "true", as mount options are.

    Raises:
        RequestError: One stands twice in WHERE, where the text is from.
    """
    pairs: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = pair.partition("=")
        if name.strip() in pairs:
            raise RequestError(f"{where} has {plain(name)[:80]} twice; write it once")
        pairs[name.strip()] = value.strip() or "true"
    return pairs


def dataset_key(spec: SourceSpec, listing_digest: bytes) -> str:
    """The key of one version of a dataset, 64 hexadecimal digits: of its source and its listing's digest."""
    # The scheduler and the controller read sources, too, and have no use for the library.
    from gigaslice.core.dataset.digest import DIGEST_BYTES, hasher  # noqa: PLC0415

    if len(listing_digest) != DIGEST_BYTES:
        raise ValueError(f"a listing's digest has {DIGEST_BYTES} bytes, not {len(listing_digest)}")
    digest = hasher(b"gigaslice dataset 1\n")
    digest.update(listing_digest)
    digest.update(spec.canonical.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _segments(path: str, text: str) -> str:
    """PATH without empty and "." segments."""
    kept = [segment for segment in path.split("/") if segment not in ("", ".")]
    if ".." in kept:
        raise RequestError(f'source {_shown(text)} has the segment ".."; write the path that is meant')
    return "/".join(kept)


def _path(path: str, text: str) -> str:
    if not path.startswith("/"):
        raise RequestError(
            f"source {_shown(text)} needs an absolute path, as in /data/coco or file:///data/coco"
        )
    return "/" + _segments(path, text)


def _remote(kind: str, rest: str, text: str) -> str:
    if "?" in rest or "#" in rest:
        raise RequestError(
            f"source {_shown(text.partition('?')[0].partition('#')[0])} has a query or a fragment, which may be a "
            "signature; write the address without it, credentials go into the Secret of the volume"
        )
    server, _, path = rest.partition("/")
    if not server:
        raise RequestError(f"source {_shown(text)} names no {'bucket' if kind in OBJECT_KINDS else 'server'}")
    if "@" in server and kind != "lustre":  # "10.0.0.1@tcp" is an address of Lustre
        raise RequestError(
            f"source {kind}://…{server.rpartition('@')[2]} carries a user or a password; they go into the "
            "Secret of the volume"
        )
    if kind not in OBJECT_KINDS:
        server = server.lower()
        port = _DEFAULT_PORTS.get(kind)
        server = server.removesuffix(f":{port}") if port else server
    _check_server(kind, server, text)
    if kind in _WEB_KINDS and _goes_up(path):
        raise RequestError(
            f'source {_shown(text)} has the segment "..", written with percent signs; write the path that is meant'
        )
    path = path.rstrip("/") if kind in OBJECT_KINDS else _segments(path, text)
    if kind in OBJECT_KINDS and ".." in path.split("/"):
        raise RequestError(f'source {_shown(text)} has the segment ".."; write the prefix that is meant')
    return f"{server}/{path}" if path else server


def _goes_up(path: str) -> bool:
    """Whether a server could take a segment of PATH as "..": decoded once or more often, or with parameters."""
    while (decoded := unquote(path)) != path:
        path = decoded
    return any(segment.partition(";")[0].strip() == ".." for segment in re.split(r"[/\\]", path))


def _rclone(text: str) -> str:
    remote, divider, path = text.removeprefix("rclone:").partition(":")
    if not divider or not re.fullmatch(r"[\w.+@][\w.+@ -]*", remote):
        raise RequestError(
            f"source {_shown('rclone:' + remote.partition(',')[0])} is not rclone:REMOTE:PATH; "
            "what configures the remote goes into the Secret of the volume"
        )
    rooted = "/" if path.startswith("/") else ""
    return f"{remote}:{rooted}{_segments(path, text)}"


def _options(kind: str, options: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    allowed = _IDENTITY.get(kind, frozenset()) | _READING.get(kind, frozenset()) | _ANY_KIND
    kept: dict[str, str] = {}
    if (length := sum(len(name) + len(value) for name, value in options.items())) > MOST_TEXT:
        raise RequestError(f"the source's options have {length} characters, and may have {MOST_TEXT}")
    for raw, value in options.items():
        name = raw.strip().lower().replace("-", "_")
        if name not in allowed:
            raise RequestError(_no_option(kind, name, allowed))
        if plain(value) != value or "," in value:
            raise RequestError(
                f"option {name} of a {kind} source has characters that it cannot have: {_shown(value)}"
            )
        if name == "manifest" and (value.startswith("/") or _goes_up(value)):
            raise RequestError(
                f"the manifest {_shown(value)} is not below the source; write its path from there"
            )
        if name == "fetchers" and not re.fullmatch(r"[1-9][0-9]{0,2}", value):
            raise RequestError(f"fetchers is {_shown(value)}; write a number from 1 to 256")
        if name == "endpoint":
            value = value.rstrip("/")  # noqa: PLW2901
            if "@" in value or "?" in value:
                raise RequestError("the endpoint carries credentials; they go into the Secret of the volume")
            _check_endpoint(value)
        kept[name] = value
    return tuple(sorted(kept.items()))


def _check_endpoint(value: str) -> None:
    try:
        scheme = ServerUrl.parse(value).scheme
    except ValueError:
        scheme = ""
    if scheme not in ("http", "https"):
        raise RequestError(f"endpoint {_shown(value)} is no address; write it as https://host:port")


def _check_server(kind: str, server: str, text: str) -> None:
    if kind in OBJECT_KINDS:
        if not _BUCKET.fullmatch(server):
            raise RequestError(
                f"source {_shown(text)} names a bucket by characters that no bucket's name has"
            )
        return
    if kind not in _WEB_KINDS | _SHARE_KINDS:
        return
    try:
        for address in server.split(",") if kind == "hdfs" else (server,):
            ServerAddress.parse(address)
    except ValueError:
        raise RequestError(
            f"source {_shown(text)} has no server; write it as {kind}://host/path or {kind}://host:port/path"
        ) from None


def _no_option(kind: str, name: str, allowed: Iterable[str]) -> str:
    if _SECRETS.search(name):
        return f"option {plain(name)} looks like a credential; it goes into the Secret of the volume"
    near = difflib.get_close_matches(name, allowed, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(allowed))}"
    return f"a {kind} source has no option {_shown(name)}; {hint}"


def _no_kind(text: str, kind: str) -> str:
    near = difflib.get_close_matches(kind, KINDS, n=1) if kind else []
    hint = (
        f"did you mean {near[0]}://?"
        if near
        else f"there are {', '.join(sorted(KINDS))}, and plain absolute paths"
    )
    return f"source {_shown(text)} is of no known kind; {hint}"


def _shown(text: str) -> str:
    line = plain(text)
    return f'"{line}"' if len(line) <= 120 else f'"{line[:120]}…"'
