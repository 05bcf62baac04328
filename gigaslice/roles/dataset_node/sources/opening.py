# SPDX-License-Identifier: Apache-2.0
"""Opens the source that a request names, with the credentials that came with it.

The source that is opened says which one it really is (`spec`), and that is what a dataset's key must be made of. A
Secret may have an endpoint, an account or a whole remote: were they no part of the key, a pod could bring a server of
its own under the name of another one's bucket, and leave its bytes in the cache for the other one.
"""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64encode
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from gigaslice.core.dataset.endpoint import ServerAddress, ServerUrl
from gigaslice.core.dataset.errors import RequestError, SourceError
from gigaslice.core.dataset.listing import Entry, EntryKind, Limits, Listing
from gigaslice.core.dataset.pack_manifest import MANIFEST_NAME
from gigaslice.core.dataset.source_spec import MOST_TEXT, MOUNTED_KINDS, RCLONE_KINDS, SourceSpec
from gigaslice.roles.dataset_node.sources.checked_proxy import checked_proxy
from gigaslice.roles.dataset_node.sources.credentials import Credentials
from gigaslice.roles.dataset_node.sources.http_client import HttpClient
from gigaslice.roles.dataset_node.sources.kernel_mounts import KernelMounts
from gigaslice.roles.dataset_node.sources.pack import read_pack
from gigaslice.roles.dataset_node.sources.posix import PosixSource
from gigaslice.roles.dataset_node.sources.protocol import (
    DataSource,
    ImageReader,
    Sink,
    SourceBusyError,
    in_thread,
)
from gigaslice.roles.dataset_node.sources.rclone import RcloneSource
from gigaslice.roles.dataset_node.sources.rclone_remote import remote_of
from gigaslice.roles.dataset_node.sources.retry import backoff
from gigaslice.roles.dataset_node.sources.web_files import WebSource

__all__ = ["OpenedSource", "effective_spec", "open_source"]

_LOCAL_READS = 16
_LIST_TRIES = 5


class OpenedSource:
    """A source with the specification that its dataset's key is made of.

    Listing is tried a few times, since nothing else tries it again; and what turns out to be a prepared pack is read
    as one.

    Args:
        spec: What is really read.
        inner: The source of its kind.
        mounted: What is to be released at the end.
    """

    def __init__(
        self, spec: SourceSpec, inner: DataSource, mounted: tuple[KernelMounts, Path] | None = None
    ) -> None:
        self.spec = spec
        self.image: ImageReader | None = None
        self.inner = inner
        self._mounted = mounted
        self._limits = Limits()

    @property
    def parallel(self) -> int:
        """As the source's, or as its option `fetchers` says."""
        asked = self.spec.option("fetchers")
        return min(int(asked), 256) if asked.isdigit() and int(asked) else self.inner.parallel

    @property
    def weak(self) -> bool:
        """As the source's."""
        return self.inner.weak

    async def list(self, limits: Limits | None = None) -> Listing:
        """As the source's, or the listing of the pack that it has. Without LIMITS, those of the last time hold."""
        self._limits = limits = limits or self._limits
        failures = 0
        while True:
            try:
                return await self._list(limits)
            except SourceError as error:
                failures += 1
                if not error.retry or failures >= _LIST_TRIES:
                    raise
                delay = backoff(failures, error.retry_after if isinstance(error, SourceBusyError) else 0.0)
            await asyncio.sleep(delay)

    async def _list(self, limits: Limits) -> Listing:
        if isinstance(self.inner, WebSource):
            return await self._packed(self.inner.find, limits) or await self.inner.list(limits)
        listing = await self.inner.list(limits)
        top = {
            entry.path: entry
            for entry in listing.entries
            if b"/" not in entry.path and entry.kind is EntryKind.FILE
        }
        if MANIFEST_NAME.encode() not in top:
            return listing
        return await self._packed(lambda name: top.get(name.encode()), limits) or listing

    async def _packed(self, find: Callable[[str], Entry | None], limits: Limits) -> Listing | None:
        what = self.spec.canonical
        packed = await in_thread("dataset-list", lambda _: read_pack(self.inner, find, what, limits))
        if packed is None:
            return None
        self.image, listing = packed
        return listing

    def read_into(self, entry: Entry, offset: int, size: int, sink: Sink) -> None:
        """As the source's."""
        self.inner.read_into(entry, offset, size, sink)

    async def close(self) -> None:
        """Closes the source, and unmounts what no other one has."""
        await self.inner.close()
        if self._mounted is not None:
            mounts, where = self._mounted
            await in_thread("dataset-unmount", lambda _: mounts.release(where))


