# SPDX-License-Identifier: Apache-2.0
"""Clients of object stores: how they are made of a source's specification and credentials, and what their errors mean.

obstore takes whatever its configuration lacks from the process's environment and from the machine's metadata service,
which would be the node's rights in a pod's name: so every such value is given, and without credentials requests are not
signed. Its errors quote the server's answers, in which access keys stand: only the kind of failure is taken over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

from obstore import exceptions
from obstore.store import AzureStore, GCSStore, S3Store

from gigaslice.core.dataset.endpoint import ServerUrl
from gigaslice.core.dataset.errors import DatasetError, ListingError, RequestError, SourceError
from gigaslice.core.dataset.listing import Entry, shown
from gigaslice.core.dataset.source_spec import SourceSpec
from gigaslice.core.kube.json_text import read_json
from gigaslice.core.text import plain
from gigaslice.roles.dataset_node.sources.addresses import FORBIDDEN, checked_addresses
from gigaslice.roles.dataset_node.sources.checked_proxy import ProxyPass, checked_proxy
from gigaslice.roles.dataset_node.sources.credentials import Credentials
from gigaslice.roles.dataset_node.sources.object_connections import keep_to_checked, permit
from gigaslice.roles.dataset_node.sources.panics import LibraryPanicError, panics_raised
from gigaslice.roles.dataset_node.sources.protocol import SourceBusyError, changed

__all__ = ["FAILURES", "ObjectStores", "object_stores"]

FAILURES = (exceptions.BaseError, LibraryPanicError, ValueError)
"""What calls of obstore raise, within `panics_raised`: `ObjectStores.failure` knows what each means."""

_CONNECT, _REQUEST = timedelta(seconds=10), timedelta(minutes=10)
_TRIED_FOR = timedelta(seconds=90)
_WRITTEN = timedelta(minutes=30)  # one request; of a part of 840 MiB at half a MiB a second
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,40})</Code>")
_FORBIDDEN_HERE = re.compile(r"\b(?:code: |os error )13\b")  # EACCES, of object_connections
_WORD = re.compile(r"[!-~]{0,65536}")
_TENANT = re.compile(r"[A-Za-z0-9.-]{0,253}")
_BAD_KEY = re.compile(r'\bpath: "((?:[^"\\]|\\.)*)"')
_REFUSED = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)
_UNSIGNED = frozenset(("UnsupportedAlgorithm", "MissingSecurityHeader", "AuthorizationHeaderMalformed",
                       "MissingAuthenticationToken", "NoAuthenticationInformation"))  # fmt: skip
"""What servers call a request that is not signed, other than refused."""
_NO_PASS = 407
_BUSY = frozenset((429, 503))
_ACCOUNT_KEYS = ("type", "project_id", "private_key_id", "private_key", "client_email", "client_id")


class ObjectStores:
    """Makes clients of one bucket or container.

    Args:
        make: Makes a client: how often it tries a request again, and whether it writes.
        what: How the bucket is called in texts.
        where: How the place that the credentials came from is called.
        proxy: Their pass for the proxy that the clients connect through; None: they connect by themselves.
        signed: Whether there are credentials that requests go with.
    """

    def __init__(
        self,
        make: Callable[[int, bool], Any],
        what: str,
        where: str,
        proxy: ProxyPass | None = None,
        *,
        signed: bool = True,
    ) -> None:
        self._make = make
        self.what = what
        self._where = where
        self._proxy = proxy
        self._signed = signed

    def close(self) -> None:
        """Has the clients connect no more."""
        if self._proxy is not None:
            self._proxy.withdraw()

    def client(self, tries: int, *, writing: bool = False) -> Any:
        """A client for reading, or one for writing, whose requests may take as long as a large part needs."""
        return self._make(tries, writing)

    def failure(self, error: Exception, subject: str, entry: Entry | None = None) -> DatasetError:
        """What an error of obstore's means, without anything that the server said but its code.

        Args:
            error: What was raised.
            subject: What was asked for.
            entry: The file, where one was read.
        """
        if self._proxy is not None and (refusal := self._proxy.refused()) is not None:
            return refusal
        if isinstance(error, LibraryPanicError):
            return SourceError(
                f"the client of {self.what} has failed for {subject}; check bucket, endpoint and credentials"
            )
        text = str(error)
        match = _STATUS.search(text)
        status = int(match[1]) if match else 0
        coded = _CODE.search(text)
        code = f" ({coded[1]})" if coded else ""
        if (
            self._proxy is not None and status == _NO_PASS
        ):  # the client leaves it out when it is sent elsewhere
            return SourceError(
                f"{self.what} redirects to another server; name the endpoint that has the data"
            )
        if not status and _FORBIDDEN_HERE.search(text):
            return SourceError(f"{self.what}, or where it redirects to, {FORBIDDEN}")
        refused = status in (401, 403) or isinstance(error, _REFUSED)
        if not self._signed and (refused or (coded and coded[1] in _UNSIGNED)):
            return SourceError(
                f"{self.what} refuses {subject} to requests without credentials{code}; "
                f"{self._where} has none that are used: add them, and leave the option anonymous out",
                denied=True,
            )
        if refused:
            return SourceError(
                f"{self.what} refuses {subject}{code}; check the credentials in {self._where}",
                denied=True,
            )
        if status in _BUSY:
            return SourceBusyError(f"{self.what} is busy (status {status} for {subject})")
        if status == 416 and entry is not None:
            return changed(entry.path, "became shorter")
        if status:
            return SourceError(
                f"{self.what} answers {subject} with status {status}{code}; check bucket, region and endpoint",
                retry=status >= 500 or status == 408,
            )
        if isinstance(error, exceptions.InvalidPathError):
            name = _BAD_KEY.search(text)
            bad = f": {shown(name[1].encode())}" if name else ""
            return ListingError(f"{self.what} has an object whose key is no path of a file{bad}; rename it")
        if isinstance(error, exceptions.NotSupportedError) or "NotPartial" in text:
            return SourceError(f"{self.what} gives no ranges of objects; use a server that does")
        return SourceError(
            f"{self.what} does not answer for {subject}; look after the network, and check the endpoint",
            retry=True,
        )


def object_stores(
    spec: SourceSpec, credentials: Credentials, *, local: bool, silence: timedelta = timedelta(seconds=30)
) -> ObjectStores:
    """The clients of an effective SPEC of kind s3, gs or az. Blocking: names are resolved.

    Args:
        spec: What they are of.
        credentials: Of the volume's Secret.
        local: Whether the endpoint may be at an address of the node.
        silence: After that long without a byte a read is given up.

    Raises:
        RequestError: Options or credentials that contradict each other.
        SourceError: An endpoint that may not be used.
    """
    build_of = {"s3": _s3, "gs": _gs, "az": _az}[spec.kind]
    endpoint, signed, build = build_of(spec, credentials)
    try:
        parts = ServerUrl.parse(endpoint)
    except ValueError:
        parts = None
    if parts is None or parts.scheme not in ("http", "https"):
        raise RequestError(f"endpoint {plain(endpoint)!r} is no address; write it as https://host:port")
    host = parts.server.host
    through: ProxyPass | None = None
    if local:
        permit(host)
    else:
        # said at once, where it would else be said after tries; what counts is what is connected to
        checked_addresses(host, 0)
        if not keep_to_checked():
            through = checked_proxy().issue()

    def make(tries: int, writing: bool) -> Any:
        # the silence is counted from the beginning of a request, and a server is silent while it is sent a part
        client: dict[str, Any] = {
            "allow_http": parts.scheme == "http",
            "connect_timeout": _CONNECT,
            "read_timeout": _WRITTEN if writing else silence,
            "timeout": _WRITTEN if writing else _REQUEST,
            "user_agent": "gigaslice",
        }
        retry = {"max_retries": tries, "retry_timeout": _WRITTEN if writing else _TRIED_FOR}
        if through is not None:
            client["proxy_url"] = through.url
        if authority := credentials.get("ca"):
            client["root_certificate"] = authority
        try:
            with panics_raised():
                return build(client_options=client, retry_config=retry)
        except (*FAILURES, TypeError):
            raise RequestError(
                f"the credentials for {spec.canonical} cannot be used; check {credentials.where}"
            ) from None

    return ObjectStores(make, f"{spec.kind}://{spec.server}", credentials.where, through, signed=signed)


def _word(credentials: Credentials, name: str) -> str:
    """The value for NAME, which goes into a header or an address as it is."""
    value = credentials.get(name)
    if not _WORD.fullmatch(value):
        raise RequestError(
            f"{name} in {credentials.where} has characters that it cannot have; write it anew, as one line of ASCII"
        )
    return value


_Built = tuple[str, bool, Callable[..., Any]]
"""The endpoint, whether requests are signed, and what makes a client."""


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
    key, secret = _word(credentials, "access_key"), credentials.get("secret_key")
    if bool(key) != bool(secret):
        raise RequestError(
            f"{credentials.where} has only one of access_key and secret_key; it must have both or none"
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
    token = _word(credentials, "session_token") or None

    def given() -> Any:
        return {"access_key_id": key, "secret_access_key": secret, "token": token, "expires_at": None}

    provider: Any = None if anonymous else given
    return endpoint, not anonymous, partial(S3Store, spec.server, config=config, credential_provider=provider)


def _gs(spec: SourceSpec, credentials: Credentials) -> _Built:
    endpoint = spec.option("endpoint") or "https://storage.googleapis.com"
    account, token = credentials.get("service_account"), _word(credentials, "token")
    config: Any = {"base_url": endpoint, "skip_signature": True}
    if account and not _flag(spec, "anonymous"):
        try:
            document = read_json(account)
            # other keys of the file name servers, and would send the credentials and the requests to them
            kept = {name: str(document[name]) for name in _ACCOUNT_KEYS if name in document}
        except (ValueError, TypeError):
            raise RequestError(
                f"the service account in {credentials.where} is no JSON key file of Google Cloud"
            ) from None
        config = {"base_url": endpoint, "service_account_key": json.dumps(kept), "skip_signature": False}
    elif token and not _flag(spec, "anonymous"):
        config = {"base_url": endpoint, "bearer_token": token, "skip_signature": False}
    return endpoint, not config["skip_signature"], partial(GCSStore, spec.server, config=config)


def _az(spec: SourceSpec, credentials: Credentials) -> _Built:
    account = spec.option("account")
    if not re.fullmatch(r"[a-z0-9]{3,24}", account):
        raise RequestError(
            f"{spec.canonical} needs the storage account; give the option account, or account in {credentials.where}"
        )
    endpoint = spec.option("endpoint") or f"https://{account}.blob.core.windows.net"
    config: Any = {"account_name": account, "endpoint": endpoint, "use_emulator": False}
    names = {
        "account_key": ("account_key", "access_key"),
        "sas_token": ("sas_key", "sas_token"),
        "token": ("token", "bearer_token"),
        "client_secret": ("client_secret", "client_secret"),
    }  # what obstore calls the value, and the kind of credential
    given = next((name for name in names if credentials.get(name)), "")
    if given and not _flag(spec, "anonymous"):
        key, kind = names[given]
        config |= {key: _word(credentials, given), "credential_type": kind, "skip_signature": False}
        if given == "client_secret":
            tenant = _word(credentials, "tenant_id")
            if not _TENANT.fullmatch(tenant):
                raise RequestError(f"tenant_id in {credentials.where} is no name of a tenant")
            config |= {"client_id": _word(credentials, "client_id"), "tenant_id": tenant,
                       "authority_host": "https://login.microsoftonline.com"}  # fmt: skip
    else:
        config["skip_signature"] = True
    return endpoint, not config["skip_signature"], partial(AzureStore, spec.server, config=config)
