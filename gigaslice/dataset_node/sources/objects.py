"""Object stores as sources: S3 and what speaks its protocol, Google Cloud Storage, Azure Blob Storage, by obstore.

obstore's requests run without the interpreter's lock, and its connections, signatures and pages of listings are tested
by more people than ours would be. Three things of it are not wanted here, and are switched off. It takes whatever its
configuration lacks from the process's environment and from the machine's metadata service, which would be the node's
rights in a pod's name: so every such value is given, and without credentials requests are not signed. It retries
without regard to what else waits: reads are retried by the fetch. And its errors quote the server's answers, in which
access keys stand: only the kind of failure is taken over.

A read names the ETag of the listing (If-Match), and the answer's ETag and size are compared as well, since not every
server heeds the condition.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import obstore
from obstore import exceptions
from obstore.store import AzureStore, GCSStore, S3Store

from gigaslice.dataset.errors import DatasetError, ListingError, RequestError, SourceError
from gigaslice.dataset.listing import Entry, EntryKind, Limits, Listing, shown
from gigaslice.dataset.source_spec import SourceSpec
from gigaslice.dataset_node.sources.addresses import refuse_local
from gigaslice.dataset_node.sources.credentials import Credentials
from gigaslice.dataset_node.sources.seam import Sink, SourceBusyError, Stop, changed, in_thread
from gigaslice.text import plain

__all__ = ["ObjectSource", "object_source"]

_STREAMED = 2 << 20  # larger ranges come in chunks, so that 64 of them do not fill the memory
_CHUNK = 1 << 20
_PAGE = 1000
_CONNECT, _SILENCE, _REQUEST = timedelta(seconds=10), timedelta(seconds=30), timedelta(minutes=10)
_LIST_TRIES, _LIST_FOR = 6, timedelta(seconds=90)
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,40})</Code>")
_BAD_KEY = re.compile(r'\bpath: "((?:[^"\\]|\\.)*)"')
_REFUSED = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)
_BUSY = frozenset((429, 503))
_ACCOUNT_KEYS = ("type", "project_id", "private_key_id", "private_key", "client_email", "client_id")


class ObjectSource:
    """The objects below PREFIX, or the one object of that name.

    Args:
        store: Makes a client that tries as often as it is told.
        prefix: Without a last "/".
        what: How the store is called in texts.
        parallel: How many reads at once.
    """

    def __init__(self, store: Callable[[int], Any], prefix: str, what: str, *, parallel: int = 64) -> None:
        self.parallel = parallel
        self.image = None
        self.weak = False
        self._reading = store(0)
        self._listing = store(_LIST_TRIES)
        self._prefix = prefix.strip("/")
        self._what = what
        self._single = False

    async def list(self, limits: Limits = Limits()) -> Listing:  # noqa: B008  (frozen)
        """Lists every object below the prefix. Raises as `DataSource.list`."""
        return await in_thread("dataset-list", lambda stop: self._list(limits, stop))

    def _list(self, limits: Limits, stop: Stop) -> Listing:
        found: list[Entry] = []
        text = 0
        try:
            for page in obstore.list(self._listing, self._prefix or None, chunk_size=_PAGE):
                entries = [self._entry(one) for one in page]
                found += entries
                text += sum(len(one.path) + len(one.version) for one in entries)
                limits.check(len(found), text)
                if stop:
                    break
            if not found and self._prefix:
                one = self._listing.head(self._prefix)
                self._single = True
                found.append(self._entry(one))
        except FileNotFoundError:
            raise SourceError(
                f"{self._what} has nothing at {shown(self._prefix.encode())}; check bucket and prefix"
            ) from None
        except (exceptions.BaseError, ValueError, OSError) as error:
            raise self._failure(error, "the listing", None) from None
        return Listing.of(_without_markers(found), limits)

    def _entry(self, one: Any) -> Entry:
        path = str(one["path"])
        name = (
            path.rpartition("/")[2] if self._single else path[len(self._prefix) + 1 if self._prefix else 0 :]
        )
        version = _quoted(one.get("e_tag")) or plain(
            str(one.get("version") or f"{one['size']}:{one['last_modified'].timestamp():.6f}")
        )
        return Entry(name.encode("utf-8", "surrogatepass"), EntryKind.FILE, int(one["size"]), version)

    def read_into(self, entry: Entry, offset: int, size: int, sink: Sink) -> None:
        """Reads a range of an object. Raises as `DataSource.read_into`."""
        key = self._prefix if self._single else "/".join(filter(None, (self._prefix, entry.path.decode())))
        tag = entry.version if entry.version.endswith('"') else ""
        # a weak tag matches no condition, and is compared all the same
        options: dict[str, Any] = {"if_match": tag} if tag.startswith('"') else {}
        if size != entry.size:
            options["range"] = (offset, offset + size)
        try:
            answer = obstore.get(self._reading, key, options=options)  # type: ignore[arg-type]
            self._check(answer, entry, (offset, size), tag)
            at = 0
            chunks = (answer.bytes(),) if size <= _STREAMED else answer.stream(min_chunk_size=_CHUNK)
            for data in chunks:
                if at + len(data) > size:
                    raise changed(entry.path, "became longer")
                sink(offset + at, memoryview(data))
                at += len(data)
        except FileNotFoundError:
            raise changed(entry.path, "was removed") from None
        except exceptions.PreconditionError:
            raise changed(entry.path, "was changed") from None
        except (exceptions.BaseError, ValueError) as error:
            raise self._failure(error, shown(entry.path), entry) from None
        if at < size:
            raise SourceError(
                f"{self._what} ended {shown(entry.path)} after {at} of {size} bytes", retry=True
            )

    def _check(self, answer: Any, entry: Entry, span: tuple[int, int], tag: str) -> None:
        offset, size = span
        meta = answer.meta
        if meta["size"] != entry.size:
            raise changed(entry.path, f"changed its size from {entry.size} to {meta['size']} bytes")
        if tag and meta["e_tag"] and _quoted(meta["e_tag"]) != tag:
            raise changed(entry.path, "was changed")
        if tuple(answer.range) != (offset, offset + size):
            raise SourceError(
                f"{self._what} gives another range of {shown(entry.path)} than asked", retry=True
            )

    def _failure(self, error: Exception, subject: str, entry: Entry | None) -> DatasetError:
        text = str(error)
        found = _STATUS.search(text)
        status = int(found[1]) if found else 0
        coded = _CODE.search(text)
        code = f" ({coded[1]})" if coded else ""
        if status in (401, 403) or isinstance(error, _REFUSED):
            return SourceError(
                f"{self._what} refuses {subject}{code}; check the credentials in the volume's nodePublishSecretRef",
                denied=True,
            )
        if status in _BUSY:
            return SourceBusyError(f"{self._what} is busy (status {status} for {subject})")
        if status == 416 and entry is not None:
            return changed(entry.path, "became shorter")
        if status:
            return SourceError(
                f"{self._what} answers {subject} with status {status}{code}; check bucket, region and endpoint",
                retry=status >= 500 or status == 408,
            )
        if isinstance(error, exceptions.InvalidPathError):
            name = _BAD_KEY.search(text)
            bad = f": {shown(name[1].encode())}" if name else ""
            return ListingError(f"{self._what} has an object whose key is no path of a file{bad}; rename it")
        if isinstance(error, exceptions.NotSupportedError) or "NotPartial" in text:
            return SourceError(f"{self._what} gives no ranges of objects; use a server that does")
        return SourceError(
            f"{self._what} does not answer for {subject}; look after the network, and check the endpoint",
            retry=True,
        )

    async def close(self) -> None:
        """Connections end with the object."""


def _quoted(tag: str | None) -> str:
    """An ETag in its quotes, which some servers leave out of listings."""
    if not tag:
        return ""
    return plain(tag) if tag.endswith('"') else f'"{plain(tag)}"'


def _without_markers(found: list[Entry]) -> list[Entry]:
    """FOUND with empty objects that only stand for a directory made directories: consoles of stores create such."""
    parents: set[bytes] = set()
    for entry in found:
        parent = entry.path.rpartition(b"/")[0]
        while parent and parent not in parents:
            parents.add(parent)
            parent = parent.rpartition(b"/")[0]
    return [
        Entry(one.path, EntryKind.DIRECTORY) if not one.size and one.path in parents else one
        for one in found
        if one.path
    ]


def object_source(spec: SourceSpec, credentials: Credentials, *, local: bool) -> ObjectSource:
    """The source of an effective SPEC of kind s3, gs or az.

    Raises:
        RequestError: Options or credentials that contradict each other.
        SourceError: An endpoint that may not be read from.
    """
    make = {"s3": _s3, "gs": _gs, "az": _az}[spec.kind]
    endpoint, build = make(spec, credentials)
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise RequestError(f"endpoint {plain(endpoint)!r} is no address; write it as https://host:port")
    if not local:
        refuse_local(parts.hostname, parts.port or (443 if parts.scheme == "https" else 80))
    client: dict[str, Any] = {
        "allow_http": parts.scheme == "http",
        "connect_timeout": _CONNECT,
        "read_timeout": _SILENCE,
        "timeout": _REQUEST,
        "user_agent": "gigaslice",
    }
    if authority := credentials.get("ca"):
        client["root_certificate"] = authority

    def store(tries: int) -> Any:
        try:
            return build(client, {"max_retries": tries, "retry_timeout": _LIST_FOR})
        except (exceptions.BaseError, ValueError, TypeError):
            raise RequestError(
                f"the credentials for {spec.canonical} cannot be used; check the volume's Secret"
            ) from None

    return ObjectSource(store, spec.path, f"{spec.kind}://{spec.server}")


_Built = tuple[str, Callable[[Any, Any], Any]]


def _flag(spec: SourceSpec, name: str) -> bool:
    value = spec.option(name, "false").lower()
    if value not in ("true", "false"):
        raise RequestError(f"option {name} is {value!r}; write true or false")
    return value == "true"


def _s3(spec: SourceSpec, credentials: Credentials) -> _Built:
    region = spec.option("region") or credentials.get("region") or "us-east-1"
    if not re.fullmatch(r"[A-Za-z0-9-]{1,64}", region):
        raise RequestError(f"region {plain(region)!r} is no name of a region")
    endpoint = spec.option("endpoint") or f"https://s3.{region}.amazonaws.com"
    key, secret = credentials.get("access_key"), credentials.get("secret_key")
    if bool(key) != bool(secret):
        raise RequestError(
            "the volume's Secret has only one of access_key and secret_key; it must have both or none"
        )
    anonymous = _flag(spec, "anonymous") or not key
    hosted = spec.option("path_style", "true").lower() == "false"
    if hosted and not spec.option("endpoint"):
        endpoint = f"https://{spec.server}.s3.{region}.amazonaws.com"
    config: Any = {
        "aws_endpoint_url_s3": endpoint,
        "region": region,
        "virtual_hosted_style_request": hosted,
        "skip_signature": anonymous,
        "request_payer": _flag(spec, "request_payer"),
    }
    token = credentials.get("session_token") or None

    def given() -> Any:
        return {"access_key_id": key, "secret_access_key": secret, "token": token, "expires_at": None}

    provider: Any = None if anonymous else given
    return endpoint, lambda client, retry: S3Store(
        spec.server,
        config=config,
        client_options=client,
        retry_config=retry,
        credential_provider=provider,
    )


def _gs(spec: SourceSpec, credentials: Credentials) -> _Built:
    endpoint = spec.option("endpoint") or "https://storage.googleapis.com"
    account, token = credentials.get("service_account"), credentials.get("token")
    config: Any = {"base_url": endpoint, "skip_signature": True}
    if account and not _flag(spec, "anonymous"):
        try:
            found = json.loads(account)
            # other keys of the file name servers, and would send the credentials and the requests to them
            kept = {name: str(found[name]) for name in _ACCOUNT_KEYS if name in found}
        except (ValueError, TypeError):
            raise RequestError("the Secret's service account is no JSON key file of Google Cloud") from None
        config = {"base_url": endpoint, "service_account_key": json.dumps(kept), "skip_signature": False}
    elif token and not _flag(spec, "anonymous"):
        config = {"base_url": endpoint, "bearer_token": token, "skip_signature": False}
    return endpoint, lambda client, retry: GCSStore(
        spec.server,
        config=config,
        client_options=client,
        retry_config=retry,
    )


def _az(spec: SourceSpec, credentials: Credentials) -> _Built:
    account = spec.option("account")
    if not re.fullmatch(r"[a-z0-9]{3,24}", account):
        raise RequestError(
            "an az source needs the storage account; give the option account, or account in the Secret"
        )
    endpoint = spec.option("endpoint") or f"https://{account}.blob.core.windows.net"
    config: Any = {"account_name": account, "endpoint": endpoint, "use_emulator": False}
    names = {
        "account_key": "account_key",
        "sas_token": "sas_key",
        "token": "token",
        "client_secret": "client_secret",
    }
    kinds = {"account_key": "access_key", "sas_token": "sas_token", "token": "bearer_token",
             "client_secret": "client_secret"}  # fmt: skip
    given = next((one for one in names if credentials.get(one)), "")
    if given and not _flag(spec, "anonymous"):
        config |= {
            names[given]: credentials.get(given),
            "credential_type": kinds[given],
            "skip_signature": False,
        }
        if given == "client_secret":
            config |= {"client_id": credentials.get("client_id"), "tenant_id": credentials.get("tenant_id"),
                       "authority_host": "https://login.microsoftonline.com"}  # fmt: skip
    else:
        config["skip_signature"] = True
    return endpoint, lambda client, retry: AzureStore(
        spec.server,
        config=config,
        client_options=client,
        retry_config=retry,
    )