def effective_spec(spec: SourceSpec, credentials: Credentials) -> SourceSpec:
    """SPEC with what CREDENTIALS say about where the data are: what a key is made of.

    Raises:
        RequestError: The two contradict each other.
    """
    if spec.kind in RCLONE_KINDS:
        identity = remote_of(spec, credentials).identity
        return SourceSpec(spec.kind, f"{identity}@{spec.location}", spec.options)
    options = dict(spec.options)
    for name in {"s3": ("endpoint",), "gs": (), "az": ("endpoint", "account")}.get(spec.kind, ()):
        value = credentials.get(name).rstrip("/")
        if not value:
            continue
        if name == "endpoint" and "://" not in value:
            value = f"https://{value}"
        if options.setdefault(name, value) != value:
            raise RequestError(
                f"{credentials.where} and the options name different values for {name}; remove one of them"
            )
    if sum(len(text) for text in options.values()) > MOST_TEXT:
        raise RequestError(
            f"the endpoint or account in {credentials.where} is too long; write at most {MOST_TEXT} characters"
        )
    if "endpoint" in options:
        _check_endpoint(options["endpoint"], credentials)
    return SourceSpec(spec.kind, spec.location, tuple(sorted(options.items())))


def _check_endpoint(text: str, credentials: Credentials) -> None:
    if "@" in text.partition("://")[2].partition("/")[0]:
        raise RequestError(
            f"the endpoint carries a user or a password; they have keys of their own in {credentials.where}"
        )
    try:
        ServerUrl.parse(text)
    except ValueError:
        raise RequestError(
            f"the endpoint in {credentials.where} or the options is no address; write it as https://host:port"
        ) from None


async def open_source(
    spec: SourceSpec,
    credentials: Credentials | Mapping[str, str],
    *,
    mounts: KernelMounts | None,
    local_addresses: bool = False,
    run_directory: Path | None = None,
) -> OpenedSource:
    """Opens a source. Whether a pod may name it at all is decided before.

    Args:
        spec: Which one.
        credentials: The volume's Secret.
        mounts: For the kinds that the kernel mounts; without it these are refused.
        local_addresses: Whether servers may be at addresses of the node.
        run_directory: Where sockets of helpers are made.

    Raises:
        SourceError: It cannot be opened.
        RequestError: Options or credentials that it cannot be opened with.
    """
    given = credentials if isinstance(credentials, Credentials) else Credentials(credentials)
    really = effective_spec(spec, given)
    if spec.kind == "file":
        return OpenedSource(
            really, await in_thread("dataset-open", lambda _: _directory(spec.location, "/", _LOCAL_READS))
        )
    if spec.kind in MOUNTED_KINDS:
        if mounts is None:
            raise RequestError(f"{spec.canonical} is not mounted here; mount it, and name the directory")
        return await _mounted(spec, given, really, mounts)
    if spec.kind in RCLONE_KINDS:
        remote, proxy = remote_of(spec, given), None
        if not local_addresses:
            named = remote
            remote = await in_thread("dataset-resolve", lambda _: named.at_checked_addresses())
            proxy = await in_thread("dataset-proxy", lambda _: checked_proxy())
        return OpenedSource(
            really, await RcloneSource.open(remote, spec.canonical, directory=run_directory, proxy=proxy)
        )
    if spec.kind in ("http", "https"):
        return OpenedSource(really, _web(spec, given, local=local_addresses))
    from gigaslice.roles.dataset_node.sources.object_stores import object_stores  # noqa: PLC0415  (a library of some MiB)
    from gigaslice.roles.dataset_node.sources.objects import ObjectSource  # noqa: PLC0415

    stores = await in_thread("dataset-open", lambda _: object_stores(really, given, local=local_addresses))
    return OpenedSource(really, ObjectSource(stores, really.path))


def _directory(where: str | Path, below: str | Path, parallel: int) -> PosixSource:
    return PosixSource(Path(where), below=Path(below), parallel=parallel)


async def _mounted(
    spec: SourceSpec, credentials: Credentials, really: SourceSpec, mounts: KernelMounts
) -> OpenedSource:
    where, root = await in_thread("dataset-mount", lambda _: mounts.acquire(spec, credentials))
    try:
        inner = await in_thread("dataset-open", lambda _: _directory(root, where, 64))
    except BaseException:
        await in_thread("dataset-unmount", lambda _: mounts.release(where))
        raise
    return OpenedSource(really, inner, (mounts, where))


def _web(spec: SourceSpec, credentials: Credentials, *, local: bool) -> WebSource:
    headers = {}
    user, password, token = (credentials.get(name) for name in ("user", "password", "token"))
    if credentials.get("authorization"):
        headers["Authorization"] = credentials.get("authorization")
    elif token:
        headers["Authorization"] = f"Bearer {token}"
    elif user or password:
        headers["Authorization"] = "Basic " + b64encode(f"{user}:{password}".encode()).decode()
    if any(not value.isprintable() or not value.isascii() for value in headers.values()):
        raise RequestError(
            f"user, password or token in {credentials.where} has characters that HTTP does not take"
        )
    context = None
    if authority := credentials.get("ca"):
        try:
            context = ssl.create_default_context()
            context.load_verify_locations(cadata=authority)
        except (ssl.SSLError, ValueError):
            raise RequestError(f"ca.crt in {credentials.where} is no certificate in PEM form") from None
    try:
        ServerAddress.parse(spec.server)
    except ValueError:
        raise RequestError(
            f"{spec.canonical} has no server; write it as {spec.kind}://host:port/path"
        ) from None
    base = urlsplit(f"{spec.kind}://{spec.server}")
    client = HttpClient(base, headers, local=local, context=context)
    return WebSource(client, unquote(spec.path), index=spec.option("manifest", "index.json"))
